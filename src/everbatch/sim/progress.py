"""A run that cannot go on: who is stuck, and which budget blocks them.

The scheduler is built so that this does not happen (docs/invariants.md); if it does, a run ends
with the numbers instead of spinning. Called by the run loop.
"""

from everbatch.base.errors import EverbatchError
from everbatch.base.units import counted
from everbatch.scheduler.scheduler import Scheduler
from everbatch.workload.times import TimeUnit

MAX_NAMED = 8


class NoProgress(EverbatchError):
    """Live requests, none of which can run, now or later."""


def no_progress(
    scheduler: Scheduler, now: int, unit: TimeUnit, num_deferred_calls: int
) -> NoProgress:
    """Make the error that names the requests, what each lacks, and the budgets."""
    place = f"boundary {now:,}" if unit.is_steps else f"{unit.written(now):,.6f} s"
    requests = list(scheduler.state.requests.values())
    told = [_lack(scheduler, request) for request in requests[:MAX_NAMED]]
    if len(requests) > MAX_NAMED:
        told.append(f"and {len(requests) - MAX_NAMED:,} more")
    config, pool = scheduler.config, scheduler.state.pool
    calls = f" after {num_deferred_calls:,} preemptions in a row" if num_deferred_calls else ""
    return NoProgress(
        f"no progress at {place}{calls}: none of {counted(len(requests), 'request')} can run: "
        f"{'; '.join(told)} (budgets: {counted(config.max_num_seqs, 'slot')}, "
        f"{counted(config.max_num_batched_tokens, 'token')} a step, "
        f"{counted(pool.num_blocks, 'KV block')} of which "
        f"{pool.num_allocatable:,} are free or cached)"
    )


def _lack(scheduler: Scheduler, request: object) -> str:
    deferral = scheduler.deferrals.current.get(request)  # type: ignore[call-overload]
    name = getattr(request, "id", "?")
    if deferral is None:
        return f"{name} (not considered)"
    needs = f"needs {deferral.needed:,}, {deferral.available:,} available"
    return f"{name} ({deferral.reason.value}: {needs})"
