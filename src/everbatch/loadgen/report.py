"""One page of HTML about a measurement: figures, latencies, plots. It needs nothing but itself.

Belongs here: what is shown, and the series of the plots. Not here: drawing (plots.py), counting
(figures.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import accumulate

from everbatch.base.units import NS_PER_MS, NS_PER_S
from everbatch.loadgen.figures import Summary, latencies_of
from everbatch.loadgen.plots import Line, Plot, plot_svg, round_step
from everbatch.loadgen.records import Outcome, Record
from everbatch.loadgen.session import Finished

NUM_BINS = 60
LONGEST_TAIL = 1.5
"""What lies beyond so many times the 99th percentile is not drawn."""
FIGURES = {
    "duration": "duration, s",
    "num_sent": "requests sent",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "unfinished": "unfinished",
    "request_throughput": "requests/s",
    "output_throughput": "output tokens/s",
    "total_token_throughput": "tokens/s, prompts too",
    "request_goodput": "requests/s that met all goals",
    "max_concurrent_requests": "most requests at once",
    "max_output_tokens_per_s": "most output tokens in a second",
}
LATENCIES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "between two tokens",
    "e2el": "until the end",
}
_NOT_FACTS = (*FIGURES, "errors", "refusals", "generator", "notes", "requests")
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --dim: #667080; --grid: #e3e7ec; --page: #fff;
  --s0: #2563eb; --s1: #ea7317; --s2: #16a34a; --s3: #9333ea; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --dim: #98a2b3; --grid: #2c3543;
  --page: #12161d; --s0: #6ea8fe; --s1: #ffa94d; --s2: #69db7c; --s3: #c792ea; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 1360px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
.dim, dt { color: var(--dim); } .warn { border-left: 3px solid var(--s1); padding-left: .7rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); gap: .8rem; }
.tiles div { border: 1px solid var(--grid); border-radius: 8px; padding: .5rem .8rem; }
.tiles b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(460px, 100%), 1fr));
  gap: 1.5rem; }
figure { margin: 0; } figcaption { font-weight: 600; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .2rem .8rem; border-bottom: 1px solid var(--grid); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; } dd { margin: 0; }
svg { width: 100%; height: auto; } .grid { stroke: var(--grid); }
.line { fill: none; stroke-width: 2; } .s0 { stroke: var(--s0); } .s1 { stroke: var(--s1); }
.s2 { stroke: var(--s2); } .s3 { stroke: var(--s3); }
text { font-size: 11px; text-anchor: middle; fill: var(--dim); }
text.end { text-anchor: end; } text.start { text-anchor: start; } text.label { font-size: 12px; }
"""


