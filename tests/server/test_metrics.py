"""Every figure of /metrics is true; the status line speaks only when something ran."""

import asyncio
from dataclasses import replace

import httpx
from prometheus_client.parser import text_string_to_metric_families
from server.fakes import async_test, eventually, in_process, make_harness, reply_to

from everbatch.base.events import (
    Admitted,
    Arrived,
    Decoding,
    Deferred,
    Event,
    Finished,
    Preempted,
    SampleFinished,
)
from everbatch.base.units import NS_PER_S
from everbatch.engine.metrics import EngineStats
from everbatch.server.histograms import Histogram
from everbatch.server.metrics import ServerMetrics
from everbatch.server.phases import Phase, Phases
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
async def test_cached_prompt_tokens_and_the_longest_sample_are_told() -> None:
    harness = make_harness(enable_prefix_caching=True)
    async with in_process(harness) as client:
        for _ in range(2):
            await client.post(COMPLETIONS, json={"prompt": "x" * 40, "max_tokens": 2})
        body = {"prompt": "y", "n": 2, "max_tokens": 40, "stop": "#1"}
        answer = await client.post(COMPLETIONS, json=body)
        samples = await _samples(client)

    wanted = {
        "prompt_tokens_total": 81,
        "prompt_tokens_cached_total": 32,
        "prompt_tokens_by_source_total/local_compute": 49,
        "prompt_tokens_by_source_total/local_cache_hit": 32,
        "request_prefill_kv_computed_tokens_sum": 40 + 8 + 1,
        # The sample that says "#1" first is stopped at once; the other has all its tokens.
        "request_max_num_generation_tokens_sum": 2 + 2 + 40,
        "request_generation_tokens_sum": 2 + 2 + answer.json()["usage"]["completion_tokens"],
    }
    assert wanted == {name: samples[name] for name in wanted}
    assert answer.json()["usage"]["completion_tokens"] < 2 * 40
    [sizes] = [name for name in samples if name.startswith("cache_config_info/")]
    assert sorted(sizes.split("/")[1:]) == sorted(["16", "64", "0", "True"])


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
async def test_waiting_requests_are_told_by_what_they_lack() -> None:
    harness = make_harness(max_num_seqs=2)
    async with in_process(harness) as client:
        harness.executor.before_pass = lambda number: harness.gate.shut() if number == 2 else None
        body = {"prompt": ["a", "b", "c", "d"], "max_tokens": 3, "ignore_eos": True}
        task = asyncio.create_task(client.post(COMPLETIONS, json=body))
        await harness.gate.reached()
        await eventually(lambda: harness.engine.stats.num_running == 2)
        during = await _samples(client)
        harness.gate.open()
        await task
        after = await _samples(client)

    name = "num_requests_waiting_by_reason"
    # The head lacks a slot, the other stands behind it.
    assert (during[f"{name}/sequence_budget"], during[f"{name}/behind_head"]) == (1, 1)
    assert during["num_requests_waiting"] == 2
    assert sum(value for key, value in after.items() if key.startswith(name)) == 0


def test_reasons_follow_requests_through_their_lives() -> None:
    def deferred(request_id: str, reason: str) -> Deferred:
        return Deferred(t=0, step=1, id=request_id, reason=reason, needed=1, available=0)

    def admitted(request_id: str) -> Admitted:
        return Admitted(
            t=0,
            step=1,
            id=request_id,
            slot=0,
            prompt_tokens=1,
            cached_tokens=0,
            computed_tokens=0,
            resumed=False,
        )

    def arrived(request_id: str) -> Arrived:
        return Arrived(
            t=0, id=request_id, prompt_tokens=1, max_tokens=1, priority=0, tenant="", samples=2
        )

    def waiting() -> dict[str, int]:
        told = phases.waiting_by_reason()
        return {reason: count for reason, count in told.items() if count}

    phases = Phases()
    fold(phases, [arrived("a"), deferred("a", "behind_head"), deferred("a", "kv_budget")])
    assert waiting() == {"kv_budget": 1}
    # Two samples take their slots; one that holds a slot does not wait, though it is deferred.
    fold(phases, [admitted("a/0"), admitted("a/1"), deferred("a/0", "prefill_share")])
    assert waiting() == {}
    assert phases.counts() == counted_phases(prefill=2)
    fold(phases, [Decoding(0, 1, "a/0", True), Decoding(0, 1, "a/1", True)])
    assert phases.counts() == counted_phases(decode=2)
    fold(phases, [preempted("a/1", "swap", slot=1), deferred("a/1", "cooldown")])
    assert waiting() == {"cooldown": 1}
    assert phases.counts() == counted_phases(preempted=1, decode=1)
    fold(phases, [ended("a/1", "abort")])
    assert waiting() == {}
    assert phases.counts() == counted_phases(decode=1)


