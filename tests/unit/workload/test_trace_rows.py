"""Broken rows are refused by line, value and what is allowed; rows out of order too."""

import gzip
import json

import pytest
from trace_rows import BURSTGPT, FILES, requests_of, seconds

from everbatch.base.errors import ConfigError
from everbatch.workload.traces.lines import MAX_LINE_BYTES
from everbatch.workload.traces.order import LOOK_AHEAD

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n"
PLAIN = {"arrival_s": 1, "prompt_tokens": 9, "output_tokens": 2}
MOONCAKE = {"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}


def refusal(tmp_path, text: str | bytes, format: str | None = None) -> str:
    path = tmp_path / "trace"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as error:
        requests_of(path, format)
    assert str(error.value).startswith(f"{path}: ")
    return str(error.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("2023-11-16 18:15:47.1,4", "line 3: it has 2 cells, the header has 3"),
        (
            "2023-11-16 18:15:47.1,x,4",
            'ContextTokens is "x", it must be an integer from 0 to 1,073',
        ),
        ("2023-11-16 18:15:47.1,4,-1", 'GeneratedTokens is "-1", it must be an integer from 0'),
        ("2023-11-16 18:15:47.1,4,1.0", 'GeneratedTokens is "1.0"'),
        ("2023-11-16 18:15:47.1,4,", 'GeneratedTokens is ""'),
        ("2023-11-16 18:15:47.1,4,1073741825", 'GeneratedTokens is "1073741825"'),
        ("2023-11-16 18:15:47.1,4,²", 'GeneratedTokens is "²"'),
        ("2023-11-31 18:15:47.1,4,4", 'TIMESTAMP is "2023-11-31 18:15:47.1", it must be a time'),
        ("2023-11-16 24:15:47.1,4,4", 'TIMESTAMP is "2023-11-16 24:15:47.1"'),
        ("2023-11-16 18:60:47.1,4,4", 'TIMESTAMP is "2023-11-16 18:60:47.1"'),
        ("2023-11-16 18:15:61.1,4,4", 'TIMESTAMP is "2023-11-16 18:15:61.1"'),
        ("2023-11-16 18:15:47.,4,4", 'TIMESTAMP is "2023-11-16 18:15:47."'),
        ("2023-11-16 18:15:47.1234567890,4,4", "TIMESTAMP is"),
        ("2023-11-16 18:15:47+02:00,4,4", "TIMESTAMP is"),
        ("2023-11-16,4,4", 'TIMESTAMP is "2023-11-16"'),
        ('"2023-11-16 18:15:47,4,4', "line 3: its quotes do not end"),
    ],
)
def test_a_broken_azure_row_is_named(tmp_path, row, told):
    message = refusal(tmp_path, f"{AZURE}{row}\n{AZURE.splitlines()[1]}\n")

    assert message.startswith("line 3: ")
    assert told in message


