"""How a body comes: slowly, at length, without a type, from a web page."""

import asyncio
import gzip
import threading
from typing import Any

import httpx
import pytest
from server.fakes import async_test, in_process, listening, make_harness, reply_to

from everbatch.server import http_body, routes
from everbatch.tokenizer.tokenizer import Tokenizer

COMPLETIONS = "/v1/completions"


def test_body_that_does_not_come_is_waited_for_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_body, "MAX_BODY_S", 0.05)

    @async_test
    async def run() -> None:
        async with listening(make_harness()) as url:
            host, port = url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
            writer.write(head.encode() + b'{"prom')
            answer = (await reader.read()).decode()
            writer.close()
            async with httpx.AsyncClient(base_url=url) as client:
                other = await client.post(COMPLETIONS, json={"prompt": "x"})

        assert answer.startswith("HTTP/1.1 408 ")
        assert '"request_timeout"' in answer
        assert other.status_code == 200

    run()


@async_test
async def test_long_bodies_are_read_beside_the_loop_with_the_same_result() -> None:
    """Longer than what is read at once."""
    filler = " " * (http_body.MAX_INLINE_BYTES + 1)
    async with in_process(make_harness()) as client:
        good = await client.post(COMPLETIONS, content='{"prompt": "x"}' + filler)
        bad = await client.post("/v1/chat/completions", content='{"messages": 1}' + filler)
        response = await client.post("/v1/responses", content='{"input": "x"}' + filler)
        words = await client.post(
            "/tokenize", json={"prompt": "ab" * 40_000, "return_token_strs": True}
        )
        text = await client.post("/detokenize", json={"tokens": [97] * 40_000})

    assert good.json()["choices"][0]["text"] == reply_to(b"x")
    assert bad.status_code == 400
    assert "messages must be an array" in bad.json()["error"]["message"]
    assert response.status_code == 200
    assert words.json()["token_strs"] == ["a", "b"] * 40_000
    assert text.json() == {"prompt": "a" * 40_000}


@async_test
async def test_body_of_no_type_is_taken_from_programs_and_not_from_web_pages() -> None:
    """A page's script may send what has no type to any server, without asking it first."""
    async with in_process(make_harness()) as client:
        body = b'{"prompt": "x"}'
        program = await client.post(COMPLETIONS, content=body)
        page = await client.post(
            COMPLETIONS, content=body, headers={"origin": "https://elsewhere.example"}
        )
        abort = await client.post(
            "/abort", content=b'{"request_id": "x"}', headers={"origin": "null"}
        )

    assert [one.status_code for one in (program, page, abort)] == [200, 415, 415]


@pytest.mark.parametrize(
    ("encoding", "status"), [("gzip", 415), ("br", 415), ("Identity", 200), ("", 200)]
)
def test_encoded_body_is_refused_as_such(encoding: str, status: int) -> None:
    @async_test
    async def run() -> None:
        plain = b'{"prompt": "x", "max_tokens": 1}'
        content = plain if status == 200 else gzip.compress(plain)
        headers = {"content-encoding": encoding, "content-type": "application/json"}
        async with in_process(make_harness()) as client:
            answer = await client.post(COMPLETIONS, content=content, headers=headers)

        assert answer.status_code == status
        if status == 415:
            error = answer.json()["error"]
            assert error["code"] == "unsupported_media_type"
            assert f"Content-Encoding is '{encoding}'" in error["message"]

    run()


@pytest.mark.parametrize("length", ["short", "long"])
def test_prompt_is_checked_and_written_out_beside_the_loop_if_its_body_is_long(
    length: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two million token ids are half a second of checks and of text."""
    seen: dict[str, set[str]] = {"check": set(), "decode": set()}
    check, decode = routes.check_token_ids, Tokenizer.decode

    def noting_check(*args: Any) -> None:
        seen["check"].add(threading.current_thread().name)
        check(*args)

    def noting_decode(*args: Any, **named: Any) -> str:
        seen["decode"].add(threading.current_thread().name)
        return decode(*args, **named)

    monkeypatch.setattr(routes, "check_token_ids", noting_check)
    monkeypatch.setattr(Tokenizer, "decode", noting_decode)
    filler = " " * (http_body.MAX_INLINE_BYTES + 1 if length == "long" else 0)

    @async_test
    async def run() -> None:
        async with in_process(make_harness()) as client:
            bodies = [
                '{"prompt": [97, 98], "echo": true}',
                '{"prompt": [[97], [98]], "echo": true}',
            ]
            answers = [await client.post(COMPLETIONS, content=body + filler) for body in bodies]

        assert [answer.status_code for answer in answers] == [200, 200]
        texts = [one["text"] for answer in answers for one in answer.json()["choices"]]
        starts = ("ab", "a", "b")
        assert all(text.startswith(start) for text, start in zip(texts, starts, strict=True))

    run()
    main = threading.main_thread().name
    for threads in seen.values():
        assert (main in threads) == (length == "short")
