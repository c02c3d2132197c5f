"""Who stood in which slot when, in which phase: what a timeline is drawn from.

Follows plans as an executor does and keeps changes only, so a request that decodes on and on costs
one entry. Called by the run loop; read by the command line.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from everbatch.base.events import Event
from everbatch.scheduler.plan import StepPlan
from everbatch.scheduler.scheduler import Scheduler


class Phase(Enum):
    """What a slot does in a step."""

    IDLE = "idle"
    PREFILL = "prefill"
    DECODE = "decode"
    HELD = "held"
    """Its request keeps the slot but got no token."""
    MASKED = "masked"
    PREEMPTED = "preempted"
    """Its request lost the slot in this step."""


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
        self._changes: list[list[tuple[int, Phase, str | None]]] = [
            [(1, Phase.IDLE, None)] for _ in range(num_slots)
        ]
        self._momentary: list[int] = []
        """Slots whose phase of the last step was that step's alone: a chunk, a preemption."""

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
        for slot in self._momentary:
            phase, request_id = self._changes[slot][-1][1:] if slot < self.num_slots else _EMPTY
            if phase is Phase.PREEMPTED:
                self._change(slot, step, Phase.IDLE, None)
            else:
                self._change(slot, step, Phase.HELD, request_id)
        self._momentary = [*plan.preempted, *(chunk.slot for chunk in plan.chunks)]
        for slot in plan.released:
            self._change(slot, step, Phase.IDLE, None)
        for slot in plan.preempted:
            self._change(slot, step, Phase.PREEMPTED, None)
        for slot in plan.left:
            self._keep(slot, step, Phase.HELD)
        for admission in plan.admitted:
            self._change(admission.slot, step, Phase.PREFILL, admission.request_id)
        for chunk in plan.chunks:
            self._keep(chunk.slot, step, Phase.PREFILL)
        for slot in plan.joined:
            self._keep(slot, step, Phase.DECODE)
        for slot in plan.masked:
            self._keep(slot, step, Phase.MASKED)

    def happened(self, events: Iterable[Event]) -> None:
        """Events say nothing that plans do not."""

    def ran(self, plan: StepPlan, step: int, scheduler: Scheduler) -> None:
        """What ended in a step, the next plan releases."""

    def idled(self, step: int) -> None:
        """Nothing runs from step number `step` on."""
        for slot in range(self.num_slots):
            self._change(slot, step, Phase.IDLE, None)
        self._momentary = []

    def _keep(self, slot: int, step: int, phase: Phase) -> None:
        if slot < self.num_slots:
            self._change(slot, step, phase, self._changes[slot][-1][2])

    def _change(self, slot: int, step: int, phase: Phase, request_id: str | None) -> None:
        if slot >= self.num_slots:
            return
        changes = self._changes[slot]
        if changes[-1][0] == step:
            # Several things happened to the slot in this step: the last one counts.
            changes.pop()
        if not changes or changes[-1][1:] != (phase, request_id):
            changes.append((step, phase, request_id))


_EMPTY: tuple[Phase, str | None] = (Phase.IDLE, None)
