"""Compare two commands side by side, round by round, on a machine whose speed is not steady.

    python benchmarks/harness.py --name NAME --a 'CMD' --b 'CMD' --figure decode_tokens_per_s

A candidate is any command that prints a JSON object of figures on a line of its own as the last
such line; it may live in another virtual environment. A round runs A, then B, with a probe of the
machine's ceilings before, between and after. A round in which the probe moved by more than
MAX_PROBE_CHANGE, or in which others kept more than MAX_OTHERS of the cores busy, is dropped,
because somebody else used the machine; the rest give medians, and one ratio A/B a round, whose
median is the result. Every round, kept or not, goes into a JSON file.

Belongs here: rounds, lock, statistics, record. Not here: the probe (machine_probe.py), what is
measured (bench_*.py and the candidates). Absolute times of different runs do not compare.
"""

import argparse
import fcntl
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from machine_probe import MachineProbe, Probe, others_share
from positive_numbers import positive
from provenance import ROOT, commit, machine_facts, versions

MAX_PROBE_CHANGE = 0.05  # share; neighbours halve the bandwidth of a shared machine for minutes
MAX_OTHERS = 0.05  # share of all cores, from a round's first probe to its last
MIN_KEPT_ROUNDS = 5
MAX_ROUNDS = 15
CANDIDATE_TIMEOUT_S = 1800
LOCK_PATH = Path(tempfile.gettempdir()) / "everbatch-benchmark.lock"
RESULTS_DIR = ROOT / "benchmarks" / "results"

Figures = Mapping[str, Any]  # numbers by name; facts such as versions may stand beside them


class BenchmarkError(Exception):
    """A measurement that cannot be made or that proves nothing; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A command to measure; `label` names it in results."""

    label: str
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """One run of A and of B, with the probes before A, between A and B, and after B."""

    a: Figures
    b: Figures
    probes: tuple[Probe, Probe, Probe]

    @property
    def probe_change(self) -> float:
        """The largest change of a probe's figure within the round, as a share of its maximum."""
        reads = [probe.read_gb_per_s for probe in self.probes]
        matrices = [probe.matrix_gflop_per_s for probe in self.probes]
        return max((max(values) - min(values)) / max(values) for values in (reads, matrices))

    @property
    def others(self) -> float:
        """The share of all cores that others kept busy."""
        return others_share(self.probes[0], self.probes[2])

    @property
    def kept(self) -> bool:
        """Whether the machine was steady and idle enough for the round to count."""
        return self.probe_change <= MAX_PROBE_CHANGE and self.others <= MAX_OTHERS


