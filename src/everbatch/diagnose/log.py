"""An event log as somebody reads it afterwards: its header, its clock, its events, its damage.

Belongs here: reading line by line up to where a log can be read, and saying what is wrong there.
Not here: where the lines come from (cli), what they mean (world, recorder).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from everbatch.base.errors import EventLogError
from everbatch.base.eventlog import WAY_OUT, read_events, read_header
from everbatch.base.events import Event

SIZES = ("max_num_seqs", "max_num_batched_tokens", "num_blocks", "block_size")
"""Of a configuration, what waits cannot be explained without."""


@dataclass(frozen=True, slots=True)
class Ruler:
    """How a log counts: on the clock of steps times are boundaries, else nanoseconds.

    Steps have the numbers that people see: on the clock of steps those of the ticks, of which some
    pass while nothing runs; else those of the forward passes.
    """

    is_steps: bool

    def planned_at(self, t: int, step: int) -> int:
        """Give the number of the step that was planned at `t`."""
        return t + 1 if self.is_steps else step

    def ended_at(self, t: int, step: int) -> int:
        """Give the number of the last step that had run at `t`."""
        return t if self.is_steps else step


@dataclass(slots=True)
class LogReader:
    """Reads a log once. Raises EventLogError if not even its header can be read.

    `damage` is None until a line turns out to be broken; what came before it has been given.
    """

    lines: Iterable[str]
    header: dict[str, Any] = field(init=False)
    damage: str | None = None
    torn_line: int | None = None
    """The number of a last line without its end: what a process that is killed leaves."""
    num_events: int = 0
    _rest: Iterator[str] = field(init=False)

    def __post_init__(self) -> None:
        self._rest = iter(self.lines)
        first = next(self._rest, "")
        if not first.strip():
            raise EventLogError(f"line 1: this is not an event log, it is empty: {WAY_OUT}")
        self.header = read_header(first)
        if not isinstance(self.header.get("config"), dict):
            raise EventLogError("line 1: the header of this event log has no configuration")
        self._first = first

    _first: str = field(init=False)

    @property
    def config(self) -> dict[str, Any]:
        """The scheduler's options as resolved."""
        config: dict[str, Any] = self.header["config"]
        return config

    @property
    def ruler(self) -> Ruler:
        return Ruler(self.header.get("clock") == "steps")

    @property
    def num_dropped(self) -> int:
        """Events before the first one that the log no longer has; a server keeps the last ones."""
        dropped = self.header.get("dropped", 0)
        return dropped if isinstance(dropped, int) else 0

    def events(self) -> Iterator[Event]:
        """Give the events up to the end, or up to the line that is broken."""
        try:
            for event in read_events(self._watched()):
                self.num_events += 1
                yield event
        except EventLogError as error:
            self.damage = str(error)

    def _watched(self) -> Iterator[str]:
        yield self._first
        for number, line in enumerate(self._rest, 2):
            if not line.endswith("\n"):
                self.torn_line = number
            yield line


def check_sizes(config: dict[str, Any]) -> None:
    """Raise EventLogError unless a configuration has the sizes by which waits are explained."""
    for name in SIZES:
        size = config.get(name)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise EventLogError(
                f"line 1: {name} in the configuration of this event log must be an integer of at "
                f"least 1, not {size!r}: {WAY_OUT}"
            )
