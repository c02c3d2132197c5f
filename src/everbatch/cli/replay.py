"""`everbatch replay`: recorded traffic once more, as it was or under another configuration.

Belongs here: flags, what is held against what, printing. Not here: reading a log as a scenario
(sim.recorded), comparing decisions (sim.decisions). Exit status 1: the recorded decisions were not
reproduced.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everbatch import __version__
from everbatch.base.errors import ConfigError
from everbatch.base.units import counted
from everbatch.cli.run_progress import reading_progress, run_progress
from everbatch.sim.comparison import Comparison, compare
from everbatch.sim.decisions import DecisionCheck
from everbatch.sim.recorded import RecordedLog, RecordedStepTimes, read_log, recorded_events
from everbatch.sim.run import RunOptions, simulate
from everbatch.sim.summary import Summary
from everbatch.workload.builtin_scenarios import find_scenario
from everbatch.workload.run_sections import ClockSpec
from everbatch.workload.scenario import Scenario

if TYPE_CHECKING:
    from everbatch.calibration.own_log import OwnStepTimes

FITTED = "fitted"
"""The kind of a clock whose prices were fitted to the log."""
EXIT_OTHERWISE = 1
MAX_SHOWN = 300
"""Characters of a line that differs."""


@dataclass(frozen=True, slots=True)
class _Check:
    """Whether the recorded decisions came out again."""

    digest: str
    num_decisions: int
    difference: tuple[str | None, str | None] | None


@click.command("replay", short_help="Replay an event log, perhaps under another configuration.")
@click.argument("log", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="OPTION=VALUE",
    help="An option of the scheduler in place of the recorded one; may come several times.",
)
@click.option(
    "--clock",
    metavar="SCENARIO",
    help="Take step times from the [clock] of this scenario, in place of prices fitted to the log.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def command(
    context: click.Context, log: Path, settings: tuple[str, ...], clock: str | None, as_json: bool
) -> None:
    """Replay LOG, an event log of `serve` or `simulate`.

    With nothing set the recorded decisions are to come out again, and it says whether they do.
    Other steps, of other options, take what prices fitted to the log say, or --clock.
    """
    with reading_progress(log) as tell:
        recorded = read_log(log, tell)
    scenario = _other(recorded.scenario, settings, clock)
    original, check = _replay(log, recorded)
    fit, changed, comparison = None, None, None
    if scenario is not None:
        if clock is None and not scenario.clock.unit.is_steps:
            # numpy is imported for a fit only.
            from everbatch.calibration.own_log import own_step_times

            fit = own_step_times(log, __version__)
        is_as_recorded = not settings or scenario.clock.unit.is_steps
        base = original if is_as_recorded else _simulate(_timed(recorded, clock), fit)
        changed = _simulate(scenario, fit)
        comparison = compare(base, changed)
        # Other slots are an option here, and another clock was asked for.
        comparison.obstacles.clear()
    if as_json:
        _dump(log, recorded, original, check, fit, changed, comparison)
    else:
        _print(log, recorded, check, settings, clock, fit, changed, comparison)
    if check.difference is not None:
        context.exit(EXIT_OTHERWISE)


def _replay(path: Path, recorded: RecordedLog) -> tuple[Summary, _Check]:
    """Run the log as it was."""
    decisions = DecisionCheck(recorded_events(path), is_torn=recorded.is_torn)
    is_steps = recorded.scenario.clock.unit.is_steps
    times = None if is_steps else RecordedStepTimes(recorded.durations)
    with run_progress(recorded.scenario, "as recorded") as tell:
        options = RunOptions(times, progress=tell)
        summary = simulate(recorded.scenario, None, [decisions], options)
    digest = decisions.close()
    return summary, _Check(digest, decisions.num_decisions, decisions.difference)


def _simulate(scenario: Scenario, fit: "OwnStepTimes | None") -> Summary:
    """Run a scenario on its clock, or on one that was fitted to the log."""
    times = None if fit is None else fit.step_time()
    with run_progress(scenario, "otherwise") as tell:
        summary = simulate(scenario, options=RunOptions(times, progress=tell))
    if times is not None:
        summary["outside_profile"] = times.num_outside
    return summary


def _other(scenario: Scenario, settings: Sequence[str], clock: str | None) -> Scenario | None:
    """Give the scenario to hold against the log; None: nothing was asked for."""
    is_steps = scenario.clock.unit.is_steps
    if clock is not None:
        found = find_scenario(clock)
        if is_steps != found.clock.unit.is_steps:
            raise ConfigError(
                f"the log has times in {scenario.clock.unit.name}, {clock} in "
                f"{found.clock.unit.name}: take a scenario whose clock has the same"
            )
        scenario = replace(scenario, clock=found.clock, hardware=found.hardware, model=found.model)
    elif not settings:
        return None
    elif not is_steps:
        scenario = replace(scenario, clock=ClockSpec(FITTED))
    return scenario.with_settings(settings)


def _timed(recorded: RecordedLog, clock: str | None) -> Scenario:
    """Give the log's own configuration on the clock that both sides have."""
    timed = _other(recorded.scenario, (), clock)
    return replace(recorded.scenario, clock=ClockSpec(FITTED)) if timed is None else timed


def _dump(
    log: Path,
    recorded: RecordedLog,
    original: Summary,
    check: _Check,
    fit: "OwnStepTimes | None",
    changed: Summary | None,
    comparison: Comparison | None,
) -> None:
    told: dict[str, Any] = {
        "everbatch": __version__,
        "log": str(log),
        "reproduced": check.difference is None,
        **asdict(check),
        "notes": recorded.notes,
        "recorded": original,
        "fit": None if fit is None else fit.facts(),
        "changed": changed,
        "comparison": None if comparison is None else asdict(comparison),
    }
    click.echo(json.dumps(told, indent=2))


def _print(
    log: Path,
    recorded: RecordedLog,
    check: _Check,
    settings: Sequence[str],
    clock: str | None,
    fit: "OwnStepTimes | None",
    changed: Summary | None,
    comparison: Comparison | None,
) -> None:
    requests, steps = len(recorded.scenario.requests), len(recorded.durations)
    click.echo(f"{log}: {counted(requests, 'request')}, {counted(steps, 'step')}")
    for note in recorded.notes:
        click.echo(note)
    if check.difference is None:
        click.echo(
            f"every recorded decision came out again: {check.num_decisions:,} of them, digest "
            f"{check.digest[:16]}…"
        )
    else:
        before, after = (_cut(line) for line in check.difference)
        click.echo(
            f"other decisions than recorded from number {check.num_decisions:,} on:\n"
            f"  recorded {before}\n  replayed {after}"
        )
    if changed is None or comparison is None:
        return
    # rich is imported for tables only.
    from everbatch.cli.comparison_view import print_comparison
    from everbatch.cli.run_view import make_console, outside

    if fit is not None:
        click.echo(fit.told())
        for sentence in outside(changed):
            click.echo(f"B is {sentence}")
    console = make_console()
    own = "recorded step times" if fit is None else "fitted step times"
    times = own if clock is None else f"the clock of {clock}"
    a = f"as recorded, {times if settings else 'recorded step times'}"
    b = f"{' '.join(settings) or 'as recorded'}, {times}"
    console.print(f"\nA = {a}; B = {b}\n", soft_wrap=True)
    print_comparison(comparison, console)


def _cut(line: str | None) -> str:
    if line is None:
        return "nothing"
    line = line.rstrip("\n")
    return line if len(line) <= MAX_SHOWN else f"{line[:MAX_SHOWN]}…"
