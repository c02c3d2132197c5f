"""Under what a run ran besides its scheduler: its clock, what goes wrong, who leaves.

Facts of a scenario, for the summary; `compare` tells those that differ. Not here: [engine], which
the summary has as `config`.
"""

from dataclasses import asdict
from typing import Any

from everbatch.costs.device import DEVICE_SIZES, Device
from everbatch.costs.model import MODEL_SIZES, Model
from everbatch.workload.faults_section import FAULT_KINDS, Fault
from everbatch.workload.run_sections import ClockSpec
from everbatch.workload.scenario import Scenario
from everbatch.workload.times import TimeUnit


def conditions(scenario: Scenario) -> dict[str, Any]:
    """Give them in tables; what was not given is left out, or null where a whole table was."""
    unit = scenario.clock.unit
    return {
        "clock": _clock(scenario.clock),
        "hardware": _sizes(scenario.hardware, DEVICE_SIZES),
        "model": _sizes(scenario.model, MODEL_SIZES),
        "faults": [_fault(fault, unit) for fault in scenario.faults],
        "clients_who_leave": scenario.clients_who_leave(),
    }


def _clock(clock: ClockSpec) -> dict[str, Any]:
    files = {"file": clock.file, "tables": clock.tables}
    return {
        **clock.options,
        **({"noise": clock.noise} if clock.noise else {}),
        **{key: str(path) for key, path in files.items() if path is not None},
    }


def _sizes(given: Device | Model | None, names: tuple[str, ...]) -> dict[str, Any] | None:
    if given is None:
        return None
    values = asdict(given)
    return {name: values[name] for name in ("name", *names) if values[name] not in (None, "")}


def _fault(fault: Fault, unit: TimeUnit) -> dict[str, Any]:
    """Give a fault as [[faults]] writes it."""
    times = ("at", "start", "end", "start_ns", "end_ns")
    told: dict[str, Any] = {"kind": FAULT_KINDS[type(fault)]}
    for name, value in asdict(fault).items():
        if value is None:
            continue
        key = "start" if name == "at" else name.removesuffix("_ns")
        told[key] = unit.written(value) if name in times else value
    return told
