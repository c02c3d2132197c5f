"""Who stood in which slot when, in which phase: what a timeline is drawn from.

Keeps changes only, so a request that decodes on and on costs one entry. Called by the run loop;
read by the command line.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from everbatch.base.events import Event
from everbatch.scheduler.plan import StepPlan
from everbatch.scheduler.scheduler import Scheduler
from everbatch.sim.slot_phases import Phase, SlotPhases


@dataclass(frozen=True, slots=True)
class Span:
    """Steps first … last of one slot, in one phase; `request_id` is None if it is empty."""

    first: int
    last: int
    phase: Phase
    request_id: str | None


class SlotHistory:
    """The first `num_slots` slots of a run."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._phases = SlotPhases(num_slots, self._change)
        self._changes: list[list[tuple[int, Phase, str | None]]] = [
            [(1, Phase.IDLE, None)] for _ in range(num_slots)
        ]
        self._step = 1

    def spans(self, slot: int, last_step: int) -> list[Span]:
        """Give a slot's spans, which cover steps 1 … last_step."""
        changes = self._changes[slot]
        ends = [change[0] - 1 for change in changes[1:]] + [last_step]
        return [
            Span(first, end, phase, request_id)
            for (first, phase, request_id), end in zip(changes, ends, strict=True)
            if first <= end
        ]

    def planned(self, plan: StepPlan, step: int) -> None:
        """Step number `step` begins."""
        self._step = step
        self._phases.planned(plan)

    def happened(self, events: Iterable[Event]) -> None:
        """Events say nothing that plans do not."""

    def ran(self, plan: StepPlan, step: int, scheduler: Scheduler) -> None:
        """What ended in a step, the next plan releases."""

    def idled(self, step: int) -> None:
        """Nothing runs from step number `step` on."""
        self._step = step
        self._phases.idled()

    def _change(self, slot: int, phase: Phase, request_id: str | None) -> None:
        if phase is Phase.PREEMPTED:
            # The picture shows that somebody lost it, not who.
            request_id = None
        changes = self._changes[slot]
        if changes[-1][0] == self._step:
            # Several things happened to the slot in this step: the last one counts.
            changes.pop()
        if not changes or changes[-1][1:] != (phase, request_id):
            changes.append((self._step, phase, request_id))
