"""A scenario: a configuration of the scheduler, a clock, and the requests that arrive.

`read_scenario(path)` reads TOML, or JSON with the same keys; docs/simulate.md describes the format.
Whatever is wrong with a file is a ConfigError. Belongs here: the sections and what they mean
together. Not here: running (sim).
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from everbatch.base.duplicates import first_twice
from everbatch.base.errors import ConfigError
from everbatch.base.fields import Fields, is_writable, shown
from everbatch.costs.device import Device
from everbatch.costs.model import Model
from everbatch.costs.preemption import preemption_costs
from everbatch.scheduler.config import SchedulerConfig, TenantConfig
from everbatch.workload.engine_presets import NO_PRESET, EnginePreset
from everbatch.workload.engine_section import read_engine, read_setting
from everbatch.workload.faults_section import Burst, Fault
from everbatch.workload.presets import read_hardware, read_model
from everbatch.workload.requests import MAX_REQUESTS, RequestSpec, read_requests
from everbatch.workload.run_sections import (
    ClockSpec,
    Goals,
    RunSections,
    RunSpec,
    read_goal,
    read_run_sections,
)
from everbatch.workload.seeded_workload import WorkloadSection
from everbatch.workload.sources import ListedRequests, MergedRequests, RequestSource
from everbatch.workload.times import CLOCKS, TimeUnit

MAX_FILE_BYTES = 256 << 20

SECTIONS = (
    "engine",
    "clock",
    "hardware",
    "model",
    "run",
    "slo",
    "faults",
    "tenants",
    "requests",
    "workload",
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario, read and checked. Times are in its clock's own integers: steps or nanoseconds."""

    name: str
    engine: SchedulerConfig
    requests: tuple[RequestSpec, ...]
    """Those written out and those of bursts; of a workload the bursts alone."""
    run: RunSpec = field(default_factory=RunSpec)
    clock: ClockSpec = field(default_factory=ClockSpec)
    goals: Goals = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    hardware: Device | None = None
    model: Model | None = None
    workload: WorkloadSection | None = None
    preset: EnginePreset = NO_PRESET
    """Whose rules [engine] began with."""

    def with_run(self, *, horizon: float | None = None, seed: int | None = None) -> "Scenario":
        """Give the scenario with another horizon, as it is written, or seed; None keeps its own."""
        run = self.run
        if horizon is not None:
            whole = int(horizon) if float(horizon).is_integer() else horizon
            run = replace(run, horizon=self.clock.unit.positive(whole, "the horizon is"))
        if seed is not None:
            run = replace(run, seed=seed)
        workload = self.workload
        if workload is not None and run.seed != self.run.seed:
            workload = workload.with_seed(run.seed)
        return replace(self, run=run, workload=workload)

    def with_goals(self, goals: Iterable[str]) -> "Scenario":
        """Give the scenario with goals of [slo] as "NAME=TIME" says; ConfigError if not."""
        given = dict(read_goal(goal, self.clock.unit) for goal in goals)
        return replace(self, goals={**self.goals, **given})

    def with_settings(self, settings: Iterable[str]) -> "Scenario":
        """Give the scenario with options of [engine] as "NAME=VALUE" says; ConfigError if not."""
        options: dict[str, Any] = dict(map(read_setting, settings))
        block_size = options.get("block_size", self.engine.block_size)
        try:
            if "num_blocks" in options:
                options["num_blocks"] = self.preset.usable_blocks(options["num_blocks"])
            if options.get("preemption_mode", self.engine.preemption_mode) == "auto":
                options["preemption_costs"] = preemption_costs(
                    self.hardware, self.model, block_size
                )
            return replace(self, engine=replace(self.engine, **options))
        except ConfigError as error:
            raise ConfigError(f"[engine] {error}") from error

    def source(self) -> RequestSource:
        """Give the requests in order of arrival; a source is used by one run."""
        listed = ListedRequests(self.requests)
        if self.workload is None:
            return listed
        source = self.workload.workload.source()
        return MergedRequests(source, listed) if self.requests else source

    def requests_digest(self) -> str:
        """Give a digest of all requests, or of what makes them: equal for equal workloads."""
        if self.workload is not None and not self.requests:
            return self.workload.digest()
        begun = b"" if self.workload is None else self.workload.digest().encode()
        return _digest(begun, (spec.facts() for spec in self.requests))

    def arrivals_digest(self) -> str:
        """Give the same as if every client stayed: equal where as much comes at the same times."""
        if self.clients_who_leave() is None:
            return self.requests_digest()
        workload = None if self.workload is None else self.workload.with_patience()
        if workload is not None and not self.requests:
            return workload.digest()
        begun = b"" if workload is None else workload.digest().encode()
        staying = ((*spec.arrival_facts(), None, None) for spec in self.requests)
        return _digest(begun, staying)

    def clients_who_leave(self) -> str | None:
        """Say which clients may go before they are served; None: all stay."""
        if self.workload is not None:
            return self.workload.clients_who_leave()
        counts = {
            "abort_at": sum(spec.abort_at is not None for spec in self.requests),
            "deadline": sum(spec.deadline is not None for spec in self.requests),
        }
        told = [f"{count:,} with {key}" for key, count in counts.items() if count]
        return f"{', '.join(told)}, of {len(self.requests):,}" if told else None


