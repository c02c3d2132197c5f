"""Our own formats: plain JSON Lines, and the event log that the server and simulations write.

docs/traces.md describes the first, docs/events.md the second. Belongs here: what their rows mean as
requests. Not here: which format a file has (formats).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from everbatch.base.errors import ConfigError, EventLogError
from everbatch.base.eventlog import read_events
from everbatch.base.events import Arrived, Finished, Rejected
from everbatch.base.fields import Fields, is_writable
from everbatch.base.units import div_ceil
from everbatch.workload.requests import MAX_PRIORITY, MAX_SAMPLES, MAX_TOKENS, Segment
from everbatch.workload.traces.lines import TraceFile, parse_object
from everbatch.workload.traces.public_formats import need
from everbatch.workload.traces.rows import (
    NO_EXTRAS,
    RowExtras,
    TraceRow,
    broken,
    checked_count,
    checked_stamp,
    prefix_tokens,
    wrong,
)

MAX_TIME_NS = 1 << 63
PLAIN_KEYS = ("arrival_s", "prompt_tokens", "output_tokens")
PLAIN_EXTRAS = (
    "id",
    "prefix",
    "tenant",
    "priority",
    "max_tokens",
    "n",
    "abort_s",
    "deadline_s",
)


def read_plain(file: TraceFile) -> Iterator[TraceRow]:
    """Read plain JSON Lines; an unknown key is refused."""
    for line, facts in file.json_rows():
        need(facts, PLAIN_KEYS, line)
        num_tokens = checked_count(facts["prompt_tokens"], "prompt_tokens", line)
        extras = NO_EXTRAS
        if len(facts) > len(PLAIN_KEYS):
            try:
                extras = _plain_extras(facts, num_tokens, line)
            except ConfigError as error:
                told = str(error)
                raise error if told.startswith("line ") else broken(line, told) from error
        yield TraceRow(
            line,
            checked_stamp(facts["arrival_s"], "arrival_s", line),
            num_tokens,
            checked_count(facts["output_tokens"], "output_tokens", line),
            extras,
        )


def _plain_extras(facts: dict[str, object], num_tokens: int, line: int) -> RowExtras:
    row = Fields(facts, "the row", (*PLAIN_KEYS, *PLAIN_EXTRAS))

    def stamp(key: str) -> int | None:
        return checked_stamp(facts[key], key, line) if key in facts else None

    prefix: list[Segment] = []
    pieces = facts.get("prefix", [])
    if not isinstance(pieces, list):
        raise row.wrong("prefix", "a list of { text, tokens }")
    for piece in pieces:
        fields = Fields(piece, "a piece of prefix", ("text", "tokens"))
        fields.required("text", "equal texts are equal tokens")
        fields.required("tokens", "say how many tokens of the text")
        text = fields.text("text", "", may_be_empty=False)
        prefix.append(Segment(text, fields.integer_or("tokens", 0, 1, MAX_TOKENS)))
    if (shared := prefix_tokens(prefix)) > num_tokens:
        raise broken(line, f"prefix has {shared:,} tokens, the prompt has {num_tokens:,}")
    deadline_ns = stamp("deadline_s")
    if deadline_ns is not None and deadline_ns < 0:
        raise row.wrong("deadline_s", "a number of seconds from 0")
    return RowExtras(
        name=row.text("id", "") if "id" in row else None,
        prefix=tuple(prefix),
        tenant=row.text("tenant", ""),
        priority=row.integer_or("priority", 0, -MAX_PRIORITY, MAX_PRIORITY),
        max_tokens=row.integer("max_tokens", None, 1, MAX_TOKENS),
        num_samples=row.integer_or("n", 1, 1, MAX_SAMPLES),
        abort_ns=stamp("abort_s"),
        deadline_ns=deadline_ns,
    )


@dataclass(slots=True)
class _Life:
    """A request of an event log, up to what is known of it."""

    line: int
    arrived: Arrived
    finished: Finished | None = None


class EventLogRows:
    """Reads an event log: requests in order of arrival, each when its end is known.

    Keeps those that live, and those behind the oldest of them. What cannot be taken as it is counts
    in `remarks`.
    """

    def __init__(self, file: TraceFile, remarks: dict[str, int]) -> None:
        self._file = file
        self._line = 0
        self._remarks = remarks

    def rows(self) -> Iterator[TraceRow]:
        waiting: dict[str, _Life] = {}
        """By id, in order of arrival."""
        try:
            for event in read_events(self._lines()):
                if isinstance(event, Arrived):
                    self._check(event)
                    waiting[event.id] = _Life(self._line, event)
                elif isinstance(event, Rejected):
                    self._remark("left out: refused at arrival, their outputs are not known")
                elif isinstance(event, Finished) and event.id in waiting:
                    checked_count(event.output_tokens, "output_tokens", self._line)
                    _checked_time(event.t, self._line)
                    waiting[event.id].finished = event
                    yield from self._known(waiting)
        except EventLogError as error:
            raise ConfigError(str(error)) from error
        for life in waiting.values():
            if life.finished is None:
                self._remark("left out: not finished at the end of the log")
            else:
                yield from self._row(life, life.finished)

    def _lines(self) -> Iterator[str]:
        for number, line in self._file.lines(as_they_are=True):
            if number == 1 and parse_object(line, 1).get("clock") == "steps":
                raise broken(
                    1,
                    "this log counts in steps, which have no length in seconds: take its scenario, "
                    "or a log of a clock that measures time",
                )
            self._line = number
            yield line

    def _check(self, event: Arrived) -> None:
        """Refuse what no engine writes; the reader of events looks at names and types only."""
        line = self._line
        _checked_time(event.t, line)
        checked_count(event.prompt_tokens, "prompt_tokens", line)
        checked_count(event.max_tokens, "max_tokens", line, 1)
        checked_count(event.samples, "samples", line, 1)

    def _known(self, waiting: dict[str, _Life]) -> Iterator[TraceRow]:
        """Give those at the front whose ends are known."""
        while waiting:
            id, life = next(iter(waiting.items()))
            if life.finished is None:
                return
            del waiting[id]
            yield from self._row(life, life.finished)

    def _row(self, life: _Life, finished: Finished) -> Iterator[TraceRow]:
        arrived = life.arrived
        if finished.reason == "error":
            self._remark("left out: ended by an error, their outputs are not known")
            return
        output_tokens = div_ceil(finished.output_tokens, arrived.samples)
        abort_ns = deadline_ns = None
        if finished.reason in ("abort", "deadline"):
            # Whoever left says nothing about where the model would have ended.
            output_tokens = arrived.max_tokens
            self._remark("left before their end: they leave again, else they run to max_tokens")
        if finished.reason == "abort":
            abort_ns = finished.t
        elif finished.reason == "deadline":
            deadline_ns = finished.t - arrived.t
        yield TraceRow(
            life.line,
            arrived.t,
            arrived.prompt_tokens,
            output_tokens,
            RowExtras(
                name=arrived.id if is_writable(arrived.id) else None,
                tenant=arrived.tenant,
                priority=arrived.priority,
                max_tokens=arrived.max_tokens,
                num_samples=arrived.samples,
                abort_ns=abort_ns,
                deadline_ns=deadline_ns,
            ),
        )

    def _remark(self, what: str) -> None:
        self._remarks[what] = self._remarks.get(what, 0) + 1


def _checked_time(value: object, line: int) -> None:
    if type(value) is not int or not 0 <= value <= MAX_TIME_NS:
        raise wrong(line, "t", value, "an integer of nanoseconds")
