"""The lesson's six requests on the real engine: static batches against continuous batching.

    python benchmarks/lesson_on_engine.py [MODEL] [--json FILE] [--svg FILE] [--cpu-time]

Slots, prompts, outputs and arrivals are those of the built-in scenarios lesson-static and
lesson-continuous. There times are steps; here a step is as long as one with four decodes takes on
this machine, measured beforehand, and the clock is the wall's. Both engines get the same list, in
turns, in one process. Prompts are random token ids, outputs end at their limit.

From the events of each run: useful slot iterations, waits, times to first token, gaps between
tokens, tokens a second; `--svg` draws the last round over real time. Belongs here: the runs, the
figures. Not here: driving (driven_engine.py), the page (lesson_page.py).
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from driven_engine import (
    DrivenEngine,
    Recording,
    first_token_ns,
    replay,
    request_spec,
    token_gaps,
)
from harness import LOCK_PATH, BenchmarkError, machine_lock
from positive_numbers import positive
from provenance import Watch, clock_facts

from everbatch.base.errors import EverbatchError
from everbatch.base.events import Finished
from everbatch.base.units import NS_PER_MS, NS_PER_S
from everbatch.llm.llm import LLM
from everbatch.sim.distribution import distribution
from everbatch.sim.slot_picture import SlotRows, SlotTimes, draw_slots
from everbatch.workload.builtin_scenarios import find_scenario
from everbatch.workload.requests import RequestSpec

MODES = ("static", "continuous")
ROUNDS = 5
WARM_UP_OUTPUTS = 60
LATE = ("5", "6")
"""Those who come while a batch runs."""


@dataclass(frozen=True, slots=True)
class RoundFigures:
    """One run of the six requests. Times are seconds."""

    steps: int
    useful: int
    """Slot iterations of which a new output came."""
    slot_iterations: int
    masked: int
    useful_at_horizon: int
    """Of those of the first steps, as many as the scenario's horizon has."""
    makespan_s: float
    """From the first arrival to the last end."""
    tokens_per_s: float
    ttft_s: dict[str, float]
    gaps_s: list[float]


@dataclass(slots=True)
class Record:
    """Everything that was run. `tick_ns`: the lesson's step on this machine."""

    num_slots: int
    horizon: int
    tick_ns: int
    model: dict[str, Any]
    rounds: dict[str, list[RoundFigures]] = field(default_factory=lambda: {m: [] for m in MODES})
    pictures: dict[str, SlotRows] = field(default_factory=dict)
    """Of the last round, by mode."""


def measure(engines: dict[str, DrivenEngine], rounds: int, folder: Path) -> Record:
    """Warm up, find the length of a step, then run both engines in turns."""
    scenario = find_scenario("lesson-continuous")
    num_slots, horizon = scenario.engine.max_num_seqs, scenario.run.horizon
    assert horizon is not None
    tick_ns = min(_tick_ns(engine, num_slots) for engine in engines.values())
    specs = [replace(spec, arrival=spec.arrival * tick_ns) for spec in scenario.requests]
    model = engines["static"].header.get("model")
    record = Record(num_slots, horizon, tick_ns, model if isinstance(model, dict) else {})
    for _ in range(rounds):
        for mode in MODES:
            recording = engines[mode].run(specs)
            figures, rows = read(recording, mode, num_slots, horizon, folder)
            record.rounds[mode].append(figures)
            record.pictures[mode] = rows
    return record


def read(
    recording: Recording, mode: str, num_slots: int, horizon: int, folder: Path
) -> tuple[RoundFigures, SlotRows]:
    """Give the figures of a run and its slots over time."""
    steps, due_ns = recording.steps, recording.due_ns
    times = SlotTimes(num_slots)
    told = replay(recording, folder, [times])
    useful = sum(step.emitted for step in steps)
    end_ns = max(event.t for event in recording.events if isinstance(event, Finished))
    makespan_s = (end_ns - min(due_ns.values())) / NS_PER_S
    gaps = [gap for one in token_gaps(steps).values() for gap in one]
    first = first_token_ns(recording.events)
    figures = RoundFigures(
        steps=len(steps),
        useful=useful,
        slot_iterations=num_slots * len(steps),
        masked=told["masked_slot_iterations"],
        useful_at_horizon=sum(step.emitted for step in steps[:horizon]),
        makespan_s=makespan_s,
        tokens_per_s=useful / makespan_s,
        ttft_s={id: (first[id] - due) / NS_PER_S for id, due in due_ns.items()},
        gaps_s=[gap / NS_PER_S for gap in gaps],
    )
    origin_ns = steps[0].start
    marks = [(due_ns[id] - origin_ns, f"{id} comes") for id in LATE if id in due_ns]
    return figures, SlotRows(f"{mode} batching", times.close(), marks)


def facts(record: Record) -> dict[str, Any]:
    """Give what was measured: medians of the rounds, times of all rounds together."""
    return {
        "model": record.model,
        "num_slots": record.num_slots,
        "horizon": record.horizon,
        "step_ms": record.tick_ns / NS_PER_MS,
        "num_rounds": len(record.rounds["static"]),
        **{mode: _facts_of(record, mode) for mode in MODES},
        "tokens_per_s_ratio": _spread(_ratios(record)),
        "rounds": {mode: [_without_gaps(one) for one in record.rounds[mode]] for mode in MODES},
    }


