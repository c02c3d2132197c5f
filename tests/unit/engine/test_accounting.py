"""Tokens, passes and events of a request add up."""

import pytest
from builders import World, client, finals, make_config, run_world

from everbatch.base.events import Finished, StepRan
from everbatch.engine.engine import EngineRequest
from everbatch.engine.sampling_params import SamplingParams
from everbatch.scheduler.request import FinishReason

CROWD = [client(f"c{i}", 3 + 2 * i, 9 - i, arrival=i // 2, stream=i % 2) for i in range(6)]
OPTIONS = {"num_blocks": 8, "max_num_batched_tokens": 10, "max_num_seqs": 3}


@pytest.mark.parametrize("output_tokens", [1, 2, 7])
@pytest.mark.parametrize("prompt_tokens", [1, 4, 9])
def test_n_outputs_take_n_passes(prompt_tokens, output_tokens):
    world = run_world([client("a", prompt_tokens, output_tokens)])

    assert len(world.records) == output_tokens
    assert [r.emitted for r in world.records] == [["a"]] * output_tokens
    scheduled = sum(e.tokens for e in world.events if e.kind == "step")
    assert scheduled == prompt_tokens + output_tokens - 1


def test_the_last_output_has_no_block():
    # 4 + 5 tokens, 8 of them consumed.
    world = World(make_config(), [client("a", 4, 5)])
    world.arrive()
    for _ in range(4):
        world.step()

    assert world.engine.stats().num_free_blocks == 62


def test_stop_and_length_are_told_apart():
    world = run_world([client("s", 4, 3, max_tokens=3), client("l", 4, 9, max_tokens=3)])

    assert world.ends == {"s": [FinishReason.STOP], "l": [FinishReason.LENGTH]}


@pytest.mark.parametrize("output_tokens", [1, 2])
def test_one_output_is_the_last_one_of_the_prompt_s_pass(output_tokens):
    world = run_world([client("a", 8, output_tokens, max_tokens=1)])
    end = finals(world)["a"]

    assert len(world.records) == 1
    assert (end.step, end.output_tokens) == (1, 1)
    assert end.reason == ("stop" if output_tokens == 1 else "length")
    assert [e.kind for e in world.events if e.kind != "decoding"] == [
        "arrived",
        "admitted",
        "step",
        "finished",
    ]


def test_without_a_limit_the_pool_s_room_is_the_limit():
    world = World(make_config(num_blocks=4), [])
    request = EngineRequest("a", list(range(6)), 6, SamplingParams(max_tokens=None))
    world.texts["a"], world.ends["a"] = [], []

    assert world.engine.add(request) is None
    assert request.max_tokens == 11 == world.engine.max_output_tokens(6)

    while world.engine.has_work:
        world.step()

    assert len(world.texts["a"]) == 11
    assert world.ends["a"] == [FinishReason.LENGTH]


@pytest.mark.parametrize("trigger", ["shortage", "stall"])
@pytest.mark.parametrize("caching", [False, True])
def test_counters_are_the_sums_of_the_events(trigger, caching):
    world = run_world(CROWD, preemption_trigger=trigger, enable_prefix_caching=caching, **OPTIONS)
    stats, by_kind = world.engine.stats(), {}
    for event in world.events:
        by_kind.setdefault(event.kind, []).append(event)
    steps, ends = by_kind["step"], by_kind["finished"]

    assert stats.num_preemptions == len(by_kind.get("preempted", []))
    assert stats.num_preemptions > 0 or trigger == "stall"
    assert stats.num_steps == len(steps) == len(world.records)
    assert stats.num_arrived == len(CROWD)
    assert stats.num_finished == {"stop": len(ends)}
    assert stats.scheduled_tokens == sum(e.tokens for e in steps)
    assert stats.generation_tokens == sum(c.output_tokens for c in CROWD)
    assert stats.prompt_tokens == sum(len(c.prompt) for c in CROWD)
    assert stats.recomputed_tokens == sum(e.recomputed_tokens for e in ends)
    first = [e for e in by_kind["admitted"] if not e.resumed]
    assert stats.prefix_cache_hits == sum(e.cached_tokens for e in first)
    assert (stats.prefix_cache_hits > 0) == caching
    assert (steps[-1].free_blocks, steps[-1].cached_blocks) == (
        stats.num_free_blocks,
        stats.num_cached_blocks,
    )
    assert stats.kv_cache_usage == 0.0


def test_gauges_are_those_of_the_boundary():
    world = World(make_config(num_blocks=8), [client("a", 8, 3), client("b", 30, 3)])
    world.arrive()
    world.step()
    stats = world.engine.stats()

    assert (stats.num_running, stats.num_waiting) == (1, 1)
    assert (stats.num_blocks, stats.num_free_blocks) == (8, 6)
    assert stats.kv_cache_usage == 0.25


def test_each_request_has_one_final_event_and_nothing_after_it():
    world = run_world(CROWD, **OPTIONS)
    ended = set()
    for event in world.events:
        if isinstance(event, StepRan):
            named = {id for id, *_ in event.chunks} | set(event.joined) | set(event.left)
            # The step stands before those whom it ended.
            assert not named & ended
        else:
            assert event.id not in ended
        if isinstance(event, Finished):
            ended.add(event.id)

    assert ended == {c.id for c in CROWD}


def test_steps_are_numbered_and_time_does_not_run_back():
    world = run_world(CROWD, **OPTIONS)
    steps = [e.step for e in world.events if e.kind == "step"]
    times = [e.t for e in world.events]

    assert steps == list(range(1, len(steps) + 1))
    assert times == sorted(times)


def test_a_step_names_the_blocks_it_took():
    world = run_world([client("a", 6, 5)])
    taken = [e.blocks for e in world.events if e.kind == "step"]

    assert taken == [(("a", (0, 1)),), (), (), (("a", (2,)),), ()]


def test_steps_in_which_the_same_ones_decode_are_quiet():
    world = run_world([client("a", 5, 8)])
    quiet = [e.step for e in world.events if e.kind == "step" and e.is_quiet]

    # Step 1 reads the prompt, 2 joins the decodes, 5 takes a block.
    assert quiet == [3, 4, 6, 7, 8]
