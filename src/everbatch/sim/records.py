"""One request's life in a run, as figures and entries are made of it.

Belongs here: what is remembered of a request. Not here: when it changes (accounts). Times are in
the clock's own integers.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from everbatch.workload.requests import RequestSpec

_BY_PROGRESS = ("DECODE", "PREFILL", "PREEMPTED", "WAITING", "FINISHED")
"""A request with samples is where its foremost live one is."""


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
    decodes_since: int | None = None
    """The end of the step in which it joined those that decode; None: it does not."""
    longest_gap: int = 0
    """Between two of its tokens; not kept while it decodes, nor if no goal asks for it."""
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
        return list(self.samples.values()) if self.samples else [self]

    @property
    def ttft(self) -> int | None:
        """From its arrival to its first token."""
        return None if self.first_token_at is None else self.first_token_at - self.spec.arrival

    @property
    def e2e(self) -> int | None:
        """From its arrival to its end, if it ended regularly."""
        if self.finish_reason not in ("stop", "length") or self.finished_at is None:
            return None
        return self.finished_at - self.spec.arrival

    def tpot(self, last_token_at: int | None) -> float | None:
        """Give the mean time between its tokens, of which the last came then."""
        if self.first_token_at is None or last_token_at is None or self.output_tokens < 2:
            return None
        return (last_token_at - self.first_token_at) / (self.output_tokens - 1)

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


def _earliest(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)
