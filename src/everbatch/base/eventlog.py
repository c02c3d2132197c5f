"""The event log on disk: JSON Lines, a header first, then one line an event.

Canonical: the same events give the same bytes, in every process. Belongs here: which lines a log
has, written to and read from file objects that somebody else opened. Not here: how an event's line
reads (event_lines), when to flush, what to do when the disk is full (assemble.event_log).

A run of steps in which nothing changed is one line ("steps"): the writer holds quiet steps back
until something else happens, or `flush`. The digest covers the body with each run as one line,
whenever it was flushed, and not the header.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, fields
from hashlib import sha256
from typing import Any, TextIO, get_args, get_origin

from everbatch.base.errors import EventLogError
from everbatch.base.event_lines import dump, event_line, lines_between, quiet_line
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

DIGESTED_AT_ONCE = 1 << 15
"""Characters: many lines at once take less time."""


class EventLogWriter:
    """Writes one log. Errors of the file (OSError) pass through to the caller."""

    def __init__(self, file: TextIO, header: dict[str, object]) -> None:
        self._file = file
        self._digest = sha256()
        self._undigested: list[str] = []
        """Lines that the digest does not cover yet."""
        self._num_undigested = 0
        """Their characters."""
        self._run: _QuietRun | None = None
        self._file.write(dump({"event": "header", "version": EVENT_LOG_VERSION, **header}))

    def write(self, events: Iterable[Event]) -> None:
        """Append events, in order."""
        lines: list[str] = []
        for event in events:
            if type(event) is StepRan and event.is_quiet:
                self._add_quiet(event.step, event.start, event.t, 1, event.decodes)
            elif type(event) is QuietSteps:
                self._add_quiet(event.step, event.start, event.t, event.count, event.decodes)
            else:
                if self._run is not None:
                    lines.append(self._end_run(self._run))
                lines.append(event_line(event))
        if lines:
            self._append("".join(lines))

    def write_steps(self, steps: StepsRan) -> None:
        """Append the parts of steps that are told together."""
        text = lines_between(steps)
        if text is None:
            self.write(steps.parts())
            return
        first, last = steps.changes[0].step - steps.step, steps.changes[-1].step - steps.step
        if first:
            self._add_quiet_part(steps, 0, first)
        if self._run is not None:
            text = self._end_run(self._run) + text
        self._append(text)
        if last + 1 < len(steps.durations):
            self._add_quiet_part(steps, last + 1, len(steps.durations))

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

    def _add_quiet(self, step: int, start: int, end: int, count: int, decodes: int) -> None:
        if self._run is None:
            self._run = _QuietRun(step, start, decodes)
        self._run.add(step, start, end, count)

    def _add_quiet_part(self, steps: StepsRan, place: int, end: int) -> None:
        """Add the steps number [place, end) of those that are told together, counted from 0."""
        ends = steps.ends
        self._add_quiet(steps.step + place, ends[place], ends[end], end - place, steps.decodes)

    def _end_run(self, run: "_QuietRun") -> str:
        """End the quiet steps; gives the line that is yet to append, "" if there is none.

        After a flush the file tells of a part of them already, and the digest of none.
        """
        self._run = None
        if not run.was_flushed:
            return run.whole_line()
        self._note_undigested(run.whole_line())
        self._file.write(run.unwritten_line())
        return ""

    def _append(self, text: str) -> None:
        self._note_undigested(text)
        self._file.write(text)

    def _note_undigested(self, text: str) -> None:
        self._undigested.append(text)
        self._num_undigested += len(text)
        if self._num_undigested >= DIGESTED_AT_ONCE:
            self._digest_lines()

    def _digest_lines(self) -> None:
        self._digest.update("".join(self._undigested).encode())
        self._undigested.clear()
        self._num_undigested = 0


class _QuietRun:
    """Quiet steps that follow each other, and from which of them on no line of the file tells."""

    def __init__(self, step: int, start: int, decodes: int) -> None:
        """Begin with none; `step` and `start` are those of the first to come."""
        self._step = self._unwritten_step = step
        self._start = self._unwritten_start = start
        self._end = start
        self._decodes = decodes
        self._count = self._num_unwritten = 0
        self.was_flushed = False

    def add(self, step: int, start: int, end: int, count: int) -> None:
        """Make the run longer."""
        if not self._num_unwritten:
            self._unwritten_step, self._unwritten_start = step, start
        self._num_unwritten += count
        self._count += count
        self._end = end

    def whole_line(self) -> str:
        return quiet_line(self._step, self._start, self._end, self._count, self._decodes)

    def unwritten_line(self) -> str:
        """Give the line of those that no line tells; "" if there are none."""
        step, start, count = self._unwritten_step, self._unwritten_start, self._num_unwritten
        return quiet_line(step, start, self._end, count, self._decodes) if count else ""

    def note_written(self) -> None:
        """All up to now are in the file."""
        self.was_flushed = True
        self._num_unwritten = 0


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
