"""Rules of the contract that have no test of their own elsewhere; each names its rule."""

import pytest
from builders import World, client, deferrals, finals, make_config, run_world

from everbatch.scheduler.config import TenantConfig


def admitted(world):
    return [(e.step, e.id) for e in world.events if e.kind == "admitted"]


def preempted(world):
    return [(e.step, e.id) for e in world.events if e.kind == "preempted"]


@pytest.mark.parametrize(("deadline", "starts"), [(3, True), (2, False)])
def test_r6_a_deadline_is_inclusive(deadline, starts):
    # `b` can be planned at boundary 3, when `a` has ended.
    clients = [client("a", 4, 3), client("b", 4, 3, deadline=deadline)]
    world = run_world(clients, max_num_seqs=1)

    assert world.ends["b"][0].value == ("stop" if starts else "deadline")
    assert finals(world)["b"].output_tokens == (3 if starts else 0)


def test_r6_once_it_has_run_a_deadline_is_void():
    clients = [client("a", 4, 7), client("b", 6, 7, deadline=0)]
    world = run_world(clients, num_blocks=4)

    assert preempted(world) == [(4, "b")]
    assert world.ends["b"][0].value == "stop"


def test_r10_the_lowest_empty_slot_is_taken():
    clients = [
        client("a", 4, 2),
        client("b", 4, 9),
        client("c", 4, 2),
        client("d", 4, 2, arrival=3),
    ]
    world = run_world(clients)

    assert [(e.id, e.slot) for e in world.events if e.kind == "admitted"][-1] == ("d", 0)


@pytest.mark.parametrize(
    ("prompt", "budget_left", "threshold", "chunk"),
    [(9, 20, 0, 9), (9, 20, 4, 4), (9, 3, 4, 3), (9, 9, 9, 9), (9, 5, 0, 5)],
)
def test_r12_a_chunk_is_what_remains_fits_and_may(prompt, budget_left, threshold, chunk):
    world = run_world(
        [client("a", prompt, 1)],
        max_num_batched_tokens=budget_left,
        long_prefill_token_threshold=threshold,
    )

    assert world.records[0].scheduled == {"a": chunk}


def test_r12_what_is_left_of_the_budget_goes_to_the_next():
    world = run_world(
        [client("a", 9, 1), client("b", 9, 1)],
        max_num_batched_tokens=8,
        long_prefill_token_threshold=5,
    )

    assert world.records[0].scheduled == {"a": 5, "b": 3}


@pytest.mark.parametrize(("watermark", "starts"), [(0.0, 1), (0.1, 1), (0.2, 2), (0.9, 2)])
def test_r16_the_watermark_holds_while_anybody_has_a_slot(watermark, starts):
    # 10 blocks; `a` takes 7 for ever, `b` needs 2, so that at most 1 can be kept free.
    clients = [client("a", 25, 2), client("b", 5, 1)]
    world = run_world(clients, num_blocks=10, watermark=watermark)

    assert admitted(world)[0] == (1, "a")
    assert admitted(world)[1][0] == (1 if starts == 1 else 3)


def test_r16_peak_admits_who_ends_before_the_others_grow():
    # Two lives of 4 blocks in 7: the peak of both is 7 only if they end one after the other.
    apart = [client("a", 4, 10), client("b", 4, 5)]
    together = [client("a", 4, 10), client("b", 4, 10)]

    assert admitted(run_world(apart, num_blocks=5, admission="peak")) == [(1, "a"), (1, "b")]
    assert admitted(run_world(together, num_blocks=7, admission="peak"))[1][0] > 1
    assert admitted(run_world(together, num_blocks=8, admission="peak")) == [(1, "a"), (1, "b")]


def test_r16_reserve_never_preempts():
    clients = [client(id, 5, 12) for id in "abcd"]
    world = run_world(clients, num_blocks=8, admission="reserve")

    assert preempted(world) == []
    assert [step for step, _ in admitted(world)] == [1, 1, 13, 13]


def test_r17_slots_bind_before_tokens_and_tokens_before_blocks():
    clients = [client("a", 12, 9), client("b", 12, 9), client("c", 12, 9)]
    first = {
        "sequence_budget": {"max_num_seqs": 1, "max_num_batched_tokens": 12, "num_blocks": 5},
        "token_budget": {"max_num_batched_tokens": 12, "num_blocks": 5},
        "kv_budget": {"num_blocks": 5},
    }

    for reason, options in first.items():
        assert deferrals(run_world(clients, **options))[0][1:3] == ("b", reason)


@pytest.mark.parametrize(
    ("policy", "order"),
    [("fcfs", "abcd"), ("priority", "dacb"), ("srpt", "cdba"), ("vtc", "acbd")],
)
def test_r19_orders_of_the_queue(policy, order):
    clients = [
        client("a", 9, 9, priority=1, tenant="x"),
        client("b", 9, 5, priority=2, tenant="x"),
        client("c", 2, 2, priority=1, tenant="y"),
        client("d", 3, 3, priority=0, tenant="x"),
    ]
    world = run_world(clients, policy=policy, max_num_seqs=1)

    assert "".join(id for _, id in admitted(world)) == order


