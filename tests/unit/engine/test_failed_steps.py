"""Forward passes that fail: rolled back, tried again in parts; who fails alone ends."""

import pytest
from builders import World, alone, client, finals, make_config, run_world

from everbatch.scheduler.report import MAX_MESSAGE_CHARACTERS
from everbatch.scheduler.request import FinishReason


def test_a_pass_that_fails_once_costs_time_alone():
    clients = [client(id, 5, 6) for id in "abc"]
    world = run_world(clients, max_num_seqs=2, failing_steps=[3])

    for c in clients:
        assert world.ends[c.id] == [FinishReason.STOP]
        assert world.texts[c.id] == alone(c)
    assert world.engine.stats().num_free_blocks == 64


def test_who_fails_again_alone_ends_with_an_error_and_the_others_go_on():
    # Passes 3 and 4 fail with both rows, pass 5 with `a` alone; `b` then has a pass for itself.
    clients = [client(id, 5, 6) for id in "abc"]
    world = run_world(clients, max_num_seqs=2, failing_steps=[3, 4, 5])

    assert world.ends == {
        "a": [FinishReason.ERROR],
        "b": [FinishReason.STOP],
        "c": [FinishReason.STOP],
    }
    assert len(world.texts["a"]) == 2
    for c in clients[1:]:
        assert world.texts[c.id] == alone(c)
    # The step after the failures is that of `b` alone, the next one everybody's again.
    assert [record.decodes for record in world.records[2:4]] == [1, 1]


def test_a_failed_pass_is_tried_again_without_those_who_joined_in_it():
    clients = [client("a", 5, 8), client("b", 5, 8), client("c", 5, 8, arrival=2)]
    world = run_world(clients, failing_steps=[3])

    # `c` was to join in step 3: first the two others run, then `c` alone, then all.
    third, fourth, fifth = world.records[2:5]
    assert (third.decodes, third.scheduled) == (2, {})
    assert (fourth.decodes, fourth.scheduled) == (0, {"c": 5})
    assert fifth.decodes == 3
    assert set(map(tuple, world.ends.values())) == {(FinishReason.STOP,)}


def test_if_that_fails_too_every_row_has_a_pass_for_itself():
    clients = [client("a", 5, 8), client("b", 5, 8), client("c", 5, 8, arrival=2)]
    world = run_world(clients, failing_steps=[3, 4, 5])

    # Passes: all three, `a` and `b`, `a` alone. Then `b` alone, `c` alone, both.
    assert world.ends["a"] == [FinishReason.ERROR]
    assert [(r.decodes, r.scheduled) for r in world.records[2:5]] == [
        (1, {}),
        (0, {"c": 5}),
        (2, {}),
    ]
    for c in clients[1:]:
        assert world.texts[c.id] == alone(c)


def test_one_who_always_fails_does_not_harm_the_others():
    clients = [client(id, 5, 6, arrival=at) for at, id in enumerate("abcde")]
    world = World(make_config(), clients)
    world.executor.poisoned = frozenset({"c"})
    world.run()

    for c in clients:
        text = alone(c)
        if c.id == "c":
            assert world.ends[c.id] == [FinishReason.ERROR]
            assert world.texts[c.id] == []
        else:
            assert (world.ends[c.id], world.texts[c.id]) == ([FinishReason.STOP], text)


def test_several_who_always_fail_are_found_in_few_passes():
    clients = [client(id, 5, 6) for id in "abcdefgh"]
    world = World(make_config(max_num_seqs=8), clients)
    # They fail once they decode with the others, not when they come.
    world.arrive()
    world.step()
    world.executor.poisoned = frozenset("bch")
    world.run()

    assert [id for id in "abcdefgh" if world.ends[id] == [FinishReason.ERROR]] == list("bch")
    for c in clients:
        text = alone(c)
        assert world.texts[c.id] == (text[:1] if c.id in "bch" else text)
    # One pass when they come, all twice, each alone; then four outputs are left.
    assert world.executor.num_steps == 1 + 2 + 8 + 4


def test_who_always_fails_is_found_though_blocks_are_short():
    # `b` waits until one of the others gives back blocks, or takes them.
    clients = [client("a", 4, 9), client("b", 6, 9, arrival=1), client("c", 4, 9)]
    for trigger in ("shortage", "stall"):
        world = World(make_config(num_blocks=5, preemption_trigger=trigger), clients)
        world.executor.poisoned = frozenset("b")
        world.run()

        assert world.ends["b"] == [FinishReason.ERROR]
        assert {id: world.texts[id] for id in "ac"} == {c.id: alone(c) for c in clients[::2]}
        assert world.executor.num_steps < 40


def test_a_device_that_never_works_again_answers_everybody():
    clients = [client(id, 5, 6, arrival=at) for at, id in enumerate("abcde")]
    world = run_world(clients, failing_steps=range(4, 1_000))

    assert all(len(world.ends[c.id]) == 1 for c in clients)
    assert FinishReason.ERROR in {ends[0] for ends in world.ends.values()}
    assert world.executor.num_steps < 40


def test_samples_are_tried_together_while_they_share_a_prompt():
    clients = [client("a", 5, 6, n=3), client("b", 5, 6)]
    world = run_world(clients, failing_steps=[1])
    poisoned = World(make_config(), clients)
    poisoned.executor.poisoned = frozenset({"a/0"})
    poisoned.run()

    assert {id: ends for id, ends in world.ends.items() if ends != [FinishReason.STOP]} == {}
    # Nobody knows whether the prompt or the first of the samples fails: all three end.
    assert poisoned.ends["a"] == [FinishReason.ERROR]
    assert poisoned.ends["b"] == [FinishReason.STOP]


