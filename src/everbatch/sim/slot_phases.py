"""Who stands in which slot, in which phase: follows plans as an executor does.

Belongs here: what a plan means for each slot. Not here: what is made of it (slot_history,
perfetto).
"""

from collections.abc import Callable
from enum import Enum

from everbatch.scheduler.plan import StepPlan


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


SlotChange = Callable[[int, Phase, str | None], None]
"""Told slot, phase and request (None: nobody); perhaps several times for one slot and step, of
which the last one counts, and perhaps what was so before."""


class SlotPhases:
    """The first `num_slots` slots; others are passed over. A request that decodes on costs nothing.

    A request that lost its slot is named in the step in which it did.
    """

    def __init__(self, num_slots: int, change: SlotChange) -> None:
        self.num_slots = num_slots
        self._tell = change
        self._current: list[tuple[Phase, str | None]] = [(Phase.IDLE, None)] * num_slots
        self._momentary: list[int] = []
        """Slots whose phase of the last step was that step's alone: a chunk, a preemption."""

    def planned(self, plan: StepPlan) -> None:
        """A step begins."""
        self._end_momentary()
        self._momentary = [*plan.preempted, *(chunk.slot for chunk in plan.chunks)]
        lost = {slot: self._request(slot) for slot in plan.preempted}
        for slot in plan.released:
            self._change(slot, Phase.IDLE, None)
        for slot in plan.preempted:
            self._change(slot, Phase.PREEMPTED, lost[slot])
        for admission in plan.restated:
            self._change(admission.slot, Phase.HELD, admission.request_id)
        for slot in plan.left:
            self._keep(slot, Phase.HELD)
        for admission in plan.admitted:
            self._change(admission.slot, Phase.PREFILL, admission.request_id)
        for chunk in plan.chunks:
            self._keep(chunk.slot, Phase.PREFILL)
        for slot in plan.joined:
            self._keep(slot, Phase.DECODE)
        for slot in plan.masked:
            self._keep(slot, Phase.MASKED)

    def idled(self) -> None:
        """Nothing runs from now on."""
        for slot in range(self.num_slots):
            self._change(slot, Phase.IDLE, None)
        self._momentary = []

    def _end_momentary(self) -> None:
        for slot in self._momentary:
            if slot < self.num_slots:
                phase, request_id = self._current[slot]
                if phase is Phase.PREEMPTED:
                    self._change(slot, Phase.IDLE, None)
                else:
                    self._change(slot, Phase.HELD, request_id)

    def _request(self, slot: int) -> str | None:
        return self._current[slot][1] if slot < self.num_slots else None

    def _keep(self, slot: int, phase: Phase) -> None:
        self._change(slot, phase, self._request(slot))

    def _change(self, slot: int, phase: Phase, request_id: str | None) -> None:
        if slot < self.num_slots:
            self._current[slot] = (phase, request_id)
            self._tell(slot, phase, request_id)
