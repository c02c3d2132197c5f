"""No request names a file: whatever path its values hold, nothing is opened and nothing is told."""

import sys
from pathlib import Path
from typing import Any

import pytest
from server.fakes import async_test, in_process, make_harness

SECRET = "what stands in the file"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
TEMPLATE = (
    "{% if tools %}<tool_call>arguments{{ tools | tojson }}{% endif %}"
    "{% for message in messages %}{{ message.content }}{% endfor %}"
)


class Opened:
    """Which files Python opens while it listens. A hook cannot be taken out again, only ignored."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.is_listening = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.is_listening and event in ("open", "os.listdir", "os.scandir", "glob.glob"):
            self.paths.append(str(args[0]))


@pytest.fixture(scope="module")
def opened() -> Opened:
    return Opened()


def _requests(path: str) -> list[tuple[str, dict[str, Any]]]:
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    plain: dict[str, Any] = {"prompt": "x", "max_tokens": 2}
    reference = {"$ref": f"file://{path}"}
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": reference}}
    image = {"type": "image_url", "image_url": {"url": f"file://{path}"}}
    return [
        ("/v1/completions", {**plain, "model": path}),
        ("/v1/completions", {**plain, "prompt": path}),
        ("/v1/completions", {**plain, "cache_salt": path, "tenant": path, "user": path}),
        ("/v1/completions", {**plain, "guided_grammar": f"%include {path}"}),
        ("/v1/completions", {**plain, "guided_grammar": f'start: "a"\n%import {path}'}),
        ("/v1/completions", {**plain, "guided_json": reference}),
        ("/v1/completions", {**plain, "lora": path, "prompt_embeds": path}),
        ("/v1/chat/completions", {**chat, "chat_template": path}),
        ("/v1/chat/completions", {**chat, "chat_template_kwargs": {"messages": path, "x": path}}),
        ("/v1/chat/completions", {**chat, "response_format": schema}),
        ("/v1/chat/completions", {**chat, "messages": [{"role": "user", "content": [image]}]}),
        ("/v1/chat/completions", {**chat, "tools": [TOOL], "documents": [path]}),
        ("/v1/responses", {"input": "x", "previous_response_id": path}),
        ("/v1/responses", {"input": [{"type": "input_file", "file_url": f"file://{path}"}]}),
        ("/tokenize", {"prompt": path, "chat_template": path}),
        ("/abort", {"request_id": path}),
    ]


@pytest.mark.parametrize("kind", ["absolute", "relative", "home"])
def test_no_body_opens_a_file(opened: Opened, tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text(SECRET)
    path = {"absolute": str(secret), "relative": f"../..{secret}", "home": f"~/../..{secret}"}[kind]
    answers = []

    @async_test
    async def run() -> None:
        async with in_process(make_harness(template=TEMPLATE)) as client:
            # What is imported at its first use is imported now.
            for where, body in _requests("x"):
                await client.post(where, json=body)
            opened.paths.clear()
            opened.is_listening = True
            try:
                for where, body in _requests(path):
                    answers.append(await client.post(where, json=body))
            finally:
                opened.is_listening = False

    run()
    assert opened.paths == []
    assert {answer.status_code for answer in answers} <= {200, 400, 404}
    assert not [answer.text for answer in answers if SECRET in answer.text]


@pytest.mark.parametrize(
    "where",
    [
        "/v1/../secret.txt",
        "/v1/models/%2e%2e%2f%2e%2e%2fsecret.txt",
        "/v1/models//proc/self/environ",
        "/..%2fsecret.txt",
        "/v1/files/secret.txt",
        "/debug/events?path=/proc/self/environ",
    ],
)
def test_no_path_opens_a_file(opened: Opened, where: str) -> None:
    @async_test
    async def run() -> None:
        async with in_process(make_harness()) as client:
            await client.get("/v1/models/x")
            await client.get("/debug/events")
            opened.paths.clear()
            opened.is_listening = True
            try:
                answer = await client.get(where)
            finally:
                opened.is_listening = False
        assert answer.status_code == (200 if where.startswith("/debug") else 404)

    run()
    assert opened.paths == []


def test_file_that_is_opened_would_be_seen(opened: Opened, tmp_path: Path) -> None:
    opened.paths.clear()
    opened.is_listening = True
    try:
        (tmp_path / "a").touch()
        (tmp_path / "a").read_bytes()
    finally:
        opened.is_listening = False

    assert opened.paths == [str(tmp_path / "a")] * len(opened.paths) != []
