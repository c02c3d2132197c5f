"""Shows a run's summary to people: figures, times, a timeline of the slots, the requests.

Belongs here: what stands where, and wording. Not here: computing (sim.summary).
"""

import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Any, TextIO, cast

from rich.console import Console
from rich.table import Table

from everbatch.base.units import counted
from everbatch.cli.slot_timeline import draw_timeline
from everbatch.sim.slot_history import SlotHistory
from everbatch.sim.summary import Summary

MAX_REQUEST_ROWS = 20
LATENCIES = {
    "ttft": "time to first token",
    "itl": "between two tokens",
    "tpot": "per output token",
    "e2e": "until the end",
}
MAX_TIMELINE_STEPS = 10_000
"""Of a longer run a picture by steps says nothing any more."""
STEP_TIMES = {
    "arrival": "arrival",
    "wait": "queue_wait",
    "start": "first_step",
    "first token": "first_token_step",
    "end": "finished_step",
}
SECOND_TIMES = {
    "arrival": "arrival_s",
    "wait": "queue_wait_s",
    "start": "first_scheduled_s",
    "first token": "first_token_s",
    "end": "finished_s",
}
COUNT_WORDS = {
    "num_decodes": "requests that decode",
    "decode_context": "tokens of their context, in all",
    "num_chunks": "prompts in a step",
    "prefill_tokens": "tokens of prompts",
    "prefill_pairs": "pairs of query and key",
}
"""What a step has, of which a profile covers a range."""
STATISTICS = ("mean", "p50", "p90", "p99")


def make_console() -> Console:
    """Give a console that takes ids and messages as they are, whatever the terminal can show."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    file = None if sys.stdout.isatty() else cast(TextIO, _Unpadded(sys.stdout))
    return Console(file=file, markup=False, highlight=False, emoji=False)


class _Unpadded:
    """A file that gets its lines without the blanks to which tables are filled up."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        self._file.write("\n".join(line.rstrip(" ") for line in text.split("\n")))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def print_run(summary: Summary, timeline: SlotHistory, console: Console | None = None) -> None:
    """Print everything about one run."""
    console = console or make_console()
    slots = summary["config"]["max_num_seqs"]
    lasted = "" if summary["duration_s"] is None else f" in {seconds(summary['duration_s'])}"
    console.print(
        f"{summary['scenario']}: {counted(summary['steps'], 'step')}{lasted}, "
        f"{counted(slots, 'slot')}\n"
    )
    notes = [*summary["workload"]["notes"], *outside(summary), summary["overload"]]
    for note in filter(None, notes):
        console.print(note, soft_wrap=True)
    console.print(_figures(summary))
    if any(summary[name]["mean"] is not None for name in LATENCIES):
        console.print()
        console.print(_latencies(summary))
    if len(summary["step_times"] or ()) > 1:
        console.print()
        console.print(_step_times(summary["step_times"]))
    if len(summary["horizons"]) > 1:
        console.print()
        console.print(_horizons(summary))
    if not summary["steps"]:
        console.print("\nnothing ran")
    elif summary["steps"] <= MAX_TIMELINE_STEPS:
        _print_timeline(timeline, summary["steps"], slots, console)
    else:
        console.print(
            f"\n(no timeline of slots: a picture of more than {MAX_TIMELINE_STEPS:,} steps tells "
            "nothing; --horizon stops earlier, --perfetto FILE shows all)",
            soft_wrap=True,
        )
    if "requests" not in summary and summary["first_rejection"] is not None:
        console.print(f"\n{summary['first_rejection']}", soft_wrap=True)
    if "requests" in summary:
        end = summary["steps"] if summary["duration_s"] is None else summary["duration_s"]
        _print_requests(summary["requests"], end, console)


