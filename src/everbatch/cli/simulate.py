"""`everbatch simulate`: run a scenario on the virtual clock and show what came out.

Belongs here: flags, files, exit status. Not here: running (sim), drawing (run_view, slot_timeline).
No model is loaded. Exit status 3: the run could make no progress; the logs tell up to there.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from everbatch import __version__
from everbatch.base.fields import MAX_INTEGER
from everbatch.cli.folded import echo_folded
from everbatch.cli.output_files import OutputFiles
from everbatch.cli.run_progress import run_progress
from everbatch.sim.progress import NoProgress
from everbatch.sim.run import Observer, RunOptions, simulate
from everbatch.sim.slot_history import SlotHistory
from everbatch.sim.step_lines import StepLines
from everbatch.sim.summary import Summary
from everbatch.workload.builtin_scenarios import builtin_names, builtin_summary, find_scenario
from everbatch.workload.scenario import Scenario

if TYPE_CHECKING:
    from everbatch.sim.perfetto import PerfettoTrace

EXIT_NO_PROGRESS = 3
NO_REQUESTS = "none"
MAX_TIMELINE_SLOTS = 32

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("simulate", short_help="Run a scenario on a virtual clock, without a model.")
@click.argument("scenario", required=False)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="OPTION=VALUE",
    help="An option of the scheduler, in place of the scenario's; may come several times.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("--steps", type=_FILE, help="Write one JSON object a step to this file.")
@click.option("--events", type=_FILE, help="Write the event log to this file.")
@click.option(
    "--perfetto", type=_FILE, help="Write a trace that ui.perfetto.dev opens to this file."
)
@click.option(
    "--requests",
    metavar="FILE|none",
    help="Write the part of each request to this file, or leave it out.",
)
@click.option(
    "--horizon",
    type=float,
    metavar="STEPS|SECONDS",
    help="Stop after so many steps, or seconds, in place of the scenario's horizon.",
)
@click.option(
    "--seed", type=click.IntRange(0, MAX_INTEGER), help="Seed, in place of the scenario's."
)
@click.option(
    "--slo",
    "goals",
    multiple=True,
    metavar="NAME=TIME",
    help="A goal for ttft, itl, tpot or e2e, for the goodput; may come several times.",
)
@click.pass_context
def command(
    context: click.Context,
    scenario: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    steps: Path | None,
    events: Path | None,
    perfetto: Path | None,
    requests: str | None,
    horizon: float | None,
    seed: int | None,
    goals: tuple[str, ...],
) -> None:
    """Run SCENARIO: a TOML or JSON file, or the name of a built-in one. Without: list those.

    SCENARIO may be - for standard input.
    """
    if scenario is None:
        _list_builtin()
        return
    found = find_scenario(scenario).with_run(horizon=horizon, seed=seed)
    found = found.with_settings(settings).with_goals(goals)
    timeline = None if as_json else SlotHistory(min(found.engine.max_num_seqs, MAX_TIMELINE_SLOTS))
    with OutputFiles() as files:
        requests_file = None
        if requests is not None and requests != NO_REQUESTS:
            requests_file = files.open(Path(requests), "--requests")
        event_file, step_file = files.open(events, "--events"), files.open(steps, "--steps")
        trace = _perfetto(found, files.open(perfetto, "--perfetto"))
        try:
            with run_progress(found) as tell:
                options = RunOptions(keeps_requests=requests != NO_REQUESTS, progress=tell)
                watching = [*_observers(found, timeline, step_file), *trace]
                summary = simulate(found, event_file, watching, options)
        except NoProgress as error:
            if requests_file is not None:
                files.drop(requests_file)
            # What led there is what one wants to read now.
            _close(trace)
            files.commit()
            click.echo(f"everbatch: {error}", err=True)
            context.exit(EXIT_NO_PROGRESS)
        if requests_file is not None:
            _dump(summary["requests"], requests_file)
        _close(trace)
        files.commit()
    if requests is not None:
        summary.pop("requests", None)
    _show(summary, timeline)


def _observers(
    scenario: Scenario, timeline: SlotHistory | None, step_file: TextIO | None
) -> list[Observer]:
    observers: list[Observer] = [] if timeline is None else [timeline]
    if step_file is not None:
        observers.append(StepLines(step_file, scenario.engine.max_num_seqs, scenario.clock.unit))
    return observers


def _perfetto(scenario: Scenario, file: TextIO | None) -> "list[PerfettoTrace]":
    """Give the writer of a trace, if one is wanted."""
    if file is None:
        return []
    from everbatch.sim.perfetto import PerfettoTrace

    return [PerfettoTrace(file, scenario.engine.max_num_seqs, scenario.clock.unit)]


def _close(traces: "list[PerfettoTrace]") -> None:
    for trace in traces:
        trace.close()


def _show(summary: Summary, timeline: SlotHistory | None) -> None:
    if timeline is None:
        click.echo(_json_text({"everbatch": __version__, **summary}))
        return
    # rich is imported for a table only: --json starts without it.
    from everbatch.cli.run_view import print_run

    print_run(summary, timeline)


def _dump(requests: Summary, file: TextIO) -> None:
    file.write(_requests_text(requests, "", ensure_ascii=False) + "\n")


def _json_text(summary: Summary) -> str:
    """Give a summary as JSON, indented; each request is one line, as there may be very many."""
    rest = {name: part for name, part in summary.items() if name != "requests"}
    text = json.dumps(rest, indent=2)
    if "requests" in summary:
        requests = _requests_text(summary["requests"], "  ", ensure_ascii=True)
        text = f'{text[:-2]},\n  "requests": {requests}\n}}'
    return text


def _requests_text(requests: Summary, indent: str, *, ensure_ascii: bool) -> str:
    encode = json.JSONEncoder(ensure_ascii=ensure_ascii).encode
    lines = [f"{indent}  {encode(name)}: {encode(entry)}" for name, entry in requests.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}" if lines else "{}"


def _list_builtin() -> None:
    names = builtin_names()
    width = max(map(len, names))
    click.echo("Built-in scenarios (everbatch simulate NAME):\n")
    for name in names:
        echo_folded(f"  {name.ljust(width)}  {builtin_summary(name)}")
    click.echo(
        "\n`everbatch scenario new > my.toml` writes a scenario to begin with, `everbatch scenario "
        "show NAME`\nprints a built-in one."
    )
