"""What happened in a run: counters and one record a request, folded from events.

A request that only decodes costs nothing here: gaps between tokens are counted by step, not by
request. Times are those of the events: boundaries on the clock of steps. Called by the run loop;
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
    StepRan,
)
from everbatch.scheduler.scheduler import Scheduler
from everbatch.workload.requests import RequestSpec

QUEUE_EMPTY = "queue_empty"


@dataclass(slots=True)
class RequestRecord:
    """One request's life. Times are ends of steps and boundaries; None: not yet, or never."""

    spec: RequestSpec
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
                    record = self.records[event.id]
                    record.first_token_at = record.last_token_at = event.t
                case Preempted():
                    self._fold_preempted(event)
                case Finished():
                    self._fold_finished(event)
                case Arrived():
                    self.records[event.id].state = "WAITING"
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
            record = self.records[request.id]
            record.state = request.status.value
            _, record.output_tokens = scheduler.progress(request)
            record.recomputed_tokens = request.num_recomputed_tokens

    def last_token_of(self, record: RequestRecord) -> int | None:
        """Give when a request emitted its last token so far."""
        return self.last_pass_end if record.is_decoding else record.last_token_at

    def _fold_step(self, event: StepRan) -> None:
        counters, gaps = self.counters, self.token_gaps
        for request_id in event.left:
            self._stop_decoding(self.records[request_id])
        for request_id in event.joined:
            record = self.records[request_id]
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

    def _fold_admitted(self, event: Admitted) -> None:
        record = self.records[event.id]
        if not event.resumed:
            record.started_at = event.t
            record.cached_tokens = event.cached_tokens
            self.counters.prefix_cache_hit_tokens += event.cached_tokens
        self._end_preempted_wait(record, event.t)

    def _fold_preempted(self, event: Preempted) -> None:
        record = self.records[event.id]
        self._stop_decoding(record)
        record.num_preemptions += 1
        record.preempted_at = event.t
        self.counters.num_preemptions += 1

    def _fold_finished(self, event: Finished) -> None:
        record = self.records[event.id]
        self._stop_decoding(record)
        self._end_preempted_wait(record, event.t)
        if event.output_tokens and record.first_token_at is None:
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
