"""A real server with all that watches it: logs, events, spans; none of them has a text or a key."""

import json
from pathlib import Path

import httpx
import pytest
from e2e.processes import WAIT_S, run, serving
from otlp_collector import attributes_of, collecting
from tiny_model import write_model

SECRET = "Kanarienvogel"
KEY = f"key-of-{SECRET}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def test_request_is_found_everywhere_by_its_id_and_its_text_nowhere(
    model: Path, tmp_path: Path
) -> None:
    keys, access, events = (tmp_path / name for name in ("keys", "access.jsonl", "events.jsonl"))
    keys.write_text(f"{KEY} tenant-a\n")
    files = ("--api-key-file", keys, "--access-log", access, "--event-log", events)
    with collecting() as (collector, url):
        with serving(model, *files, "--otlp-traces-endpoint", url) as server:
            answers = [
                httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=WAIT_S)
                for headers in (
                    {"Authorization": f"Bearer {KEY}", "X-Request-Id": "order-7"},
                    {"Authorization": f"Bearer {KEY}-wrong"},
                )
                for path, body in (
                    ("/v1/completions", {"prompt": SECRET, "max_tokens": 3}),
                    ("/v1/completions", {"prompt": SECRET, "top_p": SECRET}),
                    ("/v1/completions", {"prompt": SECRET * 50}),
                    (
                        "/v1/chat/completions",
                        {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 3},
                    ),
                )
            ]
            metrics = httpx.get(f"{server.url}/metrics", timeout=WAIT_S).text
            assert server.stop() == 0
            told = server.told.text
        spans = [attributes_of(span) for span in collector.spans]

    assert [answer.status_code for answer in answers] == [200, 400, 400, 200, *[401] * 4]
    answer_id = answers[0].json()["id"]
    assert answer_id in [span["gen_ai.request.id"] for span in spans]
    lines = [json.loads(line) for line in access.read_text().splitlines()]
    assert [line["request_id"] for line in lines[:4]] == ["order-7"] * 4
    assert lines[0]["id"] == answer_id
    explained = run("explain", events, "order-7")
    assert explained.returncode == 0
    assert answer_id in explained.stdout
    everything = [told, metrics, access.read_text(), events.read_text(), repr(spans)]
    assert all(everything)
    assert [text for text in everything if SECRET in text] == []


def test_prompts_are_logged_where_they_were_asked_for(model: Path, tmp_path: Path) -> None:
    access = tmp_path / "access.jsonl"
    with serving(model, "--access-log", access, "--log-prompts") as server:
        body = {"prompt": SECRET, "max_tokens": 3}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=WAIT_S)
        assert server.stop() == 0

    [line] = [json.loads(text) for text in access.read_text().splitlines()]
    assert line["prompts"] == [SECRET]
    assert answer.json()["choices"][0]["text"] not in access.read_text()


def test_address_that_is_none_is_told_before_a_model_is_loaded(tmp_path: Path) -> None:
    answer = run("serve", tmp_path, "--otlp-traces-endpoint", "grpc://localhost:4317")

    assert answer.returncode == 2
    assert "--otlp-traces-endpoint must be the http:// or https:// address" in answer.stderr
