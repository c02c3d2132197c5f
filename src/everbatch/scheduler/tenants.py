"""Who has been served how much: VTC's counters, and the rate limits of tenants.

A tenant's service grows by 1 for each prompt token computed and by 2 for each token emitted, over
its weight (VTC, OSDI 2024, section 4; the prices are the paper's). Emitting costs the ledger
nothing per token: it keeps how many of a tenant's requests decode since which step.

Called by the scheduler. Knows no queue and no clock of its own.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace

from everbatch.base.units import NS_PER_S
from everbatch.scheduler.config import TenantConfig

PROMPT_TOKEN_PRICE = 1
OUTPUT_TOKEN_PRICE = 2
RATE_WINDOW_NS = 60 * NS_PER_S
MAX_IDLE_ACCOUNTS = 10_000
"""Tenants without a live request whose service is remembered: about 4 MB."""

_DEFAULT = TenantConfig()


@dataclass(slots=True)
class _Account:
    """`service` is as of `step`; since then `num_decoding` requests emit one token a step."""

    weight: float
    service: float = 0.0
    step: int = 0
    num_decoding: int = 0
    num_waiting: int = 0
    num_live: int = 0
    is_listed: bool = False
    """Whether it stands in the ledger's list of accounts to close."""

    def service_at(self, step: int) -> float:
        emitted = self.num_decoding * (step - self.step)
        return self.service + OUTPUT_TOKEN_PRICE * emitted / self.weight


@dataclass(slots=True)
class TenantLedger:
    """The accounts of tenants; those not configured have weight 1 and no limit.

    Tenants are whatever names clients send, so the account of one without a live request is closed
    as soon as coming back would lift it to what a new account is lifted to: nobody can tell. While
    the least served tenant waits, those who were served more stay; beyond MAX_IDLE_ACCOUNTS the
    least served of them is closed too. Under a new name it would have had the same.
    """

    configs: Mapping[str, TenantConfig]
    closes_accounts: bool = True
    """Off in tests that compare."""
    _accounts: dict[str, _Account] = field(default_factory=dict)
    _waiting: dict[str, _Account] = field(default_factory=dict)
    """Those of whom somebody waits."""
    _last_waiting: _Account | None = None
    """That of the tenant whose last waiting request left the queue most recently; perhaps closed:
    then its service does not change any more."""
    _floor: float = 0.0
    """What tenants who come back are lifted to: it never sinks."""
    _idle: list[tuple[float, str]] = field(default_factory=list)
    """A heap of (service when listed, tenant) of accounts that were idle then; each once."""

    def __len__(self) -> int:
        """The number of accounts."""
        return len(self._accounts)

    def weight(self, tenant: str) -> float:
        return self.configs.get(tenant, _DEFAULT).weight

    def service(self, tenant: str, step: int) -> float:
        """Give the weighted service up to the end of step number `step`."""
        return self._accounts[tenant].service_at(step)

    def arrive(self, tenant: str, num_requests: int, step: int) -> None:
        """Note so many live requests more."""
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account(self.weight(tenant), step=step)
        account.num_live += num_requests

    def depart(self, tenant: str) -> None:
        """Note that a live request has ended; it is charged for nothing any more."""
        account = self._accounts[tenant]
        account.num_live -= 1
        if account.num_live == 0 and not account.is_listed and self.closes_accounts:
            account.is_listed = True
            heappush(self._idle, (account.service, tenant))

    def enter_queue(self, tenant: str, step: int) -> None:
        """Note one more waiting request; a tenant of whom nobody waited is lifted to the others.

        That is to the least served of those who wait or, if nobody does, to the tenant that waited
        last. So nobody saves up service by staying away, and the service of two tenants who both
        wait differs by a bounded amount (VTC, algorithm 2, lines 6 to 13, and lemma 4.3).
        O(tenants that wait).
        """
        account = self._accounts[tenant]
        if account.num_waiting == 0:
            others = list(self._waiting.values())
            if not others and self._last_waiting is not None:
                others = [self._last_waiting]
            least = min((other.service_at(step) for other in others), default=0.0)
            self._floor = max(self._floor, least)
            account.service = max(account.service_at(step), self._floor)
            account.step = step
            self._waiting[tenant] = account
            self._close_idle()
        account.num_waiting += 1

    def leave_queue(self, tenant: str) -> None:
        """Note that one request waits no more."""
        account = self._accounts[tenant]
        account.num_waiting -= 1
        if account.num_waiting == 0:
            del self._waiting[tenant]
            self._last_waiting = account

    def charge_prompt(self, tenant: str, num_tokens: int) -> None:
        account = self._accounts[tenant]
        account.service += PROMPT_TOKEN_PRICE * num_tokens / account.weight

    def charge_outputs(self, tenant: str, num_tokens: int) -> None:
        """Charge tokens emitted outside the decode set; a negative number takes back."""
        account = self._accounts[tenant]
        account.service += OUTPUT_TOKEN_PRICE * num_tokens / account.weight

    def change_decoding(self, tenant: str, change: int, step: int) -> None:
        """Note that `change` more requests of a tenant emit a token in every step from now on."""
        account = self._accounts[tenant]
        account.service = account.service_at(step)
        account.step = step
        account.num_decoding += change

    def state(self) -> tuple[object, ...]:
        """Give all that decides later behaviour, for digests."""
        accounts = tuple(
            (name, a.service, a.step, a.num_decoding, a.num_waiting, a.num_live)
            for name, a in self._accounts.items()
        )
        last = self._last_waiting
        of_last = None if last is None else (last.service, last.step, last.num_decoding)
        return accounts, of_last, self._floor

    def _close_idle(self) -> None:
        """Close the idle accounts whose tenants would be lifted if they came back, or are too many.

        An account is listed once and closed once, so this costs O(log n) an end of a request.
        """
        idle = self._idle
        while idle and (idle[0][0] <= self._floor or len(idle) > MAX_IDLE_ACCOUNTS):
            listed, tenant = idle[0]
            account = self._accounts[tenant]
            if account.num_live == 0 and account.service > listed:
                # It has been back and was served since.
                heapreplace(idle, (account.service, tenant))
                continue
            heappop(idle)
            account.is_listed = False
            if account.num_live == 0:
                del self._accounts[tenant]


