"""Small random worlds with requests of several samples, which leave at random boundaries.

In every state, so prompts pass from one sample to the next; blocks are few, so somebody yields.
"""

from collections.abc import Callable, Iterator
from random import Random

from builders import Client, World, client, make_config

from everbatch.base.events import Event
from everbatch.scheduler.config import SchedulerConfig

LAST_ARRIVAL = 6
LEAVING = 0.03


def draw_clients(random: Random) -> list[Client]:
    """One that grows long, and newer ones whose prompts may be preempted before they are read."""
    grows = client("c0", random.randint(1, 12), random.randint(16, 28))
    return [grows] + [
        client(
            f"c{number}",
            random.randint(1, 28),
            random.randint(1, 10),
            n=random.choice([1, 2, 3, 3]),
            arrival=random.randint(0, LAST_ARRIVAL),
        )
        for number in range(1, 4)
    ]


def draw_config(random: Random, mode: str, extent: str) -> SchedulerConfig:
    return make_config(
        num_blocks=random.choice([10, 12, 14]),
        max_num_batched_tokens=random.choice([3, 6, 9, 64]),
        long_prefill_token_threshold=random.choice([0, 2, 4]),
        max_num_seqs=random.choice([3, 4, 6]),
        admission="now",
        preemption_mode=mode,
        preemption_extent=extent,
        num_host_blocks=12,
    )


def boundaries(
    world: World, clients: list[Client], take: Callable[[Event], None], random: Random
) -> Iterator[None]:
    """Run to the end; yields where the log has told everything."""
    num_taken = 0
    while True:
        world.arrive()
        for id in (id for one in clients if one.id in world.texts for id in one.sample_ids()):
            if random.random() < LEAVING:
                world.engine.abort(id)
        if not world.engine.has_work and world.boundary >= LAST_ARRIVAL:
            return
        world.step()
        for event in world.events[num_taken:]:
            take(event)
        num_taken = len(world.events)
        yield
