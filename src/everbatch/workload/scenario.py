"""A scenario: a configuration of the scheduler, a clock, and the requests that arrive.

`read_scenario(path)` reads TOML, or JSON with the same keys; docs/simulate.md describes the format.
Whatever is wrong with a file is a ConfigError. Belongs here: the sections and what they mean
together. Not here: running (sim).

Covered: the clock of steps and requests written out. Not covered yet, and refused by name: the
other clocks, traces and synthetic arrivals ([workload]).
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from everbatch.base.errors import ConfigError
from everbatch.base.fields import MAX_INTEGER, Fields, is_writable, shown
from everbatch.costs.device import Device
from everbatch.costs.model import Model
from everbatch.costs.preemption import preemption_costs
from everbatch.scheduler.config import SchedulerConfig, TenantConfig
from everbatch.workload.engine_section import read_engine, read_setting
from everbatch.workload.presets import read_hardware, read_model
from everbatch.workload.requests import RequestSpec, TimeReader, read_requests

MAX_FILE_BYTES = 256 << 20

SECTIONS = ("engine", "clock", "hardware", "model", "run", "tenants", "requests", "workload")
CLOCKS = ("steps", "nominal", "roofline", "calibrated")


@dataclass(frozen=True, slots=True)
class RunSpec:
    """How long a run lasts, and at which boundaries it reports besides.

    `horizon` None: until every request has ended.
    """

    horizon: int | None = None
    horizons: tuple[int, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario, read and checked."""

    name: str
    engine: SchedulerConfig
    requests: tuple[RequestSpec, ...]
    run: RunSpec = field(default_factory=RunSpec)
    clock: str = "steps"
    hardware: Device | None = None
    model: Model | None = None

    def with_run(self, *, horizon: int | None = None, seed: int | None = None) -> "Scenario":
        """Give the scenario with another horizon or seed; None keeps its own."""
        run = self.run
        if horizon is not None:
            run = replace(run, horizon=horizon)
        if seed is not None:
            run = replace(run, seed=seed)
        return replace(self, run=run)

    def with_settings(self, settings: Iterable[str]) -> "Scenario":
        """Give the scenario with options of [engine] as "NAME=VALUE" says; ConfigError if not."""
        options: dict[str, Any] = dict(map(read_setting, settings))
        block_size = options.get("block_size", self.engine.block_size)
        try:
            if options.get("preemption_mode", self.engine.preemption_mode) == "auto":
                options["preemption_costs"] = preemption_costs(
                    self.hardware, self.model, block_size
                )
            return replace(self, engine=replace(self.engine, **options))
        except ConfigError as error:
            raise ConfigError(f"[engine] {error}") from error

    def requests_digest(self) -> str:
        """Give a digest of all requests: equal for equal workloads."""
        digest = sha256()
        for spec in self.requests:
            digest.update(repr(spec.facts()).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def read_scenario(path: Path) -> Scenario:
    """Read a scenario file; ConfigError says what is wrong with it."""
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} has {size:,} bytes, at most {MAX_FILE_BYTES:,} are read")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read the scenario {path} ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 (byte {error.start})") from error
    return parse_scenario(text, path.stem, str(path))


def parse_scenario(text: str, name: str, source: str) -> Scenario:
    """Read a scenario's text; `source` names it in messages."""
    try:
        data = _parse(text)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if _is_json(text) else "TOML"
        raise ConfigError(f"{source} is not {kind}: {error or 'nested too deeply'}") from error
    try:
        return build_scenario(data, name)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def build_scenario(data: object, name: str) -> Scenario:
    """Make a scenario of a file's tables."""
    tables = Fields(data, "the scenario", SECTIONS)
    tables.required("engine", "the sizes of the scheduler")
    clock = _read_clock(tables)
    if "workload" in tables:
        raise ConfigError(
            "[workload] is not supported yet: traces and synthetic arrivals come later, write the "
            "requests out as [[requests]] (count and every repeat one)"
        )
    tables.required("requests", "at least one [[requests]]")
    read_time = _time_reader(clock)
    hardware = read_hardware(tables)
    model = read_model(tables)
    return Scenario(
        name=name,
        engine=read_engine(
            tables.get("engine"),
            _read_tenants(tables),
            lambda block_size: preemption_costs(hardware, model, block_size),
        ),
        requests=read_requests(tables.get("requests"), read_time),
        run=_read_run(tables, read_time),
        clock=clock,
        hardware=hardware,
        model=model,
    )


def _is_json(text: str) -> bool:
    """Whether a text is meant as JSON: no TOML document begins with a brace."""
    return text.lstrip().startswith("{")


def _parse(text: str) -> object:
    if not _is_json(text):
        return tomllib.loads(text)
    return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant)


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {shown(twice)} comes twice in one object")
    return table


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is no number of JSON")


def _read_clock(tables: Fields) -> str:
    if "clock" not in tables:
        return "steps"
    section = Fields(tables.get("clock"), "[clock]", ("kind", "file"))
    kind = section.one_of("kind", "steps", CLOCKS)
    if kind != "steps":
        raise ConfigError(
            f'[clock] kind is "{kind}", which is not supported yet: this version has "steps" only'
        )
    if "file" in section:
        raise ConfigError('[clock] file belongs to the kind "calibrated", the kind is "steps"')
    return kind


def _time_reader(clock: str) -> TimeReader:
    """Give the reader of times of a clock; boundaries on the clock of steps."""
    assert clock == "steps"

    def read_boundary(section: Fields, key: str) -> int | None:
        if key in section and isinstance(section.get(key), float):
            raise section.wrong(key, "a whole number of steps on the clock of steps")
        return section.integer(key, None)

    return read_boundary


def _read_run(tables: Fields, read_time: TimeReader) -> RunSpec:
    if "run" not in tables:
        return RunSpec()
    section = Fields(tables.get("run"), "[run]", ("horizon", "horizons", "seed"))
    horizon = read_time(section, "horizon")
    if horizon == 0:
        raise section.wrong("horizon", f"an integer from 1 to {MAX_INTEGER:,}")
    points = section.get("horizons") if "horizons" in section else []
    if not isinstance(points, list):
        raise section.wrong("horizons", "a list of horizons")
    for point in points:
        if isinstance(point, bool) or not isinstance(point, int) or not 1 <= point <= MAX_INTEGER:
            raise ConfigError(
                f"[run] horizons holds {shown(point)}, it must hold integers from 1 to "
                f"{MAX_INTEGER:,}"
            )
    seed = section.integer_or("seed", 0)
    return RunSpec(horizon, tuple(sorted(set(points))), seed)


def _read_tenants(tables: Fields) -> Mapping[str, TenantConfig]:
    if "tenants" not in tables:
        return {}
    given = tables.get("tenants")
    if not isinstance(given, Mapping):
        raise ConfigError(f"[tenants] must be a table, not {shown(given)}")
    tenants: dict[str, TenantConfig] = {}
    for name, table in given.items():
        if not is_writable(name):
            raise ConfigError(f"[tenants] has the name {shown(name)}, with a lone surrogate")
        section = Fields(table, f"[tenants] {name}", ("weight", "max_requests_per_minute"))
        if section.integer_or("max_requests_per_minute", 0):
            raise ConfigError(
                f"[tenants] {name} max_requests_per_minute is "
                f"{shown(section.get('max_requests_per_minute'))}, but on the clock of steps a "
                "step has no length, so there are no minutes: leave it at 0"
            )
        tenants[name] = TenantConfig(section.number("weight", 1.0, 0.0, above_low=True))
    return tenants
