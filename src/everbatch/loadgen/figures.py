"""The figures of a run, under the names of vLLM's benchmark where it has them.

Belongs here: what is counted and divided. Not here: percentiles (statistics.py), wording, pictures.
Latencies, throughput and goodput are of requests that completed; cancelled, failed and unfinished
ones are counted apart.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from everbatch.base.units import NS_PER_MS, NS_PER_S
from everbatch.loadgen.records import Outcome, Record
from everbatch.loadgen.statistics import milliseconds

GOALS = ("ttft", "tpot", "itl", "e2el")
PERCENTS = (50.0, 90.0, 99.0)
MAX_MESSAGES = 5
"""Of each kind of failure so many messages are told."""
BUSY_SHARE = 0.8
LATE_MS = 10.0

CountFrom = Literal["due", "sent"]
Summary = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FigureOptions:
    """What is told, and from when latencies count. Goals are in milliseconds."""

    percents: Sequence[float] = PERCENTS
    goals: Mapping[str, float] = field(default_factory=dict)
    count_from: CountFrom = "due"
    is_detailed: bool = False


@dataclass(frozen=True, slots=True)
class RunTimes:
    """When a run began and ended, and how much processor time the generator took."""

    start_ns: int
    end_ns: int
    cpu_ns: int

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(slots=True)
class Latencies:
    """Latencies of completed requests, in nanoseconds."""

    ttft: "array[int]" = field(default_factory=lambda: array("q"))
    tpot: "array[float]" = field(default_factory=lambda: array("d"))
    """Of answers of two tokens or more."""
    itl: "array[int]" = field(default_factory=lambda: array("q"))
    """Between events with text."""
    e2el: "array[int]" = field(default_factory=lambda: array("q"))

    def by_name(self) -> "dict[str, array[int] | array[float]]":
        return {"ttft": self.ttft, "tpot": self.tpot, "itl": self.itl, "e2el": self.e2el}


def of_outcome(records: Iterable[Record], outcome: Outcome) -> list[Record]:
    return [record for record in records if record.outcome is outcome]


def latencies_of(records: Iterable[Record], count_from: CountFrom) -> Latencies:
    """Gather the latencies of requests that completed."""
    gathered = Latencies()
    for record in of_outcome(records, Outcome.COMPLETED):
        ttft, tpot, e2el = _times(record, count_from)
        gathered.ttft.append(ttft)
        gathered.e2el.append(e2el)
        if tpot is not None:
            gathered.tpot.append(tpot)
        gathered.itl.extend(_gaps(record))
    return gathered


def summarize(
    records: Sequence[Record], times: RunTimes, options: FigureOptions, facts: Mapping[str, Any]
) -> Summary:
    """Give all figures of a run; `facts` says what was run, and comes first."""
    completed = of_outcome(records, Outcome.COMPLETED)
    seconds = times.duration_ns / NS_PER_S
    num_inputs = sum(record.num_prompt_tokens for record in completed)
    num_outputs = sum(record.num_output_tokens for record in completed)
    summary: Summary = {
        **facts,
        "duration": seconds,
        "num_sent": len(records),
        **{one.value: len(of_outcome(records, one)) for one in Outcome},
        "errors": _errors(records),
        "refusals": dict(Counter(f"http {one}" for each in records for one in each.refusals)),
        "total_input_tokens": num_inputs,
        "total_output_tokens": num_outputs,
        "cancelled_output_tokens": sum(
            record.num_output_tokens for record in of_outcome(records, Outcome.CANCELLED)
        ),
        "request_throughput": _rate(len(completed), seconds),
        "output_throughput": _rate(num_outputs, seconds),
        "total_token_throughput": _rate(num_inputs + num_outputs, seconds),
        "max_output_tokens_per_s": _peak_tokens(records, times.start_ns),
        "max_concurrent_requests": _peak_requests(records, times.end_ns),
        "latencies_count_from": options.count_from,
        **_goodput(completed, seconds, options),
    }
    for name, samples in latencies_of(records, options.count_from).by_name().items():
        summary |= milliseconds(name, samples, options.percents)
    summary["generator"] = _generator(records, times, options.percents)
    if options.is_detailed:
        summary["requests"] = [_details(record, times, options.count_from) for record in records]
    return summary


def warnings(summary: Summary) -> list[str]:
    """Say what of the figures is the generator's doing rather than the server's."""
    told = []
    generator = summary["generator"]
    if generator["cpu_share"] > BUSY_SHARE:
        told.append(
            f"the generator was busy {100 * generator['cpu_share']:.0f} % of the time: it may be "
            "slower than the server, use several, or send less"
        )
    late = generator["p99_late_ms"] if "p99_late_ms" in generator else generator["max_late_ms"]
    if late is not None and late > LATE_MS:
        told.append(
            f"the generator sent requests late, up to {generator['max_late_ms']:,.0f} ms after "
            "they were due: latencies hold that too"
            if summary["latencies_count_from"] == "due"
            else f"the generator sent requests up to {generator['max_late_ms']:,.0f} ms late"
        )
    if summary["uncounted"]:
        told.append(
            f"the server did not count the tokens of {summary['uncounted']:,} answers: their "
            "events with text are taken as tokens"
        )
    return told


def _times(record: Record, count_from: CountFrom) -> tuple[int, float | None, int]:
    """Give TTFT, TPOT and E2EL of a request that completed."""
    start = record.due_ns if count_from == "due" else record.sent_ns
    first, last = record.first_ns, record.last_ns
    assert start is not None
    assert first is not None
    assert last is not None
    num_gaps = record.num_output_tokens - 1
    return first - start, (last - first) / num_gaps if num_gaps > 0 else None, last - start


def _gaps(record: Record) -> list[int]:
    times = record.token_times
    return [after - before for before, after in pairwise(times)]


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if seconds else None


def _errors(records: Iterable[Record]) -> dict[str, Any]:
    """Give each kind of failure with its number and what was said."""
    errors: dict[str, Any] = {}
    for record in of_outcome(records, Outcome.FAILED):
        assert record.error is not None
        entry = errors.setdefault(record.error, {"count": 0, "messages": []})
        entry["count"] += 1
        messages = entry["messages"]
        if record.message not in messages and len(messages) < MAX_MESSAGES:
            messages.append(record.message)
    return errors


def _goodput(completed: Sequence[Record], seconds: float, options: FigureOptions) -> Summary:
    uncounted = sum(record.counted_output_tokens is None for record in completed)
    if not options.goals:
        return {"uncounted": uncounted, "goals_ms": None, "num_good": None, "request_goodput": None}
    num_good = sum(is_good(record, options) for record in completed)
    return {
        "uncounted": uncounted,
        "goals_ms": dict(options.goals),
        "num_good": num_good,
        "request_goodput": _rate(num_good, seconds),
    }


def is_good(record: Record, options: FigureOptions) -> bool:
    """Whether a request that completed met all goals. The ITL of a request is its longest."""
    ttft, tpot, e2el = _times(record, options.count_from)
    reached = {
        "ttft": ttft,
        "tpot": tpot or 0.0,
        "itl": max(_gaps(record), default=0),
        "e2el": e2el,
    }
    return all(reached[name] <= goal * NS_PER_MS for name, goal in options.goals.items())


def _peak_tokens(records: Iterable[Record], start_ns: int) -> int:
    """Give the most events with text in any second since the start."""
    seconds: Counter[int] = Counter()
    for record in records:
        seconds.update((time - start_ns) // NS_PER_S for time in record.token_times)
    return max(seconds.values(), default=0)


def _peak_requests(records: Iterable[Record], end_ns: int) -> int:
    changes: list[tuple[int, int]] = []
    for record in records:
        if record.sent_ns is not None:
            changes += [(record.sent_ns, 1), (record.end_ns or end_ns, -1)]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def _generator(records: Sequence[Record], times: RunTimes, percents: Sequence[float]) -> Summary:
    """Say what the generator itself took, and how late it was."""
    sent = [record for record in records if record.sent_ns is not None]
    late = [record.late_ns for record in sent]
    held = [record.held_ns for record in sent]
    num_events = sum(len(record.token_times) for record in records)
    return {
        "cpu_s": times.cpu_ns / NS_PER_S,
        "cpu_share": times.cpu_ns / times.duration_ns if times.duration_ns else 0.0,
        "cpu_us_per_token": times.cpu_ns / 1e3 / num_events if num_events else None,
        **milliseconds("late", late, percents),
        "max_late_ms": max(late) / NS_PER_MS if late else None,
        "num_held": sum(time > 0 for time in held),
        **milliseconds("held", held, percents),
    }


def _details(record: Record, times: RunTimes, count_from: CountFrom) -> Summary:
    """Give one request; times in seconds from the start of the run."""

    def moment(time: int | None) -> float | None:
        return None if time is None else (time - times.start_ns) / NS_PER_S

    facts: Summary = {
        "number": record.number,
        "outcome": record.outcome.value,
        "status": record.status,
        "error": record.error,
        "refusals": list(record.refusals),
        "input_tokens": record.num_prompt_tokens,
        "output_tokens": record.num_output_tokens,
        "due_s": moment(record.due_ns),
        "sent_s": moment(record.sent_ns),
        "first_token_s": moment(record.token_times[0] if record.token_times else None),
        "end_s": moment(record.end_ns),
    }
    if record.outcome is Outcome.COMPLETED:
        ttft, tpot, e2el = _times(record, count_from)
        facts |= {
            "ttft_ms": ttft / NS_PER_MS,
            "tpot_ms": None if tpot is None else tpot / NS_PER_MS,
            "e2el_ms": e2el / NS_PER_MS,
        }
    return facts
