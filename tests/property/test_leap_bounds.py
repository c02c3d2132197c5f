"""Where steps taken many at a time must stop, and look as if they were taken one by one."""

import json

import pytest
from builders import World, client, make_config
from property.leaping import both_ways, run, scenario_of

from everbatch.workload.scenario import Scenario

TAILS = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "policy": "priority",
    "preemption_trigger": "stall",
    "preemption_extent": "tail",
}


def waiting_behind_its_prefix(**options: object) -> Scenario:
    """The prompt of "w" is cached in part, but the blocks are lacking; two decodes take those."""
    head = {"text": "head", "tokens": 16}
    requests = [
        {"id": "r", "prompt_tokens": 8, "output_tokens": 12, "count": 2},
        {"id": "p", "prompt": [head], "output_tokens": 1},
        {"id": "w", "prompt": [head, {"tokens": 16}], "output_tokens": 9, "arrival": 2},
    ]
    engine = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "block_size": 4,
        "num_blocks": 10,
        "enable_prefix_caching": True,
        **options,
    }
    return scenario_of(engine, requests)


def test_a_head_that_lacks_blocks_needs_few_plans_with_prefix_caching():
    num_plans, num_slow_plans = both_ways(waiting_behind_its_prefix())

    assert num_plans < num_slow_plans / 2


def test_a_head_that_must_be_read_at_once_is_told_when_its_prefix_is_gone():
    scenario = waiting_behind_its_prefix(enable_chunked_prefill=False)

    both_ways(scenario)

    _, log, _ = run(scenario, leaps=True)
    reasons = [e["reason"] for e in map(json.loads, log.splitlines()) if e["event"] == "deferred"]
    assert reasons == ["kv_budget", "token_budget"]


def test_who_is_stripped_while_waiting_makes_room_for_the_head():
    # r1 waits and has kept its head; nobody can run, so it loses that, and r2 before it fits.
    requests = [
        {"id": "r0", "prompt_tokens": 8, "output_tokens": 9, "priority": 0},
        {"id": "r1", "prompt_tokens": 8, "output_tokens": 12, "priority": 2},
        {"id": "r2", "prompt_tokens": 1, "output_tokens": 3, "priority": 0},
    ]
    engine = TAILS | {"block_size": 2, "num_blocks": 10, "preemption_victim": "priority"}

    both_ways(scenario_of(engine, requests))


def test_who_leaves_at_a_reporting_point_makes_room_for_the_head():
    # At boundary 16 two who wait leave, one of them with blocks, and figures are reported.
    requests = [
        {"id": "r0", "prompt_tokens": 20, "output_tokens": 32, "priority": 0},
        {"id": "r1", "prompt_tokens": 4, "output_tokens": 5, "priority": 2, "abort_at": 16},
        {"id": "r2", "prompt_tokens": 19, "output_tokens": 19, "priority": 2, "abort_at": 16},
        {"id": "r3", "prompt_tokens": 3, "output_tokens": 4, "priority": 0},
    ]
    engine = TAILS | {"block_size": 4, "num_blocks": 13, "admission": "now"}

    both_ways(scenario_of(engine, requests, run={"horizons": [16]}))


def test_nobody_leaps_before_a_failed_step_was_tried_again():
    world = World(make_config(), [client("a", 5, 8), client("b", 5, 8)], frozenset({3}))
    world.arrive()
    while not world.step().error:
        pass

    assert world.engine.leap(lambda stretch: pytest.fail("the executor has forgotten all")) is None


def test_what_is_reserved_for_a_protected_request_is_taken_by_nobody():
    # "p" was preempted once, so all of its life is reserved: "q" waits rather than take of that.
    requests = [
        {"id": "q", "prompt_tokens": 2, "output_tokens": 16},
        {"id": "r", "prompt_tokens": 6, "output_tokens": 5},
        {"id": "p", "prompt_tokens": 3, "output_tokens": 10},
    ]
    engine = {
        "max_num_seqs": 3,
        "max_num_batched_tokens": 64,
        "block_size": 1,
        "num_blocks": 20,
        "max_preemptions": 1,
    }

    both_ways(scenario_of(engine, requests))


