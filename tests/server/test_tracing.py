"""Spans by OpenTelemetry, as a collector gets them: over HTTP, read with OTLP's own messages."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from otlp_collector import attributes_of, collecting
from server.fakes import (
    SpeakingExecutor,
    StepClock,
    async_test,
    eventually,
    in_process,
    make_harness,
    reply_to,
)

from everbatch.assemble import otlp
from everbatch.assemble.otlp import OtlpSpans
from everbatch.base.errors import ConfigError, ExecutorError
from everbatch.engine.sampling_params import SamplingParams
from everbatch.server.spans import MAX_SPAN_EVENTS, RequestTrace, Span, SpanEvent, trace_headers

COMPLETIONS = "/v1/completions"
TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ERROR = 2


class DatedClock(StepClock):
    """A clock of steps that knows the year."""

    def unix_ns(self) -> int:
        return 1_700_000_000 * 10**9


@contextmanager
def sending(url: str) -> Iterator[OtlpSpans]:
    """Spans to a collector; all have been sent at the end."""
    spans = OtlpSpans(url, "0.0-test", DatedClock())
    try:
        yield spans
    finally:
        spans.close()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL", raising=False)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")


def test_span_tells_a_request_s_life() -> None:
    @async_test
    async def run() -> None:
        with collecting() as (collector, url):
            with sending(url) as spans:
                harness = make_harness(spans=spans.write)
                async with in_process(harness) as client:
                    body = {"prompt": "abcd", "max_tokens": 5, "temperature": 0.5, "top_p": 0.9}
                    answer = await client.post(
                        COMPLETIONS,
                        json=body,
                        headers={
                            "traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01",
                            "tracestate": "vendor=value",
                            "X-Request-Id": "order-7",
                        },
                    )
            [span] = collector.spans

        told = attributes_of(span)
        assert (span.name, span.kind, span.status.code) == ("llm_request", 2, 0)
        assert span.trace_id.hex() == TRACE_ID
        assert span.parent_span_id.hex() == PARENT_ID
        assert span.trace_state == "vendor=value"
        assert told["gen_ai.request.id"] == answer.json()["id"]
        assert "order-7" in told["gen_ai.request.id"]
        wanted = {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.request.model": "toy",
            "gen_ai.request.max_tokens": 5,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.top_p": 0.9,
            "gen_ai.request.n": 1,
            "gen_ai.usage.prompt_tokens": 4,
            "gen_ai.usage.completion_tokens": 5,
            "gen_ai.usage.input_tokens": 4,
            "gen_ai.usage.output_tokens": 5,
            "gen_ai.response.finish_reasons": ["length"],
            "everbatch.num_preemptions": 0,
        }
        assert {name: told[name] for name in wanted} == wanted
        assert [event.name for event in span.events] == ["admitted", "first_token"]
        latencies = {name: told[f"gen_ai.latency.{name}"] for name in _LATENCIES}
        assert all(value >= 0 for value in latencies.values())
        assert latencies["e2e"] > latencies["time_to_first_token"] > latencies["time_in_queue"] > 0
        length_s = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        assert length_s == pytest.approx(latencies["e2e"])
        year_2023 = 1_700_000_000
        assert abs(span.start_time_unix_nano / 1e9 - year_2023) < 60
        first = next(event for event in span.events if event.name == "first_token")
        since_start_s = (first.time_unix_nano - span.start_time_unix_nano) / 1e9
        assert since_start_s == pytest.approx(latencies["time_to_first_token"])
        assert collector.paths == ["/v1/traces"]
        assert collector.resources[0]["service.name"] == "everbatch"

    run()


_LATENCIES = (
    "e2e",
    "time_in_queue",
    "time_to_first_token",
    "time_in_model_prefill",
    "time_in_model_decode",
    "time_in_model_inference",
)


def _spans_of(bodies: list[dict[str, Any]], path: str = COMPLETIONS, **engine: Any) -> list[Span]:
    """The spans of requests that are sent at once, in the order in which they end."""
    spans: list[Span] = []

    @async_test
    async def run() -> None:
        async with in_process(make_harness(spans=spans.append, **engine)) as client:
            await asyncio.gather(*(client.post(path, json=body) for body in bodies))

    run()
    return spans


def test_every_prompt_has_a_span_and_samples_share_one() -> None:
    spans = _spans_of([{"prompt": ["ab", "cde"], "n": 2, "max_tokens": 3, "ignore_eos": True}])

    assert [span.attributes["gen_ai.usage.prompt_tokens"] for span in spans] == [2, 3]
    assert [span.attributes["gen_ai.usage.completion_tokens"] for span in spans] == [6, 6]
    assert [span.attributes["gen_ai.usage.num_sequences"] for span in spans] == [2, 2]
    ids = [str(span.attributes["gen_ai.request.id"])[-2:] for span in spans]
    assert ids == ["-0", "-1"]


def test_preempted_request_tells_when_it_left_and_when_it_came_back() -> None:
    body = {"prompt": "a" * 30, "max_tokens": 60, "ignore_eos": True}
    spans = _spans_of([body, {**body, "prompt": "b" * 30}], num_blocks=8, max_model_len=128)

    [span] = [one for one in spans if one.attributes["everbatch.num_preemptions"]]
    names = [event.name for event in span.events]
    assert names.count("preempted") == names.count("resumed") > 0
    assert names.count("preempted") == span.attributes["everbatch.num_preemptions"]
    preempted = next(event for event in span.events if event.name == "preempted")
    assert preempted.attributes["way"] == "recompute"
    assert [event.t_ns for event in span.events] == sorted(event.t_ns for event in span.events)


def test_cached_prompt_is_told() -> None:
    spans: list[Span] = []

    @async_test
    async def run() -> None:
        harness = make_harness(spans=spans.append, enable_prefix_caching=True)
        async with in_process(harness) as client:
            for _ in range(2):
                await client.post(COMPLETIONS, json={"prompt": "x" * 40, "max_tokens": 2})

    run()
    cached = [span.attributes["gen_ai.usage.cache_read.input_tokens"] for span in spans]
    assert cached == [0, 32]


def test_request_that_the_engine_refuses_has_a_span_with_the_reason() -> None:
    [span] = _spans_of([{"prompt": "x" * 600}])

    assert span.error == span.attributes["error.type"] == "context_limit"
    assert "gen_ai.response.finish_reasons" not in span.attributes
    assert span.events == ()


def test_request_that_fails_has_a_span_with_an_error() -> None:
    def fail(_number: int) -> None:
        raise ExecutorError("the pass failed")

    executor = SpeakingExecutor(before_pass=fail)
    [span] = _spans_of([{"prompt": "ab"}], executor=executor)

    assert span.error == "error"


def test_client_that_leaves_is_no_error() -> None:
    spans: list[Span] = []

    @async_test
    async def run() -> None:
        harness = make_harness(spans=spans.append)
        harness.gate.shut()
        async with in_process(harness) as client:
            task = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "ab"}))
            await harness.gate.reached()
            task.cancel()
            await asyncio.wait([task])
            harness.gate.open()
            await eventually(lambda: len(spans) == 1)

    run()
    assert spans[0].error is None
    assert spans[0].attributes["everbatch.abort_cause"] == "client"
    assert spans[0].attributes["gen_ai.response.finish_reasons"] == ("abort",)


def test_collector_that_does_not_answer_holds_nobody(monkeypatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    monkeypatch.setattr(otlp, "CLOSE_S", 0.1)

    @async_test
    async def run() -> None:
        with collecting() as (collector, url):
            collector.gate.clear()
            spans = OtlpSpans(url, "0.0-test", DatedClock())
            async with in_process(make_harness(spans=spans.write)) as client:
                for _ in range(40):
                    answer = await client.post(COMPLETIONS, json={"prompt": "ab"})
                    assert answer.json()["choices"][0]["text"] == reply_to(b"ab")
            assert collector.spans == []
            # Does not wait for it either.
            spans.close()

    run()


def test_caller_s_decision_not_to_sample_holds() -> None:
    with collecting() as (collector, url), sending(url) as spans:
        headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-00"}
        spans.write(Span(headers, 1, 2, {}, (), None))

    assert collector.spans == []


@pytest.mark.parametrize("header", ["", "00-zz", f"00-{TRACE_ID}-{'0' * 16}-01", "x" * 2_000])
def test_broken_traceparent_begins_a_new_trace(header) -> None:
    with collecting() as (collector, url):
        with sending(url) as spans:
            spans.write(Span(trace_headers({"traceparent": header}), 1, 2, {}, (), "hang"))
        [span] = collector.spans

    assert span.trace_id.hex() != TRACE_ID
    assert span.parent_span_id == b""
    assert (span.status.code, span.status.message) == (ERROR, "hang")


def test_service_s_name_is_the_environment_s(monkeypatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chat-eu")
    with collecting() as (collector, url), sending(f"{url}/v1/elsewhere") as spans:
        spans.write(Span({}, 1, 2, {}, (), None))

    assert collector.paths == ["/v1/elsewhere"]
    assert collector.resources[0]["service.name"] == "chat-eu"
    assert collector.resources[0]["service.version"] == "0.0-test"


@pytest.mark.parametrize(
    "endpoint", ["", "localhost:4317", "grpc://localhost:4317", "http://", "http://a:b"]
)
def test_address_that_is_none_is_refused(endpoint) -> None:
    with pytest.raises(ConfigError, match="--otlp-traces-endpoint must be the http"):
        OtlpSpans(endpoint, "0.0-test")


def test_other_protocol_is_refused(monkeypatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")

    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is 'grpc'"):
        OtlpSpans("http://localhost:4318", "0.0-test")


def test_missing_package_is_told_with_the_way_out(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)

    with pytest.raises(ConfigError, match=r"pip install 'everbatch\[otel\]'"):
        OtlpSpans("http://localhost:4318", "0.0-test")


def test_events_are_bounded() -> None:
    trace = RequestTrace({}, SamplingParams())
    for t_ns in range(MAX_SPAN_EVENTS + 10):
        trace.note(SpanEvent("preempted", t_ns))

    assert len(trace.events) == MAX_SPAN_EVENTS
