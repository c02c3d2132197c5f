"""Logs of requests: both spellings, two clocks, shared prefixes, and what is wrong with a row."""

import json

import pytest

from everbatch.base.errors import ConfigError
from everbatch.calibration.request_log import is_request_log, read_request_log, without_prefixes

OURS = {
    "arrival_s": 1.5,
    "prompt_tokens": 20,
    "output_tokens": 3,
    "first_token_s": 2.0,
    "last_token_s": 2.5,
}
VLLM = {
    "request_id": "a",
    "input_toks": 20,
    "output_toks": 3,
    "arrival_time": 1787267980.25,
    "queued_ts": 100.0,
    "first_token_ts": 100.5,
    "last_token_ts": 101.5,
}


@pytest.fixture
def write(tmp_path):
    def writer(*rows, name="log.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return writer


def test_times_count_from_the_first_arrival_and_requests_stand_by_arrival(write):
    later = {**OURS, "arrival_s": 1.75, "first_token_s": 3, "last_token_s": 4}

    log = read_request_log(write(later, OURS))

    assert [(one.spec.id, one.spec.arrival) for one in log.requests] == [("0", 0), ("1", 250e6)]
    assert [one.ttft_ns for one in log.requests] == [500e6, 1250e6]
    assert [one.decode_ns for one in log.requests] == [500e6, 1000e6]
    assert [one.e2e_ns for one in log.requests] == [1000e6, 2250e6]
    assert not log.has_queued


def test_arrivals_of_another_clock_are_set_by_whoever_was_queued_at_once(write):
    waited = {**VLLM, "request_id": "b", "arrival_time": 1787267980.5, "queued_ts": 100.375}

    log = read_request_log(write(VLLM, waited))
    first, second = log.requests

    # The clocks differ by what lies between arrival and queueing of the first: the second came at
    # 0.25 s and was queued an eighth of a second later, from where its wait counts.
    assert (first.spec.arrival, first.queued_ns, first.ttft_ns) == (0, 0, 500e6)
    assert (second.spec.arrival, second.queued_ns) == (250e6, 375e6)
    assert second.ttft_ns == 125e6
    assert log.has_queued


def test_which_prompts_begin_alike_stands_beside_the_log(write):
    write({"request_id": "a", "hash_ids": [7]}, name="prompt_hash_ids_block16.jsonl")

    log = read_request_log(write(VLLM))
    [alone] = without_prefixes(log).requests

    assert [(piece.text, piece.tokens) for piece in log.requests[0].spec.prompt.segments] == [
        ("h7", 16),
        (None, 4),
    ]
    assert [(piece.text, piece.tokens) for piece in alone.spec.prompt.segments] == [(None, 20)]


def test_requests_without_tokens_are_left_out_and_counted(write):
    failed = {**OURS, "first_token_s": None, "last_token_s": None}
    empty = {**OURS, "output_tokens": 0}

    log = read_request_log(write(OURS, failed, empty))

    assert len(log.requests) == 1
    assert sum(log.left_out.values()) == 2


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"arrival_s": 2.0}, "line 1: its first token must come after its arrival (are they on"),
        ({"last_token_s": 1.9}, "line 1: its first token must come after its arrival"),
        ({"queued_s": 2.25}, "line 1: its first token must come after its queueing"),
        ({"prompt_tokens": 0}, "line 1: prompt_tokens is 0, it must be an integer from 1"),
        ({"output_tokens": 1.5}, "line 1: output_tokens is 1.5"),
        ({"first_token_s": "soon"}, 'line 1: first_token_s is "soon"'),
        ({"input_toks": 3}, "line 1: it has both prompt_tokens and input_toks"),
    ],
)
def test_a_row_that_cannot_be_is_refused_by_line(write, changes, told):
    with pytest.raises(ConfigError) as error:
        read_request_log(write({**OURS, **changes}))

    assert told in str(error.value)


def test_a_row_that_lacks_a_stamp_says_under_which_names(write):
    row = {key: value for key, value in OURS.items() if key != "last_token_s"}

    with pytest.raises(ConfigError, match="line 1: it lacks last_token_s or last_token_ts"):
        read_request_log(write(row))


def test_all_rows_or_none_tell_when_they_were_queued(write):
    row = {key: value for key, value in VLLM.items() if key != "queued_ts"}

    with pytest.raises(ConfigError, match="line 2: some rows tell queued_s or queued_ts, others"):
        read_request_log(
            write(VLLM, {**row, "first_token_ts": 1787267990, "last_token_ts": 1787267991})
        )


def test_a_log_of_failures_is_refused(write):
    with pytest.raises(ConfigError, match="no request of it has both a first and a last token"):
        read_request_log(write({**OURS, "output_tokens": 0}))


def test_the_first_row_says_whether_a_file_is_such_a_log(write, tmp_path):
    assert is_request_log(write(OURS))
    assert is_request_log(write(VLLM))
    assert not is_request_log(write({"event": "header", "version": 1, "arrival_s": 3}))
    assert not is_request_log(write({"something": 1}))
    assert not is_request_log(tmp_path / "none.jsonl")