@dataclass(slots=True)
class RateLimits:
    """Accepted arrivals of the last minute, for tenants that have a limit."""

    configs: Mapping[str, TenantConfig]
    _arrivals: dict[str, deque[int]] = field(default_factory=dict)

    def limit(self, tenant: str) -> int:
        """Give the requests a tenant may send in a minute; 0: any number."""
        return self.configs.get(tenant, _DEFAULT).max_requests_per_minute

    def recent(self, tenant: str, now_ns: int) -> int:
        """Count the accepted arrivals in the 60 s before `now_ns`."""
        arrivals = self._arrivals.get(tenant)
        if arrivals is None:
            return 0
        while arrivals and arrivals[0] <= now_ns - RATE_WINDOW_NS:
            arrivals.popleft()
        return len(arrivals)

    def wait_ns(self, tenant: str, now_ns: int) -> int:
        """Give how long a tenant must wait until one more request is accepted."""
        limit = self.limit(tenant)
        if not limit or self.recent(tenant, now_ns) < limit:
            return 0
        return self._arrivals[tenant][0] + RATE_WINDOW_NS - now_ns

    def state(self) -> tuple[object, ...]:
        """Give all that decides later behaviour, for digests."""
        return tuple((tenant, tuple(times)) for tenant, times in sorted(self._arrivals.items()))

    def accept(self, tenant: str, now_ns: int) -> None:
        """Note an accepted arrival."""
        if self.limit(tenant):
            self._arrivals.setdefault(tenant, deque()).append(now_ns)
