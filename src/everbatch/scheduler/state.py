"""Everything a scheduler remembers between two steps.

The planners read it, and take blocks from the pools inside their transactions. Lifecycle and
Endings change it (pools, queue and ledger through their methods); Scheduler itself counts the calls
that deferred and takes deadlines that have passed.
"""

from dataclasses import dataclass, field

from everbatch.kv_cache.block_pool import BlockPool
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.decode_set import DecodeSet
from everbatch.scheduler.policy import Policy, make_policy
from everbatch.scheduler.request import Request, SampleGroup
from everbatch.scheduler.rights import Rights
from everbatch.scheduler.tenants import RateLimits, TenantLedger


@dataclass(slots=True)
class SchedulerState:
    """Who is where. A live request is in the queue or in one of the collections of who runs."""

    pool: BlockPool
    host_pool: BlockPool | None
    """The host tier's blocks, as ids of their own."""
    decodes: DecodeSet
    policy: Policy
    ledger: TenantLedger | None
    """VTC's counters; None under other policies, which need none."""
    rates: RateLimits
    slots: list[Request | None]
    free_slots: list[int]
    """A heap: the lowest empty slot is taken first."""
    requests: dict[str, Request] = field(default_factory=dict)
    """All live requests, in order of arrival; each sample of a group is one."""
    groups: dict[str, SampleGroup] = field(default_factory=dict)
    prefilling: dict[Request, None] = field(default_factory=dict)
    """In order of admission."""
    following: dict[Request, None] = field(default_factory=dict)
    """Samples with a slot whose leader computes their prompt."""
    idle_decodes: dict[Request, None] = field(default_factory=dict)
    """In DECODE without being a member: their prompt has just ended, or they were deferred."""
    due: list[Request] = field(default_factory=list)
    """Members whose blocks were full after the last step: each needs one more in the next plan."""
    handed_over: dict[Request, None] = field(default_factory=dict)
    """Samples that go on with the prompt of one that ended, since the last plan that was carried
    out: the executor has yet to give its blocks to their slots."""
    rights: Rights | None = None
    """What holders may take later; None where nobody has a right to more than it holds."""
    protected: dict[Request, None] = field(default_factory=dict)
    """Holders of a slot that were preempted as often as allowed; their whole life is reserved."""
    tail_holders: dict[Request, None] = field(default_factory=dict)
    """Preempted requests that wait and kept the first of their blocks."""
    masked: dict[int, str] = field(default_factory=dict)
    """Static batching: slots of members that have ended, with their ids, until the last ends."""
    deadlines: list[tuple[int, int, Request]] = field(default_factory=list)
    """A heap of (deadline, arrival number, request); who has started or ended is passed over."""
    preempted_slots: list[int] = field(default_factory=list)
    released_slots: list[int] = field(default_factory=list)
    swapped_out: list[tuple[Request, tuple[tuple[int, int], ...]]] = field(default_factory=list)
    """Since the last plan that was carried out: the executor has yet to hear of these."""
    trials: list[dict[Request, None]] = field(default_factory=list)
    """Who is tried together, in order, after a pass has failed (trials.py)."""
    must_restate: bool = False
    """Whether the executor has forgotten who holds which slot: the next plan says it again."""
    num_fresh_waiting: int = 0
    fresh_waiting_tokens: int = 0
    """Waiting requests that never ran, and their prompt tokens: what the queue limits count."""
    next_arrival: int = 0
    next_admission: int = 0
    next_turn: int = 0
    num_deferred_calls: int = 0
    """Calls in a row in which somebody had to yield before anybody could run."""

    @classmethod
    def empty(cls, config: SchedulerConfig) -> "SchedulerState":
        decodes = DecodeSet(config.block_size)
        ledger = TenantLedger(config.tenants) if config.policy == "vtc" else None
        pool, groups = BlockPool(config.num_blocks), dict[str, SampleGroup]()
        has_rights = config.admission == "reserve" or config.max_preemptions > 0
        return cls(
            pool=pool,
            host_pool=BlockPool(config.num_host_blocks) if config.num_host_blocks else None,
            decodes=decodes,
            policy=make_policy(config, decodes, ledger),
            ledger=ledger,
            rates=RateLimits(config.tenants),
            slots=[None] * config.max_num_seqs,
            free_slots=list(range(config.max_num_seqs)),
            groups=groups,
            rights=Rights(config, pool, decodes, groups) if has_rights else None,
        )

    def take_turn(self) -> int:
        """Give the place behind all who decode, for whoever was just served."""
        self.next_turn += 1
        return self.next_turn

    @property
    def num_running(self) -> int:
        """Requests that hold a slot; a masked slot is held by nobody who runs."""
        members = len(self.decodes.members) + len(self.idle_decodes)
        return len(self.prefilling) + len(self.following) + members

    @property
    def num_waiting(self) -> int:
        return len(self.policy.queue)
