"""All invariants of the scheduler in one O(n) function, for tests, simulation and idle time.

The numbers are those of docs/invariants.md. Not called on the hot path.
"""

from everbatch.base.invariant import check
from everbatch.kv_cache.arithmetic import blocks_for
from everbatch.kv_cache.verify import verify_pool
from everbatch.scheduler.draft import Draft
from everbatch.scheduler.plan import StepPlan
from everbatch.scheduler.preemption import is_protected
from everbatch.scheduler.request import Request, RequestStatus
from everbatch.scheduler.scheduler import Scheduler


def verify_scheduler(scheduler: Scheduler) -> None:
    """Check a scheduler at a step boundary; raises InvariantViolation."""
    state = scheduler.state
    verify_pool(state.pool, [request.block_table for request in state.requests.values()])
    if state.host_pool is not None:
        verify_pool(state.host_pool, [request.host_blocks for request in state.requests.values()])
    for request in state.requests.values():
        _verify_place(scheduler, request)
        _verify_counters(scheduler, request)
    holders = [request for request in state.slots if request is not None]
    # I4: the sequence budget counts every holder of a slot.
    num_holders, num_free, num_masked = len(holders), len(state.free_slots), len(state.masked)
    check(
        num_holders == state.num_running,
        "slots and running requests do not agree",
        holders=num_holders,
        running=state.num_running,
    )
    check(
        num_holders + num_free + num_masked == len(state.slots),
        "held, free and masked slots are not all slots",
        holders=num_holders,
        free=num_free,
        masked=num_masked,
        all=len(state.slots),
    )
    for slot, holder in enumerate(state.slots):
        check(holder is None or holder.slot == slot, "a request is not in its slot", slot=slot)
        is_masked = slot in state.masked
        check(holder is None or not is_masked, "a masked slot has a holder", slot=slot)
    _verify_reservations(scheduler)


def verify_plan(scheduler: Scheduler, plan: StepPlan) -> None:
    """Check the budgets of a plan that has not been applied; raises InvariantViolation."""
    config = scheduler.config
    # I5: query tokens, counted from what the plan grants.
    granted = plan.num_decodes + sum(chunk.count for chunk in plan.chunks)
    budget = config.max_num_batched_tokens
    check(
        plan.num_tokens == granted,
        "a plan claims other tokens than it grants",
        granted=granted,
        claimed=plan.num_tokens,
    )
    check(granted > 0, "a plan grants no token", granted=granted)
    check(granted <= budget, "a plan breaks the token budget", granted=granted, budget=budget)
    # I6: nobody is granted two things.
    slots = [*(chunk.slot for chunk in plan.chunks), *plan.joined]
    check(len(set(slots)) == len(slots), "a plan names a slot twice", slots=slots)
    released = set(plan.released)
    check(len(released) == len(plan.released), "a plan releases a slot twice", slots=plan.released)
    check(
        set(plan.preempted) <= released,
        "a plan keeps the tokens of a slot that is not released",
        released=plan.released,
        preempted=plan.preempted,
    )
    # Who holds a slot and decodes is told anew, where the executor has forgotten it.
    is_told_anew = scheduler.state.must_restate
    members = set() if is_told_anew else {request.slot for request in scheduler.state.decodes}
    decodes = (members - set(plan.left) - released) | set(plan.joined)
    check(
        len(decodes) == plan.num_decodes,
        "a plan's decode set is not the one before, less who left, plus who joined",
        decodes=sorted(slot for slot in decodes if slot is not None),
        claimed=plan.num_decodes,
    )
    reading = {chunk.slot for chunk in plan.chunks}
    check(
        not decodes & reading,
        "a plan lets a slot decode and read a prompt",
        reading=sorted(reading),
    )
    _verify_blocks(scheduler, plan)
    _verify_slots(scheduler, plan)


def _verify_blocks(scheduler: Scheduler, plan: StepPlan) -> None:
    # I8: no block is promised twice, on the device or in the host tier.
    pool, host_pool = scheduler.state.pool, scheduler.state.host_pool
    taken = [block for chunk in plan.chunks for block in chunk.new_blocks]
    taken += [block for _, block in plan.appended]
    taken += [copy for _, _, copy in plan.copies]
    taken += [block for _, block in plan.swap_in]
    check(len(set(taken)) == len(taken), "a plan hands a block out twice", blocks=taken)
    for block in taken:
        check(pool.ref_count(block) > 0, "a plan hands out a block without reader", block=block)
    # Copies come after swaps, in their order; a source may be written again by what comes later.
    written = [block for _, block in plan.swap_in]
    for _, source, copy in plan.copies:
        check(source != copy, "a block is copied onto itself", block=source)
        check(source not in written, "a copy reads a new block", block=source)
        written.append(copy)
    targets = [host_block for _, host_block in plan.swap_out]
    if targets or plan.swap_in:
        check(host_pool is not None, "blocks are swapped without a host tier")
    check(len(set(targets)) == len(targets), "a host block is written twice", blocks=targets)


