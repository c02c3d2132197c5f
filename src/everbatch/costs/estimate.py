"""What given steps take on a device: their terms, their sum, and the nominal model's beside it.

Belongs here: asking the models of step time about a few steps, to be shown. Not here: the models
(nominal.py, roofline.py), showing (cli). Called by `everbatch roofline`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from everbatch.base.units import NS_PER_S
from everbatch.costs.device import Device
from everbatch.costs.model import Model
from everbatch.costs.nominal import NominalStepTime
from everbatch.costs.roofline import RooflineOptions, RooflineStepTime
from everbatch.costs.terms import Term
from everbatch.costs.work import StepWork


@dataclass(frozen=True, slots=True)
class Answer:
    """What one step takes; `nominal_s` under the nominal model."""

    name: str
    work: StepWork
    terms: list[Term]
    duration_s: float
    nominal_s: float

    @property
    def bound(self) -> str:
        """What limits the term that takes longest."""
        return max(self.terms, key=lambda term: term.seconds).bound


@dataclass(frozen=True, slots=True)
class Estimate:
    """What some steps take on a device; `options` are None under the nominal model."""

    device: Device
    model: Model
    options: RooflineOptions | None
    answers: list[Answer]


def estimate_steps(
    device: Device, model: Model, options: RooflineOptions | None, steps: Mapping[str, StepWork]
) -> Estimate:
    """Predict each step, under the nominal model where there are no options."""
    nominal = NominalStepTime(device, model)
    step_time = nominal if options is None else RooflineStepTime(device, model, options)
    answers = [
        Answer(
            name,
            work,
            step_time.terms(work),
            step_time.duration_ns(work) / NS_PER_S,
            nominal.duration_ns(work) / NS_PER_S,
        )
        for name, work in steps.items()
    ]
    return Estimate(device, model, options, answers)
