"""`everbatch trace`: what a trace of requests is like, and parts of it in another format.

Belongs here: flags, files, progress. Not here: reading and counting (workload.traces), drawing
(trace_view).
"""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from everbatch.base.errors import ConfigError
from everbatch.base.units import NS_PER_S, counted
from everbatch.cli.number_range import NumberRange
from everbatch.cli.output_files import OutputFiles, is_same_file
from everbatch.workload.traces.formats import FORMATS, Trace, open_trace
from everbatch.workload.traces.rows import TraceRow
from everbatch.workload.traces.selection import Selection, told
from everbatch.workload.traces.statistics import TraceStatistics
from everbatch.workload.traces.writers import WRITTEN_FORMATS, TraceWriter
from everbatch.workload.workload_section import (
    MAX_SECONDS,
    MAX_SPEED,
    MAX_TRACE_ROWS,
    MIN_SAMPLE,
    MIN_SPEED,
)

if TYPE_CHECKING:
    from rich.progress import Progress

NUM_BINS = 20
"""Of arrivals over time, at most."""
MIN_BYTES_OF_LONG_FILES = 1 << 20
"""A shorter file is read before somebody could look at a progress bar."""
ROWS_PER_UPDATE = 4096

_FILE = click.Path(dir_okay=False, path_type=Path)
_FORMAT = click.option(
    "--format", type=click.Choice(FORMATS), help="Format of FILE. Default: found by its columns."
)


@click.group("trace", short_help="Look at a trace of requests, or convert it.")
def command() -> None:
    """Traces: who sent how many tokens when. `[workload]` of a scenario runs them."""


@command.command("inspect", short_help="Tell rate, burstiness, lengths and shared prefixes.")
@click.argument("file", type=_FILE)
@_FORMAT
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def inspect(file: Path, format: str | None, as_json: bool) -> None:
    """Tell what the trace FILE is like.

    Percentiles are by nearest rank. Shared prefixes are what a cache without bounds would hit.
    """
    trace = open_trace(file, format)
    statistics = TraceStatistics()
    for _, row in _watched(trace, trace.rows()):
        statistics.add(row)
    figures = {
        "file": str(file),
        "format": trace.format,
        "detected": trace.is_detected,
        **statistics.figures(NUM_BINS),
        "remarks": dict(trace.remarks),
    }
    if as_json:
        click.echo(json.dumps(figures, indent=2))
        return
    # rich is imported for tables only: --json and errors start without it.
    from everbatch.cli.trace_view import print_trace

    print_trace(trace.title, figures)


@command.command("convert", short_help="Write a trace, or a part of it, in another format.")
@click.argument("file", type=_FILE)
@_FORMAT
@click.option("-o", "--output", type=_FILE, required=True, help="File to write.")
@click.option(
    "--to",
    type=click.Choice(WRITTEN_FORMATS),
    default="jsonl",
    show_default=True,
    help="Format to write.",
)
@click.option(
    "--start", type=NumberRange(0, MAX_SECONDS), default=0.0, help="Seconds to pass over."
)
@click.option(
    "--duration", type=NumberRange(0, MAX_SECONDS, min_open=True), help="Seconds from there."
)
@click.option(
    "--sample",
    type=NumberRange(MIN_SAMPLE, 1),
    default=1.0,
    show_default=True,
    help="Share of the rows, drawn by chance.",
)
@click.option("--limit", type=click.IntRange(1, MAX_TRACE_ROWS), help="At most so many rows.")
@click.option(
    "--speed",
    type=NumberRange(MIN_SPEED, MAX_SPEED),
    default=1.0,
    show_default=True,
    help="So many times as fast.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the sample.")
def convert(
    file: Path,
    format: str | None,
    output: Path,
    to: str,
    start: float,
    duration: float | None,
    sample: float,
    limit: int | None,
    speed: float,
    seed: int,
) -> None:
    """Write the trace FILE, or a part of it, in another format.

    The part is cut out in the order of the options. Times begin at 0, where FILE or the window
    does. What the format has no place for is told.
    """
    trace = open_trace(file, format)
    selection = Selection(
        start_ns=round(start * NS_PER_S),
        duration_ns=None if duration is None else round(duration * NS_PER_S),
        sample=sample,
        limit=limit,
        speed=speed,
        seed=seed,
    )
    if output.suffix == ".gz":
        raise ConfigError(f"--output {output}: what is written is not compressed, drop the .gz")
    if is_same_file(file, output):
        raise ConfigError(
            f"--output {output} is the trace itself: give what is written another name"
        )
    with OutputFiles() as files:
        opened = files.open(output, "--output")
        assert opened is not None
        writer = TraceWriter(opened, to)
        for number, row in _watched(trace, selection.rows(trace)):
            writer.write(number, row)
        files.commit()
    _tell(f"{trace.title}: {counted(writer.num_rows, 'row')} in {output}, format {to}")
    for note in told(trace.remarks):
        _tell(note)
    for what, count in writer.lost.items():
        rows = "row lost its" if count == 1 else "rows lost their"
        _tell(f"{count:,} {rows} {what}: the format {to} has no place for it")


def _tell(message: str) -> None:
    click.echo(f"everbatch: {message}", err=True)


def _watched(trace: Trace, rows: Iterable[tuple[int, TraceRow]]) -> Iterator[tuple[int, TraceRow]]:
    """Give the rows and show how much of a long file is read, where somebody looks."""
    if trace.file.num_bytes < MIN_BYTES_OF_LONG_FILES or not sys.stderr.isatty():
        yield from rows
        return
    with _progress_bar() as bar:
        task = bar.add_task("read", total=trace.file.num_bytes)
        for count, row in enumerate(rows):
            if count % ROWS_PER_UPDATE == 0:
                bar.update(task, completed=trace.file.num_bytes_read)
            yield row


@contextmanager
def _progress_bar() -> "Iterator[Progress]":
    # rich is imported where a bar is shown only.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield bar
