"""Steps by kind, tokens computed again, blocks by state, phases of requests, and their names."""

import asyncio
import re

import httpx
import pytest
from builders import client as request
from builders import run_world
from prometheus_client.parser import text_string_to_metric_families
from server.fakes import async_test, eventually, in_process, make_harness

from everbatch.base.events import Finished, Preempted, QuietSteps, StepRan
from everbatch.base.units import NS_PER_S
from everbatch.server.step_metrics import StepMetrics

COMPLETIONS = "/v1/completions"


def samples_of(text: str, prefix: str = "everbatch:") -> dict[str, float]:
    """Samples by name, with all labels but the model's."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [value for name, value in sample.labels.items() if name != "model_name"]
            found["/".join([sample.name.removeprefix(prefix), *labels])] = sample.value
    return found


def step(
    number: int, *chunks: tuple[str, int, int], decodes: int = 0, seconds: float = 1.0
) -> StepRan:
    tokens = decodes + sum(count for _, _, count in chunks)
    end_ns = int((number + seconds) * NS_PER_S)
    start_ns = number * NS_PER_S
    return StepRan(end_ns, number, start_ns, tokens, 0, decodes, chunks, (), (), (), 0, 0)


def observed(steps: StepMetrics, name: str) -> dict[str, float]:
    """Count and sum of a histogram of steps, by kind."""
    histogram = {"duration": steps.duration, "tokens": steps.tokens}[name]
    return {
        f"{sample.name.rpartition('_')[2]}/{sample.labels['kind']}": sample.value
        for sample in histogram.family("p:", "m").samples
        if not sample.name.endswith("_bucket")
    }


def test_steps_are_told_apart_by_what_they_computed() -> None:
    steps = StepMetrics()
    steps.fold(
        [
            step(1, ("a", 0, 64), seconds=0.5),
            step(2, ("b", 0, 30), decodes=1, seconds=0.25),
            step(3, decodes=2, seconds=0.125),
            QuietSteps(t=10 * NS_PER_S, step=4, start=8 * NS_PER_S, count=4, decodes=2),
        ]
    )

    assert observed(steps, "duration") == {
        **{"count/prefill": 1, "sum/prefill": 0.5, "count/mixed": 1, "sum/mixed": 0.25},
        **{"count/decode": 5, "sum/decode": 2.125},
    }
    assert observed(steps, "tokens") == {
        **{"count/prefill": 1, "sum/prefill": 64, "count/mixed": 1, "sum/mixed": 31},
        **{"count/decode": 5, "sum/decode": 10},
    }
    assert steps.scheduled_tokens == 105


def test_tokens_below_what_a_victim_had_computed_count_as_computed_again() -> None:
    steps = StepMetrics()
    lost = Preempted(t=0, step=1, id="a", slot=0, computed_tokens=20, blocks=2)
    steps.fold([step(1, ("a", 0, 20)), lost, step(2, ("a", 0, 15)), step(3, ("a", 15, 10))])

    # 15 and 5 of 10 again.
    assert (steps.recomputed_tokens, steps.scheduled_tokens) == (20, 45)
    assert steps.recomputed_token_ratio == 20 / 45
    ended = Finished(
        t=0,
        step=3,
        id="a",
        reason="stop",
        output_tokens=1,
        cached_tokens=0,
        recomputed_tokens=20,
        preemptions=1,
    )
    # Another request of that name has computed nothing yet.
    steps.fold([ended, step(4, ("a", 0, 20))])
    assert steps.recomputed_tokens == 20


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("extent", ["whole", "tail"])
def test_tokens_computed_again_are_those_that_requests_tell_at_their_end(
    mode: str, extent: str
) -> None:
    clients = [request(f"r{n}", prompt_tokens=9, output_tokens=12, n=1 + n % 2) for n in range(8)]
    options = {"num_blocks": 14, "admission": "now", "max_num_seqs": 6}
    world = run_world(
        clients,
        preemption_mode=mode,
        preemption_extent=extent,
        num_host_blocks=8 if mode == "swap" else 0,
        **options,
    )
    steps = StepMetrics()
    steps.fold(world.events)
    ended = [event for event in world.events if isinstance(event, Finished)]

    assert any(isinstance(event, Preempted) for event in world.events)
    assert steps.recomputed_tokens == sum(event.recomputed_tokens for event in ended)


async def ask(client: httpx.AsyncClient, **body: object) -> None:
    answer = await client.post(COMPLETIONS, json={"prompt": "abc", **body})
    assert answer.status_code == 200


@async_test
async def test_phases_and_parameters_of_requests_are_observed_at_their_end() -> None:
    async with in_process(make_harness()) as client:
        await ask(client, max_tokens=5)
        await ask(client, max_tokens=4, n=2)
        await ask(client)
        samples = samples_of((await client.get("/metrics")).text)

    for name in (
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_inference_time_seconds",
        "request_time_per_output_token_seconds",
        "request_num_preemptions",
    ):
        assert samples[f"{name}_count"] == 3, name
    phases = ("prefill", "decode", "inference")
    prefill, decode, inference = (samples[f"request_{name}_time_seconds_sum"] for name in phases)
    assert prefill > 0 and decode > 0
    assert inference == pytest.approx(prefill + decode)
    assert (samples["request_params_n_count"], samples["request_params_n_sum"]) == (3, 4)
    # The third asked for no limit.
    assert samples["request_params_max_tokens_count"] == 2
    assert samples["request_params_max_tokens_sum"] == 9
    assert samples["step_tokens_count/prefill"] == 3
    assert samples["computed_tokens_total"] == samples["iteration_tokens_total_sum"]
    assert samples["forward_step_duration_seconds_count/decode"] > 3


@async_test
async def test_blocks_are_told_by_state() -> None:
    harness = make_harness(enable_prefix_caching=True)
    async with in_process(harness) as client:
        harness.executor.before_pass = lambda number: harness.gate.shut() if number == 2 else None
        body = {"prompt": "x" * 40, "max_tokens": 4}
        runs = asyncio.create_task(client.post(COMPLETIONS, json=body))
        await harness.gate.reached()
        await eventually(lambda: harness.engine.stats.num_steps == 2)
        during = samples_of((await client.get("/metrics")).text)
        harness.gate.open()
        await runs
        after = samples_of((await client.get("/metrics")).text)

    states = ("used", "cached", "free")
    assert [during[f"kv_blocks/{state}"] for state in states] == [3, 0, 61]
    # The prompt's two full blocks can still be found.
    assert [after[f"kv_blocks/{state}"] for state in states] == [0, 2, 62]


@async_test
async def test_a_client_that_leaves_is_counted_apart_and_says_nothing_of_latencies() -> None:
    harness = make_harness()
    harness.executor.before_pass = lambda number: harness.gate.shut() if number == 3 else None
    async with in_process(harness) as client:
        runs = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "x"}))
        await harness.gate.reached()
        runs.cancel()
        await eventually(lambda: harness.engine.num_live == 0)
        harness.gate.open()
        await eventually(lambda: harness.engine.stats.num_finished == {"abort": 1})
        samples = samples_of((await client.get("/metrics")).text)

    assert samples["request_aborted_total/client"] == 1
    assert samples["time_to_first_token_seconds_count"] == 1
    for name in ("e2e_request_latency_seconds", "request_generation_tokens", "request_params_n"):
        assert samples[f"{name}_count"] == 0


@async_test
async def test_names_begin_as_they_are_told_to() -> None:
    async with in_process(make_harness(settings={"metrics_prefix": "vllm"})) as client:
        text = (await client.get("/metrics")).text

    names = re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)
    assert {name.partition(":")[0] for name in names} == {"vllm"}
    # Those that vLLM's own dashboards ask for.
    assert {"vllm:num_requests_running", "vllm:time_to_first_token_seconds"} <= set(names)
    assert samples_of(text, "vllm:")["kv_cache_usage_perc"] == 0
