"""A request as the scheduler sees it, and the states it can be in.

Belongs here: the record, the table of allowed moves, the reasons to end. Not here: token ids (a
TokenStore has them), text, clients. The scheduler alone changes a request.

    WAITING ──> PREFILL ──> DECODE ──> FINISHED          PREFILL ──> FINISHED: the first output was
       ^           │           │                                     the last
       │           v           v                          any state ──> FINISHED: abort, error
       └────── PREEMPTED <─────┘

A rebuild after preemption is PREFILL with `is_rebuilding` set: it consumes what was consumed once
(prompt and outputs but the last) and emits nothing.
"""

from dataclasses import dataclass, field
from enum import Enum

from everbatch.kv_cache.content import ContentChain


class RequestStatus(Enum):
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
class Request:
    """One request. Its tokens: [0, cached) reused | [cached, computed) ours | [computed, …) to do.

    For a member of the decode set `num_computed_tokens` and `num_output_tokens` are those at the
    time it joined: a step in which nothing changes touches no request. `Scheduler.progress` adds
    what it did since.
    """

    id: str
    arrival_number: int
    arrival_ns: int
    num_prompt_tokens: int
    max_tokens: int
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    payload: object = None
    """Whatever the executor needs to know; the scheduler never reads it."""

    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    slot: int | None = None
    block_table: list[int] = field(default_factory=list)
    chain: ContentChain | None = None
    admission_number: int = 0
    last_served_step: int = 0

    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int | None = None
    """Prefix cache hits at first admission; None before."""
    max_computed_tokens: int = 0
    """The most tokens that were ever computed: below it, computing is recomputing."""
    num_recomputed_tokens: int = 0
    num_preemptions: int = 0

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

    def move_to(self, status: RequestStatus) -> None:
        """Change state; a move that the table does not allow is a bug."""
        assert status in ALLOWED_MOVES[self.status], f"{self.id}: {self.status} to {status}"
        self.status = status
