"""A supervised server whose process is killed: clients are told, and it comes back."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from socket import socket
from typing import Any

import httpx
import openai
import pytest
from e2e.processes import COMMAND, WAIT_S, Server, assert_one_line_error, run, serving, start
from e2e.streams import streaming
from e2e.supervision import ask, engine_process, has_ended, num_ready, wait_for
from tiny_model import write_model

from everbatch.base.eventlog import read_events
from everbatch.base.events import Finished

ENDLESS = 200_000
NS_PER_S = 1_000_000_000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    return write_model(directory, max_position_embeddings=ENDLESS + 1_000)


@pytest.fixture(scope="module")
def supervised(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("log") / "events.jsonl"
    with serving(model, "--supervise", "--event-log", log) as server:
        server.log = log
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.told.text


def kill_and_wait(server: Server, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Kill the process that serves; returns when the next one is ready."""
    before = num_ready(server)
    os.kill(engine_process(server), signal.SIGKILL)
    meanwhile()
    wait_for(lambda: num_ready(server) > before)


def test_who_is_served_when_the_process_is_killed_is_told_and_the_next_is_served(
    supervised: Server,
) -> None:
    server = supervised
    told: dict[str, httpx.Response] = {}
    text = ask(server)
    first_log = server.log

    def ask_whole() -> None:
        body = {"prompt": "x", "max_tokens": ENDLESS, "ignore_eos": True}
        told["whole"] = httpx.post(f"{server.url}/v1/completions", json=body, timeout=WAIT_S)

    def look() -> None:
        wait_for(lambda: httpx.get(f"{server.url}/ready", timeout=WAIT_S).status_code == 503)
        told["health"] = httpx.get(f"{server.url}/health", timeout=WAIT_S)
        told["ready"] = httpx.get(f"{server.url}/ready", timeout=WAIT_S)
        told["new"] = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"})

    waiting = threading.Thread(target=ask_whole)
    with streaming(server.url, ENDLESS) as stream:
        waiting.start()
        wait_for(lambda: server.metrics()["num_requests_running"] == 2)
        # Until a run of steps is in the log, so that it is amid its work.
        longest_wait_ns, read_at = 0, time.monotonic_ns()
        while '"event":"steps"' not in first_log.read_text():
            assert stream.read_chunk()
            now = time.monotonic_ns()
            longest_wait_ns, read_at = max(longest_wait_ns, now - read_at), now
        killed_at = time.monotonic_ns()
        kill_and_wait(server, look)
        stream.read_to_the_end()
    waiting.join()

    assert stream.error is not None
    assert (stream.error["code"], stream.ended, stream.cut) == ("engine_died", True, False)
    for name in ("whole", "ready", "new"):
        answer = told[name]
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_restarts")
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers["x-request-id"]
    assert told["health"].status_code == 200
    assert ask(server) == text
    assert server.metrics()["process_restarts_total"] == 1
    with first_log.with_name("events.jsonl.1").open(encoding="utf-8") as lines:
        events = list(read_events(lines))
    assert killed_at - max(event.t for event in events) < 1.5 * NS_PER_S + 2 * longest_wait_ns
    assert next(one for one in events if isinstance(one, Finished)).reason == "length"


def test_official_client_meets_its_own_error(supervised: Server) -> None:
    client = openai.OpenAI(
        base_url=f"{supervised.url}/v1", api_key="none", max_retries=0, timeout=WAIT_S
    )
    endless: dict[str, Any] = {"ignore_eos": True}
    with client:
        stream = client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=[{"role": "user", "content": "x"}],
            max_tokens=ENDLESS,
            stream=True,
            extra_body=endless,
        )
        next(stream)
        os.kill(engine_process(supervised), signal.SIGKILL)
        with pytest.raises(openai.APIError, match="died amid this answer"):
            for _ in stream:
                pass
    wait_for(lambda: httpx.get(f"{supervised.url}/ready", timeout=WAIT_S).status_code == 200)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_goes_to_the_process_once_and_what_runs_finishes(
    model: Path, number: signal.Signals
) -> None:
    with serving(model, "--supervise") as server, streaming(server.url, 2_000) as stream:
        server.signal(number)
        while httpx.get(f"{server.url}/ready", timeout=WAIT_S).status_code == 200:
            assert stream.read_chunk()
        stream.read_to_the_end()

        assert server.wait() == 0
        assert "a second signal: stopping" not in server.told.text
    assert (stream.finish_reason, stream.error, stream.ended) == ("length", None, True)


def test_the_process_ends_when_its_supervisor_is_killed(model: Path) -> None:
    with serving(model, "--supervise") as server, streaming(server.url, ENDLESS) as stream:
        pid = engine_process(server)
        server.signal(signal.SIGKILL)
        stream.read_to_the_end()

        wait_for(lambda: has_ended(pid))
    assert stream.cut


def test_what_is_wrong_at_the_start_is_told_once(model: Path) -> None:
    done = run("serve", model, "--port", "0", "--supervise", "--max-model-len", "999999")

    assert_one_line_error(done, "999,999")


def test_it_serves_where_standard_error_is_closed(model: Path) -> None:
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    closed = ["sh", "-c", 'exec "$@" 2>&-', "sh", *COMMAND]
    process = start("serve", model, "--supervise", "--port", str(port), command=closed)

    def is_ready() -> bool:
        assert process.poll() is None
        with suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{port}/ready").is_success
        return False

    with process:
        try:
            wait_for(is_ready)
        finally:
            process.terminate()
    assert process.returncode == 0
