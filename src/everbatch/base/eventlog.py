"""The event log on disk: JSON Lines, a header first, then one line an event.

Canonical: the same events give the same bytes, in every process. Belongs here: the format, written
to and read from file objects that somebody else opened. Not here: when to flush, what to do when
the disk is full (assemble.event_log).

A run of steps in which nothing changed is one line ("steps"): the writer holds quiet steps back
until something else happens, or `flush`. The digest covers the body with each run as one line,
whenever it was flushed, and not the header.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, fields
from hashlib import sha256
from json.encoder import encode_basestring as _quoted
from operator import attrgetter
from typing import Any, TextIO, get_args, get_origin

from everbatch.base.errors import EventLogError
from everbatch.base.events import (
    EVENT_LOG_VERSION,
    EVENT_TYPES,
    Event,
    QuietSteps,
    StepRan,
    StepsRan,
)

MAX_LINE_CHARACTERS = 16 << 20
"""A longer line is not ours: a step names at most each slot and each of its blocks."""

WAY_OUT = "give what --event-log or --events wrote"
"""What whoever has no event log is told."""

# Made once: json.dumps makes an encoder a call whenever it is told separators.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_ESCAPING_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True)
DIGESTED_AT_ONCE = 512
_NAMES = {kind: tuple(item.name for item in fields(kind)) for kind in EVENT_TYPES.values()}
_TEMPLATES = {
    kind: (
        f'{{"event":"{kind.kind}",{",".join(f"{_quoted(name)}:%s" for name in names)}}}\n',
        attrgetter(*names),
    )
    for kind, names in _NAMES.items()
}


class EventLogWriter:
    """Writes one log. Errors of the file (OSError) pass through to the caller."""

    def __init__(self, file: TextIO, header: dict[str, object]) -> None:
        self._file = file
        self._digest = sha256()
        self._undigested: list[str] = []
        """Lines that the digest does not cover yet: many at once take less time."""
        self._run: _QuietRun | None = None
        self._file.write(_dump({"event": "header", "version": EVENT_LOG_VERSION, **header}))

    def write(self, events: Iterable[Event]) -> None:
        """Append events, in order."""
        write, undigested = self._file.write, self._undigested
        for event in events:
            quiet = _as_quiet(event)
            if quiet is not None:
                self._add_quiet(quiet)
                continue
            if self._run is not None:
                self._end_run(self._run)
            line = _step_line(event) if type(event) is StepRan else event_line(event)
            undigested.append(line)
            write(line)
        if len(self._undigested) >= DIGESTED_AT_ONCE:
            self._digest_lines()

    def write_steps(self, steps: StepsRan) -> None:
        """Append the parts of steps that are told together."""
        text = _lines_between(steps)
        if text is None:
            self.write(steps.parts())
            return
        first, last = steps.changes[0].step - steps.step, steps.changes[-1].step - steps.step
        if first:
            self._add_quiet(steps.quiet(0, first))
        if self._run is not None:
            self._end_run(self._run)
        self._undigested.append(text)
        # At once: a text is of up to thousands of lines, and nothing else may come between many.
        self._digest_lines()
        self._file.write(text)
        if last + 1 < len(steps.durations):
            self._add_quiet(steps.quiet(last + 1, len(steps.durations)))

    def flush(self) -> None:
        """Hand everything to the operating system: a killed process loses nothing of it."""
        if self._run is not None:
            self._file.write(self._run.unwritten_line())
            self._run.note_written()
        self._file.flush()

    def digest(self) -> str:
        """Give the sha256 of the body so far, each run of quiet steps as one line."""
        self._digest_lines()
        digest = self._digest.copy()
        if self._run is not None:
            digest.update(self._run.whole_line().encode())
        return digest.hexdigest()

    def _add_quiet(self, quiet: QuietSteps) -> None:
        if self._run is None:
            self._run = _QuietRun(quiet)
        else:
            self._run.add(quiet)

    def _end_run(self, run: "_QuietRun") -> None:
        """Write and digest the quiet steps: one line for both unless a flush came between."""
        self._run = None
        whole = run.whole_line()
        self._undigested.append(whole)
        self._file.write(run.unwritten_line() if run.was_flushed else whole)

    def _digest_lines(self) -> None:
        self._digest.update("".join(self._undigested).encode())
        self._undigested.clear()


class _QuietRun:
    """Quiet steps that follow each other, and from which of them on no line of the file tells."""

    def __init__(self, first: QuietSteps) -> None:
        self._first = self._last = first
        self._count = self._num_unwritten = first.count
        self._first_unwritten: QuietSteps | None = first
        self.was_flushed = False

    def add(self, steps: QuietSteps) -> None:
        """Make the run longer."""
        self._last = steps
        self._count += steps.count
        if self._first_unwritten is None:
            self._first_unwritten = steps
        self._num_unwritten += steps.count

    def whole_line(self) -> str:
        return self._line(self._first, self._count)

    def unwritten_line(self) -> str:
        """Give the line of those that no line tells; "" if there are none."""
        first = self._first_unwritten
        return "" if first is None else self._line(first, self._num_unwritten)

    def note_written(self) -> None:
        """All up to now are in the file."""
        self.was_flushed = True
        self._first_unwritten = None
        self._num_unwritten = 0

    def _line(self, first: QuietSteps, count: int) -> str:
        return _quiet_line(first.step, first.start, self._last.t, count, self._first.decodes)


def _as_quiet(event: Event) -> QuietSteps | None:
    """Give an event as a run of quiet steps, if that is all that it tells of."""
    if type(event) is QuietSteps:
        return event
    if type(event) is StepRan and event.is_quiet:
        return QuietSteps(event.t, event.step, event.start, 1, event.decodes)
    return None


def event_line(event: Event) -> str:
    """Give an event's line, with its newline."""
    if type(event) is StepRan:
        return _step_line(event)
    if type(event) is QuietSteps:
        return _quiet_line(event.step, event.start, event.t, event.count, event.decodes)
    return _plain_line(event)


