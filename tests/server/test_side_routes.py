"""/tokenize, /detokenize and /abort."""

import asyncio

import httpx
from server.fakes import (
    EOS,
    async_test,
    eventually,
    in_process,
    make_harness,
    openai_client,
    reply_to,
)

MESSAGES = [{"role": "user", "content": "Grüße 🙂"}]


@async_test
async def test_text_becomes_tokens_and_text_again() -> None:
    text = "Grüße, 世界 🙂"
    async with in_process(make_harness()) as client:
        tokens = (await client.post("/tokenize", json={"prompt": text})).json()
        back = await client.post("/detokenize", json={"tokens": [*tokens["tokens"], EOS]})

    ids = list(text.encode())
    assert tokens == {"count": len(ids), "max_model_len": 512, "tokens": ids, "token_strs": None}
    assert back.json() == {"prompt": text + "<|eos|>"}


@async_test
async def test_messages_become_what_chat_sends() -> None:
    async with in_process(make_harness()) as client:
        body = {"messages": MESSAGES}
        tokens = (await client.post("/tokenize", json=body)).json()
        chat = (await client.post("/v1/chat/completions", json=body | {"max_tokens": 1})).json()
        open_ended = (
            await client.post("/tokenize", json=body | {"add_generation_prompt": False})
        ).json()

    assert bytes(tokens["tokens"]).decode() == "user: Grüße 🙂\nassistant:"
    assert tokens["count"] == chat["usage"]["prompt_tokens"]
    # This template does not look at it.
    assert open_ended["tokens"] == tokens["tokens"]


@async_test
async def test_token_texts_come_when_asked_for() -> None:
    async with in_process(make_harness()) as client:
        body = {"prompt": "aé", "return_token_strs": True}
        tokens = (await client.post("/tokenize", json=body)).json()

    assert tokens["token_strs"] == ["a", "bytes:\\xc3", "bytes:\\xa9"]


@async_test
async def test_bad_bodies_are_refused_by_name() -> None:
    cases = (
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 1}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": MESSAGES}, "messages"),
        ("/tokenize", {"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"prompt": "x", "continue_final_message": True}, "continue_final_message"),
        ("/tokenize", {"prompt": "x", "nonsense": 1}, "nonsense"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": ["x"]}, "tokens"),
        ("/detokenize", {"tokens": [EOS + 1]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/abort", {}, "request_id"),
        ("/abort", {"request_id": "a", "request_ids": ["b"]}, "request_id"),
        ("/abort", {"request_ids": [1]}, "request_ids"),
        ("/abort", {"request_ids": ["a"] * 1_025}, "request_ids"),
    )
    async with in_process(make_harness()) as client:
        for path, body, param in cases:
            answer = await client.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), body


@async_test
async def test_another_model_is_not_found() -> None:
    async with in_process(make_harness()) as client:
        for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
            answer = await client.post(path, json=body | {"model": "gpt-9"})
            assert answer.status_code == 404


@async_test
async def test_aborted_requests_are_answered_with_what_there_is() -> None:
    harness = make_harness()
    async with in_process(harness) as client:
        harness.gate.shut()
        one = _asked(client, "mine-1", n=2)
        other = _asked(client, "other")
        await harness.gate.reached()
        await eventually(lambda: harness.engine.num_live == 2)
        aborted = await client.post("/abort", json={"request_ids": ["mine-1", "nobody"]})
        harness.gate.open()
        first, second = (await one).json(), (await other).json()
        again = await client.post("/abort", json={"request_id": "mine-1"})

    assert aborted.json() == {"aborted": ["mine-1"]}
    assert [choice["finish_reason"] for choice in first["choices"]] == ["abort", "abort"]
    assert second["choices"][0]["text"] == reply_to(b"hello")
    assert again.json() == {"aborted": []}
    harness.assert_all_returned()
    assert harness.engine.stats.num_finished == {"abort": 1, "stop": 1}


@async_test
async def test_stream_is_aborted_by_the_id_in_its_events() -> None:
    harness = make_harness()
    # So that the answer cannot end by itself before it is aborted.
    harness.executor.before_pass = lambda number: harness.gate.shut() if number == 3 else None
    async with openai_client(harness) as client:
        stream = await client.completions.create(
            model="toy", prompt="hello", stream=True, extra_body={"ignore_eos": True}
        )
        texts, reasons = [], []
        async for chunk in stream:
            if not texts:
                url = str(client.base_url).removesuffix("/v1/")
                async with httpx.AsyncClient(base_url=url) as plain:
                    answer = await plain.post("/abort", json={"request_id": chunk.id})
                assert answer.json() == {"aborted": [chunk.id]}
                harness.gate.open()
            texts.append(chunk.choices[0].text)
            reasons.append(chunk.choices[0].finish_reason)

    assert reasons[-1] == "abort"
    assert "".join(texts) == reply_to(b"hello")[: len("".join(texts))]
    harness.assert_all_returned()


def _asked(client: httpx.AsyncClient, request_id: str, n: int = 1) -> "asyncio.Task":
    return asyncio.create_task(
        client.post(
            "/v1/completions",
            json={"prompt": "hello", "n": n},
            headers={"X-Request-Id": request_id},
        )
    )
