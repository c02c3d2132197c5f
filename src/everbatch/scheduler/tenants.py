"""Who has been served how much: VTC's counters, and the rate limits of tenants.

A tenant's service grows by 1 for each prompt token computed and by 2 for each token emitted, over
its weight (VTC, OSDI 2024, section 4; the prices are the paper's). Emitting costs the ledger
nothing per token: it keeps how many of a tenant's requests decode since which step.

Called by the scheduler. Knows no queue and no clock of its own.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from everbatch.base.units import NS_PER_S
from everbatch.scheduler.config import TenantConfig

PROMPT_TOKEN_PRICE = 1
OUTPUT_TOKEN_PRICE = 2
RATE_WINDOW_NS = 60 * NS_PER_S

_DEFAULT = TenantConfig()


@dataclass(slots=True)
class _Account:
    """`service` is as of `step`; since then `num_decoding` requests emit one token a step."""

    weight: float
    service: float = 0.0
    step: int = 0
    num_decoding: int = 0
    num_waiting: int = 0


@dataclass(slots=True)
class TenantLedger:
    """The accounts of all tenants seen; those not configured have weight 1 and no limit."""

    configs: Mapping[str, TenantConfig]
    _accounts: dict[str, _Account] = field(default_factory=dict)
    _last_waiting: str | None = None
    """The tenant whose last waiting request left the queue most recently."""

    def weight(self, tenant: str) -> float:
        return self.configs.get(tenant, _DEFAULT).weight

    def service(self, tenant: str, step: int) -> float:
        """Give the weighted service up to the end of step number `step`."""
        account = self._accounts[tenant]
        emitted = account.num_decoding * (step - account.step)
        return account.service + OUTPUT_TOKEN_PRICE * emitted / account.weight

    def enter_queue(self, tenant: str, step: int) -> None:
        """Note one more waiting request; a tenant of whom nobody waited is lifted to the others.

        That is to the least served of those who wait or, if nobody does, to the tenant that waited
        last. So nobody saves up service by staying away, and the service of two tenants who both
        wait differs by a bounded amount (VTC, algorithm 2, lines 6 to 13, and lemma 4.3).
        """
        account = self._accounts.setdefault(tenant, _Account(self.weight(tenant), step=step))
        if account.num_waiting == 0:
            waiting = [name for name, other in self._accounts.items() if other.num_waiting > 0]
            if not waiting and self._last_waiting is not None:
                waiting = [self._last_waiting]
            least = min((self.service(name, step) for name in waiting), default=0.0)
            account.service = max(self.service(tenant, step), least)
            account.step = step
        account.num_waiting += 1

    def leave_queue(self, tenant: str) -> None:
        """Note that one request waits no more."""
        account = self._accounts[tenant]
        account.num_waiting -= 1
        if account.num_waiting == 0:
            self._last_waiting = tenant

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
        account.service = self.service(tenant, step)
        account.step = step
        account.num_decoding += change

    def state(self) -> tuple[object, ...]:
        """Give all that decides later behaviour, for digests."""
        accounts = tuple(
            (name, a.service, a.step, a.num_decoding, a.num_waiting)
            for name, a in self._accounts.items()
        )
        return accounts, self._last_waiting


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

    def accept(self, tenant: str, now_ns: int) -> None:
        """Note an accepted arrival."""
        if self.limit(tenant):
            self._arrivals.setdefault(tenant, deque()).append(now_ns)
