"""[clock], [run] and [slo] of a scenario: how time passes, how long, what is enough.

Belongs here: reading these tables. Not here: durations (costs), meeting goals (sim), what goes
wrong meanwhile (faults_section). Called by scenario.py.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everbatch.base.errors import ConfigError
from everbatch.base.fields import Fields, did_you_mean, shown
from everbatch.costs.noise import MAX_SIGMA
from everbatch.workload.faults_section import Fault, read_faults
from everbatch.workload.times import CLOCKS, SECONDS, STEPS, TimeUnit

TENSOR_PARALLEL_SIZE = "tensor_parallel_size"
ROOFLINE_NUMBERS = (
    "compute_efficiency",
    "memory_efficiency",
    "link_efficiency",
    "host_s_per_step",
    "host_s_per_sequence",
    "all_reduce_latency_s",
)
KERNEL_NUMBERS = ("decode_step_s", "prompt_step_s")
LEAST_FIXED_S, MOST_FIXED_S = -1.0, 1000.0
"""What kernels do not tell of a step may be less than nothing: profilers measure too much."""
_KIND_OF = {
    "file": "calibrated",
    "tables": "kernels",
    **dict.fromkeys(KERNEL_NUMBERS, "kernels"),
    **dict.fromkeys((TENSOR_PARALLEL_SIZE, *ROOFLINE_NUMBERS), "roofline"),
}
"""Keys of [clock] that one kind has."""
GOALS = ("ttft", "itl", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class ClockSpec:
    """How long a pass takes: a tick, or what a model of step time says."""

    kind: str = "steps"
    file: Path | None = None
    """The profile of the kind calibrated."""
    tables: Path | None = None
    """The prefix of the three tables of the kind kernels."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the kinds roofline and kernels: those options of their models that were given."""
    noise: float = 0.0
    """Standard deviation of the logarithm of a factor on each duration."""

    @property
    def unit(self) -> TimeUnit:
        """Give the unit of all times of such a run."""
        return STEPS if self.kind == "steps" else SECONDS


@dataclass(frozen=True, slots=True)
class RunSpec:
    """How long a run lasts, and when it reports besides, in the clock's own integers.

    `horizon` None: until every request has ended.
    """

    horizon: int | None = None
    horizons: tuple[int, ...] = ()
    seed: int = 0


Goals = Mapping[str, int]
"""The longest time that is good enough, of some of GOALS, in the clock's own integers."""


@dataclass(frozen=True, slots=True)
class RunSections:
    """What the tables say."""

    clock: ClockSpec = field(default_factory=ClockSpec)
    run: RunSpec = field(default_factory=RunSpec)
    goals: Goals = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()


def read_run_sections(tables: Fields, folder: Path) -> RunSections:
    """Read [clock], [run], [slo] and [[faults]]; paths are relative to `folder`."""
    clock = _read_clock(tables, folder)
    unit = clock.unit
    return RunSections(
        clock, _read_run(tables, unit), _read_goals(tables, unit), read_faults(tables, unit)
    )


def read_goal(text: str, unit: TimeUnit) -> tuple[str, int]:
    """Read `NAME=TIME`, a goal given beside a scenario; ConfigError if it is none."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise ConfigError(f"{shown(text)} sets no goal: write NAME=TIME, for example ttft=0.5")
    if name not in GOALS:
        raise ConfigError(
            f"[slo] has no key {shown(name)}{did_you_mean(name, GOALS)}; its keys are "
            f"{', '.join(GOALS)}"
        )
    number: object = value
    with suppress(ValueError):
        number = int(value) if unit.is_steps else float(value)
    return name, unit.positive(number, f"[slo] {name} is")


def _read_clock(tables: Fields, folder: Path) -> ClockSpec:
    if "clock" not in tables:
        return ClockSpec()
    keys = ("kind", "noise", *_KIND_OF)
    section = Fields(tables.get("clock"), "[clock]", keys)
    kind = section.one_of("kind", "steps", CLOCKS)
    for key, owner in _KIND_OF.items():
        if key in section and kind != owner:
            raise ConfigError(f'[clock] {key} belongs to the kind "{owner}", the kind is "{kind}"')
    noise = section.number("noise", 0.0, 0.0, MAX_SIGMA)
    if noise and kind == "steps":
        raise section.wrong("noise", "0 on the clock of steps, where a step has no length")
    if kind == "calibrated":
        section.required("file", "the profile that `everbatch calibrate` wrote")
        file = folder / section.text("file", "", may_be_empty=False)
        return ClockSpec(kind, file, noise=noise)
    if kind == "kernels":
        section.required("tables", "where the names of the three tables of kernels begin")
        prefix = folder / section.text("tables", "", may_be_empty=False)
        return ClockSpec(kind, tables=prefix, options=_read_fixed_parts(section), noise=noise)
    options: dict[str, Any] = {
        key: section.number(key, 0.0, 0.0) for key in ROOFLINE_NUMBERS if key in section
    }
    if TENSOR_PARALLEL_SIZE in section:
        options[TENSOR_PARALLEL_SIZE] = section.integer_or(TENSOR_PARALLEL_SIZE, 1, 1)
    return ClockSpec(kind, options=options, noise=noise)


def _read_fixed_parts(section: Fields) -> dict[str, float]:
    parts: dict[str, float] = {}
    for key in KERNEL_NUMBERS:
        if key in section:
            parts[key] = section.number(key, 0.0, LEAST_FIXED_S, MOST_FIXED_S)
    return parts


def _read_run(tables: Fields, unit: TimeUnit) -> RunSpec:
    if "run" not in tables:
        return RunSpec()
    section = Fields(tables.get("run"), "[run]", ("horizon", "horizons", "seed"))
    horizon = unit.read(section, "horizon", low=1)
    points = section.get("horizons") if "horizons" in section else []
    if not isinstance(points, list):
        raise section.wrong("horizons", "a list of horizons")
    times = {unit.positive(point, "[run] horizons holds") for point in points}
    return RunSpec(horizon, tuple(sorted(times)), section.integer_or("seed", 0))


def _read_goals(tables: Fields, unit: TimeUnit) -> Goals:
    if "slo" not in tables:
        return {}
    section = Fields(tables.get("slo"), "[slo]", GOALS)
    return {
        name: unit.positive(section.get(name), f"[slo] {name} is")
        for name in GOALS
        if name in section
    }
