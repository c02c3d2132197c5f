"""Nobody can run and nobody can yield: that must not happen, and if it does nobody spins."""

from builders import World, client, make_config

from everbatch.base.events import Deferred
from everbatch.engine.engine import Engine


def stuck_world(**options):
    """A world whose blocks are gone, all but two, as if they had leaked; and who holds them."""
    world = World(make_config(), [client("a", 12, 3), client("b", 12, 3)])
    if options:
        world.engine = Engine(world.config, world.checker, world.clock, **options)
    pool = world.engine.scheduler.state.pool
    leaked = pool.allocate(pool.num_blocks - 2)
    world.arrive()
    return world, leaked


def test_the_head_of_the_queue_ends_with_the_numbers():
    world, _ = stuck_world()
    result = world.engine.step()

    assert [(id, reason.value) for id, reason in result.finished] == [("a", "error")]
    assert result.error == "request 'a' can never run (kv_budget: needs 3, 2 available)"
    told = [event for event in result.events if isinstance(event, Deferred)]
    assert ("a", "kv_budget", 3, 2) in [(e.id, e.reason, e.needed, e.available) for e in told]


def test_the_others_are_tried_after_it():
    world, leaked = stuck_world()
    world.engine.step()
    world.engine.scheduler.state.pool.release(leaked)
    world.run()

    assert world.ends["b"][0].value == "stop"


def test_all_end_one_by_one_if_nobody_can_ever_run():
    world, _ = stuck_world()
    ended = [id for _ in "ab" for id, _ in world.engine.step().finished]

    assert ended == ["a", "b"]
    assert not world.engine.has_work


def test_a_simulation_is_told_and_keeps_its_requests():
    world, _ = stuck_world(fails_stuck=False)
    result = world.engine.step()

    assert result.plan is None
    assert not [e for e in result.events if e.kind in ("preempted", "finished")]
    assert len(world.engine.scheduler.state.requests) == 2
    deferral = world.engine.scheduler.deferrals.current[world.engine.scheduler.state.requests["a"]]
    assert (deferral.needed, deferral.available) == (3, 2)