@dataclass(frozen=True, slots=True)
class Summary:
    """One figure over the kept rounds; `ratio` is the median of the rounds' A/B."""

    figure: str
    median_a: float
    median_b: float
    ratio: float
    ratios: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to compare. `at_least` maps a figure to the smallest ratio A/B that is good enough.
    `told_of_a` names what A has and B has not, `a_at_most` the largest good median of some of
    that."""

    name: str
    a: Candidate
    b: Candidate
    figures: tuple[str, ...]
    at_least: Mapping[str, float] = field(default_factory=dict)
    told_of_a: tuple[str, ...] = ()
    a_at_most: Mapping[str, float] = field(default_factory=dict)
    min_kept_rounds: int = MIN_KEPT_ROUNDS
    max_rounds: int = MAX_ROUNDS


class Machine(Protocol):
    """The seam between the order of a comparison and the machine that it runs on."""

    def probe(self) -> Probe:
        """Measure the ceilings now."""
        ...

    def run(self, candidate: Candidate) -> Figures:
        """Run the candidate to its end and give its figures."""
        ...


class ThisMachine:
    """Runs candidates as processes and probes with numpy."""

    def __init__(self) -> None:
        self._probe = MachineProbe()

    def probe(self) -> Probe:
        return self._probe.take()

    def run(self, candidate: Candidate) -> Figures:
        try:
            process = subprocess.run(
                candidate.argv, capture_output=True, text=True, timeout=CANDIDATE_TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BenchmarkError(f"{candidate.label}: {error}") from error
        if process.returncode != 0:
            raise BenchmarkError(
                f"{candidate.label} ended with status {process.returncode}:\n"
                f"{process.stderr[-2_000:]}"
            )
        return parse_figures(candidate.label, process.stdout)


def parse_figures(label: str, output: str) -> Figures:
    """Give the numbers of the last line of the output that is a JSON object."""
    for line in reversed(output.splitlines()):
        if not line.startswith("{"):
            continue
        try:
            return dict(json.loads(line))
        except json.JSONDecodeError:
            continue
    raise BenchmarkError(f"{label} printed no JSON object on a line of its own")


def run_rounds(plan: Plan, machine: Machine) -> list[Round]:
    """Run A B A B … until enough rounds are kept or `max_rounds` were run; give all of them."""
    rounds: list[Round] = []
    before = machine.probe()
    while len(rounds) < plan.max_rounds and num_kept(rounds) < plan.min_kept_rounds:
        figures_a = _run_checked(machine, plan.a, (*plan.figures, *plan.told_of_a))
        between = machine.probe()
        figures_b = _run_checked(machine, plan.b, plan.figures)
        after = machine.probe()
        rounds.append(Round(figures_a, figures_b, (before, between, after)))
        before = after
        _report_round(len(rounds), rounds[-1], plan.figures)
    return rounds


def num_kept(rounds: Sequence[Round]) -> int:
    """How many rounds count."""
    return sum(one.kept for one in rounds)


def summarize(plan: Plan, rounds: Sequence[Round]) -> list[Summary]:
    """Give one summary a figure over the kept rounds; BenchmarkError if too few were kept."""
    kept = [one for one in rounds if one.kept]
    if len(kept) < plan.min_kept_rounds:
        raise BenchmarkError(
            f"only {len(kept)} of {len(rounds)} rounds kept, {plan.min_kept_rounds} are needed: "
            "the machine's ceilings moved too much or others used it; end what else runs here and "
            "try again"
        )
    return [_summarize_figure(figure, kept) for figure in plan.figures]


def medians_of_a(plan: Plan, rounds: Sequence[Round]) -> dict[str, float]:
    """Give what is told of A alone, over the kept rounds."""
    kept = [one.a for one in rounds if one.kept]
    return {figure: statistics.median(a[figure] for a in kept) for figure in plan.told_of_a}


def excesses_of_a(plan: Plan, medians: Mapping[str, float]) -> list[str]:
    """Say in one sentence each which of A's own figures are larger than the plan asks for."""
    return [
        f"{figure}: {medians[figure]:.3g} is above {limit:g}"
        for figure, limit in plan.a_at_most.items()
        if medians[figure] > limit
    ]


def shortfalls(plan: Plan, summaries: Sequence[Summary]) -> list[str]:
    """Say in one sentence each which ratios are smaller than the plan asks for."""
    return [
        f"{summary.figure}: ratio {summary.ratio:.2f} is below {plan.at_least[summary.figure]:.2f}"
        for summary in summaries
        if summary.ratio < plan.at_least.get(summary.figure, 0.0)
    ]


