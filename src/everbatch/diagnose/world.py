"""What the machine was like while a log was written: who held what, who waited for what.

Follows the events one by one. Belongs here: facts of a moment, for everybody. Not here: the life of
one request (recorder). A log may begin in the middle (a server keeps the last events): of what was
admitted before nothing is known until an event names it.

Blocks are counted from tokens: a table has a place for each computed token and none ahead, so it
has ceil(tokens / block_size) blocks. Blocks that several read are counted once for each.
"""

from dataclasses import dataclass, field
from typing import Any

from everbatch.base.events import (
    Admitted,
    Arrived,
    Decoding,
    Deferred,
    Event,
    Finished,
    Preempted,
    QuietSteps,
    SampleFinished,
    StepRan,
)
from everbatch.base.sample_ids import request_of_sample, sample_ids
from everbatch.base.units import div_ceil
from everbatch.diagnose.log import Ruler

BEHIND_HEAD = "behind_head"


@dataclass(slots=True)
class Live:
    """A request between its arrival and its end. `None`: the log does not tell."""

    id: str
    order: int
    arrival_step: int = 0
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    priority: int = 0
    tenant: str = ""
    num_samples: int = 1
    ended_samples: list[str] = field(default_factory=list)
    has_forked: bool = False
    """Whether its samples have got their prompt, which one of them reads for all."""
    slot: int | None = None
    has_started: bool = False
    computed: int = 0
    """Tokens in the KV cache, as of when it joined the decode set if it is a member."""
    outputs: int = 0
    decode_from: int | None = None
    """The pass from which on it has decoded in each."""
    is_swapped: bool = False
    obstacle: Deferred | None = None
    """Why it got no token in the last step."""

    @property
    def samples(self) -> list[str]:
        """Its samples that live, by number: until they fork the first reads the prompt."""
        ids = sample_ids(self.id, self.num_samples)
        return [id for id in ids if id not in self.ended_samples]


@dataclass(slots=True, frozen=True)
class Return:
    """Somebody gave back what it held: at its end, or because it was preempted."""

    id: str
    how: str
    slot: int | None
    blocks: int


@dataclass(slots=True, frozen=True)
class Usage:
    """Who used what in one step."""

    slots: tuple[tuple[int, str], ...]
    masked: tuple[tuple[int, str], ...]
    """Static batching: slots of members that have ended, until the batch has."""
    blocks: tuple[tuple[str, int], ...]
    """(request, blocks in its table), the largest first."""
    num_decodes: int
    chunks: tuple[tuple[str, int], ...]
    """(request, tokens) of prompts and histories."""