def _print_timeline(timeline: SlotHistory, steps: int, slots: int, console: Console) -> None:
    console.print()
    is_unicode = console.encoding.lower().startswith("utf")
    *rows, legend = draw_timeline(timeline, steps, console.width, unicode=is_unicode)
    for row in rows:
        console.print(row, soft_wrap=True)
    console.print(legend)
    if slots > timeline.num_slots:
        console.print(f"({counted(slots - timeline.num_slots, 'more slot')})")


def percent(share: float | None) -> str:
    """Write a share for people; nothing for none."""
    return "" if share is None else f"{100 * share:.2f} %"


def number(value: float | None) -> str:
    """Write a number of ticks or tokens for people; nothing for none."""
    if value is None:
        return ""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def seconds(value: float | None) -> str:
    """Write a time for people, with three digits that count; nothing for none."""
    if value is None:
        return ""
    if value and abs(value) < 1:
        return f"{value * 1e3:,.0f} ms" if abs(value) >= 0.09995 else f"{value * 1e3:#.3g} ms"
    return f"{value:,.2f} s"


def moment(value: float | None) -> str:
    """Write a moment, or a duration beside moments, in seconds; nothing for none."""
    return "" if value is None else f"{value:,.3f}"


def _figures(summary: Summary) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, told in figure_rows(summary):
        table.add_row(name, told)
    return table


def figure_rows(summary: Summary) -> list[tuple[str, str]]:
    """Give (name, wording) of a summary's figures."""
    iterations = summary["slot_iterations"]
    idle = summary["idle_slot_iterations"]
    rejected = {"rejected": summary["num_rejected"]} if summary["num_rejected"] else {}
    return [
        (
            "useful tokens",
            f"{summary['useful_tokens']:,} of {iterations:,} slot iterations"
            + (f" ({percent(summary['slot_occupancy'])})" if iterations else ""),
        ),
        *_rates(summary),
        ("masked", f"{summary['masked_slot_iterations']:,} slot iterations"),
        ("empty", f"{sum(idle.values()):,} slot iterations{_causes(idle)}"),
        (
            "computed tokens",
            f"{summary['scheduled_tokens']:,} (recomputed {summary['recomputed_tokens']:,}, "
            f"{percent(summary['recomputed_token_ratio'])})",
        ),
        ("from the cache", f"{summary['prefix_cache_hit_tokens']:,} prompt tokens"),
        ("preemptions", f"{summary['num_preemptions']:,}"),
        (
            "most KV blocks",
            f"{summary['peak_blocks']:,} of {summary['config']['num_blocks']:,}",
        ),
        ("ended", _counts({**summary["num_finished"], **rejected}) or "nobody"),
        ("digest", f"{summary['digest'][:16]}…"),
    ]


def outside(summary: Summary) -> list[str]:
    """Say where a profile was asked for what it had not seen."""
    return [
        f"outside the profile: {count:,} of {summary['steps']:,} steps, in {COUNT_WORDS[name]}"
        for name, count in (summary["outside_profile"] or {}).items()
    ]


def _rates(summary: Summary) -> list[tuple[str, str]]:
    """Give what a run tells only where time has a length, or where goals are set."""
    rows: list[tuple[str, str]] = []
    rates, goodput = summary["throughput"], summary["goodput"]
    occupancy = summary["time_occupancy"]
    if rates is not None and summary["duration_s"]:
        rows += [
            (
                "throughput",
                f"{number(rates['requests_per_s'])} requests/s, "
                f"{number(rates['output_tokens_per_s'])} output tokens/s",
            ),
            (
                "of the time",
                f"{percent(occupancy['busy'])} busy, {percent(occupancy['slots'])} of the slots "
                f"and {percent(occupancy['blocks'])} of the blocks held",
            ),
        ]
    if goodput is not None:
        rate = goodput["requests_per_s"]
        goals = ", ".join(f"{name} ≤ {goal:g}" for name, goal in goodput["slo"].items())
        rows.append(
            (
                "goodput",
                f"{goodput['num_requests']:,} of {summary['num_arrived']:,} requests "
                f"({percent(goodput['share'])}{'' if rate is None else f', {number(rate)}/s'}) "
                f"met {goals}",
            )
        )
    return rows


