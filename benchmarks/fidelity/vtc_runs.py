"""Four schedulers that ran on one GPU, request by request, against ours under preset "lightllm".

The runs are those of the VTC artifact (Sheng et al., OSDI 2024): S-LoRA's server, a model of the
size of Llama-2-7B, one A10G, 10,000 tokens of KV cache; data under vtc_artifact_real_runs/. The
same arrivals went through FCFS, VTC, VTC with lengths known in advance, and a limit of requests a
minute. Two constants, the price of a prompt token and of a decode step, are fitted to the FCFS run
of the suite `real`; everything else is predicted with them.

Belongs here: reading, running, fitting, comparing. Not here: the router's rules (lightllm.py).
`rows(traces)` is called by the table.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from fidelity.lightllm import BATCH_TOKENS, TwoPasses, put_router_before
from fidelity.row import Row, skipped, within
from fidelity.vtc_fit import Decode, fit_prices

from everbatch.base.clock import VirtualClock
from everbatch.base.events import Decoding, Finished
from everbatch.base.units import NS_PER_S
from everbatch.costs.work import StepTime
from everbatch.engine.engine import Engine, EngineRequest
from everbatch.engine.sampling_params import SamplingParams
from everbatch.executors.simulated import SimulatedExecutor, SimulatedText
from everbatch.scheduler.config import SchedulerConfig, TenantConfig
from everbatch.sim.distribution import distribution
from everbatch.workload.engine_section import read_engine

FOLDER = "vtc_artifact_real_runs"
FITTED = "FCFS__real"
PROMISED = ("VTC__real", "VTC_oracle__real")
FILES = tuple(
    f"{name}.jsonl"
    for name in (FITTED, *PROMISED, "LShare_rpm5__real", "FCFS__overload", "VTC__overload")
)
POOL_TOKENS = 10_000
MAX_NUM_SEQS = 1_000
"""Of S-LoRA's router; the pool holds some fifty."""
CONTEXT_TOKEN_NS = 2 * 32 * 4096 * 2 / (600e9 * 0.8) * NS_PER_S
"""Of a token that a decode reads: keys and values of 32 layers, each 4,096 values of two bytes, at
0.8 of the 600 GB/s of NVIDIA's data sheet. Not fitted; fitted too, it comes out nearly the same."""
SERVED_WITHIN_S = 300.0
MAX_TTFT_ERROR = 0.07
MAX_RATE_ERROR = 0.01
MAX_SHARE_ERROR = 0.05


@dataclass(frozen=True, slots=True)
class Served:
    """One request, recorded or simulated. Seconds; times None: refused."""

    tenant: str
    num_prompt_tokens: int
    num_output_tokens: int
    arrival_s: float
    ttft_s: float | None
    e2e_s: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run comes to."""

    num_served: int
    requests_per_s: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    decode_s: float
    """Mean time from a request's first token to its last."""


def read_run(path: Path) -> list[Served]:
    """Read a file of the artifact: one line, one suite."""
    responses = json.loads(path.read_text(encoding="utf-8").splitlines()[0])["result"]["responses"]
    return sorted((_served(response) for response in responses), key=lambda one: one.arrival_s)


def figures(run: Sequence[Served]) -> Figures:
    """Sum up a run; requests/s up to the last end."""
    served = [one for one in run if one.ttft_s is not None and one.e2e_s is not None]
    ttft = distribution(one.ttft_s for one in served)
    ends = [one.arrival_s + one.e2e_s for one in served]
    return Figures(
        num_served=len(served),
        requests_per_s=len(served) / max(ends),
        ttft_mean_s=ttft["mean"],
        ttft_p50_s=ttft["p50"],
        ttft_p99_s=ttft["p99"],
        decode_s=sum(one.e2e_s - one.ttft_s for one in served) / len(served),
    )


def shares(run: Sequence[Served]) -> dict[str, float]:
    """Give each client's share of the service of requests that ended in the first 300 s.

    Service is prompt tokens and outputs twice, as the paper counts it.
    """
    service: dict[str, float] = {}
    for one in run:
        ends_in_time = one.e2e_s is not None and one.arrival_s + one.e2e_s <= SERVED_WITHIN_S
        tokens = one.num_prompt_tokens + 2 * one.num_output_tokens
        service[one.tenant] = service.get(one.tenant, 0.0) + ends_in_time * tokens
    total = sum(service.values())
    return {tenant: tokens / total for tenant, tokens in sorted(service.items())}


