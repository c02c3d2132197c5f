"""An event log as a scenario: its requests, its configuration, its step times.

Whoever came or left between two steps does so in the replay at the boundary where the scheduler saw
it. Belongs here: what can be told from the events. Not here: running and comparing (cli.replay,
decisions). Not in a log, so not replayed: what prompts say (a hit of the prefix cache is not
repeated), and which passes failed.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

from everbatch.base.errors import ConfigError
from everbatch.base.eventlog import read_events, read_header
from everbatch.base.events import (
    Admitted,
    Arrived,
    Event,
    Finished,
    QuietSteps,
    Rejected,
    SampleFinished,
    StepFailed,
    StepRan,
)
from everbatch.base.fields import shown
from everbatch.base.paths import is_file
from everbatch.base.sample_ids import sample_ids
from everbatch.base.units import div_ceil
from everbatch.costs.work import StepWork
from everbatch.scheduler.config import PreemptionCosts, SchedulerConfig, TenantConfig
from everbatch.workload.requests import Prompt, RequestSpec, Segment
from everbatch.workload.run_sections import ClockSpec, RunSpec
from everbatch.workload.scenario import Scenario

RECORDED = "recorded"
"""The kind of a clock whose passes take what they took."""
EVENTS_A_REPORT = 4096
"""So many events go by between two reports of progress."""
BytesRead = Callable[[int], None]
"""Told how much of a log was read, now and then."""


@dataclass(slots=True)
class RecordedStepTimes:
    """Durations by number of the pass; more passes than were recorded are a bug of the caller."""

    durations: list[int]
    _num_passes: int = 0

    def duration_ns(self, work: StepWork) -> int:
        if self._num_passes == len(self.durations):
            # The replay went another way; it is told from the record before this matters.
            return max(1, self.durations[-1])
        self._num_passes += 1
        return self.durations[self._num_passes - 1]


@dataclass(slots=True)
class _Life:
    """What the log tells of one request; times are boundaries of the replay."""

    arrived: Arrived | Rejected
    arrival: int | None = None
    left_at: int | None = None
    """If its client left."""
    late_at: int | None = None
    """The boundary at which it had waited too long."""
    rank: int | None = None
    """Among those who left."""
    output_tokens: int | None = None
    """Where the model ended by itself."""


@dataclass(slots=True)
class RecordedLog:
    """What the replay of a log needs."""

    scenario: Scenario
    durations: list[int]
    notes: list[str]
    is_torn: bool = False
    """Whether it ends in the middle of a line."""


def read_log(path: Path, progress: BytesRead | None = None) -> RecordedLog:
    """Read a log; ConfigError or EventLogError say what is wrong with it."""
    if not is_file(path):
        raise ConfigError(f"the event log {path} is read twice, so it must be a file: save it")
    try:
        with _open(path) as file:
            reader = _Reader(read_header(file.readline()))
        if reader.header.get("dropped"):
            raise ConfigError(
                f"the event log {path} lacks its beginning, since a server keeps its last events "
                "alone, or --event-log-max-size has split it: replay an --event-log that is whole"
            )
        for event in recorded_events(path, progress):
            reader.take(event)
        is_torn = _is_torn(path)
    except OSError as error:
        raise ConfigError(f"cannot read the event log {path} ({error.strerror})") from error
    log = reader.finish(path.stem)
    log.is_torn = is_torn
    if is_torn:
        log.notes.append("the last line is torn, as a process that is killed leaves it: not read")
    return log


def recorded_events(path: Path, progress: BytesRead | None = None) -> Iterator[Event]:
    """Give a log's events, each time from the first."""
    with _open(path) as file:
        for number, event in enumerate(read_events(file)):
            if progress is not None and number % EVENTS_A_REPORT == 0:
                progress(os.lseek(file.fileno(), 0, os.SEEK_CUR))
            yield event


def _is_torn(path: Path) -> bool:
    """Whether a log, which is not empty, ends in the middle of a line."""
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _open(path: Path) -> TextIO:
    """Open a log; what is not UTF-8 is found to be no event, or another one, line by line."""
    return path.open(encoding="utf-8", errors="replace", newline="\n")


