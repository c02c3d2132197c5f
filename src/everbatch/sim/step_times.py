"""The model of step time that a scenario's clock means.

Belongs here: choosing, and counting the steps for which a profile was not made. Not here: the
models (costs), of which only the one in use is imported: the clock of steps starts without. Called
by the run loop.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from everbatch.base.clock import Clock
from everbatch.base.errors import ConfigError
from everbatch.costs.device import Device
from everbatch.costs.model import Model
from everbatch.costs.work import StepTime, StepWork
from everbatch.workload.faults_section import Slowdown
from everbatch.workload.scenario import Scenario

if TYPE_CHECKING:
    from everbatch.costs.fitted import FittedStepTime

LONGEST_NS = float(1 << 64)
"""Many slowdowns at once multiply beyond all floats; a request of that length is refused anyway."""
_EXAMPLES = {"hardware": 'name = "h100-sxm"', "model": 'name = "llama-3.1-8b"'}


@dataclass(frozen=True, slots=True)
class ClockModel:
    """How long passes take (None: a tick each), and what is known of how well."""

    step_time: StepTime | None = None
    num_outside: dict[str, int] | None = None
    """Of a profile: steps that had more or less of something than any that it was fitted to."""


@dataclass(slots=True)
class WatchedRegion:
    """A fitted model that counts the steps outside its region, by what lies outside."""

    fitted: "FittedStepTime"
    num_outside: dict[str, int] = field(default_factory=dict)

    def duration_ns(self, work: StepWork) -> int:
        for name in self.fitted.outside(work):
            self.num_outside[name] = self.num_outside.get(name, 0) + 1
        return self.fitted.duration_ns(work)


@dataclass(frozen=True, slots=True)
class SlowedStepTime:
    """A model on a device that is slowed for a while; what holds when a pass starts counts."""

    step_time: StepTime
    clock: Clock
    slowdowns: tuple[Slowdown, ...]

    def duration_ns(self, work: StepWork) -> int:
        now, factor = self.clock.now_ns(), 1.0
        for slowdown in self.slowdowns:
            if slowdown.holds_at(now):
                factor *= slowdown.factor
        return max(1, round(min(LONGEST_NS, factor * self.step_time.duration_ns(work))))


def clock_model(scenario: Scenario, clock: Clock) -> ClockModel:
    """Give the model that [clock] means, with noise and [[faults]]; `clock` is what it moves.

    ConfigError names what it needs and the scenario lacks.
    """
    model = _on_a_calm_device(scenario)
    step_time, noise = model.step_time, scenario.clock.noise
    if step_time is not None and noise:
        from everbatch.costs.noise import NoisyStepTime

        step_time = NoisyStepTime(step_time, noise, scenario.run.seed)
    slowdowns = tuple(fault for fault in scenario.faults if isinstance(fault, Slowdown))
    if step_time is not None and slowdowns:
        step_time = SlowedStepTime(step_time, clock, slowdowns)
    return ClockModel(step_time, model.num_outside)


def _on_a_calm_device(scenario: Scenario) -> ClockModel:
    clock = scenario.clock
    if clock.kind == "steps":
        return ClockModel()
    if clock.file is not None:
        from everbatch.costs.profile import read_profile

        watched = WatchedRegion(read_profile(clock.file).step_time())
        return ClockModel(watched, watched.num_outside)
    if clock.tables is not None:
        from everbatch.costs.kernel_tables import KernelTableStepTime

        num_layers = _num_layers(scenario)
        return ClockModel(KernelTableStepTime(clock.tables, num_layers, **clock.options))
    device, model = _parts(scenario)
    if clock.kind == "nominal":
        from everbatch.costs.nominal import NominalStepTime

        return ClockModel(NominalStepTime(device, model))
    from everbatch.costs.roofline import RooflineOptions, RooflineStepTime

    options = RooflineOptions(block_size=scenario.engine.block_size, **clock.options)
    return ClockModel(RooflineStepTime(device, model, options))


def _num_layers(scenario: Scenario) -> int:
    """Give how often the layers of the tables are repeated."""
    num_layers = None if scenario.model is None else scenario.model.num_layers
    if num_layers is None:
        raise ConfigError(
            '[clock] kind "kernels" needs num_layers of [model]: the tables are of one layer; give '
            f"it, or {_EXAMPLES['model']}"
        )
    return round(num_layers)


def _parts(scenario: Scenario) -> tuple[Device, Model]:
    if scenario.hardware is None or scenario.model is None:
        lacking = "hardware" if scenario.hardware is None else "model"
        raise ConfigError(
            f'[clock] kind "{scenario.clock.kind}" needs [{lacking}]: give its name, for example '
            f"{_EXAMPLES[lacking]}, or its sizes; `everbatch roofline --list` shows the names"
        )
    return scenario.hardware, scenario.model
