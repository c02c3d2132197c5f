"""Logs for the tests of this folder: what simulated runs write, and lines to take away from it."""

import json
from dataclasses import asdict
from io import StringIO
from typing import Any

from builders import World, make_config
from command_line import scenario_text

from everbatch.base.eventlog import EventLogWriter
from everbatch.diagnose.explain import explain
from everbatch.diagnose.life import Life
from everbatch.sim.run import simulate
from everbatch.workload.scenario import parse_scenario


def request(id: str, prompt_tokens: int = 4, output_tokens: int = 3, **facts: Any) -> dict:
    return {"id": id, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens, **facts}


def log_of(*requests: dict, run: dict | None = None, **engine: Any) -> list[str]:
    """The event log of a simulated run, line by line: 4 slots, 512 tokens, 64 blocks of 4."""
    scenario = parse_scenario(scenario_text(requests, run, **engine), "given", "given")
    file = StringIO()
    simulate(scenario, file)
    return file.getvalue().splitlines(keepends=True)


def log_with_leavers(leaving: dict[int, str], *clients: Any, **engine: Any) -> list[str]:
    """The event log of a run in which single samples, or requests, leave at boundaries."""
    world = World(make_config(**engine), clients)
    for boundary, id in sorted(leaving.items()):
        while world.boundary < boundary:
            world.arrive()
            world.step()
        world.arrive()
        world.engine.abort(id)
    world.run()
    file = StringIO()
    writer = EventLogWriter(file, {"config": asdict(world.config), "clock": "ns"})
    writer.write(world.events)
    writer.flush()
    return file.getvalue().splitlines(keepends=True)


def life_of(log: list[str], id: str) -> Life:
    [life] = explain(log, id).lives
    return life


def told(life: Life) -> list[tuple[str, int, int]]:
    """A life in short: (what, first step, last step)."""
    short = []
    for chapter in life.chapters:
        what = getattr(chapter, "reason", chapter.kind) if chapter.kind == "wait" else chapter.kind
        first = getattr(chapter, "from_step", getattr(chapter, "step", 0))
        short.append((what, first, getattr(chapter, "to_step", first)))
    return short


def changed(log: list[str], kind: str, **facts: Any) -> list[str]:
    """The log with other facts in all events of a kind; None takes a fact away."""
    lines = []
    for line in log:
        event = json.loads(line)
        if event["event"] == kind:
            event |= {name: value for name, value in facts.items() if value is not None}
            for name in (name for name, value in facts.items() if value is None):
                event.pop(name, None)
        lines.append(json.dumps(event) + "\n")
    return lines