def report_html(finished: Finished) -> str:
    """Give the whole page."""
    summary = finished.summary
    title = f"{summary['model_id']}, {summary['num_sent']:,} requests"
    notes = "".join(f'<p class="warn">{escape(note)}</p>' for note in finished.notes)
    plots = "".join(
        f"<figure><figcaption>{escape(plot.title)}</figcaption>{plot_svg(plot)}</figure>"
        for plot in plots_of(finished)
    )
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{_STYLE}</style></head><body>
<h1>{escape(title)}</h1>
<p class="dim">everbatch bench serve, {escape(summary["url"])}, {escape(summary["date"])}</p>
{notes}<div class="tiles">{_tiles(summary)}</div>
<h2>Latencies in milliseconds, counted from when a request was
{escape(summary["latencies_count_from"])}</h2>{_table(summary)}
{_errors(summary)}<h2>Over time, and how they are spread</h2><div class="plots">{plots}</div>
<h2>The generator</h2>{_generator(summary["generator"])}
<h2>The plan</h2>{_facts((k, v) for k, v in summary.items() if _is_fact(k))}
</body></html>
"""


def plots_of(finished: Finished) -> list[Plot]:
    """Give what is drawn: spread of latencies, throughput and requests over time."""
    records, start = finished.records, finished.times.start_ns
    latencies = latencies_of(records, finished.options.count_from).by_name()
    spread = [
        _spread(f"{name.upper()}: {words}", sorted(value / NS_PER_MS for value in latencies[name]))
        for name, words in LATENCIES.items()
    ]

    def seconds(times: Iterable[int | None]) -> list[float]:
        return sorted((time - start) / NS_PER_S for time in times if time is not None)

    due = seconds(record.due_ns for record in records)
    ends = seconds(record.end_ns for record in records)
    tokens = seconds(time for record in records for time in record.token_times)
    duration = max(finished.times.duration_ns / NS_PER_S, 1e-9)
    return [
        Plot(
            "Requests so far",
            "seconds",
            "requests",
            [
                _so_far("due", due),
                _so_far("first token", seconds(record.first_ns for record in records)),
                _so_far("ended", ends),
            ],
        ),
        Plot(
            "Output tokens a second",
            "seconds",
            "tokens/s",
            [Line("output tokens", _rates(tokens, duration), is_step=True)],
        ),
        Plot(
            "Requests a second",
            "seconds",
            "requests/s",
            [
                Line("due", _rates(due, duration), is_step=True),
                Line("completed", _rates(_completed(records, seconds), duration), is_step=True),
            ],
        ),
        Plot("Requests that run", "seconds", "requests", [_running(records, seconds)]),
        *spread,
    ]


Seconds = Callable[[Iterable[int | None]], list[float]]


def _completed(records: Iterable[Record], seconds: Seconds) -> list[float]:
    return seconds(each.end_ns for each in records if each.outcome is Outcome.COMPLETED)


def _spread(title: str, ordered: Sequence[float]) -> Plot:
    """Give the share of samples up to each value; a long tail is cut off, and told."""
    count = len(ordered)
    limit = LONGEST_TAIL * ordered[min(count * 99 // 100, count - 1)] if count else 0.0
    points = [(value, rank / count) for rank, value in enumerate(ordered, 1) if value <= limit]
    label = "milliseconds"
    if count and ordered[-1] > limit:
        label += f" (the longest: {ordered[-1]:,.4g})"
    return Plot(title, label, "share of the samples", [Line("share", points)], y_top=1.0)


def _so_far(name: str, times: Sequence[float]) -> Line:
    return Line(name, [(0.0, 0.0), *((time, rank) for rank, time in enumerate(times, 1))], True)


def _running(records: Iterable[Record], seconds: Seconds) -> Line:
    known = [record for record in records if record.sent_ns is not None]
    changes = [(time, 1) for time in seconds(record.sent_ns for record in known)]
    changes += [(time, -1) for time in seconds(record.end_ns for record in known)]
    changes.sort()
    counts = accumulate(change for _, change in changes)
    points = [(time, float(count)) for (time, _), count in zip(changes, counts, strict=True)]
    return Line("running", points, is_step=True)


def _rates(times: Sequence[float], duration: float) -> list[tuple[float, float]]:
    """Give how many a second there were in each of up to 60 equal times, to the end of the last."""
    num_bins = max(1, round(duration / round_step(duration / NUM_BINS)))
    width = duration / num_bins
    counts = [0] * num_bins
    for time in times:
        counts[min(int(time / width), num_bins - 1)] += 1
    rates = [(index * width, count / width) for index, count in enumerate(counts)]
    return [*rates, (duration, rates[-1][1])]


def _tiles(summary: Summary) -> str:
    shown = {name: words for name, words in FIGURES.items() if summary[name] is not None}
    return "".join(
        f"<div><span class=dim>{words}</span><b>{_number(summary[name])}</b></div>"
        for name, words in shown.items()
    )


def _table(summary: Summary) -> str:
    return _statistics(
        summary, {name: f"{name.upper()}, {words}" for name, words in LATENCIES.items()}
    )


def _generator(facts: Summary) -> str:
    shares = _facts((name, value) for name, value in facts.items() if not name.endswith("_ms"))
    return shares + _statistics(facts, {"late": "sent late, ms", "held": "held back, ms"})


def _statistics(facts: Summary, names: Mapping[str, str]) -> str:
    """Make a table of what is known of each: means, percentiles, the largest."""
    keys = [key for key in facts if any(key.endswith(f"_{name}_ms") for name in names)]
    columns = list(dict.fromkeys(key.rsplit("_", 2)[0] for key in keys))
    # One thing by two names, for whoever reads the JSON.
    columns = [column for column in columns if column != "p50" or "median" not in columns]
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    rows = "".join(
        f"<tr><td>{words}</td>"
        + "".join(f"<td>{_number(facts.get(f'{column}_{name}_ms'))}</td>" for column in columns)
        + "</tr>"
        for name, words in names.items()
    )
    return f"<table><tr><th></th>{head}</tr>{rows}</table>"


def _errors(summary: Summary) -> str:
    if not summary["errors"]:
        return ""
    rows = "".join(
        f"<tr><td>{escape(kind)}</td><td>{entry['count']:,}</td>"
        f"<td>{'<br>'.join(map(escape, entry['messages']))}</td></tr>"
        for kind, entry in summary["errors"].items()
    )
    return f"<h2>Failures</h2><table>{rows}</table>"


def _facts(items: Iterable[tuple[str, object]]) -> str:
    rows = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(_number(value))}</dd>"
        for name, value in items
        if value is not None
    )
    return f"<dl>{rows}</dl>"


def _is_fact(key: str) -> bool:
    return key not in _NOT_FACTS and not key.endswith("_ms")


def _number(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
