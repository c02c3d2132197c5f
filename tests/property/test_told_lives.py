"""What is told of a request, or of each sample, holds together: each step once, with a slot.

In worlds in which samples leave (leaving_samples).
"""

from collections import Counter
from dataclasses import asdict
from io import StringIO
from itertools import pairwise
from random import Random

import pytest
from builders import World
from leaving_samples import boundaries, draw_clients, draw_config

from everbatch.base.eventlog import EventLogWriter
from everbatch.diagnose.explain import explain
from everbatch.diagnose.life import Entry, Life, Loss, Run, Wait

NUM_SEEDS = 80


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
        log = log_of(world)
        for life in (
            life for c in clients if c.id in world.texts for life in explain(log, c.id).lives
        ):
            kinds.update(chapter.kind for chapter in life.chapters)
            check_slots(life, f"seed {seed}, {life.id}")
            check_steps(life, f"seed {seed}, {life.id}")
            assert life.num_outputs == len(world.texts[life.id])

    assert kinds["preempted"] > 10 and kinds["wait"] > 100


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
