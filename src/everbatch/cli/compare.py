"""`everbatch compare`: two runs side by side, and who pays for the difference.

Belongs here: reading A and B, refusing what cannot be compared, printing. Not here: comparing
(sim.comparison). A and B are scenario files, names of built-in ones, or saved --json summaries.
Each is read once, so that it may come from a pipe.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from everbatch.base.errors import ConfigError
from everbatch.base.paths import exists, is_folder
from everbatch.cli.run_progress import run_progress
from everbatch.sim.comparison import Comparison, check_summary, compare
from everbatch.sim.run import RunOptions, simulate
from everbatch.sim.summary import Summary
from everbatch.workload.builtin_scenarios import find_scenario
from everbatch.workload.scenario import Scenario, parse_file, read_text

STANDARD_INPUT = "-"


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
    if a == b == STANDARD_INPUT:
        raise ConfigError("A and B are both standard input, which ends after A: save one of them")
    given_a = _read(a)
    given_b = given_a if b is None else _read(b)
    run_a, run_b = _run(given_a, a), _run(given_b, b or a, settings)
    b = " ".join([b or a, *settings])
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


def _read(name: str) -> Scenario | Summary:
    """Read a scenario, or a saved summary."""
    path = Path("/dev/stdin" if name == STANDARD_INPUT else name)
    if not exists(path) or is_folder(path):
        return find_scenario(name)
    text = read_text(path)
    saved = _saved_summary(text, str(path))
    return parse_file(text, path) if saved is None else saved


def _run(given: Scenario | Summary, name: str, settings: Sequence[str] = ()) -> Summary:
    """Run a scenario, with options set otherwise; a summary is of a run already."""
    if isinstance(given, Scenario):
        scenario = given.with_settings(settings)
        with run_progress(scenario) as tell:
            return simulate(scenario, options=RunOptions(progress=tell))
    if settings:
        raise ConfigError(
            f"{name} is the summary of a run that is over: nothing can be --set in it"
        )
    return given


def _saved_summary(text: str, source: str) -> Summary | None:
    """Read a summary; None if the text is a scenario, which its own reader judges."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(data, dict) and "engine" in data:
        return None
    return check_summary(data, source)


def _print(a: str, b: str, result: Comparison) -> None:
    # rich is imported for tables only: --json and errors start without it.
    from everbatch.cli.comparison_view import print_comparison
    from everbatch.cli.run_view import make_console

    console = make_console()
    if result.obstacles:
        names = ", ".join(fact.name for fact in result.obstacles)
        console.print(f"NOT ALIKE ({names} differ): A = {a}, B = {b}\n", soft_wrap=True)
    else:
        console.print(f"A = {a}, B = {b}\n", soft_wrap=True)
    print_comparison(result, console)
