"""What happened in a run: counters and one record a request, folded from events.

A request that only decodes costs nothing here: gaps between tokens are counted by step, not by
request. Times are those of the events: boundaries on the clock of steps. A request with n > 1 has a
record for each sample besides, from its arrival on; its own is their sum. Called by the run loop;
read by the summary.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from everbatch.base.events import (
    Admitted,
    Arrived,
    Decoding,
    Event,
    Finished,
    Preempted,
    SampleFinished,
    StepRan,
)
from everbatch.scheduler.scheduler import Scheduler
from everbatch.workload.requests import RequestSpec

QUEUE_EMPTY = "queue_empty"


@dataclass(slots=True)
class RequestRecord:
    """One request's life. Times are ends of steps and boundaries; None: not yet, or never."""

    spec: RequestSpec
    samples: "dict[str, RequestRecord]" = field(default_factory=dict)
    """With n > 1: the records of its samples by their ids."""
    rejected: str | None = None
    started_at: int | None = None
    """The boundary before the first step with a token of it."""
    first_token_at: int | None = None
    last_token_at: int | None = None
    """Not kept while it decodes in every step: then it is the end of the last pass."""
    finished_at: int | None = None
    finish_reason: str | None = None
    is_decoding: bool = False
    state: str = "WAITING"
    output_tokens: int = 0
    cached_tokens: int = 0
    num_preemptions: int = 0
    recomputed_tokens: int = 0
    preempted_at: int | None = None
    """Since when it waits to come back."""
    preempted_wait: int = 0

    @property
    def streams(self) -> "list[RequestRecord]":
        """Those under whose ids tokens come: the samples, or the request itself."""
        return list(self.samples.values()) or [self]

    def sum_up(self) -> None:
        """Make the record of a request with samples what they add up to."""
        samples = self.samples.values()
        if not samples:
            return
        if self.state != "FINISHED":
            self.state = min((sample.state for sample in samples), key=_BY_PROGRESS.index)
        self.output_tokens = sum(sample.output_tokens for sample in samples)
        self.num_preemptions = sum(sample.num_preemptions for sample in samples)
        self.recomputed_tokens = sum(sample.recomputed_tokens for sample in samples)
        self.cached_tokens = sum(sample.cached_tokens for sample in samples)
        self.started_at = _earliest(sample.started_at for sample in samples)
        self.first_token_at = _earliest(sample.first_token_at for sample in samples)

    def waited_preempted(self, now: int) -> int:
        """Give the time it waited to come back, until now if it still does; of all samples."""
        if self.samples:
            return sum(sample.waited_preempted(now) for sample in self.samples.values())
        return self.preempted_wait + (
            now - self.preempted_at if self.preempted_at is not None else 0
        )


_BY_PROGRESS = ("DECODE", "PREFILL", "PREEMPTED", "WAITING", "FINISHED")
"""A request with samples is where its foremost live one is."""


def _earliest(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)


@dataclass(slots=True)
class Counters:
    """Sums over the steps of a run."""

    steps: int = 0
    """Ticks, idle ones included."""
    useful_tokens: int = 0
    scheduled_tokens: int = 0
    num_preemptions: int = 0
    peak_blocks: int = 0
    prefix_cache_hit_tokens: int = 0
    masked_slot_iterations: int = 0
    idle_slot_iterations: dict[str, int] = field(default_factory=dict)


class Accounts:
    """Folds events into counters and records."""

    def __init__(self, specs: Iterable[RequestSpec]) -> None:
        self.counters = Counters()
        self.records = {spec.id: RequestRecord(spec) for spec in specs}
        self._streams = dict(self.records)
        """By every id that events name: requests and samples."""
        self.token_gaps: dict[float, int] = {}
        """How often each time between two tokens of one request came."""
        self.last_pass_end = 0

    def fold(self, events: Iterable[Event]) -> None:
        """Count events, in order."""
        for event in events:
            match event:
                case StepRan():
                    self._fold_step(event)
                case Admitted():
                    self._fold_admitted(event)
                case Decoding(emitted=True):
                    record = self._streams[event.id]
                    record.first_token_at = record.last_token_at = event.t
                case Preempted():
                    self._fold_preempted(event)
                case Finished() | SampleFinished():
                    self._fold_finished(event)
                case Arrived():
                    self._fold_arrived(event)
                case _:
                    pass

    def note_rejected(self, request_id: str, message: str) -> None:
        """A request was refused at arrival: it has ended without a reason to finish."""
        record = self.records[request_id]
        record.rejected, record.state = message, "FINISHED"

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
        for record in self.records.values():
            record.sum_up()

    def last_token_of(self, record: RequestRecord) -> int | None:
        """Give when a request emitted its last token so far."""
        return self.last_pass_end if record.is_decoding else record.last_token_at

    def _fold_arrived(self, event: Arrived) -> None:
        record = self.records[event.id]
        record.state = "WAITING"
        if event.samples > 1:
            for sample in range(event.samples):
                sample_id = f"{event.id}/{sample}"
                record.samples[sample_id] = RequestRecord(record.spec)
            self._streams.update(record.samples)

    def _fold_step(self, event: StepRan) -> None:
        counters, gaps, streams = self.counters, self.token_gaps, self._streams
        for request_id, _, _ in event.chunks:
            if streams[request_id].started_at is None:
                self._start(streams[request_id], event.start)
        for request_id in event.left:
            self._stop_decoding(streams[request_id])
        for request_id in event.joined:
            record = streams[request_id]
            assert record.last_token_at is not None, "a request decodes without a first token"
            gap = event.t - record.last_token_at
            gaps[gap] = gaps.get(gap, 0) + 1
            record.is_decoding = True
        num_stayed = event.decodes - len(event.joined)
        if num_stayed:
            gap = event.t - self.last_pass_end
            gaps[gap] = gaps.get(gap, 0) + num_stayed
        self.last_pass_end = event.t
        counters.useful_tokens += event.emitted
        counters.scheduled_tokens += event.tokens

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

    def _fold_finished(self, event: Finished | SampleFinished) -> None:
        record = self._streams[event.id]
        self._stop_decoding(record)
        self._end_preempted_wait(record, event.t)
        if event.output_tokens and record.first_token_at is None and not record.samples:
            # The first output was the last: it never decoded.
            record.first_token_at = record.last_token_at = event.t
        record.state, record.finish_reason = "FINISHED", event.reason
        record.finished_at = event.t
        record.output_tokens = event.output_tokens
        record.recomputed_tokens = event.recomputed_tokens

    def _stop_decoding(self, record: RequestRecord) -> None:
        if record.is_decoding:
            record.is_decoding = False
            record.last_token_at = self.last_pass_end

    def _end_preempted_wait(self, record: RequestRecord, now: int) -> None:
        if record.preempted_at is not None:
            record.preempted_wait += now - record.preempted_at
            record.preempted_at = None
