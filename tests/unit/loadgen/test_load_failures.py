"""What a run makes of refusals, broken streams, servers that are away, and of Ctrl-C."""

import asyncio
import socket

import pytest
from fake_server import Asked, FakeClock, Reply, async_test, count_words, listening
from measuring import at_once, measured, plan, refusing

from everbatch.base.units import NS_PER_S
from everbatch.loadgen.contact import NoContact
from everbatch.loadgen.records import Outcome
from everbatch.loadgen.run import LoadRun, RunSettings
from everbatch.loadgen.session import measure


@async_test
async def test_refusals_are_failures_and_not_sent_again():
    async with listening(refusing(429, Retry_After="1")) as fake:
        done = await measure(plan(fake.url, 4), clock=FakeClock())

    assert (done.summary["failed"], done.summary["completed"]) == (4, 0)
    assert done.summary["errors"] == {"http 429": {"count": 4, "messages": ["no, 429"]}}
    assert len(fake.streams) == 4
    assert done.summary["mean_ttft_ms"] is None


@async_test
async def test_refused_request_is_sent_again_if_asked_and_its_wait_counts():
    clock = FakeClock()
    refuse = refusing(429, Retry_After="2")

    async def script(asked: Asked, reply: Reply) -> None:
        await (refuse if len(fake.streams) < 3 else at_once)(asked, reply)

    async with listening(script) as fake:
        settings = RunSettings(num_retries=2)
        done = await measure(plan(fake.url, settings=settings), clock=clock)

    assert done.summary["completed"] == 1
    assert done.summary["refusals"] == {"http 429": 2}
    assert done.summary["mean_ttft_ms"] == 4_000


@async_test
async def test_request_is_not_sent_again_for_what_will_not_change():
    async with listening(refusing(400)) as fake:
        done = await measure(plan(fake.url, settings=RunSettings(num_retries=5)))

    assert len(fake.streams) == 1
    assert done.summary["errors"]["http 400"]["count"] == 1


@async_test
async def test_retries_end():
    async with listening(refusing(503)) as fake:
        settings = RunSettings(num_retries=2)
        done = await measure(plan(fake.url, settings=settings), clock=FakeClock())

    assert len(fake.streams) == 3
    assert done.summary["refusals"] == {"http 503": 2}
    assert done.summary["errors"]["http 503"]["count"] == 1


@async_test
async def test_stream_that_is_cut_is_a_failure():
    async def script(asked: Asked, reply: Reply) -> None:
        await reply.begin()
        await reply.text("x")
        reply.cut()

    done = await measured(script)

    assert done.summary["errors"]["stream cut"]["count"] == 1
    assert done.records[0].num_output_tokens == 1


@async_test
async def test_answer_without_a_token_is_a_failure():
    async def script(asked: Asked, reply: Reply) -> None:
        await reply.begin()
        await reply.text("", "stop")
        await reply.end()

    done = await measured(script)

    assert list(done.summary["errors"]) == ["no tokens"]


@async_test
async def test_whole_answer_in_place_of_a_stream_is_a_failure():
    async def script(asked: Asked, reply: Reply) -> None:
        await reply.whole(200, {"choices": [{"text": "x"}]})

    done = await measured(script)

    assert list(done.summary["errors"]) == ["no stream"]


@async_test
async def test_error_in_a_stream_is_a_failure_with_its_message():
    async def script(asked: Asked, reply: Reply) -> None:
        await reply.begin()
        await reply.text("x")
        await reply.event({"error": {"message": "the engine failed"}})
        await reply.end()

    done = await measured(script)

    assert done.summary["errors"] == {
        "error event": {"count": 1, "messages": ["the engine failed"]}
    }


@async_test
async def test_answer_that_takes_too_long_is_given_up():
    async def script(asked: Asked, reply: Reply) -> None:
        await reply.begin()
        await asyncio.Event().wait()

    done = await measured(script, settings=RunSettings(timeout_ns=NS_PER_S))

    assert list(done.summary["errors"]) == ["timeout"]
    assert done.records[0].end_ns == NS_PER_S


@async_test
async def test_interrupted_run_keeps_its_figures():
    clock = FakeClock()

    async def script(asked: Asked, reply: Reply) -> None:
        if len(fake.streams) == 1:
            await at_once(asked, reply)
            return
        await reply.begin()
        running.cancel()
        await asyncio.Event().wait()

    async with listening(script) as fake:
        settings = RunSettings(max_concurrency=1, is_closed=True)
        running = asyncio.ensure_future(measure(plan(fake.url, 9, settings=settings), clock=clock))
        done = await running

    assert done.is_interrupted
    assert (done.summary["completed"], done.summary["unfinished"]) == (1, 1)
    assert done.summary["num_sent"] == 2
    assert done.records[1].outcome is Outcome.UNFINISHED
    assert done.notes[-1] == "interrupted: 2 requests sent, 1 unfinished"


@async_test
async def test_server_that_is_away_is_one_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"

    with pytest.raises(NoContact, match="no server answers at"):
        await measure(plan(url))


@async_test
async def test_wrong_model_is_one_error():
    async def first(asked: Asked, reply: Reply) -> None:
        if asked.body.get("model") == "other":
            await reply.whole(404, {"error": {"message": "there is no other"}})
        else:
            await count_words(asked, reply)

    async with listening(at_once, first=first) as fake:
        with pytest.raises(NoContact, match=r'404 to a first request for "other".*there is no'):
            await measure(plan(fake.url, model="other"))

    assert fake.streams == []


@async_test
async def test_server_that_goes_away_in_the_middle_leaves_figures():
    async def script(asked: Asked, reply: Reply) -> None:
        await at_once(asked, reply)
        reply.cut()
        fake.stop()

    async with listening(script) as fake:
        settings = RunSettings(max_concurrency=1, is_closed=True)
        done = await measure(plan(fake.url, 3, settings=settings), clock=FakeClock())

    assert (done.summary["completed"], done.summary["failed"]) == (1, 2)
    assert list(done.summary["errors"]) == ["no connection"]


@async_test
async def test_fault_of_ours_in_a_request_ends_the_run():
    class Breaking:
        async def carry(self, message: bytes, exchange: object) -> None:
            raise ZeroDivisionError

        def close(self) -> None: ...

    class OneCall:
        def make(self, spec: object) -> object:
            from everbatch.loadgen.calls import Call

            return Call(b"", 1, 1)

    run = LoadRun(plan("http://x").source(), OneCall(), Breaking(), RunSettings(), FakeClock())

    with pytest.raises(ZeroDivisionError):
        await run.run()
