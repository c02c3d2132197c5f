"""Deadlines that are void are not kept until they pass."""

from builders import World, client, make_config

FAR = 1_000_000


def num_deadlines(world):
    return len(world.engine.scheduler.state.deadlines)


def test_requests_that_ended_long_before_their_deadlines_are_forgotten():
    world, most = World(make_config(), []), 0
    for number in range(500):
        world.add(client(f"r{number}", 4, 2, deadline=FAR + number % 7, n=1 + number % 2))
        world.step()
        most = max(most, num_deadlines(world))
    world.run()

    assert most < 40


def test_those_who_wait_keep_their_deadlines_when_void_ones_are_dropped():
    world = World(make_config(max_num_seqs=1), [])
    world.add(client("runs", 4, 60))
    world.add(client("late", 4, 2, deadline=3))
    for number in range(200):
        world.add(client(f"r{number}", 4, 2, deadline=FAR - number))
        if number % 10:
            world.engine.abort(f"r{number}")
    assert num_deadlines(world) < 80

    for _ in range(5):
        world.step()
    kept = {request.id for _, _, request in world.engine.scheduler.state.deadlines}

    assert [reason.value for reason in world.ends["late"]] == ["deadline"]
    assert {id for id in world.texts if not world.ends[id]} - {"runs"} <= kept