@dataclass(slots=True)
class World:
    """Takes events in order."""

    config: dict[str, Any]
    ruler: Ruler
    live: dict[str, Live] = field(default_factory=dict)
    slots: dict[int, str] = field(default_factory=dict)
    masked: dict[int, str] = field(default_factory=dict)
    step: int = 0
    """Passes completed."""
    now: int | None = None
    """The time of the last event."""
    returns: list[Return] = field(default_factory=list)
    """Since the last pass."""
    earlier_returns: list[Return] = field(default_factory=list)
    """Between the last two passes."""
    _obstructed: dict[str, Deferred] = field(default_factory=dict)
    """Those of the queue with an obstacle of their own."""
    _num_arrived: int = 0

    def take(self, event: Event) -> None:
        """Follow one event."""
        self.now = event.t
        match event:
            case StepRan():
                self._step(event)
            case QuietSteps():
                self._pass(event.step + event.count - 1)
            case Deferred():
                self._defer(event)
            case Admitted():
                self._admit(event)
            case Decoding():
                self._complete(event)
            case Preempted():
                self._preempt(event)
            case Finished() | SampleFinished():
                self._end(event)
            case Arrived():
                self._arrive(event)
            case _:
                pass

    def usage(self, event: StepRan | QuietSteps) -> Usage:
        """Say who used what in a step that `take` has just followed."""
        blocks = [(live.id, self.blocks(live)) for live in self.live.values()]
        return Usage(
            slots=tuple(sorted(self.slots.items())),
            masked=tuple(sorted(self.masked.items())),
            blocks=tuple(sorted((b for b in blocks if b[1]), key=lambda b: -b[1])),
            num_decodes=event.decodes,
            chunks=tuple((id, count) for id, _, count in event.chunks)
            if isinstance(event, StepRan)
            else (),
        )

    def blocks(self, live: Live) -> int:
        """Count the blocks in a request's table."""
        if live.is_swapped:
            return 0
        return div_ceil(self.computed_tokens(live), self.config["block_size"])

    def computed_tokens(self, live: Live) -> int:
        return live.computed + self._ran(live)

    def num_outputs(self, live: Live) -> int:
        return live.outputs + self._ran(live)

    def head(self) -> Live | None:
        """Give the first of the queue that has an obstacle of its own: the others stand behind."""
        waiting = (self.live[id] for id in self._obstructed)
        return min(waiting, key=self._rank, default=None)

    def before(self, request: Live, reason: str) -> list[str]:
        """Name the running requests that wait for the same, and are planned before the queue."""
        return [
            live.id
            for live in self.live.values()
            if live is not request
            and live.slot is not None
            and live.obstacle is not None
            and live.obstacle.reason == reason
        ]

    def followers(self, id: str) -> list[str]:
        """Name the samples that wait for `id` to read the prompt of them all; it may be none."""
        whole = self._whole(id)
        if whole is None or whole.has_forked or whole.samples[:1] != [id]:
            return []
        return whole.samples[1:]

    # Following

    def _arrive(self, event: Arrived) -> None:
        self._num_arrived += 1
        self.live[event.id] = Live(
            event.id,
            self._num_arrived,
            self.step,
            event.prompt_tokens,
            event.max_tokens,
            event.priority,
            event.tenant,
            event.samples,
        )

    def _known(self, id: str) -> Live:
        """Give a live request, of which a log that begins in the middle may tell nothing."""
        known = self.live.get(id)
        if known is None:
            known = self.live[id] = Live(id, 0)
        return known

    def _admit(self, event: Admitted) -> None:
        live = self._joining(event.id)
        self._obstructed.pop(event.id, None)
        live.slot, live.obstacle, live.is_swapped = event.slot, None, False
        live.has_started = True
        live.computed = 0 if self._follows(event.id) else event.computed_tokens
        self.slots[event.slot] = event.id
        self.masked.pop(event.slot, None)

    def _joining(self, id: str) -> Live:
        """Give the request that is admitted; a sample begins to exist by that."""
        whole = self._whole(id)
        if whole is None or id in self.live:
            return self._known(id)
        live = self.live[id] = Live(
            id,
            whole.order,
            whole.arrival_step,
            whole.prompt_tokens,
            whole.max_tokens,
            whole.priority,
            whole.tenant,
        )
        whole.obstacle = None
        self._obstructed.pop(whole.id, None)
        return live

    def _whole(self, id: str) -> Live | None:
        """Give the request that `id` is a sample of; None if it is none, or nothing is known."""
        group = request_of_sample(id)
        whole = None if group is None else self.live.get(group)
        return whole if whole is not None and whole.num_samples > 1 else None

    def _follows(self, id: str) -> bool:
        """Whether it is a sample whose prompt another one computes."""
        whole = self._whole(id)
        return whole is not None and not whole.has_forked and whole.samples[:1] != [id]

    def _complete(self, event: Decoding) -> None:
        live = self._known(event.id)
        if event.emitted:
            live.outputs += 1
            if self._follows(event.id):
                live.computed = live.prompt_tokens or 0

    def _defer(self, event: Deferred) -> None:
        live = self._known(event.id)
        live.obstacle = event
        if event.reason != BEHIND_HEAD and live.slot is None:
            self._obstructed[event.id] = event
        else:
            self._obstructed.pop(event.id, None)

    def _preempt(self, event: Preempted) -> None:
        live = self._known(event.id)
        self._settle(live)
        before = div_ceil(event.computed_tokens, self.config["block_size"])
        kept = max(0, before - event.blocks) if event.way == "tail" else 0
        live.computed = kept * self.config["block_size"]
        live.is_swapped = event.way == "swap"
        if live.is_swapped:
            live.computed = event.computed_tokens
        if event.slot is not None:
            live.obstacle = None
        for member in self._unforked_members(live):
            self._free_slot(member, stays_masked=False)
        self.returns.append(Return(event.id, "preempted", event.slot, event.blocks))

    def _unforked_members(self, live: Live) -> list[Live]:
        """Give a request and the samples that wait for it to compute their prompt."""
        whole = self._whole(live.id)
        if whole is None or whole.has_forked:
            return [live]
        return [self.live[id] for id in whole.samples if id in self.live]

    def _end(self, event: Finished | SampleFinished) -> None:
        live = self.live.pop(event.id, None)
        self._obstructed.pop(event.id, None)
        if isinstance(event, SampleFinished):
            self._leave_group(event.id, live)
        if live is None or (live.num_samples > 1 and live.slot is None):
            return
        blocks, slot = self.blocks(live), live.slot
        is_masked = self.config.get("batching") == "static"
        self._free_slot(live, stays_masked=is_masked)
        self.returns.append(Return(event.id, event.reason, slot, blocks))
        if is_masked and not self.slots:
            self.masked.clear()

    def _leave_group(self, id: str, ended: Live | None) -> None:
        """Let the next sample go on where one ends that reads the prompt for all."""
        whole = self._whole(id)
        if whole is None:
            return
        is_reader = not self._follows(id) and not whole.has_forked
        whole.ended_samples.append(id)
        heir = self.live.get(next(iter(whole.samples), ""))
        if is_reader and ended is not None and heir is not None:
            heir.computed, ended.computed = ended.computed, 0
            heir.is_swapped = ended.is_swapped

    def _free_slot(self, live: Live, *, stays_masked: bool) -> None:
        slot, live.slot = live.slot, None
        if slot is not None and self.slots.get(slot) == live.id:
            del self.slots[slot]
            if stays_masked:
                self.masked[slot] = live.id

    def _step(self, event: StepRan) -> None:
        for id in event.left:
            self._settle(self._known(id))
        self._pass(event.step)
        for id in event.joined:
            live = self._known(id)
            live.decode_from, live.obstacle = event.step, None
        for id, start, count in event.chunks:
            live = self._known(id)
            live.computed, live.obstacle = start + count, None
            whole = self._whole(id)
            if whole is not None and live.computed >= (whole.prompt_tokens or 0):
                whole.has_forked = True

    def _pass(self, step: int) -> None:
        self.step = step
        self.earlier_returns, self.returns = self.returns, []

    def _settle(self, live: Live) -> None:
        """Take a request out of the decode set, as of the last pass."""
        ran = self._ran(live)
        live.computed += ran
        live.outputs += ran
        live.decode_from = None

    def _ran(self, live: Live) -> int:
        return 0 if live.decode_from is None else self.step - live.decode_from + 1

    def _rank(self, live: Live) -> tuple[int, int]:
        """Give the place in the queue; of tenants the log does not tell, so in order of arrival."""
        value, aging = 0, self.config.get("aging_steps", 0)
        if self.config.get("policy") == "priority":
            value = live.priority - ((self.step - live.arrival_step) // aging if aging else 0)
        elif self.config.get("policy") == "srpt":
            to_compute = (live.prompt_tokens or 0) - live.computed
            value = max(0, to_compute) + (live.max_tokens or 0) - live.outputs
        return value, live.order
