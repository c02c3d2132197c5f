"""What steps were like, by kind: how long, how many tokens, how many of them for a second time.

Belongs here: folding the events of steps and preemptions. Not here: requests (metrics.py).
"""

from collections.abc import Iterable
from enum import Enum

from everbatch.base.events import (
    Event,
    Finished,
    Preempted,
    QuietSteps,
    SampleFinished,
    StepRan,
)
from everbatch.base.units import NS_PER_S
from everbatch.server.histograms import ITERATION_BUCKETS, STEP_BUCKETS_S, Histogram


class StepKind(Enum):
    """What a forward pass computed."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


_KINDS = tuple(kind.value for kind in StepKind)


class StepMetrics:
    """Histograms of steps, and the running sums of tokens computed and computed again."""

    def __init__(self) -> None:
        self.duration = Histogram(
            "forward_step_duration_seconds",
            "From a step's plan to its end, by what it computed.",
            STEP_BUCKETS_S,
            "kind",
            _KINDS,
        )
        self.tokens = Histogram(
            "step_tokens",
            "Prompt and decode tokens of a step, by what it computed.",
            ITERATION_BUCKETS,
            "kind",
            _KINDS,
        )
        self.scheduled_tokens = 0
        self.recomputed_tokens = 0
        self._computed: dict[str, int] = {}
        """Of victims that are live: how many of their tokens were computed once."""

    def fold(self, events: Iterable[Event]) -> None:
        """Take in what happened, in order."""
        for event in events:
            match event:
                case StepRan():
                    self._fold_step(event)
                case QuietSteps():
                    mean_ns = (event.t - event.start) // event.count
                    self._observe(StepKind.DECODE, mean_ns, event.decodes, event.count)
                case Preempted():
                    before = self._computed.get(event.id, 0)
                    self._computed[event.id] = max(before, event.computed_tokens)
                case Finished() | SampleFinished():
                    self._computed.pop(event.id, None)
                case _:
                    pass

    @property
    def recomputed_token_ratio(self) -> float:
        """The share of all computed tokens that had been computed before, from 0 to 1."""
        return self.recomputed_tokens / max(1, self.scheduled_tokens)

    def _fold_step(self, step: StepRan) -> None:
        kind = StepKind.DECODE
        if step.chunks:
            kind = StepKind.MIXED if step.decodes else StepKind.PREFILL
        self._observe(kind, step.t - step.start, step.tokens, 1)
        if not self._computed:
            return
        for request_id, start, count in step.chunks:
            # Tokens [start, computed) | [computed, start + count): again | for the first time.
            computed = self._computed.get(request_id, 0)
            self.recomputed_tokens += max(0, min(start + count, computed) - start)

    def _observe(self, kind: StepKind, duration_ns: int, tokens: int, count: int) -> None:
        self.duration.observe(duration_ns / NS_PER_S, kind.value, count)
        self.tokens.observe(tokens, kind.value, count)
        self.scheduled_tokens += tokens * count
