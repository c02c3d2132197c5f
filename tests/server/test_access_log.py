"""The access log: one line a request, with its ids and no text unless that was asked for."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from server.fakes import Harness, async_test, eventually, in_process, make_harness

from everbatch.assemble.access_log import AccessLogFile
from everbatch.base.errors import ConfigError

COMPLETIONS = "/v1/completions"
PROMPT = "a text of somebody"


def lines_of(harness: Harness) -> list[dict[str, Any]]:
    return [json.loads(line) for line in harness.access]


@pytest.mark.parametrize("stream", [False, True])
def test_a_line_tells_ids_status_and_counts(stream: bool) -> None:
    @async_test
    async def run() -> None:
        harness = make_harness(logs_access=True)
        async with in_process(harness) as client:
            body = {"prompt": PROMPT, "max_tokens": 3, "tenant": "t", "n": 2, "stream": stream}
            answer = await client.post(COMPLETIONS, json=body, headers={"X-Request-Id": "mine"})
        [line] = lines_of(harness)

        assert line.pop("duration_ms") > 0
        assert line.pop("id") in answer.text
        assert line == {
            "time": 1_700_000_000,
            "status": 200,
            "request_id": "mine",
            "client": "127.0.0.1",
            "method": "POST",
            "path": COMPLETIONS,
            "tenant": "t",
            "stream": stream,
            "choices": 2,
            "prompt_tokens": len(PROMPT),
            "cached_tokens": 0,
            "output_tokens": 6,
            "finish_reasons": ["length", "length"],
            "error": None,
        }

    run()


@async_test
async def test_every_path_and_every_error_has_its_line() -> None:
    harness = make_harness(logs_access=True)
    async with in_process(harness) as client:
        answers = [
            await client.get("/v1/models"),
            await client.get("/nowhere"),
            await client.post(COMPLETIONS, json={"prompt": "x", "top_p": 7}),
            await client.post(COMPLETIONS, json={"prompt": "x" * 600}),
            await client.post(COMPLETIONS, json={"prompt": "x" * (5 << 20)}),
        ]
    lines = lines_of(harness)

    assert [line["status"] for line in lines] == [200, 404, 400, 400, 413]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert [line["request_id"] for line in lines] == ids
    # This one had got as far as the engine.
    assert (lines[3]["error"], lines[3]["finish_reasons"]) == ("context_length_exceeded", [None])


@async_test
async def test_probes_have_a_line_only_if_they_were_refused() -> None:
    harness = make_harness(logs_access=True)
    async with in_process(harness) as client:
        for path in ("/health", "/ready", "/version", "/metrics"):
            await client.get(path)
        harness.engine.begin_drain()
        for path in ("/health", "/ready"):
            await client.get(path)

    assert [(line["path"], line["status"]) for line in lines_of(harness)] == [("/ready", 503)]


@async_test
async def test_prompts_are_in_it_only_if_that_was_asked_for() -> None:
    body = {"prompt": [PROMPT, "another"], "max_tokens": 1}
    for log_prompts in (False, True):
        harness = make_harness(logs_access=True, settings={"log_prompts": log_prompts})
        async with in_process(harness) as client:
            answer = await client.post(COMPLETIONS, json=body)
        [line] = lines_of(harness)

        assert (PROMPT in harness.access[0]) == log_prompts
        assert line.get("prompts") == ([PROMPT, "another"] if log_prompts else None)
        assert answer.json()["choices"][0]["text"] not in harness.access[0].partition("prompts")[2]


@async_test
async def test_a_client_that_leaves_has_a_line_without_a_status() -> None:
    harness = make_harness(logs_access=True)
    async with in_process(harness) as client:
        harness.gate.shut()
        runs = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "x"}))
        await harness.gate.reached()
        runs.cancel()
        await eventually(lambda: len(harness.access) == 1)
        harness.gate.open()

    assert lines_of(harness)[0]["status"] is None


@async_test
async def test_a_long_or_strange_path_stays_one_short_line() -> None:
    harness = make_harness(logs_access=True)
    async with in_process(harness) as client:
        await client.get("/" + "p" * 5_000)
        await client.get(httpx.URL("http://test/a%0Ab%22%ED%A0%80"))

    assert [len(line) < 700 for line in harness.access] == [True, True]
    assert ["\n" in line for line in harness.access] == [False, False]


def test_a_file_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    for text in ("one", "two"):
        log = AccessLogFile(path)
        log.write(text)
        # Written before it is closed: a killed server loses no line.
        assert path.read_text().endswith(f"{text}\n")
        log.close()
        log.write("late")

    assert path.read_text() == "one\ntwo\n"


def test_a_path_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="check --access-log"):
        AccessLogFile(tmp_path / "no" / "folder")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_ends_the_log_with_one_message(caplog: pytest.LogCaptureFixture) -> None:
    log = AccessLogFile(Path("/dev/full"))
    for _ in range(3):
        log.write("line")
    log.close()

    [message] = caplog.messages
    assert "serving goes on" in message


def test_standard_error_is_written_and_left_open(capsys: pytest.CaptureFixture[str]) -> None:
    log = AccessLogFile(Path("-"))
    log.write("line")
    log.close()

    assert capsys.readouterr().err == "line\n"