def test_decodes_take_turns_while_a_prompt_that_waits_has_a_share():
    # Whoever was held back for the share goes behind the others, though all fit in the end.
    lengths = [(27, 1, 2), (20, 5, 0), (15, 3, 0), (50, 2, 0), (47, 2, 0)]
    requests = [
        {"id": f"r{i}", "prompt_tokens": prompt, "output_tokens": output, "priority": priority}
        for i, (prompt, output, priority) in enumerate(lengths)
    ]
    engine = {
        "max_num_seqs": 16,
        "max_num_batched_tokens": 8,
        "block_size": 2,
        "num_blocks": 81,
        "prefill_aging_steps": 5,
        "policy": "priority",
    }

    both_ways(scenario_of(engine, requests))


def test_who_waits_is_told_whenever_age_puts_another_one_at_the_head():
    requests = [
        {"id": "r", "prompt_tokens": 4, "output_tokens": 60},
        {"id": "a", "prompt_tokens": 4, "output_tokens": 3, "priority": 2, "arrival": 1},
        {"id": "b", "prompt_tokens": 4, "output_tokens": 3, "priority": 1, "arrival": 4},
    ]
    engine = {
        "max_num_seqs": 1,
        "max_num_batched_tokens": 64,
        "num_blocks": 100,
        "policy": "priority",
        "aging_steps": 5,
    }
    scenario = scenario_of(engine, requests)

    both_ways(scenario)

    _, log, _ = run(scenario, leaps=True)
    events = [e for e in map(json.loads, log.splitlines()) if e["event"] == "deferred"]
    heads = [e["id"] for e in events if e["reason"] == "sequence_budget"]
    # They take turns while "r" decodes.
    assert heads[:4] == ["a", "b", "a", "b"]


def test_who_waits_is_told_whenever_shares_put_another_one_at_the_head():
    # Both tenants decode, but a token of "b" weighs less: the order of who waits changes meanwhile.
    lengths = [(56, 101, "a", 0), (5, 134, "b", 1), (17, 22, "b", 1), (257, 79, "b", 1)]
    lengths.append((220, 27, "a", 3))
    requests = [
        {
            "id": f"r{i}",
            "prompt_tokens": prompt,
            "output_tokens": output,
            "tenant": tenant,
            "arrival": arrival,
        }
        for i, (prompt, output, tenant, arrival) in enumerate(lengths)
    ]
    engine = {
        "max_num_seqs": 2,
        "max_num_batched_tokens": 512,
        "num_blocks": 200,
        "policy": "vtc",
    }
    tenants = {"a": {"weight": 1.0}, "b": {"weight": 1.5}}

    both_ways(scenario_of(engine, requests, tenants=tenants))


@pytest.mark.parametrize(("num_blocks", "begins_at"), [(16, 20), (17, 15)])
def test_rights_are_those_of_the_blocks_that_were_taken_meanwhile(num_blocks, begins_at):
    # After 15 steps "r" holds 4 of its life's 6 blocks, so that 2 are kept for it; "w" needs 11.
    requests = [
        {"id": "r", "prompt_tokens": 4, "output_tokens": 20},
        {"id": "w", "prompt_tokens": 4, "output_tokens": 40, "arrival": 15},
    ]
    engine = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "block_size": 4,
        "num_blocks": num_blocks,
        "admission": "reserve",
        "enable_prefix_caching": False,
    }
    scenario = scenario_of(engine, requests)

    both_ways(scenario)

    _, log, _ = run(scenario, leaps=True)
    admitted = [e for e in map(json.loads, log.splitlines()) if e["event"] == "admitted"]
    assert [(e["id"], e["t"]) for e in admitted] == [("r", 0), ("w", begins_at)]


def test_who_may_pass_the_head_no_longer_is_told():
    # The last one would end before "e" can start, and lacks blocks; a step later it would not end.
    lengths = {
        "a": (29, 14),
        "b": (32, 11),
        "c": (1, 10),
        "d": (19, 12),
        "e": (39, 11),
        "f": (33, 1),
    }
    requests = [
        {"id": id, "prompt_tokens": prompt, "output_tokens": output}
        for id, (prompt, output) in lengths.items()
    ]
    engine = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "block_size": 4,
        "num_blocks": 41,
        "backfill": "safe",
        "preemption_trigger": "stall",
    }
    scenario = scenario_of(engine, requests)

    both_ways(scenario)

    _, log, _ = run(scenario, leaps=True)
    events = [e for e in map(json.loads, log.splitlines()) if e["event"] == "deferred"]
    told = [(e["t"], e["reason"]) for e in events if e["id"] == "f"]
    assert told == [(0, "behind_head"), (1, "kv_budget"), (13, "behind_head")]