def _quiet_line(step: int, start: int, t: int, count: int, decodes: int) -> str:
    """Give the line that `_any_line` gives, in a tenth of the time."""
    return (
        f'{{"event":"steps","t":{t},"step":{step},"start":{start},"count":{count},'
        f'"decodes":{decodes}}}\n'
    )


def _step_line(event: StepRan) -> str:
    """Give the line that `_any_line` gives, in a fifth of the time: most lines are steps."""
    # Few steps have any but blocks: joining nothing takes as long as the rest of the line.
    blocks = [
        f"[{_quoted(name)},[{taken[0] if len(taken) == 1 else _numbers(taken)}]]"
        for name, taken in event.blocks
    ]
    chunks = joined = left = ""
    if event.chunks:
        chunks = ",".join([f"[{_quoted(name)},{start},{n}]" for name, start, n in event.chunks])
    if event.joined:
        joined = ",".join(map(_quoted, event.joined))
    if event.left:
        left = ",".join(map(_quoted, event.left))
    line = (
        f'{{"event":"step","t":{event.t},"step":{event.step},"start":{event.start},'
        f'"tokens":{event.tokens},"emitted":{event.emitted},"decodes":{event.decodes},'
        f'"chunks":[{chunks}],"blocks":[{",".join(blocks)}],"joined":[{joined}],"left":[{left}],'
        f'"free_blocks":{event.free_blocks},"cached_blocks":{event.cached_blocks}}}\n'
    )
    return line if line.isascii() else _any_line(event)


def _numbers(numbers: tuple[int, ...]) -> str:
    """Give numbers with commas between, in half the time that joining them takes."""
    return ("%d," * len(numbers) % numbers)[:-1]


def _lines_between(steps: StepsRan) -> str | None:
    """Give the lines from the first change to the last, in a quarter of the time of its parts'.

    None where there are no changes, and where a name is not plain.
    """
    if not steps.changes:
        return None
    ends, first_step, num_decodes = steps.ends, steps.step, steps.decodes
    counts = f'"tokens":{num_decodes},"emitted":{num_decodes},"decodes":{num_decodes}'
    joined = ",".join(map(_quoted, steps.joined))
    lines: list[str] = []
    at = steps.changes[0].step - first_step
    for step, blocks, free_blocks, cached_blocks in steps.changes:
        place = step - first_step
        if at < place:
            start = first_step + at
            lines.append(_quiet_line(start, ends[at], ends[place], place - at, num_decodes))
        at = place + 1
        taken = ",".join([f"[{_quoted(name)},[{block}]]" for name, block in blocks])
        lines.append(
            f'{{"event":"step","t":{ends[at]},"step":{step},"start":{ends[place]},{counts},'
            f'"chunks":[],"blocks":[{taken}],"joined":[{"" if place else joined}],"left":[],'
            f'"free_blocks":{free_blocks},"cached_blocks":{cached_blocks}}}\n'
        )
    text = "".join(lines)
    return text if text.isascii() else None


def _plain_line(event: Event) -> str:
    """Give the line that `_any_line` gives, in a third of the time, where all facts are plain."""
    template, facts_of = _TEMPLATES[type(event)]
    texts: list[object] = []
    for fact in facts_of(event):
        kind = type(fact)
        if kind is int:
            texts.append(fact)
        elif kind is str:
            texts.append(_quoted(fact))
        elif fact is None:
            texts.append("null")
        elif kind is bool:
            texts.append("true" if fact else "false")
        else:
            return _any_line(event)
    line = template % tuple(texts)
    return line if line.isascii() else _any_line(event)


