"""Stopping: a grace time for those who run, a reason for those who do not make it, and at once."""

import asyncio
import json
import signal
import socket

import httpx
import pytest
from server.fakes import Harness, async_test, listening, make_harness, reply_to

from everbatch.base.errors import ConfigError
from everbatch.server.run import bind_socket

COMPLETIONS = "/v1/completions"


def _hold_after_first_pass(harness: Harness) -> None:
    harness.executor.before_pass = lambda number: harness.gate.shut() if number == 1 else None


def _client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=30)


@async_test
async def test_running_requests_finish_within_the_grace_time_and_new_ones_are_refused() -> None:
    harness = make_harness(settings={"shutdown_grace_s": 30.0})
    _hold_after_first_pass(harness)
    async with listening(harness) as url, _client(url) as client:
        whole = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "x"}))
        await harness.gate.reached()
        signal.raise_signal(signal.SIGTERM)
        # The signal's handler runs on this loop before the next connection is read.
        while (ready := await client.get("/ready")).status_code == 200:
            pass
        health = await client.get("/health")
        refused = await client.post(COMPLETIONS, json={"prompt": "y"})
        harness.gate.open()
        answer = await whole

    assert (ready.status_code, health.status_code) == (503, 200)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    # Over another connection it may meet a server that stays.
    assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
    assert answer.json()["choices"][0]["text"] == reply_to(b"x")
    harness.assert_all_returned()


@async_test
async def test_requests_beyond_the_grace_time_end_with_abort_and_an_error() -> None:
    harness = make_harness(settings={"shutdown_grace_s": 0.0})
    _hold_after_first_pass(harness)
    async with listening(harness) as url, _client(url) as client:
        whole = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "x"}))
        await harness.gate.reached()
        harness.gate.open()
        await whole
        harness.executor.before_pass = lambda _: harness.gate.shut()
        body = {"prompt": "x", "stream": True, "ignore_eos": True}
        whole = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "z"}))
        async with client.stream("POST", COMPLETIONS, json=body) as response:
            signal.raise_signal(signal.SIGTERM)
            harness.gate.open()
            text = (await response.aread()).decode()
        cut = await whole

    *_, last, error, done, _ = text.split("\n\n")
    choice = json.loads(last.removeprefix("data: "))["choices"][0]
    assert choice["finish_reason"] == "abort"
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "shutting_down"
    assert done == "data: [DONE]"
    assert (cut.status_code, cut.json()["error"]["code"]) == (503, "shutting_down")
    harness.assert_all_returned()


@async_test
async def test_second_signal_stops_while_a_step_runs() -> None:
    harness = make_harness(settings={"shutdown_grace_s": 3_600.0})
    _hold_after_first_pass(harness)
    async with listening(harness) as url, _client(url) as client:
        waiting = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "x"}))
        await harness.gate.reached()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        cut = await waiting
        # The gate is still shut: the engine's step has not come back.
        assert harness.server is not None
        await harness.server

    assert (cut.status_code, cut.json()["error"]["code"]) == (503, "shutting_down")


@async_test
async def test_idle_server_stops_on_a_signal() -> None:
    harness = make_harness()
    async with listening(harness) as url, _client(url) as client:
        await client.get("/health")

    harness.assert_all_returned()
    assert harness.engine.state.value == "stopped"


@pytest.mark.parametrize(
    ("num_requests", "told"),
    [(0, "stopping"), (1, "stopping: 1 request may still finish within 30 s; a second signal")],
)
def test_a_signal_is_answered_on_the_console(num_requests, told, caplog) -> None:
    caplog.set_level("INFO", "everbatch.server")

    @async_test
    async def scenario() -> None:
        harness = make_harness(settings={"shutdown_grace_s": 30.0})
        async with listening(harness) as url, _client(url) as client:
            if num_requests:
                _hold_after_first_pass(harness)
                waiting = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "x"}))
                await harness.gate.reached()
            signal.raise_signal(signal.SIGINT)
            while not caplog.messages:
                await asyncio.sleep(0)
            if num_requests:
                harness.gate.open()
                await waiting

    scenario()
    assert caplog.messages[0].startswith(told)


def test_port_in_use_is_told_with_the_option_to_change_it() -> None:
    with bind_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]

        with pytest.raises(ConfigError, match=rf"port {port} .* in use.*--port"):
            bind_socket("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [
        ("127.0.0.1", -1, "--port must lie in"),
        ("127.0.0.1", 65_536, "--port must lie in"),
        ("203.0.113.1", 0, "no address of this machine"),
        ("", 70_000, "--port"),
        ("a" * 70, 0, "check --host"),
    ],
)
def test_address_that_cannot_be_had_is_refused(host: str, port: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        bind_socket(host, port)


def test_bound_socket_takes_connections_before_the_server_runs() -> None:
    with bind_socket("127.0.0.1", 0) as listening_socket:
        address = listening_socket.getsockname()

        with socket.create_connection(address, timeout=10) as early:
            assert early.getpeername() == address