@dataclass(slots=True)
class _Reader:
    """Follows the events of a log."""

    header: dict[str, object]
    lives: dict[str, _Life] = field(default_factory=dict)
    samples: dict[str, _Life] = field(default_factory=dict)
    """Those that live, by the ids of requests and of their samples."""
    durations: list[int] = field(default_factory=list)
    num_live: int = 0
    last_end: int | None = None
    """The end of the last pass, while somebody lives."""
    end: int = 0
    came: list[_Life] = field(default_factory=list)
    """Since then, while nobody lived: they come when the next pass starts."""
    late: dict[int, list[_Life]] = field(default_factory=dict)
    """Who had waited too long at a boundary, in order."""
    num_left: int = 0
    notes: dict[str, None] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Follow one event."""
        match event:
            case Arrived() | Rejected():
                self._arrive(event)
            case StepRan():
                self._run(event.start, event.t, 1)
            case QuietSteps():
                self._run(event.start, event.t, event.count)
            case Admitted(resumed=False):
                if event.cached_tokens:
                    self._note("hits of the prefix cache: what prompts say is not in a log")
            case Finished() | SampleFinished():
                self._finish(event)
            case StepFailed():
                self._note("passes that failed")
            case _:
                pass

    def finish(self, name: str) -> RecordedLog:
        """Give all that was read."""
        if not self.durations:
            raise ConfigError("the event log has no step: there is nothing to replay")
        for life in self.came:
            life.arrival = life.arrived.t
        horizon = None
        if self.num_live:
            # Where the log ends: no pass is to begin that it does not tell.
            horizon = self.end if self.last_end is not None else self.came[-1].arrived.t
        config = _config(self.header.get("config"))
        lives = self.lives.values()
        specs = tuple(
            _spec(life, place, self._deadline(life), config) for place, life in enumerate(lives)
        )
        if "clock" not in self.header and specs:
            # A server counts from an arbitrary moment, a replay from the first arrival.
            origin = specs[0].arrival
            specs = tuple(_earlier(spec, origin) for spec in specs)
            horizon = None if horizon is None else horizon - origin
        scenario = Scenario(
            name=name,
            engine=config,
            requests=specs,
            run=RunSpec(horizon=horizon),
            clock=ClockSpec("steps" if self._is_steps else RECORDED),
        )
        return RecordedLog(scenario, self.durations, list(self.notes))

    def _arrive(self, event: Arrived | Rejected) -> None:
        if isinstance(event, Rejected) and event.reason in ("duplicate_id", "tenant_rate"):
            self._note(f"refusals for {event.reason}")
            return
        if event.id in self.samples:
            raise ConfigError(f"the event log is broken: {shown(event.id)} comes twice at once")
        life = self.lives[event.id] = _Life(event)
        if isinstance(event, Arrived):
            self.samples[event.id] = life
            self.samples.update(dict.fromkeys(sample_ids(event.id, event.samples), life))
        if self.num_live and self.last_end is not None:
            life.arrival = self.last_end
        else:
            self.came.append(life)
        self.num_live += isinstance(event, Arrived)

    def _come(self, boundary: int) -> None:
        """Those who came while nobody lived are seen at this boundary."""
        for life in self.came:
            life.arrival = boundary
        self.came.clear()

    def _run(self, start: int, end: int, count: int) -> None:
        """Note `count` passes; time between two of them belongs to the later one."""
        begin = start if self.last_end is None else self.last_end
        # A pass takes a nanosecond or a tick at least.
        if end < begin or not 1 <= count <= max(1, end - begin):
            raise ConfigError(f"the event log is broken: {count:,} steps from {begin:,} to {end:,}")
        self._come(begin)
        bounds = [begin + (end - begin) * passed // count for passed in range(count + 1)]
        self.durations += [later - before for before, later in pairwise(bounds)]
        self.last_end = self.end = end

    def _finish(self, event: Finished | SampleFinished) -> None:
        life = self.samples.get(event.id)
        if life is None:
            raise ConfigError(
                f"the event log is broken: {shown(event.id)} ends and has not come, or ends twice"
            )
        if event.reason == "stop":
            told = event.output_tokens
            if isinstance(event, Finished) and isinstance(life.arrived, Arrived):
                told //= life.arrived.samples
            if life.output_tokens not in (None, told):
                self._note("samples of one prompt that ended after different numbers of tokens")
            life.output_tokens = max(told, life.output_tokens or 0)
        elif event.reason != "length":
            self._leave(life, event)
        if isinstance(event, Finished):
            del self.samples[event.id]
            self.num_live -= 1
            if not self.num_live:
                self.last_end = None
                self._come(event.t)

    def _leave(self, life: _Life, event: Finished | SampleFinished) -> None:
        """Note when a client left: while a pass ran, if it was noticed at the very end of one."""
        if event.reason == "error":
            self._note("requests that failed")
        boundary = event.t if self.last_end is None else self.last_end
        if event.reason == "deadline":
            life.late_at = boundary
            self.late.setdefault(boundary, []).append(life)
            return
        was_meanwhile = not self._is_steps and event.t == self.last_end
        life.left_at, life.rank = boundary - was_meanwhile, self.num_left
        self.num_left += 1

    def _deadline(self, life: _Life) -> int | None:
        """Give the last moment of one who was found late: before that boundary, in its turn."""
        if life.late_at is None:
            return None
        together = self.late[life.late_at]
        place = next(place for place, other in enumerate(together) if other is life)
        return life.late_at - (1 if self._is_steps else len(together) - place)

    @property
    def _is_steps(self) -> bool:
        return self.header.get("clock") == "steps"

    def _note(self, what: str) -> None:
        self.notes[f"not replayed: {what}"] = None


def _spec(life: _Life, place: int, deadline_at: int | None, config: SchedulerConfig) -> RequestSpec:
    told = life.arrived
    assert life.arrival is not None
    return RequestSpec(
        id=told.id,
        position=place,
        arrival=life.arrival,
        prompt=Prompt(told.prompt_tokens, (Segment(None, told.prompt_tokens),)),
        output_tokens=life.output_tokens or told.max_tokens + 1,
        max_tokens=told.max_tokens,
        priority=told.priority if isinstance(told, Arrived) else 0,
        tenant=told.tenant if isinstance(told, Arrived) else "",
        num_samples=told.samples if isinstance(told, Arrived) else _refused_samples(told, config),
        abort_at=life.left_at,
        deadline=None if deadline_at is None else deadline_at - life.arrival,
        abort_rank=life.rank,
    )


def _earlier(spec: RequestSpec, origin: int) -> RequestSpec:
    left_at = None if spec.abort_at is None else spec.abort_at - origin
    return replace(spec, arrival=spec.arrival - origin, abort_at=left_at)


def _refused_samples(told: Rejected, config: SchedulerConfig) -> int:
    """Give how many samples a refused request asked for: what it needed tells, where they counted.

    Blocks for a life of n samples: floor(P/b) + n × the rest.
    """
    if told.reason == "sequence_budget":
        return told.needed
    if told.reason != "kv_pool":
        return 1
    shared = told.prompt_tokens // config.block_size
    last = told.prompt_tokens + told.max_tokens - 1
    own = div_ceil(last, config.block_size) - shared
    return max(1, (told.needed - shared) // own) if own else 1


def _config(told: object) -> SchedulerConfig:
    """Make the configuration of a log's header."""
    if not isinstance(told, dict):
        raise ConfigError("the event log's header has no config: it cannot be replayed")
    options: dict[str, Any] = dict(told)
    tenants, costs = options.pop("tenants", None) or {}, options.pop("preemption_costs", None)
    try:
        return SchedulerConfig(
            **options,
            tenants={name: TenantConfig(**tenant) for name, tenant in tenants.items()},
            preemption_costs=None if costs is None else PreemptionCosts(**costs),
        )
    except TypeError as error:
        raise ConfigError(f"the event log's config is of another version ({error})") from error
