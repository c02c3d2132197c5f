"""What every step of an event log did, in counts, and how long it took.

Follows a log and fills in `costs.work.StepWork` for each of its lines of steps. Belongs here: the
counts and times of a line. Not here: prices (fit).

A step's time is from the end of the step before to its own end: what the host does in between is
part of what a step costs. After an idle moment it begins with its own start.

Covered: decodes and their context, chunks of prompts and histories, blocks that go to the host tier
or come back, masked rows of static batches. Not covered, for the log does not tell: rows whose
logits were computed, copies of shared blocks.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from everbatch.base.errors import EventLogError
from everbatch.base.events import Admitted, Event, Preempted, QuietSteps, StepFailed, StepRan
from everbatch.base.units import div_ceil
from everbatch.costs.work import StepWork
from everbatch.diagnose.log import LogReader
from everbatch.diagnose.world import Live, World

BEGAN_BEFORE = "decodes that began before the log, so that their context is not known"
NO_TIME = "they took no time"


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """A line of a log: one step, or `count` steps in which the same requests decoded."""

    count: int
    duration_ns: int
    """Of all of them."""
    first: StepWork
    last: StepWork
    """The same as the first, but for the context of the decodes."""

    @property
    def has_prompt(self) -> bool:
        """Whether tokens of a prompt or history were computed; then it is one step."""
        return self.first.num_chunks > 0

    @property
    def num_decodes(self) -> int:
        """Of all its steps."""
        return self.count * self.first.num_decodes

    @property
    def decode_context(self) -> int:
        """Of all its steps: with each the context grows by as much."""
        return self.count * (self.first.decode_context + self.last.decode_context) // 2


@dataclass(slots=True)
class MeasuredLog:
    """One log: its lines of steps, where they come from, and what cannot be used."""

    name: str
    date: str
    """The day on which the log was written, YYYY-MM-DD, as far as somebody knows."""
    config: dict[str, Any]
    model: object
    """The facts of the model in the log's header; None in a simulated log."""
    clock: str | None
    """The kind of virtual clock; None: the log is of a real engine."""
    steps: list[MeasuredSteps] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Steps by the reason why."""
    torn_line: int | None = None


def read_log(lines: Iterable[str], name: str, date: str = "") -> MeasuredLog:
    """Read an event log from its first line to its last.

    Raises EventLogError, which begins with `name`, for what is no event log, has a broken line, or
    counts steps instead of nanoseconds.
    """
    try:
        reader = LogReader(lines)
        clock = reader.header.get("clock")
        if reader.ruler.is_steps:
            raise EventLogError(
                "this log is of the clock of steps, on which every step takes one tick: give the "
                "log of a real engine, or of a clock of seconds"
            )
        log = MeasuredLog(
            name,
            date,
            reader.config,
            reader.header.get("model"),
            clock if isinstance(clock, str) else None,
        )
        follower = _Follower(log, World(reader.config, reader.ruler), _block_size(reader.config))
        for event in reader.events():
            follower.take(event)
    except EventLogError as error:
        raise EventLogError(f"{name}: {error}") from error
    if reader.damage is not None:
        raise EventLogError(
            f"{name}: {reader.damage}; {reader.num_events:,} events before it can be read: cut the "
            "log off there, or give another"
        )
    log.torn_line = reader.torn_line
    return log


def _block_size(config: dict[str, Any]) -> int:
    size = config.get("block_size")
    if not isinstance(size, int) or size < 1:
        raise EventLogError("line 1: the header's configuration has no block_size")
    return size


class _Follower:
    """Takes the events of one log in order and adds its steps to it."""

    def __init__(self, log: MeasuredLog, world: World, block_size: int) -> None:
        self._log, self._world, self._block_size = log, world, block_size
        self._busy_since: int | None = None
        """The end of the last step; None: nothing was live at some moment since."""
        self._swapped_blocks = 0
        """Since the last step, so in the next."""

    def take(self, event: Event) -> None:
        """Follow one event."""
        match event:
            case Preempted(way="swap"):
                self._swapped_blocks += div_ceil(event.computed_tokens, self._block_size)
            case Admitted() if self._is_swapped(event.id):
                self._swapped_blocks += div_ceil(event.computed_tokens, self._block_size)
            case _:
                pass
        self._world.take(event)
        match event:
            case StepRan() | QuietSteps():
                self._measure(event)
                self._swapped_blocks = 0
                self._busy_since = event.t
            case StepFailed():
                self._busy_since = event.t
            case _:
                pass
        if not self._world.live:
            self._busy_since = None

    def _measure(self, event: StepRan | QuietSteps) -> None:
        count = event.count if isinstance(event, QuietSteps) else 1
        last = self._work(event)
        began = event.start if self._busy_since is None else min(event.start, self._busy_since)
        duration = event.t - began
        if last is None:
            self._log.left_out[BEGAN_BEFORE] += count
            return
        if duration <= 0:
            self._log.left_out[NO_TIME] += count
            return
        first = last
        if count > 1:
            grown = (count - 1) * event.decodes
            first = StepWork(
                last.num_decodes,
                decode_context=last.decode_context - grown,
                swapped_blocks=last.swapped_blocks,
            )
        self._log.steps.append(MeasuredSteps(count, duration, first, last))

    def _work(self, event: StepRan | QuietSteps) -> StepWork | None:
        """Give what the last step of a line did; None if that is not known."""
        world = self._world
        decoding = [live for live in map(self._live, world.slots.values()) if _decodes(live)]
        is_known = all(live.prompt_tokens is not None for live in decoding)
        if not is_known or len(decoding) != event.decodes:
            return None
        # A masked row of a static batch is a decode that reads its own token.
        num_masked = len(world.masked)
        work = StepWork(
            num_decodes=event.decodes + num_masked,
            decode_context=sum(map(world.computed_tokens, decoding)) + num_masked,
            swapped_blocks=self._swapped_blocks,
        )
        for _, start, num_tokens in event.chunks if isinstance(event, StepRan) else ():
            work.add_chunk(start, num_tokens)
        return work

    def _live(self, id: str) -> Live:
        return self._world.live[id]

    def _is_swapped(self, id: str) -> bool:
        live = self._world.live.get(id)
        return live is not None and live.is_swapped


def _decodes(live: Live) -> bool:
    return live.decode_from is not None
