"""Everything a scheduler remembers between two steps.

The planner reads it; `Scheduler` alone changes it (the pool and the queue through their methods).
"""

from dataclasses import dataclass, field

from everbatch.kv_cache.block_pool import BlockPool
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.decode_set import DecodeSet
from everbatch.scheduler.queue import WaitingQueue
from everbatch.scheduler.request import Request


@dataclass(slots=True)
class SchedulerState:
    """A live request is in exactly one of waiting, prefilling, decodes and idle_decodes."""

    pool: BlockPool
    decodes: DecodeSet
    slots: list[Request | None]
    free_slots: list[int]
    """A heap: the lowest empty slot is taken first."""
    waiting: WaitingQueue = field(default_factory=WaitingQueue)
    requests: dict[str, Request] = field(default_factory=dict)
    """All live requests, in order of arrival."""
    prefilling: dict[Request, None] = field(default_factory=dict)
    """In order of admission."""
    idle_decodes: dict[Request, None] = field(default_factory=dict)
    """In DECODE without being a member: their prompt has just ended, or they were deferred."""
    due: list[Request] = field(default_factory=list)
    """Members whose blocks are full: each needs one more in the next plan."""
    preempted_slots: list[int] = field(default_factory=list)
    released_slots: list[int] = field(default_factory=list)
    """Given back since the last plan that was carried out; the executor has yet to hear."""
    next_arrival: int = 0
    next_admission: int = 0

    @classmethod
    def empty(cls, config: SchedulerConfig) -> "SchedulerState":
        return cls(
            pool=BlockPool(config.num_blocks),
            decodes=DecodeSet(config.block_size),
            slots=[None] * config.max_num_seqs,
            free_slots=list(range(config.max_num_seqs)),
        )

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return len(self.prefilling) + len(self.decodes) + len(self.idle_decodes)
