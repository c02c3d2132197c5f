"""Forward passes that fail: rolled back, their requests end, the others go on."""

import pytest
from builders import World, alone, client, finals, make_config, run_world

from everbatch.scheduler.report import MAX_MESSAGE_CHARACTERS
from everbatch.scheduler.request import FinishReason


def test_who_held_a_slot_ends_with_an_error_and_who_waits_goes_on():
    clients = [client(id, 5, 6) for id in "abc"]
    world = run_world(clients, max_num_seqs=2, failing_steps=[3])

    assert world.ends == {
        "a": [FinishReason.ERROR],
        "b": [FinishReason.ERROR],
        "c": [FinishReason.STOP],
    }
    assert [len(world.texts[id]) for id in "ab"] == [2, 2]
    assert world.texts["c"] == alone(clients[2])
    assert world.engine.stats().num_free_blocks == 64


def test_who_was_to_be_admitted_ends_too():
    world = run_world([client("a", 5, 6)], failing_steps=[1])

    assert world.ends["a"] == [FinishReason.ERROR]
    assert [e.kind for e in world.events] == ["arrived", "step_failed", "finished"]


def test_the_failed_step_is_told_and_its_number_used_again():
    clients = [client("a", 5, 6), client("b", 5, 2, arrival=4)]
    world = run_world(clients, failing_steps=[3])
    (failed,) = [e for e in world.events if e.kind == "step_failed"]

    assert failed.step == 3
    assert "pass 3 was told to fail" in failed.message
    assert [r.step for r in world.records] == [1, 2, 3, 4]
    assert finals(world)["a"].step == 2


def test_the_result_says_why_and_has_no_tokens():
    world = World(make_config(), [client("a", 5, 6)], frozenset([1]))
    world.arrive()
    result = world.step()

    assert result.error == "pass 1 was told to fail"
    assert result.outputs == []
    assert result.plan is None
    assert result.finished == [("a", FinishReason.ERROR)]


def test_a_step_that_fails_when_blocks_are_full_leaves_nobody_due():
    # After step 1 both tables are full, so step 2 gives each a block.
    clients = [client("a", 4, 6), client("b", 4, 6), client("c", 4, 6, arrival=2)]
    world = run_world(clients, num_blocks=8, failing_steps=[6])

    assert world.engine.stats().num_free_blocks == 8
    assert world.ends["c"] == [FinishReason.ERROR]


def test_every_step_may_fail_once():
    clients = [client(id, 6, 8, arrival=at) for at, id in enumerate("abcdef")]
    for step in range(1, 30):
        for trigger in ("shortage", "stall"):
            world = run_world(
                clients,
                num_blocks=7,
                failing_steps=[step],
                preemption_trigger=trigger,
                enable_prefix_caching=True,
            )
            stats = world.engine.stats()

            assert stats.num_free_blocks + stats.num_cached_blocks == 7
            for c in clients:
                text = alone(c)
                (end,) = world.ends[c.id]
                assert world.texts[c.id] == text[: len(world.texts[c.id])]
                assert end is FinishReason.ERROR or world.texts[c.id] == text


def test_who_left_while_a_pass_failed_has_left():
    world = World(make_config(max_num_seqs=1), [client("a", 5, 6), client("b", 5, 6)])
    world.arrive()
    scheduler = world.engine.scheduler
    plan = scheduler.schedule(0)
    scheduler.abort("b", FinishReason.ABORT, 0)
    events = scheduler.fail_step(plan, "it failed", 0)

    assert [(e.id, e.reason) for e in events if e.kind == "finished"] == [
        ("a", "error"),
        ("b", "abort"),
    ]


def test_content_of_a_failed_plan_is_not_hit():
    clients = [client("a", 16, 1, stream=0), client("b", 16, 1, stream=0, arrival=1)]
    world = run_world(clients, failing_steps=[1], enable_prefix_caching=True)

    assert finals(world)["b"].cached_tokens == 0
    assert world.texts["b"] == alone(clients[1])


def test_cached_blocks_that_a_failed_pass_has_overwritten_are_not_hit():
    # `b` takes the blocks of `a`, writes them, and the pass fails; then `a` comes again.
    again = client("c", 12, 2, stream=0, arrival=3)
    clients = [client("a", 12, 1, stream=0), client("b", 12, 3, arrival=2), again]
    world = run_world(clients, num_blocks=4, failing_steps=[2], enable_prefix_caching=True)

    assert world.ends["b"] == [FinishReason.ERROR]
    assert world.texts["c"] == alone(again)
    assert 0 < finals(world)["c"].cached_tokens < 8


def test_victims_of_a_failed_plan_end_with_the_others():
    # The pass in which `b` would have yielded fails.
    world = run_world([client("a", 4, 7), client("b", 6, 7)], num_blocks=4, failing_steps=[4])

    assert world.engine.stats().num_preemptions == 0
    assert {id: ends for id, ends in world.ends.items()} == {
        "a": [FinishReason.ERROR],
        "b": [FinishReason.ERROR],
    }


def test_a_victim_that_waits_survives_a_failed_step():
    clients = [client("a", 4, 7), client("b", 6, 7)]
    world = run_world(clients, num_blocks=4, failing_steps=[6])

    assert world.ends["a"] == [FinishReason.ERROR]
    assert world.ends["b"] == [FinishReason.STOP]
    assert world.texts["b"] == alone(clients[1])


@pytest.mark.parametrize("output", [1, 2, 4])
def test_a_failed_row_ends_its_request_alone(output):
    clients = [client("a", 5, 6), client("b", 5, 6)]
    world = World(make_config(), clients)
    world.executor.failing_outputs = {"a": output}
    world.run()

    assert world.ends == {"a": [FinishReason.ERROR], "b": [FinishReason.STOP]}
    assert world.texts["a"] == alone(clients[0])[: output - 1]
    assert finals(world)["a"].output_tokens == output - 1
    assert world.engine.stats().generation_tokens == output - 1 + 6
    assert world.texts["b"] == alone(clients[1])


def test_the_final_event_says_why_a_row_or_a_pass_failed():
    clients = [client("a", 5, 6), client("b", 5, 6, n=2), client("c", 5, 2)]
    world = World(make_config(), clients, frozenset({4}))
    world.executor.failing_outputs = {"a": 2}
    world.run()
    samples = {e.id: e.message for e in world.events if e.kind == "sample_finished"}

    assert finals(world)["a"].message == "output 2 was told to fail"
    assert samples == {"b/0": "pass 4 was told to fail", "b/1": "pass 4 was told to fail"}
    assert finals(world)["b"].message == "pass 4 was told to fail"
    assert finals(world)["c"].message is None


@pytest.mark.parametrize("length", [MAX_MESSAGE_CHARACTERS, MAX_MESSAGE_CHARACTERS + 1])
def test_what_events_say_of_a_failure_has_a_limit(length):
    world = World(make_config(), [client("a", 5, 6)])
    world.arrive()
    scheduler = world.engine.scheduler
    plan = scheduler.schedule(0)
    message = "x" * length
    events = scheduler.fail_step(plan, message, 0)
    said = [e.message for e in events if e.kind in ("step_failed", "finished")]

    fits = length == MAX_MESSAGE_CHARACTERS
    assert said == [message if fits else message[: MAX_MESSAGE_CHARACTERS - 1] + "…"] * 2