def _causes(counts: dict[str, int]) -> str:
    return f" ({_counts(counts)})" if counts else ""


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _latencies(summary: Summary) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    write = number if summary["duration_s"] is None else seconds
    table.add_column("in steps" if summary["duration_s"] is None else "")
    for name in STATISTICS:
        table.add_column(name, justify="right")
    for key, words in LATENCIES.items():
        values = summary[key]
        table.add_row(f"{words} ({key})", *(write(values[name]) for name in STATISTICS))
    return table


def _step_times(rows: list[dict[str, Any]]) -> Table:
    """Show how long steps took by their tokens: long ones of many, or of as many as before."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("tokens of a step", "steps", "mean time"):
        table.add_column(name, justify="right")
    for row in rows:
        first, last = row["tokens"]
        tokens = f"{first:,}" if first == last else f"{first:,} to {last:,}"
        table.add_row(tokens, f"{row['steps']:,}", seconds(row["mean"]))
    return table


def _horizons(summary: Summary) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    # Each row is another run, which stops there: its point may lie beyond this one's end.
    horizon = "horizon" if summary["duration_s"] is None else "horizon, s"
    for name in (horizon, "useful tokens", "slot iterations", "occupancy", "masked", "empty"):
        table.add_column(name, justify="right")
    for point, figures in summary["horizons"].items():
        table.add_row(
            point,
            f"{figures['useful_tokens']:,}",
            f"{figures['slot_iterations']:,}",
            percent(figures["slot_occupancy"]),
            f"{figures['masked_slot_iterations']:,}",
            f"{sum(figures['idle_slot_iterations'].values()):,}",
        )
    return table


def _print_requests(requests: dict[str, dict[str, Any]], end: float, console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    # What tells two ids apart is often their end: a long one is folded, not cut.
    table.add_column("request", overflow="fold")
    table.add_column("state")
    in_steps = all("arrival" in facts for facts in requests.values())
    times, write = (STEP_TIMES, number) if in_steps else (SECOND_TIMES, moment)
    was_preempted = any(facts["num_preemptions"] for facts in requests.values())
    for name in (*times, "outputs", *(["preempted"] if was_preempted else [])):
        table.add_column(name, justify="right")
    rows = list(requests.items())
    num_left_out = max(0, len(rows) - MAX_REQUEST_ROWS)
    if num_left_out:
        # Whom a scenario is about often comes last, behind a crowd.
        half = MAX_REQUEST_ROWS // 2
        rows = [*rows[:half], *rows[-half:]]
    for request_id, facts in rows:
        table.add_row(
            request_id,
            "rejected" if facts["rejected"] else (facts["finish_reason"] or facts["state"]),
            *(
                _wait(facts, times, end, write) if name == "wait" else write(facts[key])
                for name, key in times.items()
            ),
            number(facts["output_tokens"]),
            *([number(facts["num_preemptions"] or None)] if was_preempted else []),
        )
    console.print()
    if not in_steps:
        console.print("times in seconds", style="dim")
    console.print(table)
    if num_left_out:
        console.print(
            f"({counted(num_left_out, 'request')} between the first and the last are left out: "
            "--json has all)"
        )
    refused = [(name, facts["rejected"]) for name, facts in requests.items() if facts["rejected"]]
    for name, sentence in refused[:MAX_REQUEST_ROWS]:
        console.print(f"{name} was refused: {sentence}", soft_wrap=True)


def _wait(
    facts: dict[str, Any], keys: dict[str, str], end: float, write: Callable[[float | None], str]
) -> str:
    """Write the time to the first step; of who had none, to its own end, or the run's with a +."""
    waited, arrival, finished = (facts[keys[name]] for name in ("wait", "arrival", "end"))
    if waited is not None or facts["rejected"] or arrival is None or arrival > end:
        return write(waited)
    return f"{write(end - arrival)}+" if finished is None else write(finished - arrival)
