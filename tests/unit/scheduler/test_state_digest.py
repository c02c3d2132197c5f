"""The digest notices everything that decides what a scheduler does next."""

from dataclasses import fields

import pytest
from builders import World, client, make_config

from everbatch.scheduler.config import TenantConfig
from everbatch.scheduler.digest import state_digest
from everbatch.scheduler.request import Request, RequestStatus

OTHER = {
    "id": "z",
    "arrival_number": 9,
    "num_prompt_tokens": 9,
    "max_tokens": 9,
    "priority": 1,
    "tenant": "z",
    "cache_salt": "z",
    "deadline_ns": 9,
    "sample": 1,
    "arrival_step": 9,
    "status": RequestStatus.PREEMPTED,
    "slot": 3,
    "block_table": [60],
    "host_blocks": [1],
    "admission_number": 9,
    "last_served_step": 9,
    "turn": 9,
    "num_computed_tokens": 9,
    "num_output_tokens": 9,
    "num_cached_tokens": 4,
    "max_computed_tokens": 99,
    "num_recomputed_tokens": 9,
    "num_preemptions": 1,
}
TOLD_ELSEWHERE = {
    "payload": "the executor's; the scheduler never reads it",
    "group": "told as a fact of the state",
    "chain": "its entries are told, its contents are the token store's",
    "finish_reason": "of a request that is not live any more",
    "message": "for people",
}


def world_of(*clients, **options):
    world = World(make_config(**options), clients)
    world.arrive()
    return world


def digest_of(*clients, **options):
    return state_digest(world_of(*clients, **options).engine.scheduler)


def test_every_field_of_a_request_is_told_or_has_a_reason():
    names = {field.name for field in fields(Request)}

    assert names == OTHER.keys() | TOLD_ELSEWHERE.keys()
    assert not OTHER.keys() & TOLD_ELSEWHERE.keys()


@pytest.mark.parametrize("name", OTHER)
def test_a_field_of_a_request_changes_the_digest(name):
    world = world_of(client("a", 4, 4), enable_prefix_caching=True)
    scheduler = world.engine.scheduler
    (request,) = scheduler.state.requests.values()
    before = state_digest(scheduler)
    setattr(request, name, OTHER[name])

    assert state_digest(scheduler) != before


@pytest.mark.parametrize(
    "other",
    [
        {"priority": 1},
        {"tenant": "other"},
        {"deadline": 5},
        {"cache_salt": "other"},
        {"max_tokens": 5},
        {"n": 2},
    ],
    ids=lambda other: next(iter(other)),
)
def test_requests_that_differ_in_one_wish_give_two_digests(other):
    assert digest_of(client("a", 4, 4)) == digest_of(client("a", 4, 4))
    assert digest_of(client("a", 4, 4)) != digest_of(client("a", 4, 4, **other))


def test_what_a_tenant_has_sent_counts_after_its_requests_have_ended():
    limited = {"tenants": {"t": TenantConfig(max_requests_per_minute=5)}}
    worlds = [world_of(client("a", 4, 1, tenant=tenant), **limited) for tenant in ("t", "u")]
    for world in worlds:
        world.run()
    first, second = (state_digest(world.engine.scheduler) for world in worlds)

    assert first != second


def test_the_deadline_of_a_sample_that_left_counts_for_the_others():
    worlds = [
        world_of(client("b", 4, 9), client("a", 4, 4, n=2, deadline=deadline), max_num_seqs=2)
        for deadline in (5, 6)
    ]
    for world in worlds:
        world.step()
        world.engine.abort("a/0")
    first, second = (state_digest(world.engine.scheduler) for world in worlds)

    assert list(worlds[0].engine.scheduler.state.requests) == ["b", "a/1"]
    assert first != second


def test_deadlines_that_nobody_can_miss_any_more_do_not_enter():
    worlds = [world_of(client("a", 4, 2, deadline=deadline)) for deadline in (5, 6)]
    for world in worlds:
        world.run()
    first, second = (state_digest(world.engine.scheduler) for world in worlds)

    assert first == second
