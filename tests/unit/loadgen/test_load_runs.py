"""Runs against a server that answers as the test says: times, counts, and all ways to end."""

import asyncio
import json
import resource

import pytest
from fake_server import Asked, FakeClock, Reply, async_test, listening
from measuring import at_once, come_through, measured, plan, speaking

from everbatch.base.units import NS_PER_S
from everbatch.loadgen.figures import FigureOptions
from everbatch.loadgen.run import RunSettings
from everbatch.loadgen.session import allow_connections, measure


@async_test
async def test_times_of_one_request_are_exact():
    clock = FakeClock()

    done = await measured(speaking(clock, 100, 140, 200), clock=clock)

    assert done.summary["completed"] == 1
    assert done.summary["mean_ttft_ms"] == 100
    assert done.summary["mean_tpot_ms"] == 50
    assert (done.summary["p50_itl_ms"], done.summary["p90_itl_ms"]) == (50, pytest.approx(58))
    assert done.summary["mean_e2el_ms"] == 200
    assert (done.summary["total_input_tokens"], done.summary["total_output_tokens"]) == (30, 3)


@async_test
async def test_token_counts_are_the_server_s_where_events_hold_several():
    clock = FakeClock()

    done = await measured(speaking(clock, 100, 300, num_tokens=5), clock=clock)

    assert done.summary["mean_tpot_ms"] == 50
    assert done.summary["total_output_tokens"] == 5
    assert done.summary["uncounted"] == 0


@async_test
async def test_latency_counts_from_when_a_request_was_due():
    """One at a time, and the first takes 5 s: the second, due within them, has waited too."""
    clock = FakeClock()
    settings = RunSettings(max_concurrency=1)

    done = await measured(speaking(clock, 5_000), 2, rate=2.0, settings=settings, clock=clock)

    first, second = done.records
    assert (first.held_ns, first.late_ns) == (0, 0)
    assert second.due_ns > 0
    assert second.held_ns == 5 * NS_PER_S - second.due_ns
    assert second.late_ns == 0
    assert done.summary["generator"]["num_held"] == 1
    waited_ms = (5 * NS_PER_S - second.due_ns) / 1e6
    assert done.summary["mean_ttft_ms"] == pytest.approx((5_000 + waited_ms) / 2)


@async_test
async def test_latency_may_count_from_when_a_request_was_sent():
    clock = FakeClock()
    settings, figures = RunSettings(max_concurrency=1), FigureOptions(count_from="sent")

    done = await measured(
        speaking(clock, 5_000), 2, rate=2.0, settings=settings, figures=figures, clock=clock
    )

    assert done.summary["p50_ttft_ms"] == 2_500


@async_test
async def test_closed_loop_has_no_due_times_but_those_of_free_clients():
    clock = FakeClock()
    settings = RunSettings(max_concurrency=1, is_closed=True)

    done = await measured(speaking(clock, 5_000), 2, settings=settings, clock=clock)

    assert [record.due_ns for record in done.records] == [0, 5 * NS_PER_S]
    assert done.summary["generator"]["num_held"] == 0
    assert done.summary["max_concurrent_requests"] == 1


@async_test
async def test_no_more_run_at_once_than_may():
    num_running, most = 0, 0

    async def script(asked: Asked, reply: Reply) -> None:
        nonlocal num_running, most
        num_running += 1
        most = max(most, num_running)
        await come_through()
        num_running -= 1
        await at_once(asked, reply)

    settings = RunSettings(max_concurrency=3, is_closed=True)
    done = await measured(script, 20, settings=settings)

    assert (done.summary["completed"], most) == (20, 3)


@async_test
async def test_connections_are_used_again():
    async with listening(at_once) as fake:
        settings = RunSettings(max_concurrency=1, is_closed=True)
        done = await measure(plan(fake.url, 5, settings=settings), clock=FakeClock())

    assert done.summary["completed"] == 5
    assert fake.num_connections == 1


@async_test
async def test_connection_that_the_server_has_closed_is_replaced():
    """The first answer on it is whole, and then it is closed without a word."""

    async def script(asked: Asked, reply: Reply) -> None:
        await at_once(asked, reply)
        reply.cut()

    async with listening(script) as fake:
        settings = RunSettings(max_concurrency=1, is_closed=True)
        done = await measure(plan(fake.url, 3, settings=settings), clock=FakeClock())

    assert done.summary["completed"] == 3
    assert len(fake.streams) == 3


@async_test
async def test_prompts_have_the_tokens_that_were_asked_for():
    """The server counts 10 for its template and 2 a word: 30 tokens are 10 words."""
    async with listening(at_once) as fake:
        await measure(plan(fake.url, 3), clock=FakeClock())

    assert {len(asked.body["prompt"].split()) for asked in fake.streams} == {10}
    assert len({asked.body["prompt"] for asked in fake.streams}) == 3


