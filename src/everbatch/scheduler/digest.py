"""A digest of everything that decides what a scheduler does next.

Two schedulers with one configuration and equal digests decide alike from there on, if their calls
and token stores give the same; `rollback` restores the digest. For tests. Not in it: what only
saves work (hashes of token blocks), what only tells people (the last reason reported, messages),
and aborts that came while a step runs, which are calls that the next boundary will see.
"""

from hashlib import sha256

from everbatch.scheduler.request import Request, SampleGroup
from everbatch.scheduler.scheduler import Scheduler


def state_digest(scheduler: Scheduler) -> str:
    """Give the digest of a scheduler at a step boundary; O(requests + blocks)."""
    state = scheduler.state
    facts = (
        state.pool.state(),
        state.host_pool.state() if state.host_pool is not None else None,
        state.ledger.state() if state.ledger is not None else None,
        state.rates.state(),
        sorted((at, number) for at, number, request in state.deadlines if request.unserved()),
        [_group_facts(group) for group in state.groups.values()],
        [_request_facts(scheduler, request) for request in state.requests.values()],
        [r.id for r in state.policy.queue.in_order(state.decodes.num_steps)],
        [request.id for request in state.prefilling],
        [request.id for request in state.decodes],
        sorted(request.id for request in state.idle_decodes),
        sorted(request.id for request in state.due if request in state.decodes),
        sorted(request.id for request in state.following),
        sorted(request.id for request in state.tail_holders),
        sorted(request.id for request in state.protected),
        sorted(request.id for request in state.handed_over),
        sorted(state.masked.items()),
        sorted(state.free_slots),
        [request.id if request is not None else None for request in state.slots],
        state.preempted_slots,
        state.released_slots,
        [(request.id, pairs) for request, pairs in state.swapped_out],
        [sorted(request.id for request in group) for group in state.trials],
        state.must_restate,
        (state.num_fresh_waiting, state.fresh_waiting_tokens, state.num_deferred_calls),
        (state.decodes.num_steps, state.next_arrival, state.next_admission, state.next_turn),
    )
    return sha256(repr(facts).encode()).hexdigest()


def _request_facts(scheduler: Scheduler, request: Request) -> tuple[object, ...]:
    state = scheduler.state
    computed, outputs = scheduler.progress(request)
    return (
        request.id,
        request.num_prompt_tokens,
        request.max_tokens,
        request.priority,
        request.tenant,
        request.cache_salt,
        request.deadline_ns,
        request.sample,
        request.arrival_number,
        request.arrival_step,
        request.admission_number,
        request.status.value,
        request.slot,
        tuple(request.block_table),
        tuple(request.host_blocks),
        tuple(request.chain.entries) if request.chain is not None else None,
        computed,
        outputs,
        request.num_cached_tokens,
        max(computed, request.max_computed_tokens),
        request.num_recomputed_tokens,
        request.num_preemptions,
        state.decodes.num_steps if request in state.decodes else request.last_served_step,
        request.turn,
    )


def _group_facts(group: SampleGroup) -> tuple[object, ...]:
    return group.id, group.has_forked, [sample.id for sample in group.samples]
