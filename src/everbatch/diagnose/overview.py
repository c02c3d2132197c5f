"""A whole log in a few figures, and the requests worth asking about. Called by cli.

Belongs here: sums over all requests; O(requests) memory. Not here: the life of one (explain).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from everbatch.base.events import (
    Admitted,
    Arrived,
    Deferred,
    Event,
    Finished,
    Preempted,
    QuietSteps,
    Rejected,
    SampleFinished,
    StepRan,
)
from everbatch.base.sample_ids import request_of_sample
from everbatch.diagnose.log import LogReader, Ruler, check_sizes

NO_END = "no end in the log"


class Ranking(StrEnum):
    """What makes a request worth asking about."""

    WAIT = "longest wait"
    STEPS = "most steps without a token"
    PREEMPTIONS = "most preemptions"
    RECOMPUTED = "most recomputed tokens"


@dataclass(slots=True)
class Totals:
    """One request, summed up; its samples together."""

    id: str
    arrival_t: int | None
    first_start_t: int | None = None
    end_t: int | None = None
    reason: str | None = None
    since_step: int = 0
    steps_waited: Counter[str] = field(default_factory=Counter)
    """In the queue and with a slot, by reason."""
    num_preemptions: int = 0
    recomputed_tokens: int = 0
    output_tokens: int = 0
    end: str | None = None

    def wait(self, now: int | None) -> int:
        """Give the time to its first step, or to its end without one, or up to now."""
        known = (t for t in (self.first_start_t, self.end_t, now) if t is not None)
        until = next(known, None)
        return 0 if self.arrival_t is None or until is None else until - self.arrival_t

    @property
    def main_reason(self) -> str | None:
        """The reason for which it waited most steps."""
        return max(self.steps_waited, key=self.steps_waited.__getitem__, default=None)


@dataclass(slots=True)
class Overview:
    """All requests of a log."""

    header: dict[str, Any]
    ruler: Ruler
    totals: dict[str, Totals] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)
    num_steps: int = 0
    num_emitted: int = 0
    first_t: int | None = None
    last_t: int | None = None
    log: LogReader | None = None
    _step: int = 0

    def take(self, event: Event) -> None:
        """Count one event."""
        self.first_t = event.t if self.first_t is None else self.first_t
        self.last_t = event.t
        match event:
            case StepRan() | QuietSteps():
                self._ran(event)
            case Arrived():
                self.totals[event.id] = Totals(event.id, event.t)
            case Rejected():
                self.rejected[event.reason] += 1
            case Deferred() | Admitted() | Preempted():
                totals = self._of(event.id)
                if not isinstance(event, Preempted) or event.slot is not None:
                    self._count_wait(totals, event.step)
                self._decided(totals, event)
            case Finished() | SampleFinished():
                self._finish(event)
            case _:
                pass

    def close(self) -> None:
        """Let waits that are still open count up to the last step."""
        for totals in self.totals.values():
            self._count_wait(totals, self._step + 1)

    def worst(self, count: int) -> dict[Ranking, list[Totals]]:
        """Name the requests worth asking about: by what makes them so, the worst first."""
        by_wait = [(totals.wait(self.last_t), totals) for totals in self.totals.values()]
        by_steps = [(totals.steps_waited.total(), totals) for totals in self.totals.values()]
        by_loss = [(totals.num_preemptions, totals) for totals in self.totals.values()]
        by_work = [(totals.recomputed_tokens, totals) for totals in self.totals.values()]
        return {
            Ranking.WAIT: _top(by_wait, count),
            Ranking.STEPS: _top(by_steps, count),
            Ranking.PREEMPTIONS: _top(by_loss, count),
            Ranking.RECOMPUTED: _top(by_work, count),
        }

    def reasons(self) -> Counter[str]:
        """Count the steps that requests waited, by reason."""
        counts: Counter[str] = Counter()
        for totals in self.totals.values():
            counts.update(totals.steps_waited)
        return counts

    def ends(self) -> Counter[str]:
        return Counter(totals.end or NO_END for totals in self.totals.values())

    def _of(self, id: str) -> Totals:
        known = self.totals.get(id)
        if known is None:
            known = self.totals.get(request_of_sample(id) or id)
        if known is None:
            known = self.totals[id] = Totals(id, None)
        return known

    def _decided(self, totals: Totals, event: Deferred | Admitted | Preempted) -> None:
        match event:
            case Deferred():
                totals.reason, totals.since_step = event.reason, event.step
            case Admitted():
                if totals.first_start_t is None and not event.resumed:
                    totals.first_start_t = event.t
            case Preempted():
                totals.num_preemptions += event.slot is not None

    def _ran(self, event: StepRan | QuietSteps) -> None:
        if isinstance(event, QuietSteps):
            self._step = event.step + event.count - 1
            self.num_steps += event.count
            self.num_emitted += event.decodes * event.count
            return
        self._step = event.step
        self.num_steps += 1
        self.num_emitted += event.emitted
        for id in (*event.joined, *(chunk[0] for chunk in event.chunks)):
            self._count_wait(self._of(id), event.step)

    def _count_wait(self, totals: Totals, step: int) -> None:
        if totals.reason is not None:
            totals.steps_waited[totals.reason] += max(0, step - totals.since_step)
            totals.reason = None

    def _finish(self, event: Finished | SampleFinished) -> None:
        totals = self._of(event.id)
        self._count_wait(totals, event.step + 1)
        if isinstance(event, Finished):
            totals.end, totals.end_t = event.reason, event.t
            totals.output_tokens = event.output_tokens
            totals.recomputed_tokens = event.recomputed_tokens


def overview(lines: Iterable[str]) -> Overview:
    """Read a log and sum up all its requests. Raises EventLogError if it cannot be read at all."""
    log = LogReader(lines)
    check_sizes(log.config)
    result = Overview(log.header, log.ruler, log=log)
    for event in log.events():
        result.take(event)
    result.close()
    return result


def _top(ranked: list[tuple[int, Totals]], count: int) -> list[Totals]:
    """Give those with the most, of those who have any; the earlier ones first among equals."""
    ordered = sorted((entry for entry in ranked if entry[0] > 0), key=lambda entry: -entry[0])
    return [totals for _, totals in ordered[:count]]
