"""`everbatch compare`: two runs side by side, and who pays for the difference.

Belongs here: reading A and B, refusing what cannot be compared, printing. Not here: comparing
(sim.comparison). A and B are scenario files, names of built-in ones, or saved --json summaries.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everbatch.base.errors import ConfigError
from everbatch.sim.comparison import Comparison, Difference, Fate, check_summary, compare
from everbatch.sim.run import simulate
from everbatch.sim.summary import Summary
from everbatch.workload.builtin_scenarios import find_scenario

if TYPE_CHECKING:
    from rich.table import Table

MAX_ROWS = 20


@click.command("compare", short_help="Put two simulated runs side by side.")
@click.argument("a")
@click.argument("b", required=False)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="OPTION=VALUE",
    help="An option of the scheduler in run B, which is A otherwise; may come several times.",
)
@click.option(
    "--anyway", is_flag=True, help="Compare runs whose arrivals, slots or horizon differ too."
)
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def command(a: str, b: str | None, settings: tuple[str, ...], anyway: bool, as_json: bool) -> None:
    """Compare runs A and B: scenario files, built-in names, or saved --json summaries.

    Without B: A with options --set to other values.
    """
    if b is None and not settings:
        raise click.UsageError("give B, or options of A to --set")
    run_a, run_b = _load(a), _load(a if b is None else b, settings)
    b = " ".join([a if b is None else b, *settings])
    result = compare(run_a, run_b)
    if result.obstacles and not anyway:
        told = "; ".join(f"{fact.name}: {fact.a} in A, {fact.b} in B" for fact in result.obstacles)
        raise ConfigError(
            f"these runs are not alike, so their figures say nothing about each other ({told}): "
            "make them alike, or compare them --anyway"
        )
    if as_json:
        click.echo(json.dumps({"a": a, "b": b, **asdict(result)}, indent=2))
        return
    _print(a, b, result)


def _load(name: str, settings: Sequence[str] = ()) -> Summary:
    """Run a scenario, with options set otherwise, or read a saved summary."""
    path = Path(name)
    saved = _saved_summary(path) if path.is_file() else None
    if saved is None:
        return simulate(find_scenario(name).with_settings(settings))
    if settings:
        raise ConfigError(
            f"{path} is the summary of a run that is over: nothing can be --set in it"
        )
    return saved


def _saved_summary(path: Path) -> Summary | None:
    """Read a summary; None if the file is a scenario, which its own reader judges."""
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read {path} ({error.strerror})") from error
    except (ValueError, RecursionError):
        return None
    if isinstance(data, dict) and "engine" in data:
        return None
    return check_summary(data, str(path))


def _print(a: str, b: str, result: Comparison) -> None:
    # rich is imported for tables only: --json and errors start without it.
    from everbatch.cli.run_view import make_console

    console = make_console()
    if result.obstacles:
        names = ", ".join(fact.name for fact in result.obstacles)
        console.print(f"NOT ALIKE ({names} differ): A = {a}, B = {b}\n")
    else:
        console.print(f"A = {a}, B = {b}\n")
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


def _table(title: str, facts: list[Difference]) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(title)
    for name in ("A", "B", "B - A"):
        table.add_column(name, justify="right")
    for fact in facts:
        table.add_row(fact.name, _told(fact.a), _told(fact.b), _change(fact.a, fact.b))
    return table


def _fates(fates: list[Fate]) -> "Table":
    from rich.table import Table

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
