"""How well prices predict steps that they were not fitted to.

Belongs here: which lines are held out, and errors. Neighbouring steps are alike, so whole stretches
of a log are held out, not single lines.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from everbatch.calibration.fit import Array, predicted_ns
from everbatch.calibration.steps import MeasuredSteps
from everbatch.costs.fitted import Prices

NUM_STRETCHES = 25
"""Of a log, for each of the two kinds of steps."""
EVERY = 5
"""One of so many stretches is held out: a fifth."""
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class StepErrors:
    """Errors as fractions of the measured time. The steps of a line share the line's error."""

    num_steps: int
    total: float
    """Of the time of all steps together; above 0: predicted too long."""
    mean: float
    """Of absolute errors of steps, as are the percentiles."""
    p50: float
    p90: float
    p99: float


def split(lines: Sequence[MeasuredSteps]) -> tuple[list[MeasuredSteps], list[MeasuredSteps]]:
    """Give the lines to fit and those held out, both in order."""
    fitted: list[MeasuredSteps] = []
    held_out: list[MeasuredSteps] = []
    for has_prompt in (False, True):
        alike = [line for line in lines if line.has_prompt == has_prompt]
        for number, line in enumerate(alike):
            stretch = number * NUM_STRETCHES // max(len(alike), NUM_STRETCHES)
            (held_out if stretch % EVERY == EVERY // 2 else fitted).append(line)
    return fitted, held_out


def step_errors(prices: Prices, lines: Sequence[MeasuredSteps]) -> StepErrors:
    """Compare what the prices say with what was measured, in one line at least."""
    times = np.array([line.duration_ns for line in lines], dtype=np.float64)
    num_steps = np.array([line.count for line in lines], dtype=np.int64)
    predicted = predicted_ns(prices, lines)
    errors = np.abs(predicted / times - 1.0)
    order = np.argsort(errors, kind="stable")
    p50, p90, p99 = (_nearest_rank(errors[order], num_steps[order], p) for p in PERCENTILES)
    return StepErrors(
        int(num_steps.sum()),
        float(predicted.sum() / times.sum() - 1.0),
        float((errors * num_steps).sum() / num_steps.sum()),
        p50,
        p90,
        p99,
    )


def _nearest_rank(errors: Array, num_steps: np.ndarray, percent: int) -> float:
    """Give a percentile over steps; `errors` ascend."""
    reached = np.cumsum(num_steps)
    index = int(np.searchsorted(reached * 100, percent * reached[-1]))
    return float(errors[index])
