"""Every figure of /metrics is true; the status line speaks only when something ran."""

import asyncio
from dataclasses import replace

import httpx
from prometheus_client.parser import text_string_to_metric_families
from server.fakes import async_test, eventually, in_process, make_harness, reply_to

from everbatch.base.units import NS_PER_S
from everbatch.engine.metrics import EngineStats
from everbatch.server.metrics import Histogram, ServerMetrics
from everbatch.server.status_line import StatusLine

COMPLETIONS = "/v1/completions"


async def _samples(client: httpx.AsyncClient) -> dict[str, float]:
    """Samples by name, with all labels but the model's."""
    text = (await client.get("/metrics")).text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels["model_name"] == "toy"
            labels = [value for name, value in sample.labels.items() if name != "model_name"]
            found["/".join([sample.name.removeprefix("everbatch:"), *labels])] = sample.value
    return found


@async_test
async def test_counters_tell_what_was_done() -> None:
    harness = make_harness()
    async with in_process(harness) as client:
        await client.post(COMPLETIONS, json={"prompt": "abc"})
        await client.post(COMPLETIONS, json={"prompt": "abcde", "max_tokens": 4})
        await client.post(COMPLETIONS, json={"prompt": "x" * 600})
        samples = await _samples(client)

    num_outputs = len(reply_to(b"abc").encode()) + 1
    wanted = {
        "prompt_tokens_total": 8,
        "generation_tokens_total": num_outputs + 4,
        "request_success_total/stop": 1,
        "request_success_total/length": 1,
        "request_rejected_total/context_limit": 1,
        "num_preemptions_total": 0,
        "num_requests_running": 0,
        "num_requests_waiting": 0,
        "kv_cache_usage_perc": 0,
        "time_to_first_token_seconds_count": 2,
        "inter_token_latency_seconds_count": num_outputs - 1 + 3,
        "e2e_request_latency_seconds_count": 2,
        "request_queue_time_seconds_count": 2,
        "request_prompt_tokens_sum": 8,
        "request_generation_tokens_sum": num_outputs + 4,
        # A prompt's pass and each decode's.
        "iteration_tokens_total_count": num_outputs + 4,
        "iteration_tokens_total_sum": 8 + num_outputs - 1 + 3,
    }
    assert wanted == {name: samples[name] for name in wanted}


@async_test
async def test_gauges_tell_who_runs_and_who_waits() -> None:
    harness = make_harness(max_num_seqs=2)
    async with in_process(harness) as client:
        harness.executor.before_pass = lambda number: harness.gate.shut() if number == 1 else None
        body = {"prompt": ["a" * 16, "b" * 16, "c" * 16], "max_tokens": 3, "ignore_eos": True}
        task = asyncio.create_task(client.post(COMPLETIONS, json=body))
        await harness.gate.reached()
        await eventually(lambda: harness.engine.stats.num_running == 2)
        samples = await _samples(client)
        harness.gate.open()
        await task

    assert (samples["num_requests_running"], samples["num_requests_waiting"]) == (2, 1)
    # Two blocks of 64 hold the prompts.
    assert samples["kv_cache_usage_perc"] == 2 / 64


@async_test
async def test_two_servers_in_one_process_count_apart() -> None:
    first, second = make_harness(), make_harness()
    async with in_process(first) as busy, in_process(second) as idle:
        await busy.post(COMPLETIONS, json={"prompt": "abc"})
        samples = await _samples(idle)

    assert samples["prompt_tokens_total"] == 0


@async_test
async def test_version_and_health() -> None:
    async with in_process(make_harness()) as client:
        version, health = await client.get("/version"), await client.get("/health")
        document = await client.get("/openapi.json")

    assert version.json() == {"version": "0.0-test"}
    assert health.status_code == 200
    paths = document.json()["paths"]
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/health"} <= set(paths)


def test_histogram_counts_a_value_at_its_bound_below_it() -> None:
    histogram = Histogram("h", "text", (1.0, 2.0))
    for value in (1.0, 1.5, 2.0, 7.0):
        histogram.observe(value)

    samples = {
        (sample.name.removeprefix("everbatch:h"), sample.labels.get("le")): sample.value
        for sample in histogram.family("m").samples
    }
    assert samples[("_bucket", "1.0")] == 1
    assert samples[("_bucket", "2.0")] == 3
    assert samples[("_bucket", "+Inf")] == 4
    assert samples[("_count", None)] == 4
    assert samples[("_sum", None)] == 11.5


def test_exposition_is_understood_before_anything_ran() -> None:
    text = ServerMetrics("m", EngineStats(num_blocks=4)).exposition().decode()

    names = {family.name for family in text_string_to_metric_families(text)}
    assert "everbatch:time_to_first_token_seconds" in names


def test_status_line_tells_rates_since_the_last_one() -> None:
    start = EngineStats(num_blocks=10, num_free_blocks=10)
    line = StatusLine(start, now_ns=0)
    busy = replace(
        start,
        num_running=3,
        num_waiting=2,
        num_free_blocks=5,
        prompt_tokens=100,
        generation_tokens=50,
        num_preemptions=1,
    )

    assert line.due(busy, 10 * NS_PER_S) == (
        "running 3, waiting 2, KV 50.0%, prompt 10.0 tokens/s, output 5.0 tokens/s, preemptions 1"
    )
    idle = replace(busy, num_running=0, num_waiting=0)
    assert line.due(idle, 20 * NS_PER_S) is None


@async_test
async def test_status_line_is_printed_every_interval_while_something_runs() -> None:
    harness = make_harness(settings={"status_interval_s": 0.001})
    async with in_process(harness) as client:
        harness.executor.before_pass = lambda number: harness.gate.shut() if number == 1 else None
        task = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "a"}))
        await eventually(lambda: len(harness.lines) >= 2)
        harness.gate.open()
        await task

    assert harness.lines[0].startswith("running 1, waiting 0, KV ")