def _any_line(event: Event) -> str:
    facts: dict[str, object] = {"event": event.kind}
    for name in _NAMES[type(event)]:
        facts[name] = getattr(event, name)
    return _dump(facts)


def read_header(line: str) -> dict[str, object]:
    """Read the first line of a log; EventLogError if it is not one we can read."""
    try:
        header = _parse(line, 1)
    except EventLogError as error:
        raise EventLogError(f"{error}: this is not an event log, {WAY_OUT}") from error
    if header.get("event") != "header":
        raise EventLogError(
            "line 1: this is not an event log, its first line is no header but "
            f"{line.strip():.60}: {WAY_OUT}"
        )
    version = header.get("version")
    if version != EVENT_LOG_VERSION:
        raise EventLogError(
            f"line 1: event log of version {version!r:.40}, this everbatch reads "
            f"{EVENT_LOG_VERSION}: read it with the everbatch that wrote it"
        )
    return header


def read_events(lines: Iterable[str]) -> Iterator[Event]:
    """Read a log's events, header first; EventLogError names the line that is broken.

    A last line without its newline is what a killed process leaves: it is passed over.
    """
    header_seen = False
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            return
        if not header_seen:
            read_header(line)
            header_seen = True
            continue
        yield _event(_parse(line, number), number)


def longer_run(run: QuietSteps | None, step: StepRan) -> QuietSteps:
    """Add a quiet step to a run of such steps, or begin one."""
    if run is None:
        return QuietSteps(step.t, step.step, step.start, 1, step.decodes)
    return QuietSteps(step.t, run.step, run.start, run.count + 1, run.decodes)


def _dump(facts: dict[str, object]) -> str:
    line = _ENCODER.encode(facts)
    try:
        # As good as free where the text is ASCII.
        line.encode()
    except UnicodeEncodeError:
        # An id or a tenant holds half a character, as JSON can: UTF-8 has no place for it.
        line = _ESCAPING_ENCODER.encode(facts)
    return line + "\n"


def _parse(line: str, number: int) -> dict[str, object]:
    if len(line) > MAX_LINE_CHARACTERS:
        raise EventLogError(
            f"line {number} has {len(line):,} characters, at most {MAX_LINE_CHARACTERS:,} are read"
        )
    try:
        facts = json.loads(line)
    except ValueError as error:
        raise EventLogError(f"line {number} is not JSON: {error}") from error
    except RecursionError as error:
        raise EventLogError(f"line {number} is nested too deeply") from error
    if not isinstance(facts, dict):
        raise EventLogError(f"line {number} is not a JSON object")
    return facts


def _event(facts: dict[str, object], number: int) -> Event:
    kind = facts.pop("event", None)
    event_type = EVENT_TYPES.get(kind) if isinstance(kind, str) else None
    if event_type is None:
        raise EventLogError(f"line {number} holds an event of unknown kind {kind!r}")
    items = _FIELDS[event_type]
    missing = [item.name for item in items if item.is_needed and item.name not in facts]
    if missing:
        raise EventLogError(f"line {number}: a {kind} event lacks {', '.join(missing)}")
    # A log of this version may be older than a field, or newer than this reader.
    values = {item.name: _frozen(facts[item.name]) for item in items if item.name in facts}
    for item in items:
        if item.name in values and not item.fits(values[item.name]):
            told = f"{facts[item.name]!r:.40}"
            raise EventLogError(f"line {number}: {item.name} is {told}, as in no {kind} event")
    return event_type(**values)  # type: ignore[arg-type]


def _frozen(value: object) -> object:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class _Field:
    """How one field of an event is read."""

    name: str
    is_needed: bool
    fits: Callable[[object], bool]


def _check(kind: Any) -> Callable[[object], bool]:
    """Give a test for the type that a field is declared with."""
    if get_origin(kind) is tuple:
        return _tuple_check(*get_args(kind))
    # True is no number here.
    kinds = get_args(kind) or (kind,)
    return lambda value: type(value) in kinds


def _tuple_check(*kinds: Any) -> Callable[[object], bool]:
    if kinds[-1] is Ellipsis:
        one = _check(kinds[0])
        return lambda value: isinstance(value, tuple) and all(map(one, value))
    checks = tuple(map(_check, kinds))

    def fits(value: object) -> bool:
        if not isinstance(value, tuple) or len(value) != len(checks):
            return False
        return all(check(one) for check, one in zip(checks, value, strict=True))

    return fits


_FIELDS = {
    kind: tuple(_Field(i.name, i.default is MISSING, _check(i.type)) for i in fields(kind))
    for kind in EVENT_TYPES.values()
}
