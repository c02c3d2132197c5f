"""`everbatch calibrate`: fit a model of step time to the logs of an engine.

Event logs tell each step, logs of requests only when each request came, started and ended.

Belongs here: flags, files, progress. Not here: fitting (calibration), drawing (calibration_view).
"""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import TextIO

import click

from everbatch import __version__
from everbatch.base.errors import ConfigError
from everbatch.calibration.calibrate import Calibration, calibrate
from everbatch.calibration.request_log import is_request_log, read_request_log
from everbatch.calibration.request_rounds import MAX_ROUNDS
from everbatch.calibration.requests import SHARE, RequestCalibration, calibrate_requests
from everbatch.calibration.steps import MeasuredLog, read_log
from everbatch.cli.number_range import NumberRange
from everbatch.cli.output_files import OutputFiles, is_same_file
from everbatch.cli.run_progress import rounds_progress
from everbatch.costs.profile import profile_text
from everbatch.workload.builtin_scenarios import find_scenario

MIN_CHARACTERS_OF_LONG_LOGS = 1 << 20
"""A shorter log is read before somebody could look at a progress bar."""
LINES_PER_UPDATE = 1024

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("calibrate")
@click.argument("logs", metavar="LOG...", nargs=-1, required=True, type=_FILE)
@click.option("-o", "--output", type=_FILE, required=True, help="Profile to write, as JSON.")
@click.option(
    "--scenario",
    metavar="SCENARIO",
    help="Of a log of requests: a scenario whose [engine] is that of the log, with [hardware] and "
    "[model] where they are known.",
)
@click.option(
    "--share",
    type=NumberRange(0, 1, min_open=True, max_open=True),
    help="Of a log of requests: fit to this fraction, the first to end, and predict the others. "
    f"Default {SHARE:g}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the fit as JSON.")
def command(
    logs: tuple[Path, ...],
    output: Path,
    scenario: str | None,
    share: float | None,
    as_json: bool,
) -> None:
    """Fit the prices of a step's work to each LOG, an event log of one engine.

    A fifth of the steps is held out, and the error on it told. `[clock] kind = "calibrated"` of a
    scenario takes the profile. LOG may be one log of requests in place of that: lengths and stamps,
    as JSON Lines; then --scenario says which engine wrote it.
    """
    if any(is_same_file(log, output) for log in logs):
        raise ConfigError(f"--output {output} is the log itself: give the profile another name")
    for one, other in combinations(logs, 2):
        # Steps held out of the one would be fitted to in the other.
        if is_same_file(one, other):
            raise ConfigError(f"{other} is the same log as {one}: give each log once")
    made = _calibrated(logs, scenario, share)
    with OutputFiles() as files:
        file = files.open(output, "--output")
        assert file is not None
        file.write(profile_text(made.profile))
        files.commit()
    if as_json:
        told = {"everbatch": __version__, **made.facts()}
        click.echo(json.dumps(told, indent=2, ensure_ascii=False))
        return
    # rich is imported for tables only: --json and errors start without it.
    from everbatch.cli import calibration_view

    if isinstance(made, Calibration):
        calibration_view.print_calibration(made)
    else:
        calibration_view.print_request_calibration(made)
    click.echo(f"everbatch: the profile is in {output}", err=True)


def _calibrated(
    logs: tuple[Path, ...], scenario: str | None, share: float | None
) -> Calibration | RequestCalibration:
    """Fit to event logs, or to one log of requests: its first row says which."""
    of_requests = [log for log in logs if is_request_log(log)]
    if not of_requests:
        if scenario is not None or share is not None:
            option = "--scenario" if scenario is not None else "--share"
            raise ConfigError(f"{option} is for logs of requests, {logs[0]} is none: leave it out")
        return calibrate([_read(log) for log in logs], __version__)
    if len(logs) > 1:
        raise ConfigError(f"{of_requests[0]} is a log of requests: give it alone")
    if scenario is None:
        raise ConfigError(
            f"{logs[0]} is a log of requests, which does not tell how its engine decides: give "
            "--scenario, whose [engine] has its options (its num_blocks too)"
        )
    log, engine = read_request_log(logs[0], _day_of(logs[0])), find_scenario(scenario)
    with rounds_progress("simulating and fitting", MAX_ROUNDS) as tell:
        return calibrate_requests(log, engine, __version__, share or SHARE, tell)


def _day_of(path: Path) -> str:
    """Give the day of the measurement, not of the fit: the same log gives the same profile."""
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat()


def _read(path: Path) -> MeasuredLog:
    try:
        with (
            path.open(encoding="utf-8", errors="replace", newline="\n") as file,
            _watched(file, path) as lines,
        ):
            return read_log(lines, path.name, _day_of(path))
    except OSError as error:
        raise ConfigError(
            f"cannot read the log {path} ({error.strerror}): give the file of --event-log or "
            "--events"
        ) from error


@contextmanager
def _watched(file: TextIO, path: Path) -> Iterator[Iterable[str]]:
    """Give a log's lines and show how much of a long one is read, where somebody looks."""
    size = path.stat().st_size
    if size < MIN_CHARACTERS_OF_LONG_LOGS or not sys.stderr.isatty():
        yield file
        return
    # rich is imported where a bar is shown only.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading {task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(path.name, total=size)

        def lines() -> Iterator[str]:
            num_read = 0
            for number, line in enumerate(file):
                num_read += len(line)
                if number % LINES_PER_UPDATE == 0:
                    bar.update(task, completed=num_read)
                yield line

        yield lines()