def simulate(
    requests: Sequence[Served],
    step_time: StepTime,
    *,
    policy: str = "fcfs",
    knows_lengths: bool = False,
    requests_per_minute: int = 0,
    has_router: bool = True,
) -> list[Served]:
    """Send the requests of a run through our scheduler, with LightLLM's router before it or not."""
    config = _config(policy, {one.tenant for one in requests}, requests_per_minute)
    clock = VirtualClock()
    engine = Engine(config, SimulatedExecutor(clock, step_time), clock, fails_stuck=False)
    if has_router:
        put_router_before(engine.scheduler.state, POOL_TOKENS, vtc_knows_lengths=knows_lengths)
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    place = 0
    while place < len(requests) or engine.has_work:
        while place < len(requests) and _arrival_ns(requests[place]) <= clock.now_ns():
            engine.add(_engine_request(str(place), requests[place]))
            place += 1
        if not engine.has_work:
            clock.advance(_arrival_ns(requests[place]) - clock.now_ns())
            continue
        for event in engine.step().events:
            match event:
                case Decoding(emitted=True):
                    first[event.id] = event.t
                case Finished():
                    first.setdefault(event.id, event.t)
                    last[event.id] = event.t
                case _:
                    pass
    return [
        _with_times(one, first.get(str(place)), last.get(str(place)))
        for place, one in enumerate(requests)
    ]


def fit(recorded: Sequence[Served]) -> tuple[TwoPasses, float]:
    """Fit the two constants to a run; gives the root mean square of what is left, in seconds."""
    decodes = [
        Decode(
            one.arrival_s + one.ttft_s,
            one.arrival_s + one.e2e_s,
            one.num_prompt_tokens,
            one.num_output_tokens,
        )
        for one in recorded
        if one.ttft_s is not None and one.e2e_s is not None
    ]
    return fit_prices(decodes, CONTEXT_TOKEN_NS)


def rows(traces: Path) -> list[Row]:
    """Compare everything; one row that says so if the data is not there."""
    folder = traces / FOLDER
    missing = [file for file in FILES if not (folder / file).is_file()]
    if missing:
        return [skipped("VTC artifact", f"{folder} lacks {', '.join(missing)}")]
    recorded = {file.removesuffix(".jsonl"): read_run(folder / file) for file in FILES}
    prices, spread = fit(recorded["FCFS__real"])
    simulated = {
        "FCFS__real": simulate(recorded["FCFS__real"], prices),
        "VTC__real": simulate(recorded["VTC__real"], prices, policy="vtc"),
        "VTC_oracle__real": simulate(
            recorded["VTC_oracle__real"], prices, policy="vtc", knows_lengths=True
        ),
        "LShare_rpm5__real": simulate(recorded["LShare_rpm5__real"], prices, requests_per_minute=5),
        "FCFS__overload": simulate(recorded["FCFS__overload"], prices),
        "VTC__overload": simulate(recorded["VTC__overload"], prices, policy="vtc"),
    }
    both = {name: (figures(run), figures(recorded[name])) for name, run in simulated.items()}
    return [
        _fit_row(recorded["FCFS__real"], prices, spread),
        *(row for name in PROMISED for row in _promised_rows(name, *both[name])),
        _rank_row({name: both[name] for name in (FITTED, *PROMISED)}),
        *_share_rows("FCFS__overload", simulated, recorded),
        *_share_rows("VTC__overload", simulated, recorded),
        *(row for name in both if name not in PROMISED for row in _told_rows(name, *both[name])),
        *_rpm_rows(*both["LShare_rpm5__real"]),
        *_preset_alone_rows(recorded, prices),
    ]


def _fit_row(recorded: Sequence[Served], prices: TwoPasses, spread: float) -> Row:
    mean = figures(recorded).decode_s
    note = (
        f"prices fitted: {prices.prompt_token / 1e3:.0f} µs a prompt token, "
        f"{prices.decode_step / 1e6:.2f} ms a decode step; given: "
        f"{prices.context_token / 1e3:.2f} µs a token of context"
    )
    return Row(
        f"{_title(FITTED)}: decoding, left by the fit", None, 100 * spread / mean, "%", None, note
    )


def _promised_rows(name: str, ours: Figures, theirs: Figures) -> list[Row]:
    title = _title(name)
    return [
        _error_row(f"{title}: mean TTFT", ours.ttft_mean_s, theirs.ttft_mean_s, MAX_TTFT_ERROR),
        _error_row(f"{title}: p99 of TTFT", ours.ttft_p99_s, theirs.ttft_p99_s, MAX_TTFT_ERROR),
        _error_row(
            f"{title}: requests/s", ours.requests_per_s, theirs.requests_per_s, MAX_RATE_ERROR
        ),
        _error_row(f"{title}: p50 of TTFT", ours.ttft_p50_s, theirs.ttft_p50_s, None),
    ]