def test_r19_a_level_is_gained_when_aging_steps_boundaries_have_passed():
    # `low` has waited 6 boundaries when the slot is free: 2 levels of 3, as good as `high`.
    for aging_steps, first in ((3, "low"), (4, "high")):
        clients = [
            client("running", 4, 6, priority=-9),
            client("low", 4, 1, priority=2),
            client("high", 4, 1, arrival=6),
        ]
        world = run_world(clients, max_num_seqs=1, policy="priority", aging_steps=aging_steps)
        assert admitted(world)[1][1] == first


def test_r20_without_chunks_a_prompt_that_does_not_fit_the_rest_ends_the_scan():
    clients = [client("a", 6, 3), client("b", 6, 3), client("c", 1, 3)]
    world = run_world(clients, enable_chunked_prefill=False, max_num_batched_tokens=8)

    assert admitted(world) == [(1, "a"), (2, "b"), (2, "c")]
    assert deferrals(world)[0] == (1, "b", "token_budget", 6, 2)


def test_r20_a_rebuild_longer_than_a_step_comes_back_in_chunks():
    clients = [client("a", 4, 14), client("b", 5, 9)]
    world = run_world(clients, enable_chunked_prefill=False, max_num_batched_tokens=6, num_blocks=5)
    rebuilt = [r.scheduled["b"] for r in world.records[2:] if "b" in r.scheduled]

    assert len(rebuilt) > 1
    assert len(world.texts["b"]) == 9


@pytest.mark.parametrize(
    ("victim", "expected"),
    [("newest", "d"), ("priority", "b"), ("least_lost", "c"), ("largest", "b")],
)
def test_r22_whom_each_rule_makes_yield(victim, expected):
    # `a` needs a fourth block first; `b` holds 3, `c` and `d` 1 each; `c` has computed least.
    clients = [
        client("a", 11, 9, priority=0),
        client("b", 10, 9, priority=3),
        client("c", 1, 9, priority=1),
        client("d", 2, 9, priority=2),
    ]
    world = run_world(clients, num_blocks=8, policy="priority", preemption_victim=victim)

    assert preempted(world)[0][1] == expected


def test_r22_the_most_senior_is_never_made_to_yield_by_any_rule():
    for victim in ("newest", "priority", "least_lost", "largest"):
        clients = [client(id, 3, 12) for id in "abc"]
        world = run_world(clients, num_blocks=4, admission="now", preemption_victim=victim)
        assert "a" not in {id for _, id in preempted(world)}


def test_r23_prompts_that_have_begun_go_on_in_a_step_that_preempts():
    # `d` has just taken the last block when `c`, in prefill, lacks one.
    clients = [
        client("a", 4, 9),
        client("d", 2, 6, priority=5),
        client("c", 12, 1, priority=1, arrival=2),
        client("late", 1, 1, arrival=4),
    ]
    options = {"policy": "priority", "preemption_victim": "priority", "admission": "now"}
    world = run_world(clients, num_blocks=5, max_num_batched_tokens=4, **options)

    assert preempted(world)[0] == (5, "d")
    assert world.records[4].scheduled == {"c": 2}
    assert (5, "late", "cooldown", 0, 0) in deferrals(world)


@pytest.mark.parametrize(
    ("limits", "accepted"),
    [
        ({"max_queue_requests": 2}, "abc"),
        ({"max_queue_tokens": 8}, "abc"),
        ({"max_queue_tokens": 7}, "ab"),
    ],
)
def test_r25_queue_limits_are_inclusive(limits, accepted):
    # `a` has left the queue when the others come.
    clients = [client("a", 4, 9)] + [client(id, 4, 2, arrival=1) for id in "bcd"]
    world = run_world(clients, max_num_seqs=1, **limits)

    assert "".join(world.texts) == accepted
    assert all("waiting already" in message for message in world.rejected.values())


def test_r25_victims_do_not_count_in_the_queue():
    clients = [client("a", 4, 7), client("b", 6, 7, arrival=1), client("c", 4, 2, arrival=5)]
    world = run_world(clients, num_blocks=4, max_queue_requests=1)

    assert preempted(world)[0] == (5, "b")
    assert "c" in world.texts


def test_r33_samples_are_admitted_together_or_not_at_all():
    clients = [client("a", 4, 4), client("b", 4, 2, n=2)]
    world = run_world(clients, max_num_seqs=2)

    assert deferrals(world)[0] == (1, "b", "sequence_budget", 2, 1)
    assert [(s, id) for s, id in admitted(world) if id != "a"] == [(5, "b/0"), (5, "b/1")]
    firsts = [r for r in world.records if "b/0" in r.emitted]
    assert firsts[0].emitted == ["b/0", "b/1"]


def test_a_tenant_may_send_so_many_requests_a_minute():
    config = make_config(tenants={"t": TenantConfig(1.0, 2)})
    clients = [client(id, 4, 2, tenant="t") for id in "abc"]
    world = World(config, clients)
    world.arrive()

    assert list(world.rejected) == ["c"]
    world.clock.advance(60_000_000_000)
    world.add(client("d", 4, 2, tenant="t"))
    assert "d" in world.texts
