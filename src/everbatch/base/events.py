"""Every event of the log: what happened to whom, when. docs/events.md describes them for readers.

Typed, versioned: a field with a default may be added within a version, none renamed or dropped.
Nobody changes an event, though none is frozen: making a frozen one takes three times as long.

Times are nanoseconds of the engine's clock, `step` is the number of the step concerned (0: before
the first). The log is a delta log: a step in which nothing joined, left, or got or lost a block
writes no line of its own; runs of such steps become one QuietSteps line (eventlog.EventLogWriter).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

EVENT_LOG_VERSION = 1


@dataclass(slots=True)
class Arrived:
    """A request was accepted; it is WAITING."""

    kind: ClassVar[str] = "arrived"
    t: int
    id: str
    prompt_tokens: int
    max_tokens: int
    priority: int
    tenant: str
    samples: int = 1


@dataclass(slots=True)
class Rejected:
    """A request was refused at arrival: it can never run, or there is no room to wait."""

    kind: ClassVar[str] = "rejected"
    t: int
    id: str
    prompt_tokens: int
    max_tokens: int
    reason: str
    needed: int
    limit: int


@dataclass(slots=True)
class Admitted:
    """A request took a slot: WAITING to PREFILL, or, `resumed`, back to the phase it left.

    `prompt_tokens` is 0 unless this is the first time its prompt is read (by one sample of n);
    `cached_tokens` are prefix hits, `computed_tokens` all tokens that need no computing.
    """

    kind: ClassVar[str] = "admitted"
    t: int
    step: int
    id: str
    slot: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    resumed: bool


@dataclass(slots=True)
class Decoding:
    """PREFILL to DECODE. `emitted` is false after a rebuild, whose outputs were emitted before, and
    where the request left while the step ran: what that sampled for it does not count."""

    kind: ClassVar[str] = "decoding"
    t: int
    step: int
    id: str
    emitted: bool


@dataclass(slots=True)
class Deferred:
    """A live request got no token, for another reason than the last time.

    `behind` is the request whose obstacle it is, where it is not its own. `lacking_*` is what it
    would have needed more, at its turn in the plan, to get a token in that step: all of it.
    """

    kind: ClassVar[str] = "deferred"
    t: int
    step: int
    id: str
    reason: str
    needed: int
    available: int
    behind: str | None = None
    lacking_slots: int = 0
    lacking_tokens: int = 0
    lacking_blocks: int = 0


@dataclass(slots=True)
class Preempted:
    """PREFILL or DECODE to PREEMPTED and, to recompute, on to WAITING.

    `way` is recompute, tail (the head's blocks are kept) or swap; `slot` is null where a request
    that waits already loses what it had kept. The costs are those that mode auto compared.
    `requester` needed the blocks (`needed` of them), itself perhaps; null: nobody could run.
    """

    kind: ClassVar[str] = "preempted"
    t: int
    step: int
    id: str
    slot: int | None
    computed_tokens: int
    blocks: int
    way: str = "recompute"
    swap_ns: int | None = None
    recompute_ns: int | None = None
    requester: str | None = None
    needed: int = 0


@dataclass(slots=True)
class Finished:
    """Any state to FINISHED, with the one reason; the request's final event.

    `message` says for people why, where the reason is error and somebody knows.
    """

    kind: ClassVar[str] = "finished"
    t: int
    step: int
    id: str
    reason: str
    output_tokens: int
    cached_tokens: int
    recomputed_tokens: int
    preemptions: int
    message: str | None = None


@dataclass(slots=True)
class SampleFinished:
    """One sample of a request with n > 1 has ended; the request ends with its last sample."""

    kind: ClassVar[str] = "sample_finished"
    t: int
    step: int
    id: str
    reason: str
    output_tokens: int
    cached_tokens: int
    recomputed_tokens: int
    preemptions: int
    message: str | None = None


@dataclass(slots=True)
class StepRan:
    """A forward pass from `start` to `t`.

    `chunks` are (id, first token, tokens) of prompts and histories; `blocks` are (id, blocks) that
    were taken from the pool; `left` are requests that paused decoding, `joined` those that decode
    from this step on. `decodes` requests consumed one token each; `emitted` outputs were new.
    """

    kind: ClassVar[str] = "step"
    t: int
    step: int
    start: int
    tokens: int
    emitted: int
    decodes: int
    chunks: tuple[tuple[str, int, int], ...]
    blocks: tuple[tuple[str, tuple[int, ...]], ...]
    joined: tuple[str, ...]
    left: tuple[str, ...]
    free_blocks: int
    cached_blocks: int

    @property
    def is_quiet(self) -> bool:
        """Whether the step was the one before, once more, and every decode of it counts."""
        changed = self.blocks or self.chunks or self.joined or self.left
        return not changed and self.emitted == self.decodes


@dataclass(slots=True)
class QuietSteps:
    """`count` steps from number `step` on in which the same requests decoded."""

    kind: ClassVar[str] = "steps"
    t: int
    step: int
    start: int
    count: int
    decodes: int


class StepChange(NamedTuple):
    """What one step of StepsRan changed: who took which block, and what the pool had after it."""

    step: int
    blocks: list[tuple[str, int]]
    free_blocks: int
    cached_blocks: int


@dataclass(slots=True)
class StepsRan:
    """Steps one right after the other in which the same requests decoded: many events in one.

    For whoever looks at no single step. No event of the log: there its `parts` stand.
    """

    step: int
    """The number of the first."""
    durations: list[int]
    """Of each step, in nanoseconds."""
    ends: list[int]
    """When the first step began, and when each of them ended."""
    decodes: int
    joined: tuple[str, ...]
    """Who decodes from the first step on."""
    used_blocks: int
    """That had readers before anybody took one."""
    changes: list[StepChange]
    """Steps in which somebody took a block, in order; the first step too if somebody joined."""

    def parts(self) -> Iterator[StepRan | QuietSteps]:
        """Give the events of single steps, and of quiet ones between them."""
        ends, at = self.ends, 0
        for change in self.changes:
            place = change.step - self.step
            if at < place:
                yield self.quiet(at, place)
            at = place + 1
            yield StepRan(
                ends[at],
                change.step,
                ends[place],
                tokens=self.decodes,
                emitted=self.decodes,
                decodes=self.decodes,
                chunks=(),
                blocks=tuple([(name, (block,)) for name, block in change.blocks]),
                joined=() if place else self.joined,
                left=(),
                free_blocks=change.free_blocks,
                cached_blocks=change.cached_blocks,
            )
        if at < len(self.durations):
            yield self.quiet(at, len(self.durations))

    def quiet(self, place: int, end: int) -> QuietSteps:
        """Give the steps number [place, end) of these, counted from 0, as quiet ones."""
        ends = self.ends
        return QuietSteps(ends[end], self.step + place, ends[place], end - place, self.decodes)


@dataclass(slots=True)
class StepFailed:
    """A forward pass failed and was rolled back; those who held slots ended with `error`."""

    kind: ClassVar[str] = "step_failed"
    t: int
    step: int
    message: str


Event = (
    Arrived
    | Rejected
    | Admitted
    | Decoding
    | Deferred
    | Preempted
    | Finished
    | SampleFinished
    | StepRan
    | QuietSteps
    | StepFailed
)

EVENT_TYPES: dict[str, type[Event]] = {
    event_type.kind: event_type
    for event_type in (
        Arrived,
        Rejected,
        Admitted,
        Decoding,
        Deferred,
        Preempted,
        Finished,
        SampleFinished,
        StepRan,
        QuietSteps,
        StepFailed,
    )
}