@pytest.mark.parametrize(
    ("stamp", "told"),
    [
        ("soon", 'Timestamp is "soon", it must be a number of seconds'),
        ("nan", "Timestamp is NaN, it must be a number of seconds"),
        ("1e99", "Timestamp is 1E+99, it must be a number of seconds, at most"),
        ("1700000000000", "Timestamp is 1700000000000, it must be a number of seconds, at most"),
    ],
)
def test_a_broken_stamp_of_seconds_is_named(tmp_path, stamp, told):
    message = refusal(tmp_path, BURSTGPT.replace("118.5", stamp))

    assert message.startswith("line 4: ")
    assert told in message


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"prompt_tokens": "9"}, 'prompt_tokens is "9", it must be an integer from 0'),
        ({"prompt_tokens": True}, "prompt_tokens is true"),
        ({"output_tokens": 1.5}, "output_tokens is 1.5"),
        ({"arrival_s": "1"}, 'arrival_s is "1", it must be a number of seconds'),
        ({"arrival_s": None}, "arrival_s is null"),
        ({"arrivals": 1}, 'the row has no key "arrivals" (did you mean "arrival_s"?)'),
        ({"max_tokens": 0}, "max_tokens is 0, it must be an integer from 1"),
        ({"tenant": 3}, "tenant is 3, it must be a string"),
        ({"deadline_s": -1}, "deadline_s is -1, it must be a number of seconds from 0"),
        ({"prefix": 5}, "prefix is 5, it must be a list of { text, tokens }"),
        ({"prefix": [{"text": "a"}]}, "a piece of prefix lacks tokens"),
        ({"prefix": [{"text": "a", "tokens": 10}]}, "prefix has 10 tokens, the prompt has 9"),
    ],
)
def test_a_broken_plain_row_is_named(tmp_path, change, told):
    rows = [PLAIN, {**PLAIN, **change}]

    message = refusal(tmp_path, "".join(f"{json.dumps(row)}\n" for row in rows), "jsonl")

    assert message.startswith("line 2: ")
    assert told in message


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "it is not JSON"),
        ('{"arrival_s": 1, "arrival_s": 2}', 'it is not JSON (the key "arrival_s" comes twice)'),
        ("[1]", "it is not a JSON object: "),
        ('{"arrival_s": NaN}', "NaN is no number of JSON"),
        (f'{{"arrival_s": 1e{10**18}}}', "it has an exponent that is too large: "),
        ('{"arrival_s": 1}', "it lacks prompt_tokens; a row has arrival_s, prompt_tokens"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_line_that_is_no_row_is_named(tmp_path, line, told):
    message = refusal(tmp_path, f"{json.dumps(PLAIN)}\n{line}\n")

    assert message.startswith("line 2: ")
    assert told in message


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"hash_ids": [1, 2, 3]}, "hash_ids has 3 ids, but a prompt of 600 tokens has 2 blocks"),
        ({"hash_ids": ["1"]}, 'hash_ids is ["1"], it must be a list of integers'),
        ({"hash_ids": [1.5, None]}, "hash_ids is [1.5, null], it must be a list of integers"),
        ({"hash_ids": 7}, "hash_ids is 7, it must be a list of integers"),
    ],
)
def test_hash_ids_that_do_not_fit_the_prompt_are_named(tmp_path, change, told):
    message = refusal(tmp_path, json.dumps({**MOONCAKE, **change}))

    assert message.startswith(f"line 1: {told}")


def test_a_file_that_is_not_utf_8_is_refused(tmp_path):
    text = AZURE.encode() + b"2023-11-16 18:15:47,4,\xff\n" + AZURE.splitlines()[1].encode()

    assert refusal(tmp_path, text) == "line 3: it is not UTF-8 (byte 23)"


def test_a_broken_line_of_hashes_is_told_with_its_file(tmp_path):
    (tmp_path / "prompt_hash_ids_block16.jsonl").write_text("[]")
    row = {"request_id": "a", "arrival_time": 1, "input_toks": 40, "output_toks": 3}

    message = refusal(tmp_path, json.dumps(row))

    assert message.startswith("prompt_hash_ids_block16.jsonl beside it: line 1: it is not a JSON")


def test_a_compressed_file_that_is_cut_is_refused(tmp_path):
    packed = gzip.compress((FILES / "azure.csv").read_bytes())

    assert "the compressed file is damaged there" in refusal(tmp_path, packed[:-20])


def test_a_line_without_end_is_not_read_into_memory(tmp_path):
    line = json.dumps(PLAIN)[:-1] + ", " + " " * MAX_LINE_BYTES

    assert "line 1: it has 16,777,216 bytes or more" in refusal(tmp_path, line)


def plain_file(tmp_path, arrivals):
    path = tmp_path / "trace.jsonl"
    rows = [{**PLAIN, "arrival_s": arrival} for arrival in arrivals]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def test_rows_a_little_out_of_order_are_sorted_and_keep_their_names(tmp_path):
    specs = requests_of(plain_file(tmp_path, [3, 1, 2, 2, 1]))

    assert seconds(specs) == [0, 0, 1, 1, 2]
    assert [spec.id for spec in specs] == ["1", "4", "2", "3", "0"]


def test_a_row_may_stand_as_far_down_as_is_looked_ahead(tmp_path):
    specs = requests_of(plain_file(tmp_path, [*range(1, LOOK_AHEAD + 1), 0]))

    assert specs[0].id == str(LOOK_AHEAD)


def test_a_row_that_stands_further_down_is_refused_by_line(tmp_path):
    path = plain_file(tmp_path, [*range(1, LOOK_AHEAD + 2), 0.5])

    with pytest.raises(ConfigError) as error:
        requests_of(path)

    assert f"line {LOOK_AHEAD + 2:,}: it arrives 0.500000 s before a row that stands more than" in (
        str(error.value)
    )
