"""Shows people what tells two runs apart, and who pays for it. Called by compare and replay."""

from typing import Any

from rich.console import Console
from rich.table import Table

from everbatch.sim.comparison import Comparison, Difference, Fate

MAX_ROWS = 20


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
            console.print(_table(title, facts))
            console.print()
    if not result.has_requests:
        console.print("A summary has no part on requests, so who pays is not known.")
        return
    if result.paying:
        console.print(_fates(result.paying[:MAX_ROWS]))
    if len(result.paying) > MAX_ROWS:
        console.print(f"({len(result.paying) - MAX_ROWS:,} more: --json has all)")
    console.print(
        f"{len(result.paying):,} requests pay, {result.num_gaining:,} gain, "
        f"{result.num_unchanged:,} fare the same"
    )


def _table(title: str, facts: list[Difference]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(title)
    for name in ("A", "B", "B - A"):
        table.add_column(name, justify="right")
    for fact in facts:
        table.add_row(fact.name, _told(fact.a), _told(fact.b), _change(fact.a, fact.b))
    return table


def _fates(fates: list[Fate]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("who pays")
    for name in ("first token", "end", "later by", "outputs"):
        table.add_column(name, justify="right")
    table.add_column("")
    for fate in fates:
        table.add_row(
            fate.id,
            _pair(fate.first_token),
            _pair(fate.finished),
            _told(fate.delay),
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


def _change(a: Any, b: Any) -> str:
    numbers = all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in (a, b)
    )
    if not numbers:
        return ""
    change = b - a
    return f"{'+' if change > 0 else '-'}{_told(abs(change))}"
