"""A request as the scheduler sees it, and the states it can be in.

Belongs here: the record, the table of allowed moves, the reasons to end. Not here: token ids (a
TokenStore has them), text, clients. Lifecycle and Endings alone change a live request.

    WAITING ──> PREFILL ──> DECODE ──> FINISHED          PREFILL ──> FINISHED: the first output was
       ^           │           │                                     the last
       │           v           v                          any state ──> FINISHED: abort, error
       └────── PREEMPTED <─────┘

A victim that keeps something (its first blocks, or all of them in the host tier) stays PREEMPTED
and goes on from there; it waits in the queue all the same.

A rebuild after preemption is PREFILL with `is_rebuilding` set: it consumes what was consumed once
(prompt and outputs but the last) and emits nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter

from everbatch.kv_cache.content import ContentChain


class RequestStatus(Enum):
    # There is one object of each. Enum's own hash, of the name, is three times as slow.
    __hash__ = object.__hash__

    WAITING = "WAITING"
    PREFILL = "PREFILL"
    DECODE = "DECODE"
    PREEMPTED = "PREEMPTED"
    FINISHED = "FINISHED"


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    DEADLINE = "deadline"
    ERROR = "error"


ALLOWED_MOVES: dict[RequestStatus, tuple[RequestStatus, ...]] = {
    RequestStatus.WAITING: (RequestStatus.PREFILL, RequestStatus.FINISHED),
    RequestStatus.PREFILL: (
        RequestStatus.DECODE,
        RequestStatus.PREEMPTED,
        RequestStatus.FINISHED,
    ),
    RequestStatus.DECODE: (RequestStatus.PREEMPTED, RequestStatus.FINISHED),
    # A swapped-out request will return to the phase it left; one to recompute waits again.
    RequestStatus.PREEMPTED: (
        RequestStatus.WAITING,
        RequestStatus.PREFILL,
        RequestStatus.DECODE,
        RequestStatus.FINISHED,
    ),
    RequestStatus.FINISHED: (),
}


@dataclass(slots=True, eq=False)
class SampleGroup:
    """The n samples of one request. The first computes the prompt, then all of them decode.

    Until then they are in the same state; if the first ends, the next is the leader.
    """

    id: str
    samples: "list[Request]"
    """Those that are live, the leader first until they fork."""
    has_forked: bool = False
    ended: "list[Request]" = field(default_factory=list)

    @property
    def leader(self) -> "Request":
        return self.samples[0]


@dataclass(slots=True, eq=False)
class Request:
    """One request. Its tokens: [0, cached) reused | [cached, computed) ours | [computed, …) to do.

    For a member of the decode set `num_computed_tokens` and `num_output_tokens` are those at the
    time it joined: a step in which nothing changes touches no request. `Scheduler.progress` adds
    what it did since.
    """

    id: str
    arrival_number: int
    num_prompt_tokens: int
    max_tokens: int
    priority: int = 0
    """Lower runs first, under policy priority."""
    tenant: str = ""
    cache_salt: str = ""
    payload: object = None
    """Whatever the executor needs to know; the scheduler never reads it."""
    deadline_ns: int | None = None
    """The last moment at which its first step may be planned."""
    sample: int = 0
    """Which of the samples of its group it is; 0 without a group."""
    group: "SampleGroup | None" = None

    arrival_step: int = 0
    """Steps completed when it arrived."""
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    message: str | None = None
    """Why it failed, for people."""
    slot: int | None = None
    block_table: list[int] = field(default_factory=list)
    host_blocks: list[int] = field(default_factory=list)
    """Where its blocks are while it is swapped out."""
    chain: ContentChain | None = None
    admission_number: int = 0
    last_served_step: int = 0
    turn: int = 0
    """Its place among decodes that were last served in the same step: the smaller goes first."""

    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int | None = None
    """Prefix cache hits at first admission; None before."""
    max_computed_tokens: int = 0
    """The most tokens that were ever computed: below it, computing is recomputing."""
    num_recomputed_tokens: int = 0
    num_preemptions: int = 0

    @property
    def has_started(self) -> bool:
        """Whether it was ever admitted."""
        return self.num_cached_tokens is not None

    @property
    def followers(self) -> "list[Request]":
        """The samples that wait for this one to compute their common prompt."""
        if self.group is None or self.group.leader is not self:
            return []
        return self.group.samples[1:] if not self.group.has_forked else []

    @property
    def members(self) -> "list[Request]":
        """Itself, and the samples that wait for it: they share slots' and prompts' fates."""
        return [self] if self.group is None else [self, *self.followers]

    @property
    def is_follower(self) -> bool:
        """Whether it waits for another sample to compute their common prompt."""
        group = self.group
        return group is not None and not group.has_forked and group.leader is not self

    @property
    def num_slots(self) -> int:
        """Slots that its admission takes: one for each sample while they share the prompt."""
        return 1 if self.group is None else 1 + len(self.followers)

    @property
    def label(self) -> str:
        """The name under which people know it now: the group's while its samples are one."""
        if self.group is not None and not self.group.has_forked and not self.has_started:
            return self.group.id
        return self.id

    @property
    def is_rebuilding(self) -> bool:
        """Whether its prefill restores history that was consumed before."""
        return self.num_output_tokens > 0

    @property
    def prefill_target(self) -> int:
        """Tokens that must be in the KV cache before it decodes."""
        if self.num_output_tokens == 0:
            return self.num_prompt_tokens
        return self.num_prompt_tokens + self.num_output_tokens - 1

    @property
    def num_context_tokens(self) -> int:
        """`prefill_target` and the pending output, if there is one."""
        return self.num_prompt_tokens + self.num_output_tokens

    def unserved(self) -> "Request | None":
        """Give the request if it is live and has got no token; of samples the first that lives.

        A member of a static batch may hold a slot and have got no token yet.
        """
        first = self.group.leader if self.group is not None and self.group.samples else self
        is_live = first.status is not RequestStatus.FINISHED
        return first if is_live and first.last_served_step == 0 else None

    def sibling(self, id: str, sample: int) -> "Request":
        """Give another sample of the same request, fresh, in the same group."""
        return Request(
            id=id,
            arrival_number=self.arrival_number,
            num_prompt_tokens=self.num_prompt_tokens,
            max_tokens=self.max_tokens,
            priority=self.priority,
            tenant=self.tenant,
            cache_salt=self.cache_salt,
            payload=self.payload,
            sample=sample,
            group=self.group,
            arrival_step=self.arrival_step,
        )

    def move_to(self, status: RequestStatus) -> None:
        """Change state; a move that the table does not allow is a bug."""
        assert status in ALLOWED_MOVES[self.status], f"{self.id}: {self.status} to {status}"
        self.status = status


by_admission: Callable[[Request], int] = attrgetter("admission_number")
"""The key by which those who hold slots are sorted: who was admitted first comes first."""
