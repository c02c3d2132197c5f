"""A real server for others: keys, limits, metrics and access log by flags, and one that drains."""

import json
import os
import signal
from pathlib import Path

import httpx
import openai
import pytest
from e2e.processes import ENVIRON, WAIT_S, Server, assert_one_line_error, run, serving
from e2e.streams import streaming
from tiny_model import write_model

KEY, OPERATOR = "sk-tiny-secret", "sk-of-all-tenants"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), max_position_embeddings=50_000)


def test_a_server_with_keys_serves_who_has_one(model: Path, tmp_path: Path) -> None:
    keys, log = tmp_path / "keys.txt", tmp_path / "access.jsonl"
    keys.write_text(f"# for tests\n{KEY} red\n{OPERATOR}\n")
    flags = ("--api-key-file", keys, "--access-log", log, "--served-model-name", "tiny")
    limits = ("--max-prompts", "2", "--max-body-size", "1KiB", "--metrics-prefix", "vllm")
    with serving(model, *flags, *limits) as server:
        url = f"{server.url}/v1"
        with (
            openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=WAIT_S) as client,
            openai.OpenAI(base_url=url, api_key="sk-x", max_retries=0, timeout=WAIT_S) as stranger,
        ):
            answer = client.completions.create(
                model="tiny",
                prompt="hello",
                max_tokens=3,
                extra_headers={"X-Request-Id": "req.1"},
            )
            with pytest.raises(openai.AuthenticationError, match="is not known here"):
                stranger.completions.create(model="tiny", prompt="hello")
            with pytest.raises(openai.BadRequestError, match="at most 2 go"):
                client.completions.create(model="tiny", prompt=["a", "b", "c"])
            with pytest.raises(openai.APIStatusError, match="the limit is 1,024") as too_large:
                client.completions.create(model="tiny", prompt="x" * 2_000)
        metrics = httpx.get(f"{server.url}/metrics", timeout=WAIT_S)
        explained = run("explain", server.url, "req.1", "--api-key", OPERATOR)
        hidden = run("explain", server.url, "req.1", "--api-key", KEY)
        told = server.told.text

        assert server.stop() == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]

    assert answer.id.startswith("cmpl-req.1-")
    assert too_large.value.status_code == 413
    assert 'vllm:generation_tokens_total{model_name="tiny"} 3.0' in metrics.text
    assert explained.returncode == 0
    assert f"request {answer.id}" in explained.stdout
    assert_one_line_error(hidden, "does not show its events to a tenant's key")
    assert "2 API keys: requests without one get 401" in told
    assert "-H 'Authorization: Bearer KEY'" in told
    assert [line["status"] for line in lines[:4]] == [200, 401, 400, 413]
    assert (lines[0]["request_id"], lines[0]["tenant"]) == ("req.1", "red")
    for text in (log.read_text(), told, server.told.text):
        assert KEY not in text and OPERATOR not in text
        assert "hello" not in text


def ready(server: Server) -> int:
    return httpx.get(f"{server.url}/ready", timeout=WAIT_S).status_code


def test_readiness_goes_first_and_what_runs_finishes(model: Path) -> None:
    with serving(model, "--shutdown-timeout", "60") as server:
        assert ready(server) == 200
        with streaming(server.url, 3_000) as stream:
            server.signal(signal.SIGTERM)
            while ready(server) == 200:
                assert stream.read_chunk()
            refused = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"})
            health = httpx.get(f"{server.url}/health")
            stream.read_to_the_end()

        assert server.wait() == 0
    assert (health.status_code, refused.status_code) == (200, 503)
    assert refused.headers["retry-after"] == "1"
    assert (stream.finish_reason, stream.ended, stream.error) == ("length", True, None)


def test_a_key_in_the_environment_is_asked_for(model: Path, monkeypatch) -> None:
    monkeypatch.setitem(ENVIRON, "EVERBATCH_API_KEY", KEY)
    with serving(model) as server:
        without = httpx.get(f"{server.url}/v1/models")
        with_key = httpx.get(f"{server.url}/v1/models", headers={"Authorization": f"Bearer {KEY}"})
        assert server.stop() == 0

    assert (without.status_code, with_key.status_code) == (401, 200)
    assert "EVERBATCH_API_KEY" not in os.environ
