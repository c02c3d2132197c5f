"""What the simulator predicted of our own engine, held against what the engine did.

Belongs here: errors, promises, lines of a table. Not here: runs and fits (own_engine.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fidelity.engine_runs import MEANS, TAILS, Figures
from fidelity.row import Row

MAX_RATE_ERROR, MAX_MEAN_ERROR, MAX_TAIL_ERROR, MAX_PREEMPTIONS_ERROR = 0.05, 0.08, 0.15, 0.15
MIN_PREEMPTIONS = 20
"""Fewer in a run are chance: told, not judged."""
PROMISES = {
    "output_tokens_per_s": MAX_RATE_ERROR,
    **dict.fromkeys(MEANS, MAX_MEAN_ERROR),
    **dict.fromkeys(TAILS, MAX_TAIL_ERROR),
    "num_preemptions": MAX_PREEMPTIONS_ERROR,
}


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure as predicted and as measured."""

    load: float
    figure: str
    promised: float | None
    """None: told, not judged."""
    predicted: float
    measured: list[float]
    error: float | None
    """Of the mean of the runs; None if that is 0."""
    differs: float | None
    """How much the engine differs from itself."""
    if_slower: float | None
    """How much longer the prediction were if all steps took a hundredth longer."""

    @property
    def is_kept(self) -> bool | None:
        if self.promised is None or self.error is None:
            return None
        return abs(self.error) <= self.promised


def compared(
    predictions: Mapping[float, tuple[Figures, Figures]],
    by_load: Mapping[float, Sequence[Figures]],
) -> list[Compared]:
    """Compare predictions with the means of the engine's runs.

    Of each load a prediction, and another one with all steps a hundredth longer.
    """
    return [
        _compared(load, figure, by_load[load], predicted)
        for load, predicted in predictions.items()
        for figure in PROMISES
    ]


def rows(
    comparison: Iterable[Compared],
    by_load: Mapping[float, Sequence[Figures]],
    as_recorded: Mapping[float, Sequence[Figures]],
) -> list[Row]:
    """Give the comparison as lines of a table, and behind it what the engine's own steps give."""
    found = [_row(one) for one in comparison]
    for load, again in as_recorded.items():
        found += _rows_as_recorded(load, by_load[load], again)
    return found


def errors_as_recorded(
    runs: Sequence[Figures], again: Sequence[Figures], figure: str
) -> list[float]:
    """Give what is left of each run's error with its own step times: the scheduler's part."""
    pairs = zip(runs, again, strict=True)
    return [getattr(ours, figure) / getattr(real, figure) - 1 for real, ours in pairs]


def _compared(
    load: float, figure: str, runs: Sequence[Figures], predictions: tuple[Figures, Figures]
) -> Compared:
    predicted, if_slower = (getattr(figures, figure) for figures in predictions)
    measured = [getattr(figures, figure) for figures in runs]
    mean = sum(measured) / len(measured)
    few = figure == "num_preemptions" and min(measured) < MIN_PREEMPTIONS
    return Compared(
        load,
        figure,
        None if few else PROMISES[figure],
        predicted,
        measured,
        predicted / mean - 1 if mean else None,
        (max(measured) - min(measured)) / mean if mean else None,
        if_slower / predicted - 1 if predicted else None,
    )


def _row(one: Compared) -> Row:
    note = f"{one.predicted:.4g}, engine {' and '.join(f'{value:.4g}' for value in one.measured)}"
    if one.differs is not None:
        note += f"; the engine differs from itself by {one.differs:.1%}"
    if one.if_slower is not None:
        note += f"; 1 % of step time is worth {one.if_slower:+.1%}"
    promised, error = (
        None if share is None else 100 * share for share in (one.promised, one.error)
    )
    name = f"own engine at {one.load:.0%}: {written(one.figure)}"
    return Row(name, promised, error, "%", one.is_kept, note)


def _rows_as_recorded(load: float, runs: Sequence[Figures], again: Sequence[Figures]) -> list[Row]:
    """Tell what the engine's own step times give."""
    found = []
    for figure in MEANS:
        errors = errors_as_recorded(runs, again, figure)
        name = f"own engine at {load:.0%}, its own step times: {written(figure)}"
        told = " and ".join(f"{error:+.2%}" for error in errors)
        found.append(Row(name, None, 100 * max(errors, key=abs), "%", None, told))
    return found


def written(figure: str) -> str:
    """Name a figure for people."""
    plain = {"output_tokens_per_s": "output tokens/s", "num_preemptions": "preemptions"}
    if figure in plain:
        return plain[figure]
    measure, which = figure.split("_")
    return f"{'mean' if which == 'mean' else which + ' of'} {measure.upper()}"
