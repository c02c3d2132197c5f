"""A run as one JSON object: figures, percentiles, and one entry a request.

The command line adds which version of everbatch made it.

The format is public (docs/simulate.md); fields may be added, never renamed. Times are ticks on the
clock of steps. Pure: reads accounts, changes nothing. Called by the run loop at reporting points.
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from everbatch.sim.accounts import Accounts, RequestRecord
from everbatch.sim.distribution import distribution, distribution_of_counts
from everbatch.workload.scenario import Scenario

Summary = dict[str, Any]


def figures(accounts: Accounts, scenario: Scenario) -> Summary:
    """Give the figures of a run up to now; the accounts are settled."""
    counters = accounts.counters
    slot_iterations = scenario.engine.max_num_seqs * counters.steps
    records = accounts.records.values()
    recomputed = sum(record.recomputed_tokens for record in records)
    scheduled = counters.scheduled_tokens
    return {
        "steps": counters.steps,
        "duration_s": None,
        "slot_iterations": slot_iterations,
        "useful_tokens": counters.useful_tokens,
        "slot_occupancy": counters.useful_tokens / slot_iterations if slot_iterations else None,
        "masked_slot_iterations": counters.masked_slot_iterations,
        "idle_slot_iterations": dict(sorted(counters.idle_slot_iterations.items())),
        "scheduled_tokens": scheduled,
        "recomputed_tokens": recomputed,
        "recomputed_token_ratio": recomputed / scheduled if scheduled else 0.0,
        "num_preemptions": counters.num_preemptions,
        "peak_blocks": counters.peak_blocks,
        "prefix_cache_hit_tokens": counters.prefix_cache_hit_tokens,
        "num_finished": _count_reasons(records),
        "num_rejected": sum(record.rejected is not None for record in records),
        **_latencies(accounts),
    }


def summary(accounts: Accounts, scenario: Scenario, digest: str) -> Summary:
    """Give the whole summary of a run but for the extra horizons."""
    facts = figures(accounts, scenario)
    return {
        "scenario": scenario.name,
        "clock": scenario.clock,
        "horizon": scenario.run.horizon,
        "seed": scenario.run.seed,
        **facts,
        "digest": digest,
        "config": asdict(scenario.engine),
        "workload": {
            "num_requests": len(scenario.requests),
            "digest": scenario.requests_digest(),
        },
        "horizons": {},
        "requests": _requests(accounts),
    }


def _count_reasons(records: Iterable[RequestRecord]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for record in records:
        if record.finish_reason is not None:
            counts[record.finish_reason] = counts.get(record.finish_reason, 0) + 1
    return dict(sorted(counts.items()))


def _latencies(accounts: Accounts) -> dict[str, dict[str, float | None]]:
    """TTFT of all that emitted, ITL over all gaps, TPOT of two tokens or more, E2E of the ended.

    TTFT and E2E are a request's, ITL and TPOT those of each of its samples.
    """
    ttft: list[float] = []
    tpot: list[float] = []
    e2e: list[float] = []
    for record in accounts.records.values():
        if record.first_token_at is not None:
            ttft.append(record.first_token_at - record.spec.arrival)
        for stream in record.streams:
            last = accounts.last_token_of(stream)
            if stream.first_token_at is not None and stream.output_tokens >= 2 and last is not None:
                tpot.append((last - stream.first_token_at) / (stream.output_tokens - 1))
        if record.finish_reason in ("stop", "length") and record.finished_at is not None:
            e2e.append(record.finished_at - record.spec.arrival)
    return {
        "ttft": distribution(ttft),
        "itl": distribution_of_counts(accounts.token_gaps),
        "tpot": distribution(tpot),
        "e2e": distribution(e2e),
    }


def _requests(accounts: Accounts) -> dict[str, Any]:
    """Give an entry a request, and behind it one for each of its samples."""
    now = accounts.counters.steps
    entries: dict[str, Any] = {}
    for request_id, record in accounts.records.items():
        entries[request_id] = _request(record, now)
        for sample_id, sample in record.samples.items():
            entries[sample_id] = {**_request(sample, now), "sample_of": request_id}
    return entries


def _request(record: RequestRecord, now: int) -> dict[str, Any]:
    started = record.started_at
    return {
        "state": record.state,
        "finish_reason": record.finish_reason,
        "arrival": record.spec.arrival,
        "first_step": started + 1 if started is not None else None,
        "first_token_step": record.first_token_at,
        "finished_step": record.finished_at,
        "queue_wait": started - record.spec.arrival if started is not None else None,
        "preempted_wait": record.waited_preempted(now),
        "output_tokens": record.output_tokens,
        "cached_tokens": record.cached_tokens,
        "num_preemptions": record.num_preemptions,
        "recomputed_tokens": record.recomputed_tokens,
        "rejected": record.rejected,
    }
