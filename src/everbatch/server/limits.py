"""How many requests may be under way: all together, and of one tenant.

Belongs here: refusing the one too many before the engine hears of it. Not here: how many may wait
in the engine's queue (scheduler), how often a tenant may ask (scheduler). Used by the bridge.
"""

from collections.abc import Sequence

from everbatch.base.units import counted
from everbatch.engine.engine import EngineRequest
from everbatch.server.errors import ApiError, bad_request, too_many
from everbatch.server.live import LiveRequests
from everbatch.server.metrics import ServerMetrics
from everbatch.server.settings import ServerSettings


class LiveLimits:
    """The limits of one server over its live requests."""

    def __init__(
        self, live: LiveRequests, metrics: ServerMetrics, settings: ServerSettings
    ) -> None:
        self._live = live
        self._metrics = metrics
        self._max_requests = settings.max_live_requests
        self._max_of_tenant = settings.max_tenant_requests

    def check_any(self, now_ns: int) -> None:
        """Raise ApiError 429 if there is no room for any request, whatever it asks."""
        if self._live.num_requests >= self._max_requests:
            self._refuse_full(1, now_ns)

    def check(self, requests: Sequence[EngineRequest], now_ns: int) -> None:
        """Raise ApiError 429 if there is no room for these requests now, 400 if there never is."""
        limit, num_live = self._max_requests, self._live.num_requests
        if len(requests) > limit:
            raise _never(len(requests), "--max-live-requests", limit)
        excess = num_live + len(requests) - limit
        if excess > 0:
            self._refuse_full(excess, now_ns)
        if self._max_of_tenant:
            for tenant in dict.fromkeys(request.tenant for request in requests):
                self._check_tenant(tenant, sum(one.tenant == tenant for one in requests))

    def _refuse_full(self, excess: int, now_ns: int) -> None:
        self._metrics.count_rejection("server_full")
        raise too_many(
            f"{counted(self._live.num_requests, 'request')} under way, --max-live-requests is "
            f"{self._max_requests:,}: try again later or raise it",
            "server_full",
            self._metrics.live_retry_s(excess, now_ns),
        )

    def _check_tenant(self, tenant: str, num_new: int) -> None:
        limit, num_live = self._max_of_tenant, self._live.num_of_tenant(tenant)
        if num_new > limit:
            raise _never(num_new, "--max-tenant-requests", limit)
        if num_live + num_new > limit:
            self._metrics.count_rejection("tenant_busy")
            whose = f"tenant {tenant!r}" if tenant else "whoever names no tenant"
            raise too_many(
                f"{whose} has {counted(num_live, 'request')} under way, with this body "
                f"{num_live + num_new:,}, and --max-tenant-requests is {limit:,}: wait for one to "
                "end",
                "tenant_busy",
                self._metrics.tenant_retry_s(num_live),
            )


def _never(num_new: int, flag: str, limit: int) -> ApiError:
    return bad_request(
        f"the body has {num_new:,} prompts, {flag} is {limit:,}: send fewer at once",
        "prompt",
        "invalid_value",
    )