def _verify_slots(scheduler: Scheduler, plan: StepPlan) -> None:
    # Who is admitted takes the lowest slots that are empty, and no masked one.
    state = scheduler.state
    restated = [admission.slot for admission in plan.restated]
    held = [r.slot for r in state.slots if r is not None and r.slot not in plan.released]
    check(
        sorted(restated) == (held if state.must_restate else []),
        "a plan tells anew of other slots than those that are held",
        restated=sorted(restated),
        held=held,
    )
    moved = [request.slot for request in state.handed_over]
    slots = [admission.slot for admission in plan.admitted if admission.slot not in moved]
    check(
        slots == sorted(state.free_slots)[: len(slots)],
        "admissions do not take the lowest empty slots",
        slots=slots,
        free=sorted(state.free_slots),
    )
    check(plan.masked == list(state.masked), "a plan masks other slots", masked=plan.masked)


def _verify_reservations(scheduler: Scheduler) -> None:
    # I9: what holders have a right to take is there; who may not yield any more is known.
    config, state = scheduler.config, scheduler.state
    for request in state.slots:
        if request is not None:
            check(
                is_protected(request, config) == (request in state.protected),
                "the protected requests are not those that yielded as often as allowed",
                id=request.id,
                preemptions=request.num_preemptions,
            )
    if state.rights is None:
        return
    entitled = state.rights.entitled(Draft())
    recounted = state.rights.recounted(request for request in state.slots if request is not None)
    check(
        entitled == recounted,
        "the sum of rights is not that of the holders",
        kept=entitled,
        recounted=recounted,
    )
    check(
        entitled <= state.pool.num_allocatable,
        "more blocks are reserved than there are",
        reserved=entitled,
        allocatable=state.pool.num_allocatable,
    )


def _verify_place(scheduler: Scheduler, request: Request) -> None:
    # I3: a live request is in exactly one place, the one of its status.
    state = scheduler.state
    queue = state.policy.queue
    places = {
        RequestStatus.WAITING: request in queue,
        RequestStatus.PREEMPTED: request in queue,
        RequestStatus.PREFILL: request in state.prefilling or request in state.following,
        RequestStatus.DECODE: request in state.decodes or request in state.idle_decodes,
    }
    collections = (
        queue,
        state.prefilling,
        state.following,
        state.decodes,
        state.idle_decodes,
    )
    num_places = sum(request in place for place in collections)
    # A sample that waits for its leader to be admitted stands with it.
    waits = request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
    waits_with_leader = request.is_follower and waits
    check(
        num_places == int(not waits_with_leader),
        "a request is not in exactly one place",
        id=request.id,
        status=request.status,
        places=num_places,
    )
    check(
        waits_with_leader or places.get(request.status, False),
        "a request is not in the place of its status",
        id=request.id,
        status=request.status,
    )
    check(
        request.group is None
        or not request.is_follower
        or request.status is request.group.leader.status,
        "a sample is in another state than the one that reads their prompt",
        id=request.id,
        status=request.status,
    )
    check(waits == (request.slot is None), "only who waits has no slot", id=request.id)
    keeps = bool(request.block_table or request.host_blocks)
    check(
        not (request.status is RequestStatus.WAITING and keeps),
        "who waits holds blocks",
        id=request.id,
    )
    check(
        request.status is not RequestStatus.PREEMPTED or keeps or request.is_follower,
        "a preempted request kept nothing and does not wait",
        id=request.id,
    )
    check(
        not request.host_blocks or request.status is RequestStatus.PREEMPTED,
        "a request that is not swapped out holds host blocks",
        id=request.id,
    )
    is_tail_holder = request.status is RequestStatus.PREEMPTED and bool(request.block_table)
    check(
        is_tail_holder == (request in state.tail_holders),
        "the tail holders are not those who wait and kept blocks",
        id=request.id,
    )
    check(
        request not in state.handed_over or request in state.prefilling,
        "a sample that goes on with a prompt does not read it",
        id=request.id,
    )


def _verify_counters(scheduler: Scheduler, request: Request) -> None:
    # I7: the tokens consumed and emitted fit each other, the table and the limits.
    computed, outputs = scheduler.progress(request)
    held = len(request.block_table) + len(request.host_blocks)
    needed = blocks_for(computed, scheduler.config.block_size)
    facts = {"id": request.id, "computed": computed, "outputs": outputs, "blocks": held}
    check(held >= needed, "computed tokens have no block", **facts)
    check(outputs < request.max_tokens, "a live request has all its outputs", **facts)
    if request.status is RequestStatus.DECODE:
        # The last output is pending: emitted, not consumed.
        expected = request.num_prompt_tokens + outputs - 1
        check(computed == expected, "a decoding request has consumed another count", **facts)
        check(outputs > 0, "a decoding request has emitted nothing", **facts)
    elif request.status is RequestStatus.PREFILL and not request.is_follower:
        check(computed < request.prefill_target, "a prefill has nothing left to do", **facts)
