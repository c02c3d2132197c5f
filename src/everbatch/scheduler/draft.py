"""One step as decided, in terms of requests. The planner fills it, the lifecycle commits it.

Plain records; whoever reads `plan.StepPlan` reads the same in an executor's terms.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from everbatch.scheduler.plan import Deferral, DeferReason
from everbatch.scheduler.preemption import CostsOfWays
from everbatch.scheduler.request import Request


@dataclass(slots=True)
class DraftChunk:
    """Tokens [start, start + count) of a prefill."""

    start: int
    count: int
    completes: bool
    emits: bool
    """Whether its last row samples: it completes a prompt, not a rebuild."""

    @classmethod
    def of(cls, request: Request, start: int, count: int) -> "DraftChunk":
        completes = start + count == request.prefill_target
        return cls(start, count, completes, completes and not request.is_rebuilding)


class YieldKind(Enum):
    """What becomes of a victim's tokens."""

    RECOMPUTE = "recompute"
    TAIL = "tail"
    SWAP = "swap"


@dataclass(slots=True, frozen=True)
class Yield:
    """How one holder yields."""

    kind: YieldKind
    num_freed: int
    """Blocks it gave up."""
    kept_blocks: tuple[int, ...] = ()
    """The head of its table, for TAIL."""
    swap_out: tuple[tuple[int, int], ...] = ()
    """(device block, host block), for SWAP."""
    costs: CostsOfWays | None = None
    """As compared by preemption_mode auto."""
    requester: Request | None = None
    """Who needed the blocks, `num_needed` of them; None: it yields because nobody could run."""
    num_needed: int = 0


@dataclass(slots=True, frozen=True)
class Lack:
    """What a request would have needed more, at its turn in the plan, to get a token."""

    slots: int = 0
    tokens: int = 0
    blocks: int = 0


Known = Mapping[Request, Deferral]
"""Why requests waited when that was last reported: what is the same is no news."""


BEHIND_HEAD = Deferral(DeferReason.BEHIND_HEAD, 0, 0)
TRIED_APART = Deferral(DeferReason.TRIAL, 0, 0)
"""Others have the step for themselves, since one before it failed."""


@dataclass(slots=True)
class Draft:
    """One step as decided."""

    chunks: dict[Request, DraftChunk] = field(default_factory=dict)
    admitted: dict[Request, list[int]] = field(default_factory=dict)
    """Who takes a slot, in order, with the cached blocks it reads."""
    swapped_in: dict[Request, list[int]] = field(default_factory=dict)
    """Of those, who comes back from the host tier, with the blocks it goes into."""
    new_blocks: dict[Request, list[int]] = field(default_factory=dict)
    copies: dict[Request, tuple[int, int]] = field(default_factory=dict)
    """(shared tail, its private copy) of decodes that write into a block others read."""
    joined: dict[Request, None] = field(default_factory=dict)
    left: dict[Request, None] = field(default_factory=dict)
    turns: list[Request] = field(default_factory=list)
    """All decodes, the longest unserved first, where not all of them fit the step."""
    victims: dict[Request, Yield] = field(default_factory=dict)
    deferred: dict[Request, Deferral] = field(default_factory=dict)
    lacks: dict[Request, Lack] = field(default_factory=dict)
    """Of those, who waits for another reason than before and lacks more than that one says."""
    head: Request | None = None
    """The first of the queue that did not fit."""
    rest_of_queue: Deferral = BEHIND_HEAD
    """Why those of the queue wait that are not named in `deferred`."""
    num_decodes: int = 0
    num_chunk_tokens: int = 0
    num_promised_blocks: int = 0
    """Blocks that admitted prefills will take after this plan."""
    num_slots_taken: int = 0
    prefill_share: int = 0
    """Tokens of the step still kept for first readings of prompts."""
    had_share: bool = False
    """Whether any were kept."""
    num_tried: int = 0
    """Groups of the trials under way that this step uses up: those that cannot run, and its own."""

    @property
    def num_tokens(self) -> int:
        return self.num_decodes + self.num_chunk_tokens
