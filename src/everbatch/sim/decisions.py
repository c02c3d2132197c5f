"""Whether a run decides what a log says was decided: event by event, times left out.

Belongs here: the comparison. Not here: what a log is replayed with (recorded).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256

from everbatch.base.event_lines import event_line
from everbatch.base.events import Event, QuietSteps, StepRan
from everbatch.scheduler.plan import StepPlan
from everbatch.scheduler.scheduler import Scheduler


class DecisionCheck:
    """Looks on while a run goes by, and holds each decision against the recorded one."""

    def __init__(self, recorded: Iterator[Event], *, is_torn: bool = False) -> None:
        """`is_torn`: what the last step decided may have been lost with the log's last line."""
        self._is_torn = is_torn
        self.difference: tuple[str | None, str | None] | None = None
        """The first lines that differ, as recorded and as replayed; None: nothing there."""
        self.num_decisions = 0
        self._recorded = decision_lines(recorded)
        self._quiet = _QuietCount()
        self._digest = sha256()

    def planned(self, plan: StepPlan, step: int) -> None:
        """What is planned shows in the events of the step."""

    def happened(self, events: Sequence[Event]) -> None:
        """Something was decided, or happened as decided."""
        for event in events:
            for line in self._quiet.lines(event):
                self._check(line)

    def ran(self, plan: StepPlan, step: int, scheduler: Scheduler) -> None:
        """All of a step is in its events."""

    def idled(self, step: int) -> None:
        """Idle time is no decision."""

    def close(self) -> str:
        """End the comparison; gives the digest of the decisions of the run."""
        for line in self._quiet.rest():
            self._check(line)
        if self.difference is None:
            missing = next(self._recorded, None)
            self.difference = None if missing is None else (missing, None)
        return self._digest.hexdigest()

    def _check(self, line: str) -> None:
        self._digest.update(line.encode("utf-8", "surrogatepass"))
        if self.difference is None:
            recorded = next(self._recorded, None)
            if recorded is None and self._is_torn:
                return
            self.num_decisions += 1
            if recorded != line:
                self.difference = (recorded, line)


def decision_lines(events: Iterable[Event]) -> Iterator[str]:
    """Give the lines of events without times, each run of quiet steps as one."""
    quiet = _QuietCount()
    for event in events:
        yield from quiet.lines(event)
    yield from quiet.rest()


class _QuietCount:
    """Counts steps in which nothing was decided."""

    def __init__(self) -> None:
        self._first: tuple[int, int] | None = None
        """Number and decodes of the first."""
        self._count = 0

    def lines(self, event: Event) -> Iterator[str]:
        """Give the lines that an event completes."""
        if isinstance(event, QuietSteps) or (isinstance(event, StepRan) and event.is_quiet):
            if self._first is None:
                self._first = event.step, event.decodes
            self._count += event.count if isinstance(event, QuietSteps) else 1
            return
        yield from self.rest()
        yield event_line(_without_times(event))

    def rest(self) -> Iterator[str]:
        """Give the line of the quiet steps that have not been told."""
        if self._first is not None:
            step, decodes = self._first
            yield event_line(QuietSteps(0, step, 0, self._count, decodes))
            self._first, self._count = None, 0


def _without_times(event: Event) -> Event:
    if isinstance(event, StepRan):
        return replace(event, t=0, start=0)
    return replace(event, t=0)
