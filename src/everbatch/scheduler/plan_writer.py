"""Puts a draft, which speaks of requests, into an executor's terms: slots and blocks.

Changes nothing. Called by Scheduler once a step is decided.
"""

from collections.abc import Iterable
from heapq import heappop

from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.draft import Draft
from everbatch.scheduler.plan import Admission, PrefillChunk, StepPlan
from everbatch.scheduler.request import Request, by_admission
from everbatch.scheduler.state import SchedulerState


class PlanWriter:
    """Writes plans over one state."""

    def __init__(self, config: SchedulerConfig, state: SchedulerState) -> None:
        self._config = config
        self._state = state

    def write(self, draft: Draft, now_ns: int) -> StepPlan:
        """Put a draft into an executor's terms."""
        state = self._state
        plan = StepPlan(state.decodes.num_steps + 1, now_ns)
        plan.num_decodes, plan.num_tokens = draft.num_decodes, draft.num_tokens
        plan.masked += state.masked
        plan.preempted += state.preempted_slots
        plan.released += state.released_slots
        plan.left += map(_slot, draft.left)
        if draft.victims or state.swapped_out:
            self._retract(plan, draft)
        if state.must_restate:
            self._restate(plan, draft)
        elif state.handed_over:
            self._move(plan, draft)
        slots = self._admit(plan, draft) if draft.admitted else {}
        plan.joined += [_slot_in(request, slots) for request in draft.joined]
        for request, blocks in draft.new_blocks.items():
            if request not in draft.chunks and blocks:
                plan.appended.append((_slot_in(request, slots), blocks[0]))
        for request, (source, copy) in draft.copies.items():
            plan.copies.append((_slot(request), source, copy))
        for request, chunk in draft.chunks.items():
            followers = tuple(_slot_in(f, slots) for f in request.followers) if chunk.emits else ()
            taken = tuple(draft.new_blocks[request])
            slot = _slot_in(request, slots)
            plan.chunks.append(
                PrefillChunk(slot, chunk.start, chunk.count, taken, chunk.emits, followers)
            )
        return plan

    def _retract(self, plan: StepPlan, draft: Draft) -> None:
        """Say whose slots are taken from them, and what goes to the host tier."""
        slots = list(map(_slot, _holders(draft.victims)))
        plan.preempted += slots
        plan.released += slots
        plan.swap_out += [pair for _, pairs in self._state.swapped_out for pair in pairs]
        plan.swap_out += [pair for way in draft.victims.values() for pair in way.swap_out]

    def _move(self, plan: StepPlan, draft: Draft) -> None:
        """Give what another sample computed to those who go on with it.

        Such a slot knows the prompt alone, so it takes it anew.
        """
        moved = [r for r in self._state.handed_over if r not in draft.victims]
        plan.released += map(_slot, moved)
        plan.admitted += [_admission_again(request, 0) for request in moved]

    def _restate(self, plan: StepPlan, draft: Draft) -> None:
        """Say again who holds which slot and who decodes, to an executor that has forgotten it."""
        state, decodes = self._state, self._state.decodes
        holders = [r for r in state.slots if r is not None and _leader(r) not in draft.victims]
        plan.restated = [
            _admission_again(request, decodes.progress(request))
            for request in sorted(holders, key=by_admission)
        ]
        gone = draft.left, draft.victims
        plan.left.clear()
        plan.joined = [_slot(r) for r in decodes if not any(r in those for those in gone)]

    def _admit(self, plan: StepPlan, draft: Draft) -> dict[Request, int]:
        """Give each admitted request, and each of its samples, the lowest empty slot."""
        free_slots = list(self._state.free_slots)
        slots: dict[Request, int] = {}
        for request, hits in draft.admitted.items():
            for member in request.members:
                slots[member] = heappop(free_slots)
            plan.admitted += self._admissions(draft, request, hits, slots)
        for request, blocks in draft.swapped_in.items():
            plan.swap_in += zip(request.host_blocks, blocks, strict=True)
        return slots

    def _admissions(
        self, draft: Draft, request: Request, hits: list[int], slots: dict[Request, int]
    ) -> list[Admission]:
        back = draft.swapped_in.get(request)
        blocks = (*request.block_table, *(hits if back is None else back))
        num_cached = len(blocks) * self._config.block_size
        if back is not None:
            num_cached = request.num_computed_tokens
        own = Admission(
            slots[request],
            request.id,
            request.payload,
            num_cached,
            blocks,
            request.num_output_tokens,
            request.sample,
        )
        others = [
            Admission(slots[other], other.id, other.payload, 0, (), 0, other.sample)
            for other in request.followers
        ]
        return [own, *others]


def _admission_again(request: Request, ran: int) -> Admission:
    """Say anew what stands in a slot; a member of the decode set `ran` so long since it joined."""
    return Admission(
        slot=_slot(request),
        request_id=request.id,
        payload=request.payload,
        num_cached_tokens=request.num_computed_tokens + ran,
        cached_blocks=tuple(request.block_table),
        num_output_tokens=request.num_output_tokens + ran,
        sample=request.sample,
    )


def _holders(victims: Iterable[Request]) -> list[Request]:
    """Give those of the victims who hold slots, and their samples."""
    holders = [victim for victim in victims if victim.slot is not None]
    return [member for victim in holders for member in victim.members]


def _leader(request: Request) -> Request:
    """Give who computes the prompt for a request: another sample, or itself."""
    assert request.group is not None or not request.is_follower
    return request.group.leader if request.group is not None and request.is_follower else request


def _slot(request: Request) -> int:
    assert request.slot is not None
    return request.slot


def _slot_in(request: Request, new_slots: dict[Request, int]) -> int:
    return new_slots[request] if request.slot is None else request.slot