def _told_rows(name: str, ours: Figures, theirs: Figures) -> list[Row]:
    title = _title(name)
    return [
        _error_row(f"{title}: mean TTFT", ours.ttft_mean_s, theirs.ttft_mean_s, None),
        _error_row(f"{title}: requests/s", ours.requests_per_s, theirs.requests_per_s, None),
    ]


def _rank_row(both: dict[str, tuple[Figures, Figures]]) -> Row:
    """Compare the order of the policies by mean TTFT."""
    by_ours = sorted(both, key=lambda name: both[name][0].ttft_mean_s)
    by_theirs = sorted(both, key=lambda name: both[name][1].ttft_mean_s)
    wrong = [
        (first, second)
        for first, second in combinations(by_theirs, 2)
        if by_ours.index(first) > by_ours.index(second)
    ]
    order = " < ".join(name.split("__")[0] for name in by_ours)
    return Row(
        "suite real: pairs of policies in another order by mean TTFT",
        0,
        len(wrong),
        "",
        not wrong,
        f"simulated: {order}",
    )


def _share_rows(
    name: str, simulated: dict[str, list[Served]], recorded: dict[str, list[Served]]
) -> list[Row]:
    ours, theirs = shares(simulated[name]), shares(recorded[name])
    return [
        _error_row(
            f"{_title(name)}: share of client {place} in the service of {SERVED_WITHIN_S:.0f} s",
            ours[tenant],
            theirs[tenant],
            MAX_SHARE_ERROR,
        )
        for place, tenant in enumerate(theirs)
    ]


def _rpm_rows(ours: Figures, theirs: Figures) -> list[Row]:
    return [
        _error_row("LShare_rpm5, real: requests served", ours.num_served, theirs.num_served, None)
    ]


def _preset_alone_rows(recorded: dict[str, list[Served]], prices: TwoPasses) -> list[Row]:
    """Tell what the preset gives by itself, without the rules that have no option."""
    rows = []
    for name, policy in (("FCFS__real", "fcfs"), ("VTC__real", "vtc")):
        ours = figures(simulate(recorded[name], prices, policy=policy, has_router=False))
        theirs = figures(recorded[name]).ttft_mean_s
        title = f"{_title(name)}: mean TTFT, preset alone"
        rows.append(_error_row(title, ours.ttft_mean_s, theirs, None))
    return rows


def _error_row(name: str, ours: float, theirs: float, promised: float | None) -> Row:
    error, note = ours / theirs - 1, f"{ours:.4g}, recorded {theirs:.4g}"
    if promised is None:
        return Row(name, None, 100 * error, "%", None, note)
    return within(name, error, promised, note)


def _title(name: str) -> str:
    policy, suite = name.split("__")
    return f"{policy}, {suite}"


def _served(response: dict[str, Any]) -> Served:
    ttft, e2e = response["first_token_latency"], response["request_latency"]
    return Served(
        tenant=response["adapter_dir"],
        num_prompt_tokens=response["prompt_len"],
        num_output_tokens=response["output_len"],
        arrival_s=response["req_time"],
        ttft_s=ttft if ttft >= 0 else None,
        e2e_s=e2e if e2e >= 0 else None,
    )


def _config(policy: str, tenants: set[str], requests_per_minute: int) -> SchedulerConfig:
    table = {
        "preset": "lightllm",
        "policy": policy,
        "max_num_seqs": MAX_NUM_SEQS,
        # Ours counts the decodes of the step as well, which are one token each.
        "max_num_batched_tokens": BATCH_TOKENS + MAX_NUM_SEQS,
        "num_blocks": POOL_TOKENS,
    }
    limit = TenantConfig(max_requests_per_minute=requests_per_minute)
    config, _ = read_engine(table, dict.fromkeys(sorted(tenants), limit), _no_costs)
    return config


def _no_costs(block_size: int) -> Any:
    raise AssertionError(f"nobody swaps blocks of {block_size}")


def _arrival_ns(one: Served) -> int:
    return round(one.arrival_s * NS_PER_S)


def _engine_request(request_id: str, one: Served) -> EngineRequest:
    pieces = (range(one.num_prompt_tokens), range(one.num_output_tokens))
    return EngineRequest(
        request_id,
        SimulatedText(pieces, one.num_output_tokens),
        one.num_prompt_tokens,
        SamplingParams(max_tokens=one.num_output_tokens, ignore_eos=True),
        tenant=one.tenant,
    )


def _with_times(one: Served, first_ns: int | None, last_ns: int | None) -> Served:
    if first_ns is None or last_ns is None:
        return replace(one, ttft_s=None, e2e_s=None)
    return replace(
        one,
        ttft_s=first_ns / NS_PER_S - one.arrival_s,
        e2e_s=last_ns / NS_PER_S - one.arrival_s,
    )
