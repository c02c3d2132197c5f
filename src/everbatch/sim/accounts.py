"""What happened in a run: counters and one record a request, folded from events.

A request that only decodes costs nothing here: gaps between tokens are counted by step, not by
request. Times are those of the events, in the clock's own integers. A request with n > 1 has a
record for each sample besides, from its arrival on; its own is their sum. Where nobody wants the
part of each request, a record goes when its request ends. Called by the run loop; read by the
summary.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from everbatch.base.events import (
    Admitted,
    Arrived,
    Decoding,
    Event,
    Finished,
    Preempted,
    SampleFinished,
    StepRan,
    StepsRan,
)
from everbatch.base.sample_ids import sample_ids
from everbatch.scheduler.request import Request
from everbatch.scheduler.scheduler import Scheduler
from everbatch.sim.latencies import Latencies, LongestGaps, StreamTimes
from everbatch.sim.records import RequestRecord
from everbatch.workload.requests import RequestSpec
from everbatch.workload.run_sections import Goals

QUEUE_EMPTY = "queue_empty"
DROPPING = ("abort", "error")
"""Whoever ends so while a pass runs does not get what it sampled."""


@dataclass(slots=True)
class Counters:
    """Sums over the steps of a run."""

    steps: int = 0
    """Passes; on the clock of steps ticks, idle ones included."""
    now: int = 0
    """The boundary up to which all is counted."""
    useful_tokens: int = 0
    scheduled_tokens: int = 0
    num_preemptions: int = 0
    peak_blocks: int = 0
    prefix_cache_hit_tokens: int = 0
    masked_slot_iterations: int = 0
    idle_slot_iterations: dict[str, int] = field(default_factory=dict)
    busy_time: int = 0
    """In which a pass ran."""
    held_slot_time: int = 0
    """Sum over the passes of their duration times the slots that were held."""
    used_block_time: int = 0
    step_times: dict[int, list[int]] = field(default_factory=dict)
    """[passes, their time] by the number of binary digits of their tokens."""
    num_arrived: int = 0
    last_arrival: int = 0
    waiting_at_last_arrival: int = 0
    num_rejected: int = 0
    first_rejection: str | None = None
    failed_steps: int = 0
    num_finished: dict[str, int] = field(default_factory=dict)
    """By finish reason."""


class Accounts:
    """Folds events into counters and records."""

    def __init__(self, goals: Goals, *, keeps_requests: bool = True) -> None:
        self.counters = Counters()
        self.records: dict[str, RequestRecord] = {}
        """Of all that are known, or of the live ones alone."""
        self.token_gaps: dict[float, int] = {}
        """How often each time between two tokens of one request came."""
        self.goals = goals
        self._keeps_requests = keeps_requests
        self._streams: dict[str, RequestRecord] = {}
        """By every id that events name: requests and samples."""
        self._ended = Latencies()
        self._recomputed_tokens = 0
        self._output_tokens = 0
        """Both of those that have ended."""
        self._last_pass_end = 0
        self._pass_end_before = 0
        """That of the pass before the last one."""
        self._longest_gaps = LongestGaps() if "itl" in goals else None
        self._is_meanwhile = False
        """Whether what is told now happened while a step ran, of which was told just before."""

    def expect(self, spec: RequestSpec) -> None:
        """A request is known, and has perhaps not come yet."""
        if spec.id not in self.records:
            self.records[spec.id] = self._streams[spec.id] = RequestRecord(spec)

    def fold(self, events: Iterable[Event]) -> None:
        """Count events, in order."""
        self._is_meanwhile = False
        for event in events:
            fold = _FOLDS.get(type(event))
            if fold is not None:
                fold(self, event)

    def fold_steps(self, steps: StepsRan) -> None:
        """Count steps that are told together."""
        counters, gaps, durations = self.counters, self.token_gaps, steps.durations
        first_end, end = steps.ends[1], steps.ends[-1]
        for request_id in steps.joined:
            self._join(self._streams[request_id], first_end)
        gap = first_end - self._last_pass_end
        num_stayed = steps.decodes - len(steps.joined)
        if num_stayed:
            gaps[gap] = gaps.get(gap, 0) + num_stayed
        later, num_later = durations[1:], len(durations) - 1
        if num_later and later.count(gap) == num_later:
            # Where nothing but tokens takes time, steps of the same decodes are alike.
            gaps[gap] = gaps.get(gap, 0) + num_later * steps.decodes
        else:
            for duration in later:
                gaps[duration] = gaps.get(duration, 0) + steps.decodes
        if self._longest_gaps is not None:
            for pass_end, pass_gap in zip(steps.ends[1:], (gap, *later), strict=True):
                self._longest_gaps.add(pass_end, pass_gap)
        self._pass_end_before = steps.ends[-2] if len(durations) > 1 else self._last_pass_end
        self._last_pass_end = end
        num_tokens = steps.decodes * len(durations)
        duration = end - steps.ends[0]
        counters.busy_time += duration
        self._note_step_times(steps.decodes, len(durations), duration)
        counters.useful_tokens += num_tokens
        counters.scheduled_tokens += num_tokens
        self._fold_blocks(steps)

    def note_rejected(self, request_id: str, message: str) -> None:
        """A request was refused at arrival: it has ended without a reason to finish."""
        record = self.records[request_id]
        record.rejected, record.state = message, "FINISHED"
        self.counters.num_arrived += 1
        self.counters.num_rejected += 1
        if self.counters.first_rejection is None:
            self.counters.first_rejection = f"{request_id} was refused: {message}"
        self._end(record)

    def note_idle(self, cause: str, slot_iterations: int) -> None:
        """So many slots were empty for a step, or one for so many."""
        if slot_iterations:
            idle = self.counters.idle_slot_iterations
            idle[cause] = idle.get(cause, 0) + slot_iterations

    def settle(self, scheduler: Scheduler) -> None:
        """Bring the records of live requests up to date, at a boundary; O(live requests)."""
        for request in scheduler.state.requests.values():
            record = self._streams[request.id]
            record.state = request.status.value
            _, record.output_tokens = scheduler.progress(request)
            record.recomputed_tokens = request.num_recomputed_tokens
        for group in scheduler.state.groups.values():
            self.records[group.id].sum_up()

    def latencies(self, live: Iterable[RequestRecord]) -> Latencies:
        """Give the times of all requests up to now; the records are settled."""
        told = self._ended.copy()
        for record in live:
            told.add(record, map(self._times_of, record.streams), self.goals)
        return told

    def recomputed_tokens(self, live: Iterable[RequestRecord]) -> int:
        """Give the tokens computed again up to now; the records are settled."""
        return self._recomputed_tokens + sum(record.recomputed_tokens for record in live)

    def output_tokens(self, live: Iterable[RequestRecord]) -> int:
        """Give the tokens that requests got up to now; the records are settled."""
        return self._output_tokens + sum(record.output_tokens for record in live)

    def live(self, scheduler: Scheduler) -> list[RequestRecord]:
        """Give the records of the requests that live, in order of arrival."""
        ids = dict.fromkeys(map(_request_id, scheduler.state.requests.values()))
        return [self.records[request_id] for request_id in ids]

    def _times_of(self, stream: RequestRecord) -> StreamTimes:
        last = stream.last_token_at if stream.decodes_since is None else self._last_pass_end
        return StreamTimes(stream.tpot(last), self._longest_gap(stream))

    def _longest_gap(self, stream: RequestRecord) -> int:
        if self._longest_gaps is None or stream.decodes_since is None:
            return stream.longest_gap
        return max(stream.longest_gap, self._longest_gaps.since(stream.decodes_since))

    def _end(self, record: RequestRecord) -> None:
        """A request has ended: its figures are final."""
        if record.samples:
            record.sum_up()
        self._ended.add(record, map(self._times_of, record.streams), self.goals)
        self._recomputed_tokens += record.recomputed_tokens
        self._output_tokens += record.output_tokens
        if not self._keeps_requests:
            del self.records[record.spec.id]
            self._streams.pop(record.spec.id, None)
            for sample_id in record.samples:
                del self._streams[sample_id]

    def _fold_arrived(self, event: Arrived) -> None:
        self.counters.num_arrived += 1
        if event.samples > 1:
            record = self.records[event.id]
            for sample in sample_ids(event.id, event.samples):
                record.samples[sample] = RequestRecord(record.spec)
            self._streams.update(record.samples)

    def _fold_step(self, event: StepRan) -> None:
        counters, gaps, streams = self.counters, self.token_gaps, self._streams
        for request_id, _, _ in event.chunks:
            if streams[request_id].started_at is None:
                self._start(streams[request_id], event.start)
        for request_id in event.left:
            self._stop_decoding(streams[request_id])
        for request_id in event.joined:
            self._join(streams[request_id], event.t)
        gap = event.t - self._last_pass_end
        num_stayed = event.decodes - len(event.joined)
        if num_stayed:
            gaps[gap] = gaps.get(gap, 0) + num_stayed
        self._pass_end_before, self._last_pass_end = self._last_pass_end, event.t
        if self._longest_gaps is not None:
            self._longest_gaps.add(event.t, gap)
        duration = event.t - event.start
        counters.busy_time += duration
        self._note_step_times(event.tokens, 1, duration)
        counters.useful_tokens += event.emitted
        counters.scheduled_tokens += event.tokens
        self._is_meanwhile = True

    def _note_step_times(self, num_tokens: int, num_steps: int, duration: int) -> None:
        """Count passes of so many tokens each, which took so long together."""
        digits, step_times = num_tokens.bit_length(), self.counters.step_times
        times = step_times.get(digits)
        if times is None:
            step_times[digits] = [num_steps, duration]
        else:
            times[0] += num_steps
            times[1] += duration

    def _fold_blocks(self, steps: StepsRan) -> None:
        """Count for how long blocks were held, those taken meanwhile from their steps on."""
        ends, first_step, num_used = steps.ends, steps.step, steps.used_blocks
        held = num_used * (ends[-1] - ends[0])
        for step, blocks, _, _ in steps.changes:
            num_taken = len(blocks)
            num_used += num_taken
            held += num_taken * (ends[-1] - ends[step - first_step])
        self.counters.used_block_time += held
        self.counters.peak_blocks = max(self.counters.peak_blocks, num_used)

    def _join(self, record: RequestRecord, now: int) -> None:
        """Note the first token that a stream got as a member of the decode set."""
        assert record.last_token_at is not None, "a request decodes without a first token"
        gap = now - record.last_token_at
        self.token_gaps[gap] = self.token_gaps.get(gap, 0) + 1
        record.longest_gap = max(record.longest_gap, gap)
        record.decodes_since = now

    def _start(self, record: RequestRecord, now: int) -> None:
        """Note the first token of a prompt: all samples start with it."""
        for stream in self.records[record.spec.id].streams:
            stream.started_at = now

    def _fold_admitted(self, event: Admitted) -> None:
        record = self._streams[event.id]
        if not event.resumed:
            record.cached_tokens = event.cached_tokens
            self.counters.prefix_cache_hit_tokens += event.cached_tokens
        self._end_preempted_wait(record, event.t)

    def _fold_preempted(self, event: Preempted) -> None:
        if event.slot is None:
            # Who waits already lost what it had kept: it was counted when it yielded.
            return
        record = self._streams[event.id]
        self._stop_decoding(record)
        record.num_preemptions += 1
        record.preempted_at = event.t
        self.counters.num_preemptions += 1

    def _fold_decoding(self, event: Decoding) -> None:
        if event.emitted:
            record = self._streams[event.id]
            record.first_token_at = record.last_token_at = event.t

    def _fold_finished(self, event: Finished) -> None:
        self._fold_ended(event)
        reasons = self.counters.num_finished
        reasons[event.reason] = reasons.get(event.reason, 0) + 1
        self._end(self.records[event.id])

    def _fold_ended(self, event: Finished | SampleFinished) -> None:
        record = self._streams[event.id]
        if self._is_meanwhile and event.reason in DROPPING:
            self._drop_last_token(record)
        self._stop_decoding(record)
        self._end_preempted_wait(record, event.t)
        if event.output_tokens and record.first_token_at is None and not record.samples:
            # The first output was the last: it never decoded.
            record.first_token_at = record.last_token_at = event.t
        record.state, record.finish_reason = "FINISHED", event.reason
        record.finished_at = event.t
        record.output_tokens = event.output_tokens
        record.recomputed_tokens = event.recomputed_tokens

    def _drop_last_token(self, record: RequestRecord) -> None:
        """Take back that a stream which decodes got a token of the last pass."""
        if record.decodes_since is None:
            return
        if record.decodes_since < self._last_pass_end:
            record.last_token_at = self._pass_end_before
        assert record.last_token_at is not None, "a request decodes without a first token"
        gap = self._last_pass_end - record.last_token_at
        self.token_gaps[gap] -= 1
        if not self.token_gaps[gap]:
            del self.token_gaps[gap]
        record.decodes_since = None

    def _stop_decoding(self, record: RequestRecord) -> None:
        if record.decodes_since is not None:
            record.longest_gap = self._longest_gap(record)
            record.decodes_since = None
            record.last_token_at = self._last_pass_end

    def _end_preempted_wait(self, record: RequestRecord, now: int) -> None:
        if record.preempted_at is not None:
            record.preempted_wait += now - record.preempted_at
            record.preempted_at = None


_FOLDS: dict[type[Event], Callable[[Accounts, Any], None]] = {
    StepRan: Accounts._fold_step,
    Admitted: Accounts._fold_admitted,
    Decoding: Accounts._fold_decoding,
    Finished: Accounts._fold_finished,
    SampleFinished: Accounts._fold_ended,
    Preempted: Accounts._fold_preempted,
    Arrived: Accounts._fold_arrived,
}


def _request_id(request: Request) -> str:
    """Give the id of the request that a sample belongs to, or that it is."""
    return request.id if request.group is None else request.group.id
