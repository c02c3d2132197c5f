"""A chat template is the model's own program: it may be slow or broken, the server must not."""

import asyncio
import threading

from server.fakes import async_test, in_process, make_harness

from everbatch.tokenizer import chat_template
from everbatch.tokenizer.chat_template import ChatTemplate

CHAT = "/v1/chat/completions"
MESSAGES = {"messages": [{"role": "user", "content": "Hello"}]}
HELLO = {**MESSAGES, "max_tokens": 2}
SLOW = "{% for i in range(90000) %}{{ '' }}{% endfor %}{{ messages[0].content }}"
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


class Threads:
    """Notes on which threads templates are rendered to their end."""

    def __init__(self, monkeypatch) -> None:  # type: ignore[no-untyped-def]
        self.names: list[str] = []
        render = ChatTemplate.render

        def noting(template, *args, **kwargs):  # type: ignore[no-untyped-def]
            text = render(template, *args, **kwargs)
            self.names.append(threading.current_thread().name)
            return text

        monkeypatch.setattr(ChatTemplate, "render", noting)


def test_slow_template_is_rendered_beside_the_event_loop(monkeypatch) -> None:
    threads = Threads(monkeypatch)

    @async_test
    async def run() -> None:
        async with in_process(make_harness(template=SLOW)) as client:
            answer = await client.post(CHAT, json=HELLO)

        assert answer.status_code == 200
        assert answer.json()["usage"]["prompt_tokens"] == len("Hello")

    run()
    assert len(threads.names) == 1
    assert threads.names != [threading.main_thread().name]


def test_template_is_compiled_beside_the_event_loop_and_once(monkeypatch) -> None:
    compiled_on: list[str] = []
    compile_now = chat_template._compile

    def noting(source: str):  # type: ignore[no-untyped-def]
        compiled_on.append(threading.current_thread().name)
        return compile_now(source)

    monkeypatch.setattr(chat_template, "_compile", noting)

    @async_test
    async def run() -> None:
        async with in_process(make_harness()) as client:
            asked = [client.post(CHAT, json=HELLO) for _ in range(3)]
            answers = await asyncio.gather(*asked)

        assert [answer.status_code for answer in answers] == [200] * 3

    run()
    assert len(compiled_on) == 1
    assert compiled_on != [threading.main_thread().name]


def test_conversation_with_large_tools_is_rendered_beside_the_event_loop(monkeypatch) -> None:
    threads = Threads(monkeypatch)
    template = "{% if tools %}<tool_call> arguments{% endif %}{{ messages|length }}"
    tool = {"type": "function", "function": {"name": "f", "description": "x" * 9_000}}

    @async_test
    async def run() -> None:
        async with in_process(make_harness(template=template)) as client:
            await client.post(CHAT, json=HELLO)
            threads.names.clear()
            small = await client.post(CHAT, json=HELLO)
            large = await client.post("/tokenize", json={**MESSAGES, "tools": [tool]})

        assert (small.status_code, large.status_code) == (200, 200), large.text

    run()
    first, second = threads.names
    assert first == threading.main_thread().name
    assert second != first


@async_test
async def test_endless_template_is_told_and_others_are_served_meanwhile() -> None:
    async with in_process(make_harness(template=ENDLESS)) as client:
        endless = asyncio.create_task(client.post(CHAT, json=HELLO))
        plain = await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
        is_first = not endless.done()
        refused = await endless

    assert (plain.status_code, refused.status_code) == (200, 400)
    assert is_first
    assert "more than 1,000,000 steps" in refused.json()["error"]["message"]


@async_test
async def test_template_that_cannot_be_compiled_is_told_and_others_are_served() -> None:
    template = "{% if a %}" + "{% elif a %}" * 7_000 + "{% endif %}"
    async with in_process(make_harness(template=template)) as client:
        refused = await client.post(CHAT, json=HELLO)
        plain = await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})

    assert (refused.status_code, plain.status_code) == (400, 200)
    assert "nested too deeply" in refused.json()["error"]["message"]
