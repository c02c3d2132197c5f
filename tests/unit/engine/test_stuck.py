"""Nobody can run and nobody can yield: that must not happen, and if it does nobody spins."""

from builders import World, client, make_config

from everbatch.engine.engine import Engine
from everbatch.scheduler.draft import Draft
from everbatch.scheduler.plan import Deferral, DeferReason


def stuck_world(**options):
    """A world whose planner finds no room for whoever waits."""
    world = World(make_config(), [client("a", 4, 3), client("b", 4, 3)])
    if options:
        world.engine = Engine(world.config, world.checker, world.clock, **options)
    world.arrive()
    queue = world.engine.scheduler.state.policy.queue

    def plan(**_):
        draft = Draft()
        draft.deferred[queue.peek(0)] = Deferral(DeferReason.KV_BUDGET, 7, 5)
        return draft

    world.engine.scheduler._planner.plan = plan
    return world


def test_the_head_of_the_queue_ends_with_the_numbers():
    world = stuck_world()
    result = world.step()

    assert [(id, reason.value) for id, reason in result.finished] == [("a", "error")]
    assert result.error == "request 'a' can never run (kv_budget: needs 7, 5 available)"
    told = [(e.id, e.reason, e.needed, e.available) for e in result.events if e.kind == "deferred"]
    assert ("a", "kv_budget", 7, 5) in told


def test_the_others_are_tried_after_it():
    world = stuck_world()
    world.step()
    world.step()

    assert not world.engine.has_work
    assert world.ends["b"][0].value == "error"


def test_a_simulation_is_told_and_keeps_its_requests():
    world = stuck_world(fails_stuck=False)
    result = world.engine.step()

    assert result.plan is None
    assert not [e for e in result.events if e.kind in ("preempted", "finished")]
    assert len(world.engine.scheduler.state.requests) == 2
    deferral = world.engine.scheduler.deferrals.current[world.engine.scheduler.state.requests["a"]]
    assert (deferral.needed, deferral.available) == (7, 5)
