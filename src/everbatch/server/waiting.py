"""Why requests wait, counted from the events of the engine.

Belongs here: one reason a waiting request, kept up to date by what changes. Not here: the reasons
(scheduler.plan). Lives on the event loop, so that nobody reads the scheduler while it works.
"""

from collections.abc import Iterable

from everbatch.base.events import (
    Admitted,
    Arrived,
    Deferred,
    Event,
    Finished,
    Preempted,
    SampleFinished,
)
from everbatch.scheduler.plan import DeferReason


class WaitingReasons:
    """The waiting requests of one engine, each with why it got no token last."""

    def __init__(self) -> None:
        self._reasons: dict[str, str | None] = {}
        """By id; None until a step was planned without it."""

    def fold(self, events: Iterable[Event]) -> None:
        """Take in what happened, in order."""
        reasons = self._reasons
        for event in events:
            match event:
                case Arrived() | Preempted():
                    reasons[event.id] = None
                case Deferred() if event.id in reasons:
                    # Those that hold a slot are deferred too, but do not wait.
                    reasons[event.id] = event.reason
                case Admitted() | Finished() | SampleFinished():
                    self._forget(event.id)
                case _:
                    pass

    def counts(self) -> dict[str, int]:
        """Give how many wait for each reason, all reasons named."""
        counts = {reason.value: 0 for reason in DeferReason}
        for reason in self._reasons.values():
            if reason is not None:
                counts[reason] += 1
        return counts

    def clear(self) -> None:
        self._reasons.clear()

    def _forget(self, event_id: str) -> None:
        if event_id not in self._reasons:
            # Samples that never ran wait under their request's name.
            event_id = event_id.rpartition("/")[0]
        self._reasons.pop(event_id, None)
