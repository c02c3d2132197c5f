"""Requests that leave: in every state, at boundaries and while a step runs."""

import pytest
from builders import World, alone, client, finals, make_config, run_world

from everbatch.scheduler.request import FinishReason, RequestStatus

OTHER = client("other", 6, 12)
CACHING = pytest.mark.parametrize("caching", [False, True])


def check_others_and_pool(world):
    """Whoever stays has its text, all blocks have come back."""
    stats = world.engine.stats()

    assert world.texts["other"] == alone(OTHER)
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks
    assert stats.num_running == stats.num_waiting == 0


@CACHING
@pytest.mark.parametrize("boundary", range(14))
@pytest.mark.parametrize("when", ["abort_at", "abort_during"])
def test_a_long_prompt_leaves_at_any_moment(when, boundary, caching):
    # Three chunks, then decodes; the other one decodes meanwhile.
    leaver = client("leaver", 30, 6, **{when: boundary})
    world = run_world([OTHER, leaver], max_num_batched_tokens=12, enable_prefix_caching=caching)
    text = alone(leaver)

    assert len(world.ends["leaver"]) == 1
    assert world.texts["leaver"] == text[: len(world.texts["leaver"])]
    assert finals(world)["leaver"].output_tokens == len(world.texts["leaver"])
    check_others_and_pool(world)


def test_an_abort_at_a_boundary_keeps_the_tokens_before_it():
    world = run_world([OTHER, client("leaver", 4, 9, abort_at=3)])
    end = finals(world)["leaver"]

    assert len(world.texts["leaver"]) == 3
    assert (end.reason, end.t, end.step) == ("abort", 3, 3)
    assert "leaver" not in world.records[3].emitted
    check_others_and_pool(world)


def test_an_abort_while_a_step_runs_drops_what_it_sampled():
    world = run_world([OTHER, client("leaver", 4, 9, abort_during=3)])
    end = finals(world)["leaver"]

    assert len(world.texts["leaver"]) == 2
    assert (end.reason, end.step, end.output_tokens) == ("abort", 3, 2)
    assert world.records[2].emitted == ["other"]
    assert next(e for e in world.events if e.kind == "step" and e.step == 3).emitted == 1
    check_others_and_pool(world)


def test_a_first_output_sampled_while_its_request_leaves_is_dropped():
    world = run_world([OTHER, client("leaver", 4, 9, abort_during=1)])

    assert world.texts["leaver"] == []
    assert finals(world)["leaver"].output_tokens == 0
    check_others_and_pool(world)


@pytest.mark.parametrize("output_tokens", [1, 3])
def test_who_leaves_while_its_last_step_runs_has_left(output_tokens):
    leaver = client("leaver", 4, output_tokens, abort_during=output_tokens)
    world = run_world([OTHER, leaver])

    assert world.ends["leaver"] == [FinishReason.ABORT]
    assert len(world.texts["leaver"]) == output_tokens - 1
    check_others_and_pool(world)


def test_who_has_finished_has_finished():
    world = run_world([OTHER, client("leaver", 4, 3, abort_at=3)])

    assert world.ends["leaver"] == [FinishReason.STOP]
    assert len(world.texts["leaver"]) == 3


def test_who_leaves_before_it_runs_gets_no_token_and_holds_no_block():
    world = run_world([OTHER, client("leaver", 4, 3, arrival=2, abort_at=1)])
    end = finals(world)["leaver"]

    assert world.texts["leaver"] == []
    assert (end.reason, end.t) == ("abort", 2)
    assert "leaver" not in {e.id for e in world.events if e.kind == "admitted"}
    check_others_and_pool(world)


@pytest.mark.parametrize("when", ["abort_at", "abort_during"])
def test_a_waiting_request_leaves_the_queue(when):
    clients = [OTHER, client("leaver", 4, 3, **{when: 4}), client("third", 4, 3)]
    world = run_world(clients, max_num_seqs=1)

    assert world.texts["leaver"] == []
    assert finals(world)["leaver"].step == 4
    assert world.texts["third"] == alone(clients[2])
    check_others_and_pool(world)


def statuses(world):
    """The states a client was seen in at boundaries, by boundary."""
    return {
        request.id: request.status for request in world.engine.scheduler.state.requests.values()
    }


@CACHING
def test_a_preempted_request_leaves_the_queue(caching):
    # Preempted in step 4; `a` holds the pool until step 7.
    a, leaver = client("a", 4, 7), client("leaver", 6, 7, abort_at=5)
    world = World(make_config(num_blocks=4, enable_prefix_caching=caching), [a, leaver])
    seen = []
    for _ in range(12):
        world.arrive()
        seen.append(statuses(world).get("leaver"))
        world.leave()
        if world.engine.has_work:
            world.step()

    assert seen[4:6] == [RequestStatus.WAITING, RequestStatus.WAITING]
    assert finals(world)["leaver"].preemptions == 1
    assert len(world.texts["leaver"]) == 3
    assert world.texts["a"] == alone(a)


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_an_abort_while_a_rebuild_completes_takes_no_output_back(outputs):
    # `b` yields with so many outputs and leaves while its history is rebuilt.
    clients = [client("a", 4, 7), client("b", 9 - outputs, 7)]
    before = run_world(clients, num_blocks=4)
    rebuilt = next(e.step for e in before.events if e.kind == "decoding" and not e.emitted)
    clients[1].abort_during = rebuilt
    world = run_world(clients, num_blocks=4)
    emitted = sum(e.emitted for e in world.events if e.kind == "step")

    assert len(world.texts["b"]) == outputs
    assert finals(world)["b"].output_tokens == outputs
    assert finals(world)["b"].preemptions == 1
    assert emitted == 7 + outputs


def test_leaving_twice_and_unknown_ids_do_nothing():
    world = World(make_config(), [OTHER, client("leaver", 4, 9)])
    world.arrive()
    world.step()
    for _ in range(2):
        world.engine.abort("leaver")
    world.engine.abort("nobody")
    world.run()

    assert world.ends["leaver"] == [FinishReason.ABORT]
    check_others_and_pool(world)


def test_the_first_reason_given_while_a_step_runs_counts():
    world = World(make_config(), [OTHER])
    world.arrive()
    result = world.engine.step(
        lambda: [
            ("other", FinishReason.STOP),
            ("other", FinishReason.ABORT),
            ("x", FinishReason.ABORT),
        ]
    )

    assert result.finished == [("other", FinishReason.STOP)]
    assert result.outputs == []


def test_all_leave_at_once():
    clients = [client(f"c{i}", 5 + i, 9, abort_at=4) for i in range(6)]
    world = run_world([OTHER, *clients], num_blocks=12)

    assert [end for c in clients for end in world.ends[c.id]] == [FinishReason.ABORT] * 6
    check_others_and_pool(world)


def test_blocks_of_who_left_are_used_in_the_next_step():
    clients = [client("leaver", 16, 1, max_tokens=9, abort_at=1), client("b", 20, 2, arrival=1)]
    clients[0].output_tokens = 9
    world = run_world(clients, num_blocks=6)

    assert world.records[1].scheduled == {"b": 20}


def test_aborts_are_told_though_nothing_runs_any_more():
    world = World(make_config(), [client("a", 4, 9)])
    world.arrive()
    world.engine.abort("a")

    assert world.engine.has_work
    assert world.engine.step().finished == [("a", FinishReason.ABORT)]
    assert not world.engine.has_work
