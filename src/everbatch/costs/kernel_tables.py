"""Step times from measured kernels: attention by its shape, other layers by tokens or rows.

Reads the tables that LLMServingSim's profiler writes for one model on one device: PREFIX_dense.csv
(layer, tokens, time_us), PREFIX_per_sequence.csv (layer, sequences, time_us) and
PREFIX_attention.csv (prefill_chunk, kv_prefill, n_decode, kv_decode, time_us), of one layer each.
Made for clocks of the kind kernels. Not covered: swapped and copied blocks, which cost nothing.

Values between measured ones are interpolated linearly, in no case by logarithms: times have jumps
where a kernel needs one more wave, and a line between neighbours keeps them in place. Attention
over prompts and decodes at once is measured as such; it is not the sum of both. The grid is ragged:
what did not fit the device was not measured. Past its last value a table goes on in proportion. A
call takes some 20 us, ten times as long as a fitted model's.
"""

import csv
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from everbatch.base.errors import ConfigError
from everbatch.base.fields import shown
from everbatch.base.units import NS_PER_S
from everbatch.costs.work import StepWork

ONCE_A_STEP = ("embedding", "final_layernorm")
"""Dense layers outside of the repeated ones."""
TWICE_A_LAYER = ("layernorm",)
"""Before attention and before the MLP."""
MAX_FILE_BYTES = 64 << 20
LONGEST_NS = float(1 << 64)
"""A request of that length is refused anyway."""
_AXES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
_NS_PER_US = NS_PER_S / 1e6

Grid: TypeAlias = "Curve | _Axis"


class Curve:
    """A function of one count, between measured points."""

    def __init__(self, points: Mapping[float, float]) -> None:
        """Take the values at some counts, one at least."""
        self.at = sorted(points)
        self.values = [points[count] for count in self.at]

    def __call__(self, count: float) -> float:
        """Give the value at a count: linear in between, the first below, in proportion above."""
        above = bisect_left(self.at, count)
        if above == 0:
            return self.values[0]
        if above == len(self.at):
            return _in_proportion(self.values[-1], count, self.at[-1])
        low, high = self.at[above - 1], self.at[above]
        share = (count - low) / (high - low)
        return self.values[above - 1] + share * (self.values[above] - self.values[above - 1])


class _Axis:
    """A function of several counts: one of the others at each measured value of the first."""

    def __init__(self, at: Sequence[float], parts: Sequence[Grid]) -> None:
        self._at, self._parts = at, parts

    def __call__(self, count: float, *others: float) -> float:
        above = bisect_left(self._at, count)
        if above == 0:
            return self._parts[0](*others)
        if above == len(self._at):
            return _in_proportion(self._parts[-1](*others), count, self._at[-1])
        low, high = self._at[above - 1], self._at[above]
        if count == high:
            return self._parts[above](*others)
        share = (count - low) / (high - low)
        below = self._parts[above - 1](*others)
        return below + share * (self._parts[above](*others) - below)


