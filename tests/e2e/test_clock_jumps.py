"""A wall clock that jumps by a year, forward and back, at each look: only dates may follow it."""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.processes import WAIT_S, Server, serving
from e2e.streams import streaming
from tiny_model import write_model

from everbatch.base.eventlog import read_events

ENDLESS = 200_000
YEAR_S = 365 * 86_400
JUMPING = f"""
import itertools, time
real, looks = time.time, itertools.count()
time.time = lambda: real() + (0, {YEAR_S}, -{YEAR_S})[next(looks) % 3]
time.time_ns = lambda: int(1e9 * time.time())
from everbatch.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    return write_model(directory, max_position_embeddings=ENDLESS + 1_000)


def ask(server: Server, **fields: Any) -> httpx.Response:
    body = {"prompt": "hello", "max_tokens": 8, "temperature": 0, **fields}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=WAIT_S)


def test_limits_and_durations_do_not_follow_a_wall_clock_that_jumps(
    model: Path, tmp_path: Path
) -> None:
    events, access = tmp_path / "events.jsonl", tmp_path / "access.jsonl"
    flags = ("--max-num-seqs", "1", "--event-log", events, "--access-log", access)
    command = [sys.executable, "-c", JUMPING]
    with serving(model, *flags, command=command) as server:
        begun = time.monotonic()
        generous = ask(server, max_total_s=3_000, max_wait_s=3_000)
        late = ask(server, max_tokens=ENDLESS, ignore_eos=True, max_total_s=0.3)
        late_s = time.monotonic() - begun
        created = {ask(server).json()["created"] for _ in range(6)}
        with streaming(server.url, ENDLESS) as stream:
            impatient: list[httpx.Response] = []
            asking = threading.Thread(target=lambda: impatient.append(ask(server, max_wait_s=0.2)))
            asking.start()
            while asking.is_alive():
                assert stream.read_chunk()
            ready = httpx.get(f"{server.url}/ready", timeout=WAIT_S)
        server.wait_until_idle()
        metrics = server.metrics()
        taken_s = time.monotonic() - begun
        assert server.stop() == 0
        assert "Traceback" not in server.told.text
    lines = [json.loads(line) for line in access.read_text().splitlines()]
    with events.open(encoding="utf-8") as log:
        times = [event.t for event in read_events(log)]

    # It does jump, where it is looked at.
    assert max(created) - min(created) > YEAR_S // 2
    assert generous.json()["choices"][0]["finish_reason"] == "length"
    assert late.json()["choices"][0]["finish_reason"] == "deadline"
    assert 0.3 <= late_s < WAIT_S
    assert (impatient[0].status_code, impatient[0].json()["error"]["code"]) == (503, "deadline")
    assert ready.status_code == 200
    assert times == sorted(times)
    assert (times[-1] - times[0]) / 1e9 < taken_s
    for name in ("e2e_request_latency_seconds", "forward_step_duration_seconds"):
        assert 0 < metrics[f"{name}_sum"] < taken_s
    assert all(0 <= line["duration_ms"] < 1e3 * taken_s for line in lines)