def read_scenario(path: Path) -> Scenario:
    """Read a scenario file; ConfigError says what is wrong with it."""
    return parse_file(read_text(path), path)


def read_text(path: Path) -> str:
    """Give the text of a scenario file, or ConfigError; a pipe can be read once."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ConfigError(f"{path} has more than {MAX_FILE_BYTES:,} bytes, which are not read")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read the scenario {path} ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 (byte {error.start})") from error


def parse_file(text: str, path: Path) -> Scenario:
    """Read the text of a scenario file; paths in it start at its folder."""
    return parse_scenario(text, path.stem, str(path), path.parent)


def parse_scenario(text: str, name: str, source: str, folder: Path = Path()) -> Scenario:
    """Read a scenario's text; `source` names it in messages, paths in it start at `folder`."""
    try:
        data = _parse(text)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if _is_json(text) else "TOML"
        raise ConfigError(f"{source} is not {kind}: {error or 'nested too deeply'}") from error
    try:
        return build_scenario(data, name, folder)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def build_scenario(data: object, name: str, folder: Path = Path()) -> Scenario:
    """Make a scenario of a file's tables; paths in it start at `folder`."""
    tables = Fields(data, "the scenario", SECTIONS)
    tables.required("engine", "the sizes of the scheduler")
    sections = read_run_sections(tables, folder)
    unit = sections.clock.unit
    workload, requests = None, tuple[RequestSpec, ...]()
    if "workload" in tables:
        workload = _read_workload(tables, folder, sections)
    else:
        tables.required("requests", "at least one [[requests]], or a [workload]")
        requests = read_requests(tables.get("requests"), unit.read)
    requests = _with_bursts(requests, sections.faults)
    hardware = read_hardware(tables, folder)
    model = read_model(tables, folder)
    engine, preset = read_engine(
        tables.get("engine"),
        _read_tenants(tables, unit),
        lambda block_size: preemption_costs(hardware, model, block_size),
    )
    return Scenario(
        name=name,
        engine=engine,
        requests=requests,
        run=sections.run,
        clock=sections.clock,
        goals=sections.goals,
        faults=sections.faults,
        hardware=hardware,
        model=model,
        workload=workload,
        preset=preset,
    )


def _digest(begun: bytes, facts: Iterable[tuple[object, ...]]) -> str:
    digest = sha256(begun)
    for one in facts:
        digest.update(repr(one).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _read_workload(tables: Fields, folder: Path, sections: RunSections) -> WorkloadSection:
    if "requests" in tables:
        raise ConfigError("the scenario has both [workload] and [[requests]]: give one of them")
    if sections.clock.unit.is_steps:
        raise ConfigError(
            "[workload] has times in seconds, but on the clock of steps a step has no length: "
            f"choose [clock] kind {', '.join(CLOCKS[1:])}"
        )
    return WorkloadSection.read(tables.get("workload"), folder, sections.run.seed)


def _with_bursts(
    requests: tuple[RequestSpec, ...], faults: Iterable[Fault]
) -> tuple[RequestSpec, ...]:
    """Give the requests and behind them those of bursts; ConfigError if two have the same id."""
    bursts = [fault for fault in faults if isinstance(fault, Burst)]
    if not bursts:
        return requests
    found = list(requests)
    taken = {spec.id for spec in requests}
    num_requests = len(requests) + sum(burst.count for burst in bursts)
    if num_requests > MAX_REQUESTS:
        raise ConfigError(
            f"[[requests]] and bursts are {num_requests:,} requests, at most {MAX_REQUESTS:,} are "
            "written out: take smaller bursts"
        )
    for number, burst in enumerate(bursts):
        found += burst.requests(f"burst{number}", len(found))
    for spec in found[len(requests) :]:
        if spec.id in taken:
            raise ConfigError(f"{shown(spec.id)} is the id of a request and of one of a burst")
    return tuple(found)


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
        twice = first_twice(name for name, _ in pairs)
        raise ValueError(f"the key {shown(twice)} comes twice in one object")
    return table


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is no number of JSON")


def _read_tenants(tables: Fields, unit: TimeUnit) -> Mapping[str, TenantConfig]:
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
        rate = section.integer_or("max_requests_per_minute", 0)
        if rate and unit.is_steps:
            raise ConfigError(
                f"[tenants] {name} max_requests_per_minute is "
                f"{shown(section.get('max_requests_per_minute'))}, but on the clock of steps a "
                "step has no length, so there are no minutes: leave it at 0"
            )
        tenants[name] = TenantConfig(section.number("weight", 1.0, 0.0, above_low=True), rate)
    return tenants
