"""The event log on disk: JSON Lines, a header first, then one line an event.

Canonical: the same events give the same bytes, in every process. Belongs here: the format, written
to and read from file objects that somebody else opened. Not here: when to flush, what to do when
the disk is full (assemble.event_log).

A run of steps in which nothing changed is one line ("steps"): the writer holds quiet steps back
until something else happens, or `flush`. The digest covers the body with each run as one line,
whenever it was flushed, and not the header.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from hashlib import sha256
from typing import TextIO

from everbatch.base.errors import EventLogError
from everbatch.base.events import EVENT_LOG_VERSION, EVENT_TYPES, Event, QuietSteps, StepRan

MAX_LINE_CHARACTERS = 16 << 20
"""A longer line is not ours: a step names at most each slot and each of its blocks."""

WAY_OUT = "give what --event-log or --events wrote"
"""What whoever has no event log is told."""

# Made once: json.dumps makes an encoder a call whenever it is told separators.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_ESCAPING_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True)
_NAMES = {kind: tuple(item.name for item in fields(kind)) for kind in EVENT_TYPES.values()}


class EventLogWriter:
    """Writes one log. Errors of the file (OSError) pass through to the caller."""

    def __init__(self, file: TextIO, header: dict[str, object]) -> None:
        self._file = file
        self._digest = sha256()
        self._unwritten: QuietSteps | None = None
        """Quiet steps that no line of the file tells yet."""
        self._undigested: QuietSteps | None = None
        """The whole run that the last quiet step belongs to."""
        self._file.write(_dump({"event": "header", "version": EVENT_LOG_VERSION, **header}))

    def write(self, events: Iterable[Event]) -> None:
        """Append events, in order."""
        for event in events:
            if isinstance(event, StepRan) and event.is_quiet:
                self._unwritten = longer_run(self._unwritten, event)
                self._undigested = longer_run(self._undigested, event)
                continue
            self._write_quiet_run()
            if self._undigested is not None:
                self._digest.update(event_line(self._undigested).encode())
                self._undigested = None
            line = event_line(event)
            self._digest.update(line.encode())
            self._file.write(line)

    def flush(self) -> None:
        """Hand everything to the operating system: a killed process loses nothing of it."""
        self._write_quiet_run()
        self._file.flush()

    def digest(self) -> str:
        """Give the sha256 of the body so far, each run of quiet steps as one line."""
        digest = self._digest.copy()
        if self._undigested is not None:
            digest.update(event_line(self._undigested).encode())
        return digest.hexdigest()

    def _write_quiet_run(self) -> None:
        quiet, self._unwritten = self._unwritten, None
        if quiet is not None:
            self._file.write(event_line(quiet))


def event_line(event: Event) -> str:
    """Give an event's line, with its newline."""
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
    items = fields(event_type)
    missing = [i.name for i in items if i.name not in facts and i.default is MISSING]
    if missing:
        raise EventLogError(f"line {number}: a {kind} event lacks {', '.join(missing)}")
    # A log of this version may be older than a field, or newer than this reader.
    values = {i.name: _frozen(facts[i.name]) for i in items if i.name in facts}
    return event_type(**values)  # type: ignore[arg-type]


def _frozen(value: object) -> object:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
