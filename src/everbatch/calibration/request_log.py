"""Reads logs of requests: of each its lengths, when it came, its first and its last token.

Any engine can write such a log, as JSON Lines. Belongs here: names of keys, clocks, what cannot be
used. Not here: what is made of it (requests). Called by the command line.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from everbatch.base.errors import ConfigError
from everbatch.workload.requests import Prompt, RequestSpec, Segment
from everbatch.workload.traces.lines import TraceFile
from everbatch.workload.traces.public_formats import VLLM_BLOCK_TOKENS, VLLM_HASHES
from everbatch.workload.traces.rows import broken, checked_count, checked_stamp, hashed_prefix

KEYS = {
    "arrival": ("arrival_s", "arrival_time"),
    "prompt": ("prompt_tokens", "input_toks"),
    "output": ("output_tokens", "output_toks"),
    "first": ("first_token_s", "first_token_ts"),
    "last": ("last_token_s", "last_token_ts"),
}
"""What each row must tell, by ours or vLLM's name."""
QUEUED = ("queued_s", "queued_ts")
"""When the engine learned of it, at a boundary; where it is told, waiting counts from there."""
MAX_REQUESTS = 100_000
"""Each costs some steps in each of a dozen simulated runs."""
NO_OUTPUT = "they have no first token, no last token or no outputs"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request and its stamps, in nanoseconds from the first arrival."""

    spec: RequestSpec
    queued_ns: int | None
    first_ns: int
    last_ns: int

    @property
    def known_ns(self) -> int:
        """From when its wait counts."""
        return self.spec.arrival if self.queued_ns is None else self.queued_ns

    @property
    def ttft_ns(self) -> int:
        return self.first_ns - self.known_ns

    @property
    def decode_ns(self) -> int:
        """From the first token to the last."""
        return self.last_ns - self.first_ns

    @property
    def e2e_ns(self) -> int:
        return self.last_ns - self.known_ns


@dataclass(slots=True)
class RequestLog:
    """A log's requests in order of arrival, named by their place in it."""

    name: str
    date: str
    requests: list[RecordedRequest]
    has_queued: bool
    left_out: Counter[str] = field(default_factory=Counter)


def is_request_log(path: Path) -> bool:
    """Whether the first row of a file looks like a request of such a log; ConfigError if broken."""
    try:
        first = next(TraceFile(path).json_rows(), None)
    except ConfigError:
        return False
    if first is None or "event" in first[1]:
        return False
    return any(name in first[1] for names in KEYS.values() for name in names)


def read_request_log(path: Path, date: str = "") -> RequestLog:
    """Read a log of requests; ConfigError names the line and the value that is wrong.

    If `prompt_hash_ids_block16.jsonl` lies beside it, its rows say which prompts begin alike.
    """
    try:
        return _read(path, date)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _read(path: Path, date: str) -> RequestLog:
    left_out: Counter[str] = Counter()
    rows: list[_Stamps] = []
    for line, facts in TraceFile(path).json_rows():
        stamps = _stamps_of(facts, line)
        if stamps is None:
            left_out[NO_OUTPUT] += 1
        else:
            rows.append(stamps)
        if len(rows) > MAX_REQUESTS:
            raise broken(line, f"a log has at most {MAX_REQUESTS:,} requests: cut it")
    if not rows:
        raise ConfigError("no request of it has both a first and a last token")
    prefixes = _prefixes(path.with_name(VLLM_HASHES))
    requests = _on_one_clock(rows, prefixes)
    return RequestLog(path.name, date, requests, rows[0].queued is not None, left_out)


@dataclass(frozen=True, slots=True)
class _Stamps:
    """One row as it is written, times in nanoseconds of its own clocks."""

    line: int
    name: object
    prompt_tokens: int
    output_tokens: int
    arrival: int
    queued: int | None
    first: int
    last: int


