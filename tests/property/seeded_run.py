"""Writes the event log of one seeded run to standard output; test_determinism runs it.

Ids are random words, so that an order that hung on hashes of strings would show.
"""

import sys
from random import Random

from builders import Client, World

from everbatch.base.eventlog import EventLogWriter
from everbatch.scheduler.config import SchedulerConfig


def seeded_world(seed: int) -> World:
    """A crowd on a pool that is too small for it."""
    draw = Random(seed)
    config = SchedulerConfig(
        max_num_seqs=12,
        max_num_batched_tokens=24,
        num_blocks=24,
        block_size=4,
        enable_prefix_caching=True,
        admission=draw.choice(["now", "prompt"]),
        preemption_trigger=draw.choice(["shortage", "stall"]),
    )
    clients = []
    for number in range(60):
        id = "".join(draw.choices("abcdefgh", k=6)) + str(number)
        stream = draw.randrange(4)
        prompt = [1_000 * stream + position for position in range(draw.randint(1, 30))]
        clients.append(
            Client(
                id,
                prompt,
                draw.randint(1, 30),
                arrival=draw.randrange(60),
                abort_at=draw.choice([None, None, None, draw.randrange(120)]),
                abort_during=draw.choice([None, None, None, draw.randrange(120)]),
            )
        )
    return World(config, clients, frozenset({draw.randrange(100)}))


def main() -> None:
    world = seeded_world(int(sys.argv[1])).run()
    writer = EventLogWriter(sys.stdout, {"seed": int(sys.argv[1])})
    writer.write(world.events)
    writer.flush()
    print(writer.digest())


if __name__ == "__main__":
    main()
