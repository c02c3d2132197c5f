"""Writes rows as plain JSON Lines, as Azure's CSV, or as Mooncake's JSON Lines.

What a format has no place for is counted in `lost`, by what it is. Times are those of the run: the
first row, or the start of the window, is at 0. Called by the command line.
"""

import json
from datetime import date, timedelta
from typing import Any, TextIO

from everbatch.base.errors import ConfigError
from everbatch.base.units import NS_PER_MS, NS_PER_S
from everbatch.workload.requests import Segment
from everbatch.workload.traces.public_formats import AZURE_COLUMNS, MOONCAKE_BLOCK_TOKENS
from everbatch.workload.traces.rows import NO_EXTRAS, TraceRow, prefix_tokens

WRITTEN_FORMATS = ("jsonl", "azure", "mooncake")
FIRST_DAY = date(2000, 1, 1)
"""Azure's format has days; ours have none."""
MAX_DAYS = (date.max - FIRST_DAY).days

_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True)


class TraceWriter:
    """Writes one trace to an open file."""

    def __init__(self, file: TextIO, format: str) -> None:
        self._file = file
        self._format = format
        self._block_numbers: dict[str, int] = {}
        self.num_rows = 0
        self.lost: dict[str, int] = {}
        if format == "azure":
            file.write(f"{','.join(AZURE_COLUMNS)}\n")

    def write(self, number: int, row: TraceRow) -> None:
        """Write a row; `number` is its place in the file that it comes from."""
        arrival = row.arrival_ns
        assert arrival is not None
        self.num_rows += 1
        if self._format == "azure":
            self._note_lost(row, "prefix")
            self._file.write(f"{_stamp(arrival)},{row.prompt_tokens},{row.output_tokens}\n")
        elif self._format == "mooncake":
            self._note_lost(row)
            self._file.write(_line(self._mooncake(arrival, row)))
        else:
            self._file.write(_plain_line(number, arrival, row))

    def _mooncake(self, arrival: int, row: TraceRow) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "timestamp": _whole_or_not(arrival, NS_PER_MS),
            "input_length": row.prompt_tokens,
            "output_length": row.output_tokens,
        }
        prefix = row.extras.prefix
        if prefix and _is_blocks(prefix, row.prompt_tokens):
            numbers = self._block_numbers
            facts["hash_ids"] = [
                numbers.setdefault(piece.text or "", len(numbers)) for piece in prefix
            ]
        elif prefix:
            self._lose(f"prefix, which is not blocks of {MOONCAKE_BLOCK_TOKENS} tokens")
        return facts

    def _note_lost(self, row: TraceRow, *more: str) -> None:
        extras = row.extras
        if extras is NO_EXTRAS:
            return
        for what, is_there in (
            ("tenant", extras.tenant),
            ("priority", extras.priority),
            ("samples", extras.num_samples > 1),
            ("max_tokens", extras.max_tokens not in (None, row.output_tokens)),
            ("abort", extras.abort_ns is not None),
            ("deadline", extras.deadline_ns is not None),
            *((name, extras.prefix) for name in more),
        ):
            if is_there:
                self._lose(what)

    def _lose(self, what: str) -> None:
        self.lost[what] = self.lost.get(what, 0) + 1


def _plain_line(number: int, arrival: int, row: TraceRow) -> str:
    extras = row.extras
    more: dict[str, Any] = {"id": str(number) if extras.name is None else extras.name}
    if extras is not NO_EXTRAS:
        optional = (
            ("prefix", [{"text": piece.text, "tokens": piece.tokens} for piece in extras.prefix]),
            ("tenant", extras.tenant),
            ("priority", extras.priority),
            ("max_tokens", extras.max_tokens),
        )
        more.update((key, value) for key, value in optional if value)
        if extras.num_samples > 1:
            more["n"] = extras.num_samples
    line = (
        f'{{"arrival_s":{_decimal(arrival)},"prompt_tokens":{row.prompt_tokens},'
        f'"output_tokens":{row.output_tokens}'
    )
    for key, time in (("abort_s", extras.abort_ns), ("deadline_s", extras.deadline_ns)):
        if time is not None:
            line += f',"{key}":{_decimal(time)}'
    return f"{line},{_ENCODER.encode(more)[1:]}\n"


def _line(facts: dict[str, Any]) -> str:
    return _ENCODER.encode(facts) + "\n"


def _decimal(time: int) -> str:
    """Write nanoseconds as seconds, exactly."""
    seconds, rest = divmod(time, NS_PER_S)
    return f"{seconds}.{rest:09}".rstrip("0").rstrip(".")


def _whole_or_not(time: int, per_unit: int) -> int | float:
    return time // per_unit if time % per_unit == 0 else time / per_unit


def _is_blocks(prefix: tuple[Segment, ...], prompt_tokens: int) -> bool:
    """Whether pieces are whole blocks of Mooncake's, but for a last one that ends the prompt."""
    *before, last = prefix
    if any(piece.tokens != MOONCAKE_BLOCK_TOKENS for piece in before):
        return False
    ends = prefix_tokens(prefix) == prompt_tokens
    return last.tokens == MOONCAKE_BLOCK_TOKENS or (ends and last.tokens < MOONCAKE_BLOCK_TOKENS)


def _stamp(time: int) -> str:
    """Write nanoseconds as a time of day from 2000-01-01 on, in steps of 100 ns."""
    seconds, rest = divmod(time, NS_PER_S)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days > MAX_DAYS:
        raise ConfigError(
            f"a row arrives at {seconds:,} s, past the year {date.max.year}, where the days of the "
            "format azure end: write another format, or take a higher speed"
        )
    day = FIRST_DAY + timedelta(days=days)
    return f"{day.isoformat()} {hour:02}:{minute:02}:{second:02}.{rest // 100:07}"
