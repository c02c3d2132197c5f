"""`everbatch calibrate`: fit a model of step time to the event logs of an engine.

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
from everbatch.calibration.calibrate import calibrate
from everbatch.calibration.steps import MeasuredLog, read_log
from everbatch.cli.output_files import OutputFiles, is_same_file
from everbatch.costs.profile import profile_text

MIN_CHARACTERS_OF_LONG_LOGS = 1 << 20
"""A shorter log is read before somebody could look at a progress bar."""
LINES_PER_UPDATE = 1024

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("calibrate")
@click.argument("logs", metavar="LOG...", nargs=-1, required=True, type=_FILE)
@click.option("-o", "--output", type=_FILE, required=True, help="Profile to write, as JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print the fit as JSON.")
def command(logs: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """Fit the prices of a step's work to each LOG, an event log of one engine.

    A fifth of the steps is held out, and the error on it told. `[clock] kind = "calibrated"` of a
    scenario takes the profile.
    """
    if any(is_same_file(log, output) for log in logs):
        raise ConfigError(f"--output {output} is the log itself: give the profile another name")
    for one, other in combinations(logs, 2):
        # Steps held out of the one would be fitted to in the other.
        if is_same_file(one, other):
            raise ConfigError(f"{other} is the same log as {one}: give each log once")
    calibration = calibrate([_read(log) for log in logs], __version__)
    with OutputFiles() as files:
        file = files.open(output, "--output")
        assert file is not None
        file.write(profile_text(calibration.profile))
        files.commit()
    if as_json:
        told = {"everbatch": __version__, **calibration.facts()}
        click.echo(json.dumps(told, indent=2, ensure_ascii=False))
        return
    # rich is imported for tables only: --json and errors start without it.
    from everbatch.cli.calibration_view import print_calibration

    print_calibration(calibration)
    click.echo(f"everbatch: the profile is in {output}", err=True)


def _read(path: Path) -> MeasuredLog:
    try:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            # The day of the measurement, not of the fit: the same log gives the same profile.
            written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            with _watched(file, path) as lines:
                return read_log(lines, path.name, written.date().isoformat())
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
