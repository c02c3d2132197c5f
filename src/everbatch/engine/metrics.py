"""Counters folded from events, and the gauges that go with them.

Every figure that a user sees has one source, the event log; this is its running sum. Called by
Engine for each event; read by the server and by the command line.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from everbatch.base.events import (
    Admitted,
    Arrived,
    Event,
    Finished,
    Preempted,
    QuietSteps,
    Rejected,
    StepRan,
    StepsRan,
)


@dataclass(slots=True)
class EngineStats:
    """Gauges as of the last step boundary and counters since the start."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    num_steps: int = 0
    num_arrived: int = 0
    num_rejected: int = 0
    num_preemptions: int = 0
    num_finished: dict[str, int] = field(default_factory=dict)
    """By finish reason."""
    prompt_tokens: int = 0
    """Prompt tokens of the requests that were admitted, cache hits included."""
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    """Prompt tokens that were looked up."""
    prefix_cache_hits: int = 0
    scheduled_tokens: int = 0
    recomputed_tokens: int = 0

    @property
    def kv_cache_usage(self) -> float:
        """The share of blocks that somebody reads, from 0 to 1."""
        used = self.num_blocks - self.num_free_blocks - self.num_cached_blocks
        return used / self.num_blocks if self.num_blocks else 0.0


class EngineMetrics:
    """Sums over the events of one engine."""

    def __init__(self) -> None:
        self._sums = EngineStats()

    def fold(self, events: Iterable[Event]) -> None:
        """Count events."""
        for event in events:
            fold = _FOLDS.get(type(event))
            if fold is not None:
                fold(self, event)

    def fold_steps(self, steps: StepsRan) -> None:
        """Count steps that are told together."""
        count = len(steps.durations)
        self._sums.num_steps += count
        self._sums.scheduled_tokens += count * steps.decodes
        self._sums.generation_tokens += count * steps.decodes

    def _fold_step(self, event: StepRan) -> None:
        sums = self._sums
        sums.num_steps += 1
        sums.scheduled_tokens += event.tokens
        sums.generation_tokens += event.emitted

    def _fold_quiet(self, event: QuietSteps) -> None:
        sums = self._sums
        sums.num_steps += event.count
        sums.scheduled_tokens += event.count * event.decodes
        sums.generation_tokens += event.count * event.decodes

    def _fold_arrived(self, event: Arrived) -> None:
        self._sums.num_arrived += 1

    def _fold_rejected(self, event: Rejected) -> None:
        self._sums.num_rejected += 1

    def _fold_admitted(self, event: Admitted) -> None:
        if not event.resumed:
            sums = self._sums
            sums.prompt_tokens += event.prompt_tokens
            sums.prefix_cache_queries += event.prompt_tokens
            sums.prefix_cache_hits += event.cached_tokens

    def _fold_preempted(self, event: Preempted) -> None:
        self._sums.num_preemptions += event.slot is not None

    def _fold_finished(self, event: Finished) -> None:
        sums = self._sums
        sums.num_finished[event.reason] = sums.num_finished.get(event.reason, 0) + 1
        sums.recomputed_tokens += event.recomputed_tokens

    def stats(self, **gauges: int) -> EngineStats:
        """Give the sums so far together with the gauges handed in."""
        return replace(self._sums, num_finished=dict(self._sums.num_finished), **gauges)


_FOLDS: dict[type[Event], Callable[[EngineMetrics, Any], None]] = {
    StepRan: EngineMetrics._fold_step,
    QuietSteps: EngineMetrics._fold_quiet,
    Arrived: EngineMetrics._fold_arrived,
    Rejected: EngineMetrics._fold_rejected,
    Admitted: EngineMetrics._fold_admitted,
    Preempted: EngineMetrics._fold_preempted,
    Finished: EngineMetrics._fold_finished,
}
