"""Shows what a trace is like to people: figures, lengths, arrivals over time.

Belongs here: what stands where, and wording. Not here: counting (workload.traces.statistics).
"""

from typing import Any

from rich.console import Console
from rich.table import Table

from everbatch.cli.run_view import make_console
from everbatch.workload.traces.selection import told

STATISTICS = ("mean", "p50", "p90", "p99", "max", "total")
MAX_BAR_COLUMNS = 60
_EIGHTHS = " ▏▎▍▌▋▊▉"


def print_trace(title: str, figures: dict[str, Any], console: Console | None = None) -> None:
    """Print everything about one trace."""
    console = console or make_console()
    console.print(f"{title}\n", soft_wrap=True)
    console.print(_facts(figures))
    console.print()
    console.print(_lengths(figures))
    if figures["arrivals"] is not None and figures["span_s"]:
        console.print()
        console.print(_arrivals(figures, console))
    for note in told(figures["remarks"]):
        console.print(note)


def _facts(figures: dict[str, Any]) -> Table:
    table = _table("", "")
    rows = figures["rows"]
    table.add_row("rows", f"{rows:,}")
    for key, what in (("no_prompt", "no prompt tokens"), ("no_output", "no output tokens")):
        if figures[key]:
            table.add_row("", f"{figures[key]:,} with {what}: a run leaves them out")
    if figures["arrivals"] is None:
        if rows:
            table.add_row("arrivals", "none: lengths only")
    else:
        table.add_row("span", f"{figures['span_s']:,.1f} s")
    if figures["requests_per_s"] is not None:
        table.add_row("rate", f"{figures['requests_per_s']:,.3f} requests/s")
        table.add_row("arrival CV", f"{figures['arrival_cv']:.2f}")
    if figures["simultaneous"]:
        share = 100 * figures["simultaneous"] / rows
        table.add_row("together", f"{share:.1f} % arrive at the same moment as the row before")
    prefix = figures["prefix"]
    if prefix is not None:
        part = (
            "" if prefix["rows"] == figures["rows"] else f", in the first {prefix['rows']:,} rows"
        )
        table.add_row(
            "prefix hits",
            f"{100 * prefix['hit_rate']:.1f} % of {prefix['pieces']:,} blocks or texts, "
            f"{100 * prefix['hit_token_rate']:.1f} % of prompt tokens, in a cache without "
            f"bounds{part}",
        )
    return table


def _lengths(figures: dict[str, Any]) -> Table:
    table = _table("tokens", *STATISTICS)
    for name in ("prompt", "output"):
        found = figures[f"{name}_tokens"]
        mean = "–" if found["mean"] is None else f"{found['mean']:,.1f}"
        others = ("–" if found[key] is None else f"{found[key]:,}" for key in STATISTICS[1:])
        table.add_row(name, mean, *others)
    return table


def _arrivals(figures: dict[str, Any], console: Console) -> Table:
    """Draw one bar for each stretch of time; the last one may be longer than what is left."""
    counts, width = figures["arrivals"]["counts"], figures["arrivals"]["bin_s"]
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("from", justify="right")
    table.add_column(f"per {_clock(width)}", justify="right")
    table.add_column("")
    is_unicode = console.encoding.lower().startswith("utf")
    columns = max(min(MAX_BAR_COLUMNS, console.width - 26), 10)
    for place, count in enumerate(counts):
        bar = _bar(columns * count / max(counts), is_unicode)
        table.add_row(_clock(place * width), f"{count:,}", bar)
    return table


def _bar(columns: float, is_unicode: bool) -> str:
    if not is_unicode:
        return "#" * round(columns)
    eighths = round(columns * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def _clock(seconds: float) -> str:
    """Write a time since the first arrival: "1:02:03", or "2.5 s" below a minute."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}"


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, show_header=bool(first), header_style="dim")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right" if name else "left")
    return table