def test_members_of_a_static_batch_end_together():
    clients = [client(id, 5, 6) for id in "abc"]
    world = run_world(clients, max_num_seqs=2, failing_steps=[3], batching="static")

    assert world.ends == {
        "a": [FinishReason.ERROR],
        "b": [FinishReason.ERROR],
        "c": [FinishReason.STOP],
    }
    assert [len(world.texts[id]) for id in "ab"] == [2, 2]


def test_who_was_to_be_admitted_fails_like_the_others():
    world = run_world([client("a", 5, 6)], failing_steps=[1, 2])

    assert world.ends["a"] == [FinishReason.ERROR]
    kinds = [e.kind for e in world.events if e.kind != "deferred"]
    assert kinds == ["arrived", "step_failed", "step_failed", "finished"]


def test_the_failed_step_is_told_and_its_number_used_again():
    clients = [client("a", 5, 6), client("b", 5, 2, arrival=4)]
    world = run_world(clients, failing_steps=[3, 4])
    failed, _ = [e for e in world.events if e.kind == "step_failed"]

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
    assert result.finished == []


def test_a_step_that_fails_when_blocks_are_full_leaves_nobody_due():
    # After step 1 both tables are full, so step 2 gives each a block.
    clients = [client("a", 4, 6), client("b", 4, 6), client("c", 4, 6, arrival=2)]
    world = run_world(clients, num_blocks=8, failing_steps=[2])

    assert world.engine.stats().num_free_blocks == 8
    assert {id: world.texts[id] for id in "abc"} == {c.id: alone(c) for c in clients}


def test_every_step_may_fail_once():
    clients = [client(id, 6, 8, arrival=at) for at, id in enumerate("abcdef")]
    for step in range(1, 40):
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
                assert world.ends[c.id] == [FinishReason.STOP]
                assert world.texts[c.id] == alone(c)


def test_who_left_while_a_pass_failed_has_left():
    world = World(make_config(max_num_seqs=1), [client("a", 5, 6), client("b", 5, 6)])
    world.arrive()
    scheduler = world.engine.scheduler
    plan = scheduler.schedule(0)
    scheduler.abort("b", FinishReason.ABORT, 0)
    events = scheduler.fail_step(plan, "it failed", 0)

    assert [(e.id, e.reason) for e in events if e.kind == "finished"] == [("b", "abort")]


def test_content_of_a_failed_plan_is_not_hit():
    clients = [client("a", 16, 1, stream=0), client("b", 16, 1, stream=0, arrival=2)]
    world = run_world(clients, failing_steps=[1, 2], enable_prefix_caching=True)

    assert world.ends["a"] == [FinishReason.ERROR]
    assert finals(world)["b"].cached_tokens == 0
    assert world.texts["b"] == alone(clients[1])


def test_cached_blocks_that_a_failed_pass_has_overwritten_are_not_hit():
    # `b` takes the blocks of `a`, writes them, and the pass fails twice; then `a` comes again.
    again = client("c", 12, 2, stream=0, arrival=4)
    clients = [client("a", 12, 1, stream=0), client("b", 12, 3, arrival=2), again]
    world = run_world(clients, num_blocks=4, failing_steps=[2, 3], enable_prefix_caching=True)

    assert world.ends["b"] == [FinishReason.ERROR]
    assert world.texts["c"] == alone(again)
    assert 0 < finals(world)["c"].cached_tokens < 8


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("extent", ["whole", "tail"])
def test_victims_of_a_failed_plan_compute_again_what_others_have_perhaps_written(mode, extent):
    # The pass in which `b` would have yielded fails.
    clients = [client("a", 4, 7), client("b", 6, 7)]
    world = run_world(
        clients,
        num_blocks=4,
        failing_steps=[4],
        preemption_mode=mode,
        preemption_extent=extent,
        num_host_blocks=8,
    )

    assert world.engine.stats().num_preemptions == 1
    assert [e.way for e in world.events if e.kind == "preempted"] == ["recompute"]
    for c in clients:
        assert (world.ends[c.id], world.texts[c.id]) == ([FinishReason.STOP], alone(c))


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
    world = World(make_config(), clients)
    world.executor.failing_outputs = {"a": 2}
    world.executor.poisoned = frozenset({"b/1"})
    world.run()
    samples = {e.id: e.message for e in world.events if e.kind == "sample_finished"}

    assert finals(world)["a"].message == "output 2 was told to fail"
    told = "a row of this pass was told to make it fail"
    assert samples == {"b/0": None, "b/1": told}
    assert finals(world)["b"].message == told
    assert finals(world)["c"].message is None


@pytest.mark.parametrize("length", [MAX_MESSAGE_CHARACTERS, MAX_MESSAGE_CHARACTERS + 1])
def test_what_events_say_of_a_failure_has_a_limit(length):
    world = World(make_config(), [client("a", 5, 6)])
    world.arrive()
    scheduler = world.engine.scheduler
    message = "x" * length
    events = scheduler.fail_step(scheduler.schedule(0), message, 0)
    events += scheduler.fail_step(scheduler.schedule(0), message, 0)
    said = [e.message for e in events if e.kind in ("step_failed", "finished")]

    fits = length == MAX_MESSAGE_CHARACTERS
    assert said == [message if fits else message[: MAX_MESSAGE_CHARACTERS - 1] + "…"] * 3