def test_samples_wait_on_where_the_one_that_stood_for_them_leaves() -> None:
    told = [
        Arrived(t=0, id="a", prompt_tokens=1, max_tokens=1, priority=0, tenant="", samples=3),
        Deferred(t=0, step=1, id="a", reason="kv_budget", needed=1, available=0),
        ended("a/0", "abort"),
    ]
    phases = Phases()
    fold(phases, told)

    assert phases.waiting_by_reason()["kv_budget"] == 1
    fold(phases, [ended("a/1", "abort"), ended("a/2", "abort"), finished("a")])
    assert phases.counts() == counted_phases()


def test_a_request_called_like_a_sample_counts_for_itself() -> None:
    phases = Phases()
    for id in ("a", "a/1"):
        told = Arrived(t=0, id=id, prompt_tokens=1, max_tokens=1, priority=0, tenant="", samples=1)
        fold(
            phases, [told, Deferred(t=0, step=1, id=id, reason="kv_budget", needed=1, available=0)]
        )
    fold(phases, [finished("a/1")])

    assert phases.waiting_by_reason()["kv_budget"] == 1


def fold(phases: Phases, events: list[Event]) -> None:
    for event in events:
        phases.take(event)


def counted_phases(**counts: int) -> dict[Phase, int]:
    return {phase: counts.get(phase.value, 0) for phase in Phase}


def finished(request_id: str) -> Finished:
    return Finished(0, 1, request_id, "abort", 0, 0, 0, 0)


def preempted(request_id: str, way: str, slot: int | None) -> Preempted:
    return Preempted(t=0, step=1, id=request_id, slot=slot, computed_tokens=4, blocks=1, way=way)


def ended(request_id: str, reason: str) -> SampleFinished:
    return SampleFinished(
        t=0,
        step=1,
        id=request_id,
        reason=reason,
        output_tokens=0,
        cached_tokens=0,
        recomputed_tokens=0,
        preemptions=0,
    )


def test_preemptions_are_counted_by_way_and_once() -> None:
    metrics = ServerMetrics("m", EngineStats())
    metrics.fold_events(
        [
            preempted("a", "swap", slot=0),
            preempted("b", "tail", slot=1),
            preempted("c", "tail", slot=2),
            # It waits already and loses what it had kept.
            preempted("b", "recompute", slot=None),
        ],
        now_ns=0,
    )

    text = metrics.exposition().decode()
    name = "everbatch:num_preemptions_by_way_total"
    assert f'{name}{{model_name="m",way="swap"}} 1.0' in text
    assert f'{name}{{model_name="m",way="tail"}} 2.0' in text
    assert 'way="recompute"' not in text


@async_test
async def test_samples_count_as_one_request() -> None:
    harness = make_harness()
    async with in_process(harness) as client:
        await client.post(COMPLETIONS, json={"prompt": "abc", "n": 3, "max_tokens": 4})
        samples = await _samples(client)

    wanted = {
        "prompt_tokens_total": 3,
        "generation_tokens_total": 12,
        "request_success_total/length": 1,
        "time_to_first_token_seconds_count": 1,
        "inter_token_latency_seconds_count": 9,
        "e2e_request_latency_seconds_count": 1,
        "request_queue_time_seconds_count": 1,
        "request_prompt_tokens_sum": 3,
        "request_generation_tokens_sum": 12,
    }
    assert wanted == {name: samples[name] for name in wanted}


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
        for sample in histogram.family("everbatch:", "m").samples
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
