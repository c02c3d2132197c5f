"""What events are tokens, how answers may end, and what of HTTP a server may do."""

import pytest
from fake_server import Asked, Reply, async_test
from measuring import measured

from everbatch.loadgen.answer import (
    MAX_EVENT_BYTES,
    MAX_RETRY_AFTER_S,
    AnswerReader,
    body_message,
)
from everbatch.loadgen.records import Outcome, Record

DONE = b"data: [DONE]\n\n"


def read(*pieces: bytes, status: int = 200, cancel_after: int | None = None, **headers) -> Record:
    """Read an answer whose pieces come at 1, 2, 3, …"""
    record = Record(0, 0, 1, 1)
    reader = AnswerReader(record, cancel_after)
    reader.begun(status, {name.replace("_", "-"): value for name, value in headers.items()})
    for time, piece in enumerate(pieces, 1):
        if not reader.received(piece, time):
            break
    reader.finish(99)
    return record


def delta(content: str, rest: str = "") -> bytes:
    return f'data: {{"choices": [{{"delta": {{{content}}}{rest}}}]}}\n\n'.encode()


def test_chat_deltas_with_text_are_tokens():
    record = read(
        delta('"role": "assistant", "content": ""'),
        delta('"content": "a"'),
        delta('"content": null'),
        delta('"reasoning_content": "b"'),
        delta('"reasoning": "c"'),
        delta("", ', "finish_reason": "stop"'),
        b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n\n',
        DONE,
    )

    assert list(record.token_times) == [2, 4, 5]
    assert (record.first_ns, record.last_ns, record.end_ns) == (2, 6, 99)
    assert (record.num_prompt_tokens, record.num_output_tokens) == (7, 3)
    assert record.outcome is Outcome.COMPLETED


def test_answer_that_is_only_its_end_is_one_token_without_text():
    record = read(
        b'data: {"choices": [{"text": "", "finish_reason": "stop"}]}\n\n',
        b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}}\n\n',
    )

    assert record.outcome is Outcome.COMPLETED
    assert (record.first_ns, record.last_ns) == (1, 1)


def test_answer_is_whole_by_a_finish_reason_or_by_done():
    text = b'data: {"choices": [{"text": "x"}]}\n\n'
    finish = b'data: {"choices": [{"text": "", "finish_reason": "length"}]}\n\n'

    assert read(text, DONE).outcome is Outcome.COMPLETED
    assert read(text, finish).outcome is Outcome.COMPLETED
    assert read(text).error == "stream cut"


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (b"data: {broken}\n\n", "no chunk", "{broken}"),
        (b'data: {"choices": 3}\n\n', "no chunk", "Expected `array`"),
        (b"data: []\n\n", "no chunk", "Expected `object`"),
        (b'data: {"error": {"message": "m"}}\n\n', "error event", "m"),
        (b'data: {"error": "text"}\n\n', "error event", "text"),
        (b'data: {"error": {"code": 3}}\n\n', "error event", '{"code":3}'),
        pytest.param(
            b"data: " + b"x" * MAX_EVENT_BYTES, "no chunk", "more than 1,048,576 bytes", id="long"
        ),
        pytest.param(b'data: {"error": ' + b"[" * 100_000 + b"\n", "no chunk", "", id="deep"),
        (b"", "no stream", "does the server stream?"),
        (b"hello\n", "no stream", "does the server stream?"),
    ],
)
def test_what_is_no_answer_is_a_failure_of_its_kind(data, kind, message):
    record = read(data)

    assert (record.outcome, record.error) == (Outcome.FAILED, kind)
    assert message in record.message


def test_client_who_cancels_leaves_at_that_token():
    pieces = [b'data: {"choices": [{"text": "x"}]}\n\n'] * 5

    record = read(*pieces, cancel_after=3)

    assert record.outcome is Outcome.CANCELLED
    assert list(record.token_times) == [1, 2, 3]


def test_nobody_cancels_what_is_over():
    record = read(
        b'data: {"choices": [{"text": "x", "finish_reason": "stop"}]}\n\n', DONE, cancel_after=1
    )

    assert record.outcome is Outcome.COMPLETED


@pytest.mark.parametrize(
    ("status", "header", "seconds"),
    [
        (429, "3", 3),
        (503, "0.5", 0.5),
        (429, None, 1),
        (429, "Wed, 21 Oct 2026 07:28:00 GMT", 1),
        (429, "99999", MAX_RETRY_AFTER_S),
        (429, "-3", 0),
        (429, "nan", 0),
        (429, "inf", MAX_RETRY_AFTER_S),
        (500, "3", None),
        (200, "3", None),
    ],
)
def test_only_refusals_for_now_are_tried_again(status, header, seconds):
    reader = AnswerReader(Record(0, 0, 1, 1))
    reader.begun(status, {} if header is None else {"retry-after": header})

    assert reader.retry_after_s() == seconds


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "m"}}', "m"),
        (b'{"error": "m"}', "m"),
        (b'{"detail": "m"}', "m"),
        (b'{"message": "m", "object": "error"}', "m"),
        (b"[1]", "[1]"),
        (b"<html>", "<html>"),
        pytest.param(b"[" * 100_000, "[" * 300, id="deep"),
    ],
)
def test_message_of_an_error_is_found_where_servers_put_it(body, message):
    assert body_message(body) == message


@async_test
async def test_answer_without_a_length_ends_with_its_connection():
    async def script(asked: Asked, reply: Reply) -> None:
        await reply.raw(b"HTTP/1.1 200 OK\r\n\r\n")
        await reply.raw(b'data: {"choices": [{"text": "x", "finish_reason": "stop"}]}\n\n' + DONE)
        reply.cut()

    done = await measured(script, 2)

    assert done.summary["completed"] == 2


@async_test
async def test_answer_that_ends_before_its_length_is_whole_if_it_says_so():
    """A proxy may break the connection behind [DONE]."""

    async def script(asked: Asked, reply: Reply) -> None:
        await reply.begin()
        await reply.text("x", "stop")
        reply.cut()

    done = await measured(script)

    assert done.summary["completed"] == 1


@async_test
async def test_what_is_no_http_is_a_failure():
    async def script(asked: Asked, reply: Reply) -> None:
        await reply.raw(b"what?\r\n\r\n")
        reply.cut()

    done = await measured(script)

    assert done.summary["errors"]["stream cut"]["messages"][0].startswith("what came is no HTTP")


@async_test
async def test_connection_that_is_closed_without_an_answer_is_a_failure():
    async def script(asked: Asked, reply: Reply) -> None:
        reply.cut()

    done = await measured(script)

    assert list(done.summary["errors"]) == ["stream cut"]