def _stamps_of(facts: Row, line: int) -> _Stamps | None:
    named = {what: _key(facts, names, line) for what, names in KEYS.items()}
    if any(facts[named[what]] is None for what in ("first", "last")):
        return None
    output_tokens = checked_count(facts[named["output"]], named["output"], line)
    if not output_tokens:
        return None
    queued = next((key for key in QUEUED if facts.get(key) is not None), None)
    stamps = _Stamps(
        line,
        facts.get("request_id"),
        checked_count(facts[named["prompt"]], named["prompt"], line, 1),
        output_tokens,
        checked_stamp(facts[named["arrival"]], named["arrival"], line),
        None if queued is None else checked_stamp(facts[queued], queued, line),
        checked_stamp(facts[named["first"]], named["first"], line),
        checked_stamp(facts[named["last"]], named["last"], line),
    )
    begin = stamps.arrival if stamps.queued is None else stamps.queued
    if not begin < stamps.first <= stamps.last:
        told = "its queueing" if queued else "its arrival (are they on one clock?)"
        raise broken(line, f"its first token must come after {told} and not after its last token")
    return stamps


def _key(facts: Row, names: tuple[str, ...], line: int) -> str:
    found = [name for name in names if name in facts]
    if len(found) != 1:
        what = "lacks" if not found else "has both"
        raise broken(line, f"it {what} {' and '.join(names) if found else ' or '.join(names)}")
    return found[0]


def _on_one_clock(rows: list[_Stamps], prefixes: dict[object, list[int]]) -> list[RecordedRequest]:
    """Give the requests by arrival; all times count from the first one.

    An engine may tell arrivals by another clock than the rest. Nobody is queued before it has come,
    and whoever finds an idle engine is queued at once: the least difference is that of the clocks.
    """
    rows = sorted(rows, key=lambda row: (row.arrival, row.line))
    if any((row.queued is None) != (rows[0].queued is None) for row in rows):
        [odd] = [row for row in rows if (row.queued is None) != (rows[0].queued is None)][:1]
        raise broken(odd.line, f"some rows tell {' or '.join(QUEUED)}, others do not")
    offset = min((row.queued - row.arrival for row in rows if row.queued is not None), default=0)
    zero = rows[0].arrival + offset
    return [
        RecordedRequest(
            _spec(number, row, rows[0].arrival, prefixes.get(row.name, [])),
            None if row.queued is None else row.queued - zero,
            row.first - zero,
            row.last - zero,
        )
        for number, row in enumerate(rows)
    ]


def _spec(number: int, row: _Stamps, first_arrival: int, ids: list[int]) -> RequestSpec:
    prefix = hashed_prefix(ids, VLLM_BLOCK_TOKENS, row.prompt_tokens, row.line)
    own = row.prompt_tokens - sum(piece.tokens for piece in prefix)
    pieces = (*prefix, Segment(None, own)) if own else prefix
    return RequestSpec(
        id=str(number),
        position=number,
        arrival=row.arrival - first_arrival,
        prompt=Prompt(row.prompt_tokens, pieces),
        output_tokens=row.output_tokens,
        max_tokens=row.output_tokens,
    )


def _prefixes(path: Path) -> dict[object, list[int]]:
    if not path.is_file():
        return {}
    return {facts.get("request_id"): facts.get("hash_ids", []) for facts in _rows_beside(path)}


def _rows_beside(path: Path) -> Iterator[Row]:
    try:
        for _, facts in TraceFile(path).json_rows():
            yield facts
    except ConfigError as error:
        raise ConfigError(f"{path.name} beside it: {error}") from error


def without_prefixes(log: RequestLog) -> RequestLog:
    """Give the log of the same requests, each of whose prompts is its own."""
    return replace(log, requests=[replace(one, spec=_alone(one.spec)) for one in log.requests])


def _alone(spec: RequestSpec) -> RequestSpec:
    num_tokens = spec.prompt.num_tokens
    return replace(spec, prompt=Prompt(num_tokens, (Segment(None, num_tokens),)))
