"""The model of step time that a scenario's clock means.

Belongs here: choosing. Not here: the models (costs). Called by the run loop.
"""

from everbatch.base.errors import ConfigError
from everbatch.costs.device import Device
from everbatch.costs.model import Model
from everbatch.costs.nominal import NominalStepTime
from everbatch.costs.roofline import RooflineOptions, RooflineStepTime
from everbatch.costs.work import StepTime
from everbatch.workload.scenario import Scenario


def step_time_of(scenario: Scenario) -> StepTime | None:
    """Give how long a scenario's passes take; None: a tick each.

    ConfigError names what the clock's kind needs and the scenario lacks.
    """
    clock = scenario.clock
    if clock.kind == "steps":
        return None
    if clock.kind == "calibrated":
        raise ConfigError(
            '[clock] kind is "calibrated", which is not supported yet: this version has steps, '
            "nominal and roofline"
        )
    device, model = _parts(scenario)
    if clock.kind == "nominal":
        return NominalStepTime(device, model)
    options = RooflineOptions(block_size=scenario.engine.block_size, **clock.options)
    return RooflineStepTime(device, model, options)


def _parts(scenario: Scenario) -> tuple[Device, Model]:
    if scenario.hardware is None or scenario.model is None:
        lacking = "hardware" if scenario.hardware is None else "model"
        raise ConfigError(
            f'[clock] kind "{scenario.clock.kind}" needs [{lacking}]: give its name, for example '
            f"{_EXAMPLES[lacking]}, or its sizes; `everbatch roofline --list` shows the names"
        )
    return scenario.hardware, scenario.model


_EXAMPLES = {"hardware": 'name = "h100-sxm"', "model": 'name = "llama-3.1-8b"'}
