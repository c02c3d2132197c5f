"""`everbatch bench serve`: measure any OpenAI-compatible server under a load of one's own.

Belongs here: putting a run together from the flags, progress, files. Not here: flags
(bench_options), sending and counting (loadgen), drawing (bench_view).
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from everbatch.cli.bench_options import bench_options
from everbatch.cli.output_files import OutputFiles
from everbatch.cli.sections import SectionedCommand

if TYPE_CHECKING:
    from everbatch.loadgen.session import Finished

EXIT_INCOMPLETE = 1
EXIT_INTERRUPTED = 130
STANDARD_OUTPUT = Path("/dev/stdout")


@click.group("bench", short_help="Measure a running server.")
def command() -> None:
    """Load for servers: what they answer, how fast, and how many at once."""


@command.command(
    "serve", cls=SectionedCommand, short_help="Send requests to a server and time the answers."
)
@bench_options
@click.argument("more_goals", nargs=-1, metavar="[GOAL]...")
def serve(more_goals: tuple[str, ...], **given: Any) -> None:
    """Send requests to the OpenAI-compatible server at --url and time its answers.

    GOAL: more goals of --goodput, as in `--goodput ttft:500 tpot:50`.
    """
    json_path, html_path = given.pop("json_path"), given.pop("html_path")
    log_path = given.pop("log_path")
    # numpy and the HTTP parser are imported when something is measured, not for --help.
    from everbatch.cli.bench_plan import make_plan
    from everbatch.cli.bench_view import print_summary, progress_bar
    from everbatch.loadgen.session import run_measure

    plan = make_plan(given, more_goals)
    with OutputFiles() as files:
        json_file = files.open(json_path, "--json")
        html_file = files.open(html_path, "--html")
        log_file = files.open(log_path, "--request-log")
        finished = run_measure(plan, progress_bar())
        for note in finished.notes:
            _tell(note)
        _write(finished, json_file, html_file, log_file)
        files.commit()
    if json_path != STANDARD_OUTPUT:
        print_summary(finished.summary)
    sys.exit(_status(finished))


def _write(
    finished: "Finished",
    json_file: TextIO | None,
    html_file: TextIO | None,
    log_file: TextIO | None,
) -> None:
    if json_file is not None:
        json.dump(finished.summary, json_file, indent=2, allow_nan=False)
        json_file.write("\n")
    if html_file is not None:
        from everbatch.loadgen.report import report_html

        html_file.write(report_html(finished))
    if log_file is not None:
        from everbatch.loadgen.request_log import log_lines

        log_file.writelines(log_lines(finished))


def _status(finished: "Finished") -> int:
    if finished.is_interrupted:
        return EXIT_INTERRUPTED
    return EXIT_INCOMPLETE if finished.summary["failed"] else 0


def _tell(message: str) -> None:
    click.echo(f"everbatch: {message}", err=True)
