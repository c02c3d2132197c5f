"""Shows a measurement to people: how far it is, and its figures.

Belongs here: what stands where, and wording. Not here: counting (loadgen.figures).
"""

import asyncio
import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from everbatch.base.units import counted
from everbatch.cli.run_view import make_console, number
from everbatch.loadgen.figures import Summary
from everbatch.loadgen.run import LoadRun, Watch

SECONDS_PER_UPDATE = 0.25
LATENCIES = {
    "ttft": "time to first token",
    "tpot": "per output token",
    "itl": "between two tokens",
    "e2el": "until the end",
}
MAX_SHOWN_MESSAGES = 2


def progress_bar() -> Watch | None:
    """Give what shows a run while it lasts; None where nobody looks."""
    return _show_progress if sys.stderr.isatty() else None


async def _show_progress(run: LoadRun) -> None:
    columns = (TextColumn("{task.description}"), BarColumn())
    console = Console(stderr=True)
    # A thread that draws would take turns from the event loop, and make requests late.
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bars:
        task = bars.add_task("sending", total=run.num_requests)
        while True:
            bars.update(task, completed=run.num_ended, description=_told(run))
            bars.refresh()
            await asyncio.sleep(SECONDS_PER_UPDATE)


def _told(run: LoadRun) -> str:
    failed = f", {run.num_failed:,} failed" if run.num_failed else ""
    return (
        f"{run.num_running:,} running, {run.num_ended:,} ended{failed}, "
        f"{run.num_tokens:,} output tokens"
    )


def print_summary(summary: Summary, console: Console | None = None) -> None:
    """Print everything about one measurement."""
    console = console or make_console()
    console.print(
        f"{summary['model_id']} at {summary['url']} ({summary['endpoint']}): "
        f"{counted(summary['num_sent'], 'request')} in {summary['duration']:,.2f} s\n",
        soft_wrap=True,
    )
    figures = Table.grid(padding=(0, 2))
    for name, told in figure_rows(summary):
        figures.add_row(name, told)
    console.print(figures)
    console.print()
    console.print(_latencies(summary))
    for kind, entry in summary["errors"].items():
        console.print(f"\n{counted(entry['count'], 'request')} failed: {kind}", soft_wrap=True)
        for message in entry["messages"][:MAX_SHOWN_MESSAGES]:
            console.print(f"  {message}", soft_wrap=True)


def figure_rows(summary: Summary) -> list[tuple[str, str]]:
    """Give (name, wording) of a summary's figures."""
    generator = summary["generator"]
    rows = [
        ("requests", _outcomes(summary)),
        (
            "tokens",
            f"{summary['total_input_tokens']:,} of prompts, "
            f"{summary['total_output_tokens']:,} of answers",
        ),
        (
            "throughput",
            f"{number(summary['request_throughput'])} requests/s, "
            f"{number(summary['output_throughput'])} output tokens/s, "
            f"{number(summary['total_token_throughput'])} tokens/s in all",
        ),
        (
            "at most",
            f"{counted(summary['max_concurrent_requests'], 'request')} at once, "
            f"{summary['max_output_tokens_per_s']:,} output tokens in a second",
        ),
    ]
    if summary["goals_ms"] is not None:
        goals = ", ".join(f"{name} ≤ {goal:g} ms" for name, goal in summary["goals_ms"].items())
        rows.append(
            (
                "goodput",
                f"{number(summary['request_goodput'])} requests/s "
                f"({summary['num_good']:,} of {summary['num_sent']:,}) met {goals}",
            )
        )
    if summary["refusals"]:
        refused = ", ".join(f"{kind} {count:,}" for kind, count in summary["refusals"].items())
        rows.append(("sent again", refused))
    if generator["num_held"]:
        rows.append(
            (
                "held back",
                f"{counted(generator['num_held'], 'request')} by --max-concurrency, "
                f"{number(generator['mean_held_ms'])} ms in the mean of all",
            )
        )
    rows.append(("the generator", _generator(summary)))
    return rows


def _outcomes(summary: Summary) -> str:
    names = ("completed", "failed", "cancelled", "unfinished")
    counts = [f"{summary[name]:,} {name}" for name in names if summary[name]]
    return ", ".join(counts) or "none"


def _generator(summary: Summary) -> str:
    generator = summary["generator"]
    cost = generator["cpu_us_per_token"]
    told = f"{generator['cpu_s']:,.2f} s of CPU ({100 * generator['cpu_share']:.0f} %"
    told += ")" if cost is None else f", {number(cost)} µs a token)"
    if generator["max_late_ms"] is None:
        return told
    late, most = number(generator["mean_late_ms"]), number(generator["max_late_ms"])
    return f"{told}; sent {late} ms late in the mean, {most} at most"


def _latencies(summary: Summary) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(f"ms from {summary['latencies_count_from']}")
    # The median is there already.
    columns = [name for name in statistics_of(summary) if name != "p50"]
    for column in columns:
        table.add_column(column, justify="right")
    for name, words in LATENCIES.items():
        values = (number(summary[f"{column}_{name}_ms"]) for column in columns)
        table.add_row(f"{words} ({name.upper()})", *values)
    return table


def statistics_of(summary: Summary) -> list[str]:
    """Give the names of the statistics that a summary has of each latency."""
    return [key.removesuffix("_ttft_ms") for key in summary if key.endswith("_ttft_ms")]