@contextmanager
def machine_lock(path: Path) -> Iterator[None]:
    """Hold the only right to measure on this machine; BenchmarkError if another process has it."""
    with path.open("a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise BenchmarkError(
                f"another benchmark runs here (process {file.read().strip()}, {path}): two at once "
                "would measure each other; wait for it"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def compare(
    plan: Plan,
    machine: Machine | None = None,
    results_dir: Path = RESULTS_DIR,
    lock_path: Path = LOCK_PATH,
) -> int:
    """Run the whole comparison, write the record, print the outcome; give the exit status."""
    with machine_lock(lock_path):
        rounds = run_rounds(plan, machine or ThisMachine())
    path = write_record(plan, rounds, results_dir)
    print(f"all rounds: {path}")
    summaries = summarize(plan, rounds)
    print_summaries(plan, summaries)
    of_a = medians_of_a(plan, rounds)
    for figure, median in of_a.items():
        print(f"{figure}: A {median:.4g}")
    failures = [*shortfalls(plan, summaries), *excesses_of_a(plan, of_a)]
    for failure in failures:
        print(failure)
    return 1 if failures else 0


def write_record(plan: Plan, rounds: Sequence[Round], results_dir: Path) -> Path:
    """Write plan, machine, versions and all raw rounds as JSON; give the file's path."""
    now = datetime.now(UTC)
    enough = num_kept(rounds) >= plan.min_kept_rounds
    record = {
        "name": plan.name,
        "finished_at": now.isoformat(timespec="seconds"),
        "machine": machine_facts(),
        "versions": versions(),
        "commit": commit(),
        "plan": asdict(plan) | {"a": _told(plan.a), "b": _told(plan.b)},
        "max_probe_change": MAX_PROBE_CHANGE,
        "max_others": MAX_OTHERS,
        "summary": [asdict(summary) for summary in summarize(plan, rounds)] if enough else None,
        "rounds": [
            {
                **asdict(one),
                "probe_change": round(one.probe_change, 4),
                "others": round(one.others, 4),
                "kept": one.kept,
            }
            for one in rounds
        ],
    }
    results_dir.mkdir(parents=True, exist_ok=True)
    path = results_dir / f"{plan.name}-{now:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


def _told(candidate: Candidate) -> dict[str, Any]:
    """Describe a candidate without the folders of this machine, as a record is for everybody."""
    argv: list[str] = []
    for part in candidate.argv:
        name, equals, value = part.rpartition("=")
        path = Path(value)
        if path.is_relative_to(ROOT):
            value = str(path.relative_to(ROOT))
        elif path.is_absolute():
            value = path.name
        argv.append(f"{name}{equals}{value}")
    return {"label": candidate.label, "argv": argv}


def print_summaries(plan: Plan, summaries: Sequence[Summary]) -> None:
    """Print one line a figure: both medians, the ratio, and how far the rounds' ratios spread."""
    print(f"A = {plan.a.label}, B = {plan.b.label}")
    for one in summaries:
        print(
            f"{one.figure}: A {one.median_a:.4g}, B {one.median_b:.4g}, A/B {one.ratio:.3f} "
            f"({min(one.ratios):.3f} to {max(one.ratios):.3f} in {len(one.ratios)} rounds)"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True, help="the result file's name begins with it")
    parser.add_argument("--a", required=True, metavar="CMD", help="the candidate")
    parser.add_argument("--b", required=True, metavar="CMD", help="what it is compared with")
    parser.add_argument("--figure", required=True, action="append", help="may be given repeatedly")
    parser.add_argument("--rounds", type=positive, default=MIN_KEPT_ROUNDS, help="rounds to keep")
    parser.add_argument("--max-rounds", type=positive, default=MAX_ROUNDS, help="rounds to try")
    options = parser.parse_args(arguments)
    plan = Plan(
        name=options.name,
        a=Candidate("A", tuple(shlex.split(options.a))),
        b=Candidate("B", tuple(shlex.split(options.b))),
        figures=tuple(options.figure),
        min_kept_rounds=options.rounds,
        max_rounds=options.max_rounds,
    )
    return exit_status(plan)


def exit_status(plan: Plan) -> int:
    """Compare, with a BenchmarkError printed as one line and status 2."""
    try:
        return compare(plan)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run_checked(machine: Machine, candidate: Candidate, figures: Sequence[str]) -> Figures:
    """Run the candidate; BenchmarkError at once if it lacks a figure that ratios are made of."""
    measured = machine.run(candidate)
    for figure in figures:
        value = measured.get(figure)
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise BenchmarkError(
                f"{candidate.label} gave {figure} = {value!r}, a positive number is needed; "
                f"it gave {', '.join(measured) or 'nothing'}"
            )
    return measured


def _summarize_figure(figure: str, kept: Sequence[Round]) -> Summary:
    ratios = tuple(one.a[figure] / one.b[figure] for one in kept)
    return Summary(
        figure,
        median_a=statistics.median(one.a[figure] for one in kept),
        median_b=statistics.median(one.b[figure] for one in kept),
        ratio=statistics.median(ratios),
        ratios=ratios,
    )


def _report_round(number: int, one: Round, figures: Sequence[str]) -> None:
    verdict = "kept" if one.kept else "dropped"
    shown = ", ".join(f"{name} {one.a.get(name)} : {one.b.get(name)}" for name in figures)
    print(
        f"round {number}: {shown}; probe moved {one.probe_change:.1%}, "
        f"others used {one.others:.1%}, {verdict}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
