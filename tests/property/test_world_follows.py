"""What a log tells of the moment is what the scheduler holds: tokens, outputs, slots, phases.

In worlds in which samples leave (leaving_samples).
"""

from collections import Counter
from dataclasses import asdict
from random import Random

import pytest
from builders import World
from leaving_samples import boundaries, draw_clients, draw_config

from everbatch.diagnose.log import Ruler
from everbatch.diagnose.world import World as ToldWorld
from everbatch.scheduler.plan import DeferReason
from everbatch.server.phases import Phase, Phases

NUM_SEEDS = 200


@pytest.mark.parametrize("extent", ["whole", "tail"])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_log_tells_what_the_scheduler_holds(mode, extent):
    differing, num_compared = [], 0
    for seed in range(NUM_SEEDS):
        random = Random(seed)
        clients = draw_clients(random)
        world = World(draw_config(random, mode, extent), clients)
        told = ToldWorld(asdict(world.config), Ruler(is_steps=False))
        for _ in boundaries(world, clients, told.take, random):
            for id, held in _held(world).items():
                num_compared += 1
                if _told(told, id) != held:
                    differing.append((seed, world.boundary, id, _told(told, id), held))

    assert num_compared > 1_000
    assert differing == []


@pytest.mark.parametrize("extent", ["whole", "tail"])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_the_phases_of_requests_are_told_by_events(mode, extent):
    seen = Counter()
    for seed in range(NUM_SEEDS):
        random = Random(seed)
        clients = draw_clients(random)
        world, phases = World(draw_config(random, mode, extent), clients), Phases()
        for _ in boundaries(world, clients, phases.take, random):
            assert phases.counts() == _phases(world), f"seed {seed}, boundary {world.boundary}"
            assert phases.waiting_by_reason() == _reasons(world), f"seed {seed}"
            seen.update(phases.counts())

    assert min(seen[phase] for phase in Phase) > 100


def _phases(world: World) -> dict[Phase, int]:
    state = world.engine.scheduler.state
    queue = [request for request in state.requests.values() if request in state.policy.queue]
    return {
        Phase.WAITING: sum(not request.has_started for request in queue),
        Phase.PREEMPTED: sum(request.has_started for request in queue),
        Phase.PREFILL: len(state.prefilling) + len(state.following),
        Phase.DECODE: len(state.decodes) + len(state.idle_decodes),
    }


def _reasons(world: World) -> dict[str, int]:
    scheduler = world.engine.scheduler
    queue = scheduler.state.policy.queue
    counts = {reason.value: 0 for reason in DeferReason}
    for request, deferral in scheduler.deferrals.current.items():
        counts[deferral.reason.value] += request in queue
    return counts


def _held(world: World) -> dict[str, tuple[int, int, int | None]]:
    """(computed tokens, outputs, slot) by id, of those who go by a name of their own."""
    scheduler = world.engine.scheduler
    return {
        request.id: (*scheduler.progress(request), request.slot)
        for request in scheduler.state.requests.values()
        if not request.is_follower and request.label == request.id
    }


def _told(told: ToldWorld, id: str) -> tuple[int, int, int | None] | None:
    live = told.live.get(id)
    if live is None:
        return None
    return told.computed_tokens(live), told.num_outputs(live), live.slot
