"""The storm in small: half a minute, a tiny model. Times are looked at, not judged."""

from pathlib import Path

import pytest
from e2e.processes import serving
from load.asking import Shape
from load.run import seconds, soak
from load.storm import SERVER_FLAGS, Plan
from load.wire import Answer
from tiny_model import write_model

PLAN = Plan(
    warm_s=1.0,
    calm_s=2.0,
    settle_s=5.0,
    storm_s=10.0,
    burst_every_s=4.0,
    burst_s=1.5,
    shape=Shape(words=(2, 8), tokens=(40, 120)),
)


@pytest.mark.full
def test_a_server_keeps_its_promises_in_a_storm(tmp_path: Path) -> None:
    with serving(write_model(tmp_path / "model"), *SERVER_FLAGS, "--threads", "1") as server:
        checks = soak(server, PLAN, with_times=False)

    assert [check.line() for check in checks if check.is_kept is False] == []


def heard(*pieces: bytes, status: int = 200, kind: bytes = b"text/event-stream") -> Answer:
    answer = Answer()
    answer.head(status, {b"content-type": kind})
    for piece in pieces:
        answer.piece(piece)
    answer.end()
    return answer


TOKEN = b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"text":"a","finish_reason":"length"}]}\n\n'
ERROR = b'data: {"error":{"code":"deadline"}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("pieces", "outcome"),
    [
        ((TOKEN, LAST, DONE), "answered, length"),
        ((TOKEN[:9], TOKEN[9:] + ERROR + DONE), "error event deadline"),
        ((TOKEN, DONE), "fault"),
        ((TOKEN, LAST), "fault"),
        ((LAST, LAST, DONE), "fault"),
        ((LAST, DONE, DONE), "fault"),
        ((LAST, DONE, TOKEN), "fault"),
        ((ERROR, ERROR, DONE), "fault"),
        ((LAST, DONE, b"data: {"), "fault"),
    ],
)
def test_a_stream_has_exactly_one_end(pieces: tuple[bytes, ...], outcome: str) -> None:
    assert heard(*pieces).outcome == outcome


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, b'{"choices":[{"index":0,"finish_reason":"stop"}]}', "answered, stop"),
        (200, b'{"choices":[]}', "fault"),
        (400, b'{"error":{"code":"invalid_value"}}', "400 invalid_value"),
        (400, b"Bad Request", "fault"),
        (429, b'{"error":{"code":"queue_full"}}', "fault"),
    ],
)
def test_an_answer_in_one_piece_is_held_against_its_status(
    status: int, body: bytes, outcome: str
) -> None:
    assert heard(body, status=status, kind=b"application/json").outcome == outcome


@pytest.mark.parametrize("text", ["abc", "0", "-5", "nan", ""])
def test_a_storm_without_a_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="seconds is none: give a whole number of at least 1"):
        seconds(text)


def test_a_storm_lasts_as_long_as_is_said() -> None:
    assert seconds("60") == 60.0