@async_test
async def test_bodies_are_what_the_api_wants():
    extra = {"top_p": 0.5, "temperature": None}
    options = {"ignore_eos": True, "extra_body": extra, "api_key": "secret"}
    async with listening(at_once) as fake:
        await measure(plan(fake.url, endpoint="chat", **options), clock=FakeClock())
    [asked] = fake.streams

    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == "Bearer secret"
    [message] = asked.body.pop("messages")
    assert message["role"] == "user"
    assert asked.body == {
        "model": "toy",
        "max_tokens": 3,
        "ignore_eos": True,
        "top_p": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@async_test
async def test_clients_who_cancel_are_told_apart_and_the_server_sees_them_leave():
    async def script(asked: Asked, reply: Reply) -> None:
        await reply.begin()
        for _ in range(100_000):
            await reply.text("x")
            await asyncio.sleep(0)

    async with listening(script) as fake:
        done = await measure(plan(fake.url, 4, output_len=100, cancel_share=1.0), clock=FakeClock())
        while fake.num_left < 4:
            await asyncio.sleep(0)

    assert (done.summary["cancelled"], done.summary["failed"]) == (4, 0)
    assert all(1 <= len(record.token_times) < 100 for record in done.records)
    assert done.summary["cancelled_output_tokens"] > 0
    assert done.summary["total_output_tokens"] == 0


@async_test
async def test_share_of_clients_who_cancel_is_drawn_and_stays_the_same():
    runs = [await measured(at_once, 40, output_len=8, cancel_share=0.5) for _ in range(2)]

    ends = [[record.outcome for record in run.records] for run in runs]
    assert ends[0] == ends[1]
    assert 10 <= runs[0].summary["cancelled"] <= 30
    assert runs[0].summary["completed"] == 40 - runs[0].summary["cancelled"]


@async_test
async def test_server_that_counts_nothing_is_measured_by_words_and_events():
    async def first(asked: Asked, reply: Reply) -> None:
        await reply.whole(200, {"choices": [{"text": "x"}], "data": [{"id": "toy"}]})

    async def script(asked: Asked, reply: Reply) -> None:
        await reply.begin()
        for reason in (None, None, "stop"):
            await reply.text("x", reason)
        await reply.end()

    async with listening(script, first=first) as fake:
        done = await measure(plan(fake.url), clock=FakeClock())

    assert len(fake.streams[0].body["prompt"].split()) == 30
    assert done.summary["total_output_tokens"] == 3
    assert done.summary["uncounted"] == 1
    assert "a word is taken as one token" in done.notes[0]
    assert "did not count the tokens of 1 answers" in done.notes[1]


@async_test
async def test_events_may_come_in_any_pieces():
    event = json.dumps({"choices": [{"text": "ü", "finish_reason": "stop"}]}, ensure_ascii=False)

    async def script(asked: Asked, reply: Reply) -> None:
        await reply.begin()
        data = f": comment\r\n\r\nevent: x\r\ndata:{event}\r\n\r\ndata: [DONE]\r\n\r\n".encode()
        for index in range(len(data)):
            await reply.chunk(data[index : index + 1])
            await come_through()
        await reply.raw(b"0\r\n\r\n")

    done = await measured(script)

    assert (done.summary["completed"], done.summary["total_output_tokens"]) == (1, 1)


@async_test
async def test_duration_ends_a_closed_loop():
    clock = FakeClock()
    settings = RunSettings(1, is_closed=True, duration_ns=4 * NS_PER_S)

    async def script(asked: Asked, reply: Reply) -> None:
        clock.to_ms(clock.now_ns() / 1e6 + 1_000)
        await at_once(asked, reply)

    done = await measured(script, None, duration_ns=4 * NS_PER_S, settings=settings, clock=clock)

    assert done.summary["completed"] == 4
    assert done.summary["duration"] == 4


@async_test
async def test_duration_leaves_nobody_out_who_was_due():
    """Ten a second for a second, one at a time, and each takes a second."""
    clock = FakeClock()

    async def script(asked: Asked, reply: Reply) -> None:
        clock.to_ms(clock.now_ns() / 1e6 + 1_000)
        await at_once(asked, reply)

    settings = RunSettings(max_concurrency=1, duration_ns=NS_PER_S)
    wanted = {"rate": 10.0, "duration_ns": NS_PER_S, "settings": settings}
    done = await measured(script, None, clock=clock, **wanted)

    assert done.summary["completed"] > 3
    assert done.records[-1].due_ns < NS_PER_S
    assert done.records[-1].sent_ns > 3 * NS_PER_S


def test_as_many_connections_are_allowed_as_may_be():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
        allow_connections()

        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
