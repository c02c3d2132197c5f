"""What is told of a request, or of each sample, holds together: each step once, with a slot.

In worlds in which samples leave (leaving_samples), and in crowds under all options.
"""

from collections import Counter
from dataclasses import asdict
from io import StringIO
from itertools import pairwise
from random import Random

import pytest
from builders import Client, World
from crowd import Crowd
from leaving_samples import boundaries, draw_clients, draw_config
from option_rows import covering_rows

from everbatch.base.eventlog import EventLogWriter
from everbatch.diagnose.explain import explain
from everbatch.diagnose.life import Entry, Life, Loss, Run, Wait

NUM_SEEDS = 80
ROWS = covering_rows()


@pytest.mark.parametrize("extent", ["whole", "tail"])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_who_runs_has_a_slot_and_does_one_thing_at_a_time(mode, extent):
    kinds = Counter()
    for seed in range(NUM_SEEDS):
        random = Random(seed)
        clients = draw_clients(random)
        world = World(draw_config(random, mode, extent), clients)
        for _ in boundaries(world, clients, lambda _: None, random):
            pass
        lives = check_lives(world, clients, f"seed {seed}")
        kinds.update(chapter.kind for life in lives for chapter in life.chapters)

    assert kinds["preempted"] > 10 and kinds["wait"] > 100


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_lives_of_a_crowd_under_each_row_of_options(number):
    crowd = Crowd(ROWS[number], 1_000 * number)
    crowd.run()
    check_lives(crowd.world, list(crowd.clients.values()), f"row {number}")


def check_lives(world: World, clients: list[Client], where: str) -> list[Life]:
    log = log_of(world)
    served = [c.id for c in clients if c.id in world.texts]
    lives = [life for id in served for life in explain(log, id).lives]
    for life in lives:
        check_slots(life, f"{where}, {life.id}")
        check_steps(life, f"{where}, {life.id}")
        assert life.num_outputs == len(world.texts[life.id])
    return lives


def log_of(world: World) -> list[str]:
    file = StringIO()
    writer = EventLogWriter(file, {"config": asdict(world.config), "clock": "ns"})
    writer.write(world.events)
    writer.flush()
    return file.getvalue().splitlines(keepends=True)


def check_slots(life: Life, where: str) -> None:
    """It takes a slot when it has none, runs with one, and loses the one that it has."""
    slot = None
    for chapter in life.chapters:
        match chapter:
            case Entry():
                assert slot is None, where
                slot = chapter.slot
            case Loss():
                # Without a slot it loses what it had kept.
                assert chapter.slot == slot, where
                slot = None
            case Run():
                assert slot is not None, where
            case Wait():
                assert (slot is None) == (chapter.phase in ("waiting", "preempted")), where


def check_steps(life: Life, where: str) -> None:
    """Every step is told, once: it runs in it or waits."""
    parts = [chapter for chapter in life.chapters if isinstance(chapter, Wait | Run)]
    assert all(part.from_step <= part.to_step for part in parts), where
    assert all(later.from_step == earlier.to_step + 1 for earlier, later in pairwise(parts)), where
    assert not parts or parts[-1].to_step == life.last_step, where
