"""The formats of published traces: Azure, Mooncake, Vidur, BurstGPT, and vLLM's request logs.

Each reader gives the rows of a file as they stand, in our units. Belongs here: what the columns
mean. Not here: our own formats (own_formats), which format a file has (formats).
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from everbatch.base.errors import ConfigError
from everbatch.base.fields import shown
from everbatch.base.units import NS_PER_MS, NS_PER_S
from everbatch.workload.traces.lines import TraceFile
from everbatch.workload.traces.rows import (
    NO_EXTRAS,
    RowExtras,
    TraceRow,
    broken,
    checked_count,
    checked_stamp,
    count_of,
    hashed_prefix,
    stamp_of,
    wrong,
)

MOONCAKE_BLOCK_TOKENS = 512
VLLM_BLOCK_TOKENS = 16
VLLM_HASHES = "prompt_hash_ids_block16.jsonl"
"""Beside a request log: which prompts begin alike, in blocks of 16 tokens."""

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
VIDUR_COLUMNS = ("num_prefill_tokens", "num_decode_tokens")
VIDUR_ARRIVAL = "arrived_at"

_NS_PER_MINUTE = 60 * NS_PER_S
_STAMP = 'a time such as "2023-11-16 18:15:46.6805900"'


def read_azure(file: TraceFile) -> Iterator[TraceRow]:
    """Read AzurePublicDataset's CSV: times of day in UTC, in steps of 100 ns or coarser."""
    stamps = _Stamps()
    for line, (stamp, prompt, output) in file.csv_rows(AZURE_COLUMNS):
        yield TraceRow(
            line,
            stamps.read(stamp, line),
            count_of(prompt, "ContextTokens", line),
            count_of(output, "GeneratedTokens", line),
        )


def read_burstgpt(file: TraceFile) -> Iterator[TraceRow]:
    """Read BurstGPT's CSV: seconds. Model and log type are not used."""
    for line, (stamp, prompt, output) in file.csv_rows(BURSTGPT_COLUMNS):
        yield TraceRow(
            line,
            stamp_of(stamp, "Timestamp", line),
            count_of(prompt, "Request tokens", line),
            count_of(output, "Response tokens", line),
        )


def read_vidur_lengths(file: TraceFile) -> Iterator[TraceRow]:
    """Read Vidur's CSV of lengths alone."""
    for line, (prompt, output) in file.csv_rows(VIDUR_COLUMNS):
        yield TraceRow(
            line,
            None,
            count_of(prompt, "num_prefill_tokens", line),
            count_of(output, "num_decode_tokens", line),
        )


def read_vidur(file: TraceFile) -> Iterator[TraceRow]:
    """Read Vidur's CSV with arrivals, in seconds."""
    for line, (stamp, prompt, output) in file.csv_rows((VIDUR_ARRIVAL, *VIDUR_COLUMNS)):
        yield TraceRow(
            line,
            stamp_of(stamp, VIDUR_ARRIVAL, line),
            count_of(prompt, "num_prefill_tokens", line),
            count_of(output, "num_decode_tokens", line),
        )


def read_mooncake(file: TraceFile) -> Iterator[TraceRow]:
    """Read Mooncake's JSON Lines: milliseconds; hash ids stand for blocks of 512 tokens."""
    for line, facts in file.json_rows():
        need(facts, ("timestamp", "input_length", "output_length"), line)
        num_tokens = checked_count(facts["input_length"], "input_length", line)
        extras = NO_EXTRAS
        if "hash_ids" in facts:
            extras = RowExtras(
                prefix=hashed_prefix(facts["hash_ids"], MOONCAKE_BLOCK_TOKENS, num_tokens, line)
            )
        yield TraceRow(
            line,
            checked_stamp(facts["timestamp"], "timestamp", line, NS_PER_MS),
            num_tokens,
            checked_count(facts["output_length"], "output_length", line),
            extras,
        )


def read_vllm(file: TraceFile) -> Iterator[TraceRow]:
    """Read a log of requests as vLLM's benchmarks write it: seconds of Unix time.

    If `prompt_hash_ids_block16.jsonl` lies beside it, it must tell of the same requests in the same
    order.
    """
    hashes = file.path.with_name(VLLM_HASHES)
    prefixes = _hashes_of(hashes) if hashes.is_file() else None
    for line, facts in file.json_rows():
        need(facts, ("arrival_time", "input_toks", "output_toks"), line)
        num_tokens = checked_count(facts["input_toks"], "input_toks", line)
        name = facts.get("request_id")
        if not isinstance(name, str | None):
            raise wrong(line, "request_id", name, "a string")
        ids: object = []
        if prefixes is not None:
            other = next(prefixes, {})
            ids = other.get("hash_ids", [])
            if other.get("request_id") != name:
                raise broken(
                    line,
                    f"request_id is {shown(name)}, but {VLLM_HASHES} has "
                    f"{shown(other.get('request_id'))} in its place: it must have the same "
                    "requests in the same order, or be elsewhere",
                )
        yield TraceRow(
            line,
            checked_stamp(facts["arrival_time"], "arrival_time", line),
            num_tokens,
            checked_count(facts["output_toks"], "output_toks", line),
            RowExtras(name, hashed_prefix(ids, VLLM_BLOCK_TOKENS, num_tokens, line)),
        )


def _hashes_of(path: Path) -> Iterator[dict[str, Any]]:
    try:
        for _, facts in TraceFile(path).json_rows():
            yield facts
    except ConfigError as error:
        raise ConfigError(f"{path.name} beside it: {error}") from error


def need(facts: dict[str, object], keys: tuple[str, ...], line: int) -> None:
    """Refuse a row that lacks a key."""
    for key in keys:
        if key not in facts:
            raise broken(line, f"it lacks {key}; a row has {', '.join(keys)}")


class _Stamps:
    """Reads "2023-11-16 18:15:46.6805900", up to nine decimals, "+00:00" or "Z" behind allowed.

    Remembers the last minute: most rows are in the same one as the row before.
    """

    def __init__(self) -> None:
        self._minute = ""
        self._minute_ns = 0

    def read(self, text: str, line: int) -> int:
        """Give nanoseconds since a fixed moment."""
        stamp = text.removesuffix("Z").removesuffix("+00:00")
        if stamp[:17] != self._minute:
            self._minute_ns = _minute_ns(stamp[:17], text, line)
            self._minute = stamp[:17]
        second, point, decimals = stamp[17:19], stamp[19:20], stamp[20:]
        digits = second + decimals
        if not (
            digits.isascii()
            and digits.isdecimal()
            and len(second) == 2
            and second <= "60"
            and len(decimals) <= 9
            and point == ("." if decimals else "")
        ):
            raise wrong(line, "TIMESTAMP", text, _STAMP)
        return self._minute_ns + int(second) * NS_PER_S + int(decimals.ljust(9, "0"))


def _minute_ns(minute: str, text: str, line: int) -> int:
    """Read "2023-11-16 18:15:"; `text` is the whole stamp."""
    try:
        if len(minute) < 17 or minute[10] not in " T" or minute[16] != ":":
            raise ValueError
        time = datetime.fromisoformat(minute[:16])
    except ValueError:
        raise wrong(line, "TIMESTAMP", text, _STAMP) from None
    return ((time.toordinal() * 24 + time.hour) * 60 + time.minute) * _NS_PER_MINUTE
