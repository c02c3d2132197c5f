"""No prompt, answer or key gets into a log, a metric, a span or the events, whatever goes wrong."""

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from server.fakes import (
    Harness,
    SpeakingExecutor,
    async_test,
    in_process,
    listening,
    make_harness,
)

from everbatch.base.errors import ConfigError, ExecutorError
from everbatch.server.api_keys import ApiKeys, KeyOwner
from everbatch.server.metrics import ServerMetrics
from everbatch.server.spans import Span
from everbatch.tokenizer.text_stream import TextStream

SECRET = "Kanarienvogel"
KEY = "key-of-Kanarienvogel"
ANSWER = f"{SECRET} sings"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = [{"role": "user", "content": SECRET}]
TOOL = {
    "type": "function",
    "function": {"name": SECRET, "description": SECRET, "parameters": {"title": SECRET}},
}
# What goes well, and what is wrong in each of the ways that name a value to the client.
REQUESTS: list[tuple[str, Any]] = [
    (COMPLETIONS, {"prompt": SECRET, "max_tokens": 3, "logprobs": 2, "echo": True}),
    (COMPLETIONS, {"prompt": SECRET, "stream": True, "max_tokens": 3, "cache_salt": SECRET}),
    (COMPLETIONS, {"prompt": [list(SECRET.encode())], "stop": SECRET, "user": SECRET}),
    (COMPLETIONS, {"prompt": SECRET, "top_p": SECRET}),
    (COMPLETIONS, {"prompt": SECRET * 100}),
    (COMPLETIONS, {"prompt": SECRET, SECRET: SECRET}),
    (COMPLETIONS, {"prompt": SECRET, "guided_regex": f"({SECRET}"}),
    (COMPLETIONS, {"prompt": SECRET, "guided_choice": [SECRET], "max_tokens": 30}),
    (COMPLETIONS, {"prompt": SECRET, "response_format": {"type": SECRET}}),
    (COMPLETIONS, {"prompt": SECRET, "metadata": {SECRET: SECRET}, "max_tokens": 1}),
    (COMPLETIONS, f'{{"prompt": "{SECRET}'.encode()),
    (COMPLETIONS, f'"{SECRET}"'.encode()),
    (CHAT, {"messages": MESSAGES, "max_tokens": 3}),
    (CHAT, {"messages": [*MESSAGES, {"role": SECRET, "content": SECRET}]}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": SECRET}]}]}),
    (CHAT, {"messages": MESSAGES, "tools": [TOOL]}),
    (CHAT, {"messages": MESSAGES, "chat_template_kwargs": {"boom": SECRET}}),
    (RESPONSES, {"input": SECRET, "instructions": SECRET, "max_output_tokens": 3}),
    (RESPONSES, {"input": [{"type": SECRET}]}),
    ("/tokenize", {"prompt": SECRET}),
    ("/detokenize", {"tokens": SECRET}),
    ("/abort", {"request_id": "unknown", "note": SECRET}),
]
TEMPLATE = (
    "{% if boom %}{{ raise_exception(boom) }}{% endif %}"
    "{% for message in messages %}{{ message.content }}{% endfor %}"
)
HEADERS = {"Authorization": f"Bearer {KEY}"}


class Told:
    """All that a server tells anybody but the client who asked."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(1)
        for name in list(logging.root.manager.loggerDict):
            # Their own levels would keep silent what some operator turns on.
            if name.split(".")[0] in ("everbatch", "uvicorn", "asyncio", "fastapi", "starlette"):
                caplog.set_level(1, logger=name)
        self._caplog = caplog
        self.spans: list[Span] = []
        self.texts: list[str] = []

    async def gather(self, harness: Harness, client: httpx.AsyncClient) -> None:
        for path in ("/metrics", "/debug/events", "/health", "/ready"):
            self.texts.append((await client.get(path, headers=HEADERS)).text)
        self.texts += [*harness.lines, *harness.access]

    def all(self, capfd: pytest.CaptureFixture[str]) -> str:
        records = [f"{one.getMessage()} {one.exc_text or ''}" for one in self._caplog.records]
        return "\n".join([*records, *self.texts, *map(repr, self.spans), *capfd.readouterr()])


def _keys() -> ApiKeys:
    keys = ApiKeys()
    keys.add(KEY, KeyOwner(), "--api-key number 1")
    return keys


def _failing(*errors: Exception | None) -> Callable[[int], None]:
    """Passes that raise in turn; None: the pass goes well."""
    turns = itertools.chain(errors, itertools.repeat(None))

    def before_pass(_number: int) -> None:
        error = next(turns)
        if error is not None:
            raise error

    return before_pass


def _harness(told: Told, **changes: Any) -> Harness:
    executor = SpeakingExecutor(reply=lambda _prompt: ANSWER)
    return make_harness(
        executor=executor,
        template=TEMPLATE,
        keys=_keys(),
        logs_access=True,
        spans=told.spans.append,
        **changes,
    )


async def _send(client: httpx.AsyncClient, path: str, body: Any) -> httpx.Response:
    content = {"content": body} if isinstance(body, bytes) else {"json": body}
    headers = HEADERS | {"Content-Type": "application/json"}
    return await client.post(path, headers=headers, **content)


def test_prompts_answers_and_keys_are_told_to_nobody(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    told = Told(caplog)
    statuses: list[int] = []

    @async_test
    async def run() -> None:
        harness = _harness(told, num_blocks=12, max_model_len=128)
        async with in_process(harness) as client:
            for path, body in REQUESTS:
                statuses.append((await _send(client, path, body)).status_code)
            bodies = [{"prompt": f"{n}{SECRET}" * 4, "max_tokens": 40} for n in range(6)]
            await asyncio.gather(*(_send(client, COMPLETIONS, body) for body in bodies))
            for wrong in (f"Bearer {KEY}x", f"Basic {KEY}", KEY):
                headers = {"Authorization": wrong}
                refused = await client.post(COMPLETIONS, json={"prompt": "x"}, headers=headers)
                assert refused.status_code == 401
                assert KEY not in refused.text
            await told.gather(harness, client)

    run()
    everything = told.all(capfd)
    assert {200, 400} <= set(statuses) <= {200, 400}
    assert len(told.spans) > 6
    assert "request_success_total" in everything
    assert SECRET not in everything


@pytest.mark.parametrize(
    "errors",
    [
        [ExecutorError("the pass failed")] * 3,
        [ExecutorError("once"), None],
        [None, RuntimeError("a bug")],
    ],
    ids=["failing steps", "one failing step", "dead engine"],
)
def test_failures_of_the_engine_tell_no_prompt(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], errors: list[Any]
) -> None:
    told = Told(caplog)

    @async_test
    async def run() -> None:
        harness = _harness(told)
        harness.executor.before_pass = _failing(*errors)
        async with in_process(harness) as client:
            for stream in (False, True):
                body = {"prompt": SECRET, "stream": stream, "max_tokens": 4}
                await _send(client, COMPLETIONS, body)
            await told.gather(harness, client)

    run()
    everything = told.all(capfd)
    assert "failed" in everything or "died" in everything
    assert SECRET not in everything


def test_failures_of_the_text_side_tell_no_prompt(
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("no text")

    monkeypatch.setattr(TextStream, "push", broken)
    told = Told(caplog)

    @async_test
    async def run() -> None:
        harness = _harness(told)
        async with in_process(harness) as client:
            answer = await _send(client, COMPLETIONS, {"prompt": SECRET})
            assert answer.status_code == 500
            await told.gather(harness, client)

    run()
    everything = told.all(capfd)
    assert "could not be turned into text" in everything
    assert SECRET not in everything


def test_listening_server_tells_no_prompt_where_clients_are_broken(
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bug of ours, half a request, and what is no HTTP at all."""
    told = Told(caplog)

    def bug(_metrics: ServerMetrics) -> bytes:
        raise RuntimeError("a bug")

    @async_test
    async def run() -> None:
        harness = _harness(told)
        async with listening(harness) as url:
            port = int(url.rsplit(":", 1)[1])
            for sent in (
                f"POST {COMPLETIONS} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\n"
                f'Content-Length: 500\r\n\r\n{{"prompt": "{SECRET}',
                f"{SECRET} {KEY}\r\n\r\n",
                f"GET /metrics HTTP/9.9\r\nAuthorization: {KEY}\r\n\r\n",
            ):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(sent.encode())
                await writer.drain()
                writer.close()
                await writer.wait_closed()
            async with httpx.AsyncClient(base_url=url) as client:
                await told.gather(harness, client)
                monkeypatch.setattr(ServerMetrics, "exposition", bug)
                answer = await client.get("/metrics", headers=HEADERS)
                assert answer.status_code == 500
        told.texts += harness.access

    # The client's own logs have its headers; it is not what is tested here.
    for name in ("httpcore", "httpx"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", False)
    run()
    everything = told.all(capfd)
    assert "a bug" in everything
    assert SECRET not in everything


def test_secret_that_is_logged_would_be_seen(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    told = Told(caplog)
    logging.getLogger("everbatch.server").debug("the prompt is %s", SECRET)

    assert SECRET in told.all(capfd)


@pytest.mark.parametrize("key", [f"{KEY} {KEY}", f"{KEY}ü", KEY * 100])
def test_key_that_cannot_be_one_is_not_shown(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ApiKeys().add(key, KeyOwner(), "--api-key number 1")

    assert SECRET not in str(caught.value)
    assert SECRET not in repr(_keys()) + repr(vars(_keys()))
