"""A run as one JSON object: figures, percentiles, and one entry a request.

The command line adds which version of everbatch made it.

The format is public (docs/simulate.md); fields may be added, never renamed. Times are ticks on the
clock of steps, seconds on the others. Pure: reads accounts, changes nothing. Called by the run loop
at reporting points.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from everbatch.sim.accounts import Accounts
from everbatch.sim.conditions import conditions
from everbatch.sim.distribution import distribution, distribution_of_counts
from everbatch.sim.latencies import Latencies
from everbatch.sim.records import RequestRecord
from everbatch.workload.scenario import Scenario
from everbatch.workload.times import TimeUnit

Summary = dict[str, Any]


def figures(accounts: Accounts, scenario: Scenario, live: list[RequestRecord]) -> Summary:
    """Give the figures of a run up to now; the accounts are settled, `live` have not ended."""
    counters, unit = accounts.counters, scenario.clock.unit
    slot_iterations = scenario.engine.max_num_seqs * counters.steps
    recomputed = accounts.recomputed_tokens(live)
    scheduled = counters.scheduled_tokens
    latencies = accounts.latencies(live)
    return {
        "steps": counters.steps,
        "duration_s": None if unit.is_steps else unit.written(counters.now),
        "slot_iterations": slot_iterations,
        "useful_tokens": counters.useful_tokens,
        "slot_occupancy": _share(counters.useful_tokens, slot_iterations),
        "masked_slot_iterations": counters.masked_slot_iterations,
        "idle_slot_iterations": dict(sorted(counters.idle_slot_iterations.items())),
        "time_occupancy": _time_occupancy(accounts, scenario),
        "scheduled_tokens": scheduled,
        "recomputed_tokens": recomputed,
        "recomputed_token_ratio": recomputed / scheduled if scheduled else 0.0,
        "num_preemptions": counters.num_preemptions,
        "failed_steps": counters.failed_steps,
        "peak_blocks": counters.peak_blocks,
        "prefix_cache_hit_tokens": counters.prefix_cache_hit_tokens,
        "num_arrived": counters.num_arrived,
        "num_finished": dict(sorted(counters.num_finished.items())),
        "num_rejected": counters.num_rejected,
        "first_rejection": counters.first_rejection,
        "backlog": {
            "last_arrival": unit.written(counters.last_arrival),
            "waiting_then": counters.waiting_at_last_arrival,
            "unfinished": len(live),
        },
        "throughput": None if unit.is_steps else _throughput(accounts, latencies, unit),
        "goodput": _goodput(accounts, latencies, unit),
        "step_times": None if unit.is_steps else _step_times(accounts, unit),
        "ttft": _written(distribution(latencies.ttft), unit),
        "itl": _written(distribution_of_counts(accounts.token_gaps), unit),
        "tpot": _written(distribution(latencies.tpot), unit),
        "e2e": _written(distribution(latencies.e2e), unit),
    }


def summary(facts: Summary, scenario: Scenario, digest: str, notes: list[str]) -> Summary:
    """Give the summary of a run whose figures are `facts`, but for horizons and requests.

    `notes` say what of the workload was left out or changed.
    """
    horizon, workload = scenario.run.horizon, scenario.workload
    told = {
        "scenario": scenario.name,
        "clock": scenario.clock.kind,
        "horizon": None if horizon is None else scenario.clock.unit.written(horizon),
        "seed": scenario.run.seed,
        **facts,
        "digest": digest,
        "config": asdict(scenario.engine),
        "conditions": conditions(scenario),
        "workload": {
            "title": "requests written out" if workload is None else workload.workload.title,
            "num_requests": facts["num_arrived"] if workload else len(scenario.requests),
            "digest": scenario.requests_digest(),
            "arrivals_digest": scenario.arrivals_digest(),
            "notes": notes,
        },
        "horizons": {},
    }
    told["overload"] = overload(told)
    return told


def overload(told: Summary) -> str | None:
    """Say that more came than could be served, of a summary; None if the queue stayed short.

    That is: when the last request came, more waited than hold slots at once; or as many still live
    at the horizon. Requests that all come at once are no overload.
    """
    backlog, slots = told["backlog"], told["config"]["max_num_seqs"]
    last, waiting, unfinished = (backlog[key] for key in backlog)
    if max(waiting, unfinished - slots) <= slots or not last:
        return None
    is_steps = told["duration_s"] is None
    unit = "steps" if is_steps else "s"
    end = told["steps"] if is_steps else told["duration_s"]
    sentence = (
        f"more came than could be served: of {told['num_arrived']:,} requests within "
        f"{last:,.6g} {unit} {waiting:,} waited when the last one came"
    )
    if unfinished:
        return f"{sentence}; {unfinished:,} have not ended at {end:,.6g} {unit}"
    return f"{sentence}; the last ended {end - last:,.6g} {unit} later"


def request_entries(
    records: Iterable[RequestRecord], now: int, unit: TimeUnit
) -> dict[str, dict[str, Any]]:
    """Give an entry a request, and behind it one for each of its samples."""
    entries: dict[str, dict[str, Any]] = {}
    for record in records:
        entries[record.spec.id] = _entry(record, now, unit)
        for sample_id, sample in record.samples.items():
            entries[sample_id] = {**_entry(sample, now, unit), "sample_of": record.spec.id}
    return entries


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _time_occupancy(accounts: Accounts, scenario: Scenario) -> dict[str, float | None]:
    """Of all time up to now: in which a pass ran; of slots and of blocks, those that were held."""
    counters, engine = accounts.counters, scenario.engine
    return {
        "busy": _share(counters.busy_time, counters.now),
        "slots": _share(counters.held_slot_time, counters.now * engine.max_num_seqs),
        "blocks": _share(counters.used_block_time, counters.now * engine.num_blocks),
    }


def _throughput(
    accounts: Accounts, latencies: Latencies, unit: TimeUnit
) -> dict[str, float | None]:
    counters = accounts.counters
    seconds = unit.written(counters.now)
    return {
        "requests_per_s": _share(len(latencies.e2e), seconds),
        "output_tokens_per_s": _share(counters.useful_tokens, seconds),
        "scheduled_tokens_per_s": _share(counters.scheduled_tokens, seconds),
    }


def _goodput(accounts: Accounts, latencies: Latencies, unit: TimeUnit) -> dict[str, Any] | None:
    """Of all requests that have come, those that ended regularly and met every goal."""
    if not accounts.goals:
        return None
    counters, num_good = accounts.counters, latencies.num_good
    seconds = unit.written(counters.now)
    return {
        "slo": {name: unit.written(goal) for name, goal in accounts.goals.items()},
        "num_requests": num_good,
        "share": _share(num_good, counters.num_arrived),
        "requests_per_s": None if unit.is_steps else _share(num_good, seconds),
    }


def _step_times(accounts: Accounts, unit: TimeUnit) -> list[dict[str, Any]]:
    """Give how long passes took by how many tokens they had, each range twice as wide."""
    return [
        {
            "tokens": [1 << (digits - 1), (1 << digits) - 1],
            "steps": num_steps,
            "mean": unit.written(duration / num_steps),
        }
        for digits, (num_steps, duration) in sorted(accounts.counters.step_times.items())
    ]


def _written(times: Mapping[str, float | None], unit: TimeUnit) -> dict[str, float | None]:
    if unit.is_steps:
        return dict(times)
    per_unit = unit.per_unit
    return {name: None if time is None else time / per_unit for name, time in times.items()}


def _entry(record: RequestRecord, now: int, unit: TimeUnit) -> dict[str, Any]:
    return {
        "state": record.state,
        "finish_reason": record.finish_reason,
        **(_boundaries(record, now) if unit.is_steps else _seconds(record, now, unit)),
        "output_tokens": record.output_tokens,
        "cached_tokens": record.cached_tokens,
        "num_preemptions": record.num_preemptions,
        "recomputed_tokens": record.recomputed_tokens,
        "rejected": record.rejected,
    }


def _boundaries(record: RequestRecord, now: int) -> dict[str, int | None]:
    started = record.started_at
    return {
        "arrival": record.spec.arrival,
        "first_step": started + 1 if started is not None else None,
        "first_token_step": record.first_token_at,
        "finished_step": record.finished_at,
        "queue_wait": started - record.spec.arrival if started is not None else None,
        "preempted_wait": record.waited_preempted(now),
    }


def _seconds(record: RequestRecord, now: int, unit: TimeUnit) -> dict[str, float | None]:
    started = record.started_at
    times = {
        "arrival_s": record.spec.arrival,
        "first_scheduled_s": started,
        "first_token_s": record.first_token_at,
        "finished_s": record.finished_at,
        "queue_wait_s": started - record.spec.arrival if started is not None else None,
        "preempted_wait_s": record.waited_preempted(now),
    }
    return _written(times, unit)
