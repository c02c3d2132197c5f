"""Shows people what tells two runs apart, and who pays for it. Called by compare and replay."""

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from everbatch.cli.run_view import seconds
from everbatch.sim.comparison import LATENCIES, Comparison, Difference, Fate

MAX_ROWS = 20
WHO_PAYS_IS_NOT_KNOWN = (
    "Who pays is not known: a summary has no part on requests, or one of the two counts in steps."
)


def print_comparison(result: Comparison, console: Console) -> None:
    """Print obstacles, options and figures that differ, then the requests that pay."""
    if not (result.obstacles or result.config or result.figures):
        console.print("The two runs are the same.")
    for title, facts in (
        ("not alike", result.obstacles),
        ("configuration", result.config),
        ("figure", result.figures),
    ):
        if facts:
            console.print(_table(title, facts, in_seconds=result.in_seconds))
            console.print()
    if not result.has_requests:
        console.print(WHO_PAYS_IS_NOT_KNOWN)
        return
    for title, column, fates in (
        ("who pays", "later by", result.paying),
        ("who gains", "sooner by", result.gaining),
    ):
        if fates:
            unit = ", s" if result.in_seconds else ""
            console.print(_fates(title, column, unit, fates[:MAX_ROWS]))
        if len(fates) > MAX_ROWS:
            console.print(f"({len(fates) - MAX_ROWS:,} more: --json has all)")
        if fates:
            console.print()
    pay = "request pays" if len(result.paying) == 1 else "requests pay"
    gain = "gains" if result.num_gaining == 1 else "gain"
    fare = "fares" if result.num_unchanged == 1 else "fare"
    console.print(
        f"{len(result.paying):,} {pay}, {result.num_gaining:,} {gain}, "
        f"{result.num_unchanged:,} {fare} the same"
    )


def _table(title: str, facts: list[Difference], *, in_seconds: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(title)
    for name in ("A", "B", "B - A"):
        table.add_column(name, justify="right")
    for fact in facts:
        tell = _told_time if in_seconds and _is_time(fact.name) else _told
        table.add_row(fact.name, tell(fact.a), tell(fact.b), _change(fact.a, fact.b, tell))
    return table


def _is_time(figure: str) -> bool:
    kind = figure.partition(" ")[0]
    return kind in LATENCIES or figure == "duration_s" or figure.startswith("step of ")


def _fates(title: str, delay: str, unit: str, fates: list[Fate]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(title)
    for name in (f"first token{unit}", f"end{unit}", f"{delay}{unit}", "outputs"):
        table.add_column(name, justify="right")
    table.add_column("")
    for fate in fates:
        table.add_row(
            fate.id,
            _pair(fate.first_token),
            _pair(fate.finished),
            _told(None if fate.delay is None else abs(fate.delay)),
            _pair(fate.output_tokens),
            fate.note,
        )
    return table


def _pair(values: tuple[Any, Any]) -> str:
    a, b = map(_told, values)
    return a if a == b else f"{a} → {b}"


def _told(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.4g}" if abs(value) < 1 else f"{value:,.2f}"
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def _told_time(value: Any) -> str:
    # A summary that was saved may hold anything.
    return seconds(value) if isinstance(value, int | float) else _told(value)


def _change(a: Any, b: Any, tell: Callable[[Any], str]) -> str:
    numbers = all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in (a, b)
    )
    if not numbers:
        return ""
    change = b - a
    return f"{'+' if change > 0 else '-'}{tell(abs(change))}"
