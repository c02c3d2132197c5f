"""`everbatch chat` in a terminal: commands, and what it says of an answer. The server is played."""

import json
from functools import partial
from io import StringIO

import httpx
import pytest
from command_line import everbatch

from everbatch.cli import chat


class Keyboard(StringIO):
    """Somebody types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def typed(monkeypatch):
    """Type lines at a terminal; gives what was printed, and the conversations that were sent."""

    def type_in(*lines: str, finish_reason: str = "stop") -> tuple[str, list[list[str]]]:
        sent = []

        def answer(request: httpx.Request) -> httpx.Response:
            if request.url.path == "/v1/models":
                return httpx.Response(200, json={"data": []})
            messages = json.loads(request.content)["messages"]
            sent.append([message["content"] for message in messages])
            choices = [{"delta": {"content": "Paris"}, "finish_reason": None}]
            last = [{"delta": {}, "finish_reason": finish_reason}]
            events = [{"choices": choices}, {"choices": last}]
            text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
            return httpx.Response(200, text=f"{text}data: [DONE]\n\n")

        transport = httpx.MockTransport(answer)
        monkeypatch.setattr(chat.httpx, "Client", partial(httpx.Client, transport=transport))
        monkeypatch.setattr("sys.stdin", Keyboard("".join(f"{line}\n" for line in lines)))
        return everbatch("chat").out, sent

    return type_in


def test_help_is_told_and_not_sent(typed):
    out, sent = typed("/help", "Which city?")

    assert out.count("/reset forgets the conversation") == 2
    assert sent == [["Which city?"]]


@pytest.mark.parametrize(("finish_reason", "is_marked"), [("stop", False), ("length", True)])
def test_an_answer_that_was_cut_is_marked(typed, finish_reason, is_marked):
    out, _ = typed("Which city?", finish_reason=finish_reason)

    assert "Paris" in out
    assert ("[cut: no more tokens]" in out) == is_marked
