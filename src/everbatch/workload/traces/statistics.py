"""What a trace is like: rate, burstiness, lengths, shared prefixes, arrivals over time.

Counted row by row. What is kept grows with the number of different lengths and, up to a limit, of
different pieces of prefixes, not with the number of rows. Called by the command line.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from everbatch.base.units import NS_PER_MS, NS_PER_S, div_ceil
from everbatch.workload.traces.rows import TraceRow

PERCENTS = (50, 90, 99)
MAX_BINS = 2048
MAX_PIECES = 2_000_000
"""Different ones; some 250 MB. What comes after the row with the last of them is not looked at."""


@dataclass(slots=True)
class Lengths:
    """How often each number of tokens came."""

    counts: dict[int, int] = field(default_factory=dict)

    def add(self, tokens: int) -> None:
        self.counts[tokens] = self.counts.get(tokens, 0) + 1

    def figures(self) -> dict[str, Any]:
        """Give mean, percentiles by nearest rank, maximum and total."""
        num_rows = sum(self.counts.values())
        total = sum(tokens * count for tokens, count in self.counts.items())
        ordered = dict(sorted(self.counts.items()))
        return {
            "mean": total / num_rows if num_rows else None,
            **{f"p{percent}": _nearest_rank(ordered, percent * num_rows) for percent in PERCENTS},
            "max": max(ordered, default=None),
            "total": total,
        }


def _nearest_rank(counts: Mapping[int, int], hundred_ranks: int) -> int | None:
    """Give the smallest value such that so many hundredths of a rank are not above it."""
    for value, count in counts.items():
        hundred_ranks -= 100 * count
        if hundred_ranks <= 0:
            return value
    return None


@dataclass(slots=True)
class Gaps:
    """Times between arrivals, in integers: their sums do not depend on the order of adding."""

    first: int | None = None
    last: int = 0
    count: int = 0
    squares: int = 0
    num_zero: int = 0

    def add(self, arrival: int) -> None:
        if self.first is None:
            self.first = arrival
        else:
            gap = arrival - self.last
            self.count += 1
            self.squares += gap * gap
            self.num_zero += gap == 0
        self.last = arrival

    @property
    def span(self) -> int:
        return 0 if self.first is None else self.last - self.first

    def figures(self) -> dict[str, Any]:
        """Give span, rate, coefficient of variation, and how many came together with another."""
        if self.first is None or not self.span:
            return {
                "span_s": None if self.first is None else 0.0,
                "requests_per_s": None,
                "arrival_cv": None,
                "simultaneous": self.num_zero,
            }
        span = self.span
        # count² × variance, exactly; one division and one root at the end.
        variance = self.count * self.squares - span * span
        return {
            "span_s": span / NS_PER_S,
            "requests_per_s": self.count / (span / NS_PER_S),
            "arrival_cv": sqrt(variance / (span * span)),
            "simultaneous": self.num_zero,
        }


class Histogram:
    """Counts of arrivals by time since the first, in bins that widen as the span grows."""

    def __init__(self) -> None:
        self._width_ns = NS_PER_MS
        self._counts = [0] * MAX_BINS

    def add(self, time: int) -> None:
        place = time // self._width_ns
        while place >= MAX_BINS:
            pairs = zip(self._counts[::2], self._counts[1::2], strict=True)
            self._counts = [one + other for one, other in pairs] + [0] * (MAX_BINS // 2)
            self._width_ns *= 2
            place = time // self._width_ns
        self._counts[place] += 1

    def bins(self, num_bins: int, span: int) -> tuple[int, list[int]]:
        """Give the width in nanoseconds of about so many bins, at most, and their counts."""
        num_used = span // self._width_ns + 1
        group = div_ceil(num_used, num_bins)
        starts = range(0, num_used, group)
        return self._width_ns * group, [sum(self._counts[at : at + group]) for at in starts]


class PrefixHits:
    """What a cache without bounds would hit: pieces that some prompt before began with as well.

    A piece counts as hit only if all those before it are.
    """

    def __init__(self) -> None:
        self._longest: dict[str, int] = {}
        self.num_rows = 0
        """Looked at."""
        self.prompt_tokens = 0
        """Of those."""
        self.num_pieces = 0
        self.num_hits = 0
        self.hit_tokens = 0

    @property
    def is_full(self) -> bool:
        """Whether no more rows are looked at."""
        return len(self._longest) >= MAX_PIECES

    def add(self, row: TraceRow) -> None:
        if self.is_full:
            return
        longest = self._longest
        self.num_rows += 1
        self.prompt_tokens += row.prompt_tokens
        is_hit = True
        for piece in row.extras.prefix:
            name = piece.text or ""
            known = longest.get(name, 0)
            self.num_pieces += 1
            if is_hit:
                self.hit_tokens += min(known, piece.tokens)
                is_hit = known >= piece.tokens
                self.num_hits += is_hit
            if piece.tokens > known:
                longest[name] = piece.tokens

    def figures(self) -> dict[str, Any] | None:
        """Give hit rates of the rows that were looked at; None if nothing is known of prefixes."""
        if not self.num_pieces:
            return None
        return {
            "rows": self.num_rows,
            "pieces": self.num_pieces,
            "hit_pieces": self.num_hits,
            "hit_rate": self.num_hits / self.num_pieces,
            "hit_tokens": self.hit_tokens,
            "hit_token_rate": _share(self.hit_tokens, self.prompt_tokens),
        }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


class TraceStatistics:
    """Takes the rows of a trace in order of arrival, and tells what they are like."""

    def __init__(self) -> None:
        self.num_rows = 0
        self._num_without = {"no_prompt": 0, "no_output": 0}
        self._gaps = Gaps()
        self._prompts, self._outputs = Lengths(), Lengths()
        self._prefixes = PrefixHits()
        self._histogram = Histogram()

    def add(self, row: TraceRow) -> None:
        """Count a row."""
        self.num_rows += 1
        self._prompts.add(row.prompt_tokens)
        self._outputs.add(row.output_tokens)
        if not row.prompt_tokens:
            self._num_without["no_prompt"] += 1
        if not row.output_tokens:
            self._num_without["no_output"] += 1
        if row.arrival_ns is not None:
            self._gaps.add(row.arrival_ns)
            assert self._gaps.first is not None
            self._histogram.add(row.arrival_ns - self._gaps.first)
        self._prefixes.add(row)

    def figures(self, num_bins: int) -> dict[str, Any]:
        """Give everything as JSON; arrivals over time in at most so many bins."""
        histogram = None
        if self._gaps.first is not None:
            width, counts = self._histogram.bins(num_bins, self._gaps.span)
            histogram = {"bin_s": width / NS_PER_S, "counts": counts}
        return {
            "rows": self.num_rows,
            **self._num_without,
            **self._gaps.figures(),
            "prompt_tokens": self._prompts.figures(),
            "output_tokens": self._outputs.figures(),
            "prefix": self._prefixes.figures(),
            "arrivals": histogram,
        }