class KernelTableStepTime:
    """Adds up the kernels of a step, and a fixed part that kernels do not tell."""

    def __init__(
        self,
        prefix: Path,
        num_layers: int,
        *,
        decode_step_s: float = 0.0,
        prompt_step_s: float = 0.0,
    ) -> None:
        """Read the three tables of `prefix`; ConfigError names the file and the line.

        The fixed parts are of steps without and with a prompt: the host, less what the profiler
        measured too much. They may be negative.
        """
        path = _table(prefix, "dense")
        dense = _read_curves(path, "tokens")
        rows = _read_curves(_table(prefix, "per_sequence"), "sequences")
        once = {name: curve for name, curve in dense.items() if name in ONCE_A_STEP}
        repeated = {name: curve for name, curve in dense.items() if name not in ONCE_A_STEP}
        if not once or not repeated:
            raise ConfigError(
                f"{path} has the layers {', '.join(map(shown, dense))}: it needs some of "
                f"{', '.join(ONCE_A_STEP)}, and some that are repeated"
            )
        self._layer, self._once = _sum(repeated), _sum(once)
        self._rows = _sum(rows)
        self._attention = _read_attention(_table(prefix, "attention"))
        self._num_layers = num_layers
        self._decode_step_ns = decode_step_s * NS_PER_S
        self._prompt_step_ns = prompt_step_s * NS_PER_S

    def duration_ns(self, work: StepWork) -> int:
        """Give the duration in nanoseconds, at least 1."""
        tokens = work.num_decodes + work.prefill_tokens
        layers_us = self._num_layers * (self._layer(tokens) + self._attention_us(work))
        kernels_us = layers_us + self._once(tokens)
        if work.num_logits:
            kernels_us += self._rows(work.num_logits)
        fixed_ns = self._prompt_step_ns if work.num_chunks else self._decode_step_ns
        duration_ns = kernels_us * _NS_PER_US + fixed_ns
        # Times and counts of a table may multiply beyond all floats.
        return max(1, round(duration_ns)) if duration_ns < LONGEST_NS else round(LONGEST_NS)

    def _attention_us(self, work: StepWork) -> float:
        """Give one layer's attention: the first prompt with the decodes, further prompts alone.

        Work is counted in sums, so the prompts of a step are taken to be equally long.
        """
        count = work.num_decodes
        context = work.decode_context / count if count else 0.0
        if not work.num_chunks:
            return self._attention(0.0, 0.0, count, context)
        chunk = work.prefill_tokens / work.num_chunks
        # Every query meets what is cached and, on average, half of its own chunk.
        cached = max(0.0, work.prefill_pairs / work.prefill_tokens - (chunk + 1) / 2)
        attention_us = self._attention(chunk, cached, count, context)
        if work.num_chunks > 1:
            attention_us += (work.num_chunks - 1) * self._attention(chunk, cached, 0.0, 0.0)
        return attention_us


def _table(prefix: Path, kind: str) -> Path:
    return prefix.with_name(f"{prefix.name}_{kind}.csv")


def _in_proportion(value: float, count: float, last: float) -> float:
    return value * count / last if last else value


def _sum(curves: Mapping[str, Curve]) -> Curve:
    """Add curves up, at all counts at which one of them was measured."""
    counts = sorted({count for curve in curves.values() for count in curve.at})
    times = {name: 2 if name in TWICE_A_LAYER else 1 for name in curves}
    return Curve(
        {
            count: sum(times[name] * curve(count) for name, curve in curves.items())
            for count in counts
        }
    )


def _read_curves(path: Path, by: str) -> dict[str, Curve]:
    points: dict[str, dict[float, float]] = {}
    for row, where in _rows(path, ("layer", by, "time_us")):
        layer = points.setdefault(row["layer"], {})
        layer[_number(row, by, where)] = _number(row, "time_us", where)
    return {name: Curve(layer) for name, layer in points.items()}


def _read_attention(path: Path) -> _Axis:
    points: dict[tuple[float, ...], float] = {}
    for row, where in _rows(path, (*_AXES, "time_us")):
        shape = tuple(_number(row, axis, where) for axis in _AXES)
        points[shape] = _number(row, "time_us", where)
    grid = _grid(points)
    assert isinstance(grid, _Axis)
    return grid


def _grid(points: Mapping[tuple[float, ...], float]) -> Grid:
    """Nest points by their first coordinate."""
    parts: dict[float, dict[tuple[float, ...], float]] = {}
    for (first, *others), value in points.items():
        parts.setdefault(first, {})[tuple(others)] = value
    if all(list(part) == [()] for part in parts.values()):
        return Curve({first: part[()] for first, part in parts.items()})
    at = sorted(parts)
    return _Axis(at, [_grid(parts[first]) for first in at])


def _rows(path: Path, columns: Sequence[str]) -> list[tuple[dict[str, str], str]]:
    """Give a table's rows, each with what messages call it; ConfigError if it is none."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} has more than {MAX_FILE_BYTES:,} bytes: it is no table")
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            found = reader.fieldnames or ()
            rows = [(row, f"{path}, line {reader.line_num}") for row in reader]
    except OSError as error:
        raise ConfigError(f"cannot read the table {path} ({error.strerror})") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} is no table: {error}") from error
    missing = [name for name in columns if name not in found]
    if missing or not rows:
        raise ConfigError(
            f"{path} lacks {', '.join(missing) or 'rows'}: it needs {', '.join(columns)}"
        )
    return rows


def _number(row: Mapping[str, str | None], column: str, where: str) -> float:
    text = row[column]
    if text is None:
        raise ConfigError(f"{where}: it ends before {column}, it must have as many cells as line 1")
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ConfigError(f"{where}: {column} is {shown(text)}, it must be a number of at least 0")
    return value
