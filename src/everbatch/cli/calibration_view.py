"""Shows a calibration to people: prices, errors on what was held out, the region.

Belongs here: what stands where, and wording. Not here: fitting (calibration).
"""

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from everbatch.base.units import NS_PER_MS, counted
from everbatch.calibration.calibrate import UNITS, Calibration
from everbatch.calibration.fit import PRICES
from everbatch.calibration.requests import POINTS, RequestCalibration
from everbatch.cli.run_view import COUNT_WORDS, make_console
from everbatch.costs.profile import Profile

_NS_PER_US = 1_000


def print_calibration(calibration: Calibration, console: Console | None = None) -> None:
    """Print everything about one fit."""
    console = console or make_console()
    fit = calibration.fit
    num_held_out = sum(
        errors.num_steps for kind, errors in calibration.errors.items() if kind != "all"
    )
    console.print(
        f"{calibration.profile.source}: {counted(calibration.num_fitted_steps, 'step')} fitted, "
        f"{num_held_out:,} held out\n"
    )
    console.print(_prices(calibration))
    console.print(
        f"\na step differs from its prediction by {fit.spread:.2%} (robust standard deviation); "
        f"{counted(fit.num_outliers, 'outlier')}, {fit.outlier_time:.2%} of the time"
    )
    for reason, count in calibration.left_out.items():
        console.print(f"{counted(count, 'step')} left out: {reason}")
    for note in calibration.notes:
        console.print(note)
    console.print()
    console.print(_errors(calibration))
    console.print()
    console.print(_region(calibration.profile))


def print_request_calibration(made: RequestCalibration, console: Console | None = None) -> None:
    """Print everything about a fit to a log of requests."""
    console = console or make_console()
    console.print(
        f"{made.profile.source}: {counted(made.num_fitted, 'request')} fitted, "
        f"{made.num_held_out:,} held out; {counted(made.num_rounds, 'round')} of simulating and "
        "fitting\n"
    )
    console.print(_request_prices(made))
    for note in made.notes:
        console.print(note)
    console.print()
    console.print(_request_errors(made))
    console.print(
        f"\nthe whole log, simulated: {counted(made.num_steps, 'step')}, "
        f"{counted(made.num_preemptions, 'preemption')}\n"
    )
    console.print(_region(made.profile, made.num_outside))


def duration(ns: float) -> str:
    """Write a price: three digits, in the unit that fits."""
    if ns >= NS_PER_MS:
        return f"{ns / NS_PER_MS:,.4g} ms"
    if ns >= _NS_PER_US:
        return f"{ns / _NS_PER_US:.4g} us"
    return f"{ns:.4g} ns"


def _prices(calibration: Calibration) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("price")
    table.add_column("of")
    for name in ("each", "±", "seen"):
        table.add_column(name, justify="right")
    for name, unit, price, error, num_seen in calibration.price_rows():
        if num_seen:
            sure = "–" if error is None else duration(error)
            table.add_row(name, unit, duration(price), sure, f"{num_seen:,}")
        else:
            table.add_row(name, unit, "–", "–", "none")
    return table


def _errors(calibration: Calibration) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("error on steps held out")
    for name in ("steps", "total time", "mean", "p50", "p90", "p99"):
        table.add_column(name, justify="right")
    for kind, errors in calibration.errors.items():
        table.add_row(
            kind,
            f"{errors.num_steps:,}",
            f"{errors.total:+.2%}",
            *(f"{error:.2%}" for error in (errors.mean, errors.p50, errors.p90, errors.p99)),
        )
    return table


def _request_prices(made: RequestCalibration) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("price")
    table.add_column("of")
    table.add_column("each", justify="right")
    if made.sheet is not None:
        table.add_column("data sheet", justify="right")
    for name in PRICES[:-1]:
        told = [] if made.sheet is None else [duration(getattr(made.sheet, name))]
        table.add_row(name, UNITS[name], duration(getattr(made.prices, name)), *told)
    return table


def _request_errors(made: RequestCalibration) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("simulated / recorded - 1")
    for point in ("", *POINTS):
        table.add_column(point, justify="left" if not point else "right")
    for kind, errors in made.errors.items():
        for measure, of in errors.items():
            table.add_row(kind, measure.upper(), *(f"{of[point]:+.2%}" for point in POINTS))
    return table


def _region(profile: Profile, num_outside: Mapping[str, int] | None = None) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("covered, in a step that has any")
    table.add_column("from", justify="right")
    table.add_column("to", justify="right")
    if num_outside is not None:
        table.add_column("steps of the log outside", justify="right")
    for name, (low, high) in profile.region.ranges.items():
        told = [] if num_outside is None else [f"{num_outside.get(name, 0):,}"]
        table.add_row(COUNT_WORDS[name], f"{low:,}", f"{high:,}", *told)
    return table
