"""Who goes first: the policies as values. Each has a queue and ranks requests, waiting or running.

Belongs here: orders. Not here: whether there is room (planner), who yields (preemption).
"""

from typing import Protocol

from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.decode_set import DecodeSet
from everbatch.scheduler.queue import AgingQueue, SortedQueue, TenantQueue, WaitingQueue
from everbatch.scheduler.request import Request
from everbatch.scheduler.tenants import TenantLedger

Rank = tuple[float, int, int]
"""(the policy's value, arrival number, sample): the smaller goes first. Total."""


class Policy(Protocol):
    """An order of requests."""

    @property
    def queue(self) -> WaitingQueue:
        """The waiting requests, in this order."""
        ...

    def rank(self, request: Request) -> Rank:
        """Give the place of a request, running or waiting, as of the last boundary."""
        ...


def make_policy(config: SchedulerConfig, decodes: DecodeSet, ledger: TenantLedger | None) -> Policy:
    """Make the policy that the configuration names; `ledger` is there for vtc."""
    match config.policy:
        case "priority" if config.aging_steps:
            return AgedPriority(config.aging_steps, decodes)
        case "priority":
            return Priority()
        case "srpt":
            return Srpt(decodes)
        case "vtc":
            assert ledger is not None
            return Vtc(ledger, decodes)
        case "fcfs":
            return Fcfs()


class Fcfs:
    """fcfs: in order of arrival."""

    def __init__(self) -> None:
        self.queue = SortedQueue(_no_value)

    def rank(self, request: Request) -> Rank:
        return 0, request.arrival_number, request.sample


class Priority:
    """priority without aging: lower first."""

    def __init__(self) -> None:
        self.queue = SortedQueue(_priority_of)

    def rank(self, request: Request) -> Rank:
        return request.priority, request.arrival_number, request.sample


class AgedPriority:
    """priority with aging: better by one level for every aging_steps boundaries since arrival."""

    def __init__(self, aging_steps: int, decodes: DecodeSet) -> None:
        self.queue = AgingQueue(aging_steps)
        self._aging_steps = aging_steps
        self._decodes = decodes

    def rank(self, request: Request) -> Rank:
        waited = self._decodes.num_steps - request.arrival_step
        value = request.priority - waited // self._aging_steps
        return value, request.arrival_number, request.sample


class Srpt:
    """srpt: least prompt left to compute plus outputs left to emit, at most, first.

    Who waits makes no progress, so the key holds while it waits.
    """

    def __init__(self, decodes: DecodeSet) -> None:
        self.queue = SortedQueue(self._remaining)
        self._decodes = decodes

    def rank(self, request: Request) -> Rank:
        return self._remaining(request), request.arrival_number, request.sample

    def _remaining(self, request: Request) -> int:
        ran = self._decodes.progress(request)
        to_compute = request.num_prompt_tokens - request.num_computed_tokens - ran
        to_emit = request.max_tokens - request.num_output_tokens - ran
        return max(0, to_compute) + to_emit


class Vtc:
    """vtc: the first request of the tenant that was served least."""

    def __init__(self, ledger: TenantLedger, decodes: DecodeSet) -> None:
        self.queue = TenantQueue(ledger)
        self._ledger = ledger
        self._decodes = decodes

    def rank(self, request: Request) -> Rank:
        return (
            self._ledger.service(request.tenant, self._decodes.num_steps),
            request.arrival_number,
            request.sample,
        )


def _no_value(request: Request) -> int:
    return 0


def _priority_of(request: Request) -> int:
    return request.priority
