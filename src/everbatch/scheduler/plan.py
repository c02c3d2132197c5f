"""What the scheduler tells the executor, and what it hears back. Both are deltas.

Belongs here: plain integers, all that an executor needs, described for whoever writes one. The
decode set persists on both sides: a plan names who joins and who leaves, not who stays, so that a
step costs what changed in it. Slots name requests: a request keeps its slot from admission until it
finishes or is preempted. Nobody changes a plan once it is written, nor what is in it, though
nothing is frozen: making a frozen object takes several times as long.

An executor carries out a plan in this order: `preempted` (keep their tokens), `released` (forget
the slot, leave the decode set), `restated` (slots that it had to forget), `left` (out of the decode
set, slot kept), swap-out, swap-in, copies, `admitted`, `appended`, `joined`, then the forward pass:
prefill chunks first, then the decode set.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol


class DeferReason(Enum):
    """Why a live request got no token in a step; if several hold, the first of this order.

    TRIAL: a step before this one failed, and others have this one for themselves (trials.py).
    PREFILL_SHARE is a decode's: the step's tokens were kept for prompts. TENANT_SHARE and HOST_TIER
    have a place in the order and never bind today: a tenant that must wait stands behind the head,
    and a host tier without room means recomputing (docs/decisions/0011).
    """

    STATIC_BATCH = "static_batch"
    BEHIND_HEAD = "behind_head"
    COOLDOWN = "cooldown"
    TRIAL = "trial"
    SEQUENCE_BUDGET = "sequence_budget"
    TENANT_SHARE = "tenant_share"
    PREFILL_SHARE = "prefill_share"
    TOKEN_BUDGET = "token_budget"
    HOST_TIER = "host_tier"
    KV_BUDGET = "kv_budget"


class Deferral(NamedTuple):
    """A reason with its numbers: slots, tokens or blocks, as the reason says."""

    reason: DeferReason
    needed: int
    available: int
    behind: str | None = None
    """Whose obstacle it is, where it is not the request's own."""


@dataclass(slots=True)
class Admission:
    """A request takes a slot: for the first time, or again after preemption.

    Or without having left it (it is in `released` too): it goes on with the prompt of another
    sample, which has ended.
    """

    slot: int
    request_id: str
    payload: object
    num_cached_tokens: int
    """Tokens whose KV stands in `cached_blocks`: prefix hits, what a victim kept or another sample
    computed, or swapped in."""
    cached_blocks: tuple[int, ...]
    num_output_tokens: int
    """Outputs emitted before a preemption."""
    sample: int = 0
    """Which sample of a request with n > 1; each has a slot of its own."""


@dataclass(slots=True)
class PrefillChunk:
    """Tokens [start, start + count) of a request's prompt or history, computed in this step."""

    slot: int
    start: int
    count: int
    new_blocks: tuple[int, ...]
    """Blocks to append to the slot's block table before the forward pass."""
    emits: bool
    """Whether the last row samples: true for the last chunk of a prompt, never for a rebuild."""
    followers: tuple[int, ...] = ()
    """Slots that sample from the last row too, if it emits, and then read the same blocks."""


@dataclass(slots=True)
class StepPlan:
    """One forward pass, as the difference to the one before."""

    step: int
    """The number of this step, from 1."""
    start_ns: int
    chunks: list[PrefillChunk] = field(default_factory=list)
    admitted: list[Admission] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    """Released slots whose requests come back: their tokens so far must be kept."""
    released: list[int] = field(default_factory=list)
    restated: list[Admission] = field(default_factory=list)
    """After a pass that failed, and `Executor.reset`: all who hold a slot, as of now, once more."""
    left: list[int] = field(default_factory=list)
    joined: list[int] = field(default_factory=list)
    appended: list[tuple[int, int]] = field(default_factory=list)
    """(slot, block): one more block at the end of the table of a decoding request."""
    copies: list[tuple[int, int, int]] = field(default_factory=list)
    """(slot, source, destination): copy the block and let it take the last place of the table."""
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    """(block, host block) to copy to the host tier."""
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    """(host block, block) to copy back."""
    masked: list[int] = field(default_factory=list)
    """Static batching: slots whose requests have ended; each is to cost what a decode costs."""
    num_decodes: int = 0
    """Size of the decode set in this step; each member consumes one token."""
    num_tokens: int = 0
    """Query tokens of this step: decodes plus chunks; never above max_num_batched_tokens."""


@dataclass(slots=True)
class StepOutcome:
    """What a forward pass found out. Who is not named goes on."""

    stopped: list[int] = field(default_factory=list)
    """Slots whose token of this step ended them (eos or a stop token id)."""
    failed: list[tuple[int, str]] = field(default_factory=list)
    """Slots whose rows failed, with a reason for people."""
    tokens: object = None
    """What was emitted, for whoever streams it; the scheduler never reads it."""


class TokenStore(Protocol):
    """Where token ids live. The scheduler asks only for what it must hash."""

    def read(
        self, request_id: str, payload: object, sample: int, blocks: range, block_size: int
    ) -> list[bytes]:
        """Give what these blocks of prompt + outputs hold, each as bytes that hold all of it.

        That is the tokens as little-endian 32-bit integers (kv_cache.content.in_blocks), or
        whatever else is equal where the tokens are and nowhere else. All of them are known.
        `sample` tells the samples of one payload apart; an id may come again with another payload.
        """
        ...