def table(told: dict[str, Any]) -> str:
    """Write the comparison as a table in Markdown."""
    static, continuous = told["static"], told["continuous"]
    slots = told["num_slots"] * told["horizon"]
    rows = [
        (
            f"useful slot iterations of the first {told['horizon']} steps",
            "useful_at_horizon",
            slots,
        ),
        ("useful slot iterations to the end", "useful", None),
    ]
    lines = ["| | static | continuous |", "|---|--:|--:|"]
    for words, key, of in rows:
        cells = [_share(one[key], of or one["slot_iterations"]) for one in (static, continuous)]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    lines.append(f"| masked slot iterations | {static['masked']:g} | {continuous['masked']:g} |")
    lines.append(f"| steps | {static['steps']:g} | {continuous['steps']:g} |")
    for words, place, unit in (
        ("time to first token, p50", ("ttft_s", "p50"), "ms"),
        ("time to first token, p99", ("ttft_s", "p99"), "ms"),
        ("… of request 5", ("ttft_s_of", "5"), "ms"),
        ("… of request 6", ("ttft_s_of", "6"), "ms"),
        ("gap between tokens, p50", ("gap_s", "p50"), "ms"),
        ("gap between tokens, p99", ("gap_s", "p99"), "ms"),
        ("from the first arrival to the last end", ("makespan_s", "median"), "s"),
        ("tokens/s", ("tokens_per_s", "median"), ""),
    ):
        cells = [_time(one[place[0]][place[1]], unit) for one in (static, continuous)]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write what was asked for; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="default: the default model")
    parser.add_argument("--rounds", type=positive, default=ROUNDS)
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="with one thread, in its CPU time: for a machine on which others compute",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the picture")
    options = parser.parse_args(arguments)
    try:
        with machine_lock(LOCK_PATH), tempfile.TemporaryDirectory() as folder:
            watch = Watch()
            engines = {
                mode: _engine(options.model, mode, cpu_time=options.cpu_time) for mode in MODES
            }
            record = measure(engines, options.rounds, Path(folder))
            told = {**watch.facts(), **clock_facts(cpu_time=options.cpu_time), **facts(record)}
    except (BenchmarkError, EverbatchError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"others used {told['other_cores']:.2f} cores meanwhile")
    print(f"a step takes {told['step_ms']:.2f} ms; {told['num_rounds']} rounds in turns\n")
    print(table(told))
    if options.json is not None:
        options.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    if options.svg is not None:
        title = "The lesson's six requests on the real engine"
        picture = draw_slots(title, [record.pictures[mode] for mode in MODES])
        options.svg.write_text(picture, encoding="utf-8")
    return 0


def _engine(model: str | None, mode: str, *, cpu_time: bool) -> DrivenEngine:
    scenario = find_scenario(f"lesson-{mode}").engine
    llm = LLM(
        model,
        threads=1 if cpu_time else None,
        batching=scenario.batching,
        max_num_seqs=scenario.max_num_seqs,
        max_num_batched_tokens=scenario.max_num_batched_tokens,
        max_model_len=1024,
        num_blocks=512,
        enable_prefix_caching=False,
    )
    return DrivenEngine.of(llm, cpu_time=cpu_time)


def _tick_ns(engine: DrivenEngine, num_slots: int) -> int:
    """Give how long a step takes in which all slots decode; warms the engine up, too."""
    specs: list[RequestSpec] = [
        request_spec(f"warm-up-{number}", number, 0, 10, WARM_UP_OUTPUTS)
        for number in range(num_slots)
    ]
    engine.run(specs)
    gaps = token_gaps(engine.run(specs).steps, num_slots)
    return round(statistics.median(gaps["decode"]))


def _facts_of(record: Record, mode: str) -> dict[str, Any]:
    rounds = record.rounds[mode]
    counts = ("steps", "useful", "slot_iterations", "masked", "useful_at_horizon")
    ids = rounds[0].ttft_s
    return {
        **{name: statistics.median(getattr(one, name) for one in rounds) for name in counts},
        "makespan_s": _spread([one.makespan_s for one in rounds]),
        "tokens_per_s": _spread([one.tokens_per_s for one in rounds]),
        "ttft_s": distribution(ttft for one in rounds for ttft in one.ttft_s.values()),
        "ttft_s_of": {id: statistics.median(one.ttft_s[id] for one in rounds) for id in ids},
        "gap_s": distribution(gap for one in rounds for gap in one.gaps_s),
    }


def _ratios(record: Record) -> list[float]:
    pairs = zip(record.rounds["continuous"], record.rounds["static"], strict=True)
    return [ours.tokens_per_s / theirs.tokens_per_s for ours, theirs in pairs]


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _without_gaps(figures: RoundFigures) -> dict[str, Any]:
    """A record of every gap would be longer than it is of use."""
    told = asdict(figures)
    del told["gaps_s"]
    return told


def _share(part: float, whole: float) -> str:
    return f"{part:g} of {whole:g}, {part / whole:.1%}"


def _time(seconds: float, unit: str) -> str:
    if unit == "ms":
        return f"{seconds * 1e3:,.1f} ms"
    return f"{seconds:,.2f} s" if unit == "s" else f"{seconds:,.1f}"


if __name__ == "__main__":
    sys.exit(main())
