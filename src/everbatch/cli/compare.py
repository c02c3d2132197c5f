"""`everbatch compare`: two runs side by side, and who pays for the difference.

Belongs here: reading A and B, refusing what cannot be compared, printing. Not here: comparing
(sim.comparison). A and B are scenario files, names of built-in ones, or saved --json summaries.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from everbatch.base.errors import ConfigError
from everbatch.sim.comparison import Comparison, check_summary, compare
from everbatch.sim.run import simulate
from everbatch.sim.summary import Summary
from everbatch.workload.builtin_scenarios import find_scenario


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
    from everbatch.cli.comparison_view import print_comparison
    from everbatch.cli.run_view import make_console

    console = make_console()
    if result.obstacles:
        names = ", ".join(fact.name for fact in result.obstacles)
        console.print(f"NOT ALIKE ({names} differ): A = {a}, B = {b}\n")
    else:
        console.print(f"A = {a}, B = {b}\n")
    print_comparison(result, console)
