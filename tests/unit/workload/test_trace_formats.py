"""Each format's rows as requests; which format a file has, and when nobody can tell."""

import gzip
import json

import pytest
from trace_rows import BURSTGPT, FILES, drained, lengths, pieces, requests_of, seconds

from everbatch.base.errors import ConfigError
from everbatch.base.eventlog import EventLogWriter
from everbatch.base.events import Arrived, Finished, Rejected
from everbatch.workload.traces.formats import FORMATS, open_trace
from everbatch.workload.traces.requests import TraceRequests
from everbatch.workload.traces.selection import Selection


def written(tmp_path, text: str, name: str = "trace"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def objects(*rows: dict[str, object]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def test_azure_rows_count_from_the_first_in_steps_of_100_ns():
    specs = requests_of(FILES / "azure.csv")

    assert len(specs) == 24
    assert [spec.arrival for spec in specs[:3]] == [0, 4_314_579_000, 4_541_877_000]
    assert lengths(specs)[0] == (374, 44)
    assert lengths(specs)[-1] == (4085, 62)


def test_requests_are_named_by_their_row_and_limited_by_their_outputs():
    specs = requests_of(FILES / "azure.csv")

    assert [spec.id for spec in specs] == [str(row) for row in range(24)]
    assert [spec.max_tokens for spec in specs] == [spec.output_tokens for spec in specs]
    assert pieces(specs[0]) == [(None, 374)]


@pytest.mark.parametrize("end", ["", "Z", "+00:00"])
def test_azure_stamps_may_name_utc_and_cross_midnight(tmp_path, end):
    rows = ["2024-05-31 23:59:59.5", "2024-06-01 00:00:00.250000001", "2024-06-01 00:00:01"]
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"{row}{end},5,6\n" for row in rows
    )

    specs = requests_of(written(tmp_path, text))

    assert [spec.arrival for spec in specs] == [0, 750_000_001, 1_500_000_000]


def test_mooncake_ids_are_shared_blocks_of_512_and_the_last_is_partial():
    specs = requests_of(FILES / "mooncake.jsonl")

    first, second = specs[0], specs[1]
    assert pieces(first)[0] == pieces(second)[0] == ("h0", 512)
    assert pieces(first)[-1] == ("h13", 6758 - 13 * 512)
    assert sum(tokens for _, tokens in pieces(first)) == 6758
    assert seconds(specs)[0] == 0


def test_mooncake_prompts_beyond_their_ids_are_their_own(tmp_path):
    row = {"timestamp": 7, "input_length": 1200, "output_length": 2, "hash_ids": [3, 4]}
    later = {"timestamp": 9.5, "input_length": 5, "output_length": 2}

    one, other = requests_of(written(tmp_path, objects(row, later)))

    assert pieces(one) == [("h3", 512), ("h4", 512), (None, 176)]
    assert pieces(other) == [(None, 5)]
    assert other.arrival == 2_500_000


def test_prefixes_can_be_taken_as_private_tokens():
    specs = requests_of(FILES / "mooncake.jsonl", prefixes=False)

    assert pieces(specs[0]) == [(None, 6758)]


def test_burstgpt_rows_have_seconds(tmp_path):
    specs = requests_of(written(tmp_path, BURSTGPT))

    assert seconds(specs) == [0, 40, 113.5]
    assert lengths(specs) == [(472, 18), (1087, 230), (417, 276)]


def test_vidur_rows_with_arrivals(tmp_path):
    text = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.25,10,4\n1.5,7,2\n"

    specs = requests_of(written(tmp_path, text))

    assert seconds(specs) == [0, 1.25]
    assert lengths(specs) == [(10, 4), (7, 2)]


def test_vidur_lengths_alone_are_no_requests_yet():
    trace = open_trace(FILES / "vidur.csv")

    assert not trace.has_arrivals
    assert len(list(trace.rows())) == 23
    with pytest.raises(ConfigError, match="lengths only, no arrivals"):
        TraceRequests(trace, Selection())


def test_vllm_logs_find_the_prefixes_that_lie_beside_them():
    specs = requests_of(FILES / "vllm_requests.jsonl")

    named = [text for spec in specs for text, _ in pieces(spec) if text]
    assert len(specs) == 24
    assert {tokens for spec in specs for text, tokens in pieces(spec) if text} == {16}
    assert len(set(named)) < len(named)
    assert specs[0].arrival == 0


def test_vllm_logs_without_such_a_file_share_nothing(tmp_path):
    # Two stamps that are one and the same as floats.
    text = (
        '{"arrival_time": 1787267980.0827403, "input_toks": 40, "output_toks": 3}\n'
        '{"arrival_time": 1787267980.0827404, "input_toks": 9, "output_toks": 4}\n'
    )

    one, other = requests_of(written(tmp_path, text))

    assert pieces(one) == [(None, 40)]
    assert other.arrival == 100


def test_a_file_of_hashes_of_other_requests_is_refused(tmp_path):
    log = FILES / "vllm_requests.jsonl"
    hashes = (FILES / "prompt_hash_ids_block16.jsonl").read_text(encoding="utf-8")
    written(tmp_path, hashes.partition("\n")[2], "prompt_hash_ids_block16.jsonl")

    with pytest.raises(
        ConfigError, match=r"line 1: request_id is .*same requests in the same order"
    ):
        requests_of(written(tmp_path, log.read_text(encoding="utf-8"), "log.jsonl"))


def test_plain_rows_bring_what_they_say(tmp_path):
    first = {"arrival_s": 2, "prompt_tokens": 50, "output_tokens": 8}
    second = {
        "arrival_s": 3.25,
        "prompt_tokens": 60,
        "output_tokens": 9,
        "id": "x",
        "prefix": [{"text": "system", "tokens": 48}],
        "tenant": "a",
        "priority": -2,
        "max_tokens": 20,
        "n": 2,
        "abort_s": 5,
        "deadline_s": 1.5,
    }

    one, other = requests_of(written(tmp_path, objects(first, second)))

    assert (one.arrival, one.max_tokens, pieces(one)) == (0, 8, [(None, 50)])
    assert pieces(other) == [("system", 48), (None, 12)]
    assert (other.id, other.tenant, other.priority, other.num_samples) == ("1", "a", -2, 2)
    assert (other.arrival, other.max_tokens) == (1_250_000_000, 20)
    assert (other.abort_at, other.deadline) == (3_000_000_000, 1_500_000_000)


def event_log(path, events, **header):
    with path.open("w", encoding="utf-8") as file:
        writer = EventLogWriter(file, {"config": {}, **header})
        writer.write(events)
        writer.flush()
    return path


def arrived(t: int, id: str, **fields) -> Arrived:
    return Arrived(t, id, 10, 30, fields.get("priority", 0), "", fields.get("samples", 1))


def finished(t: int, id: str, reason: str, outputs: int) -> Finished:
    return Finished(t, 1, id, reason, outputs, 0, 0, 0)


def test_an_event_log_gives_what_arrived_with_the_outputs_of_its_end(tmp_path):
    events = [
        arrived(1_000, "a"),
        Rejected(1_100, "no", 10, 30, "queue_full", 1, 1),
        arrived(1_500, "b", priority=3),
        arrived(2_000, "c", samples=2),
        arrived(2_500, "d"),
        arrived(2_600, "e"),
        arrived(2_700, "f"),
        finished(3_000, "b", "length", 30),
        finished(3_500, "a", "stop", 7),
        finished(4_000, "c", "stop", 9),
        finished(4_500, "d", "abort", 2),
        finished(4_600, "e", "deadline", 0),
        finished(4_700, "f", "error", 1),
        arrived(5_000, "g"),
    ]
    source = TraceRequests(open_trace(event_log(tmp_path / "log", events)), Selection())

    specs = drained(source)

    assert [spec.arrival for spec in specs] == [0, 500, 1_000, 1_500, 1_600]
    assert [spec.output_tokens for spec in specs] == [7, 30, 5, 30, 30]
    assert [spec.max_tokens for spec in specs] == [30] * 5
    assert [spec.num_samples for spec in specs] == [1, 1, 2, 1, 1]
    assert [spec.abort_at for spec in specs] == [None, None, None, 3_500, None]
    assert [spec.deadline for spec in specs] == [None, None, None, None, 2_000]
    assert specs[1].priority == 3
    assert source.notes() == [
        "read log, format eventlog (detected)",
        "log: 1 row left out: refused at arrival, their outputs are not known",
        "log: 2 rows left before their end: they leave again, else they run to max_tokens",
        "log: 1 row left out: ended by an error, their outputs are not known",
        "log: 1 row left out: not finished at the end of the log",
    ]


def test_an_event_log_s_torn_last_line_is_passed_over(tmp_path):
    path = event_log(tmp_path / "log", [arrived(0, "a"), finished(5, "a", "stop", 3)])
    with path.open("a", encoding="utf-8") as file:
        file.write('{"event":"arri')

    assert len(requests_of(path)) == 1


def test_an_event_log_in_steps_is_refused(tmp_path):
    path = event_log(tmp_path / "log", [arrived(0, "a")], clock="steps")

    with pytest.raises(ConfigError, match="line 1: this log counts in steps"):
        requests_of(path)


@pytest.mark.parametrize("field", ["t", "id", "prompt_tokens", "priority"])
def test_an_event_with_a_value_that_no_engine_writes_is_refused(tmp_path, field):
    path = event_log(tmp_path / "log", [arrived(0, "a"), finished(5, "a", "stop", 3)])
    header, event, end = path.read_text(encoding="utf-8").splitlines()
    event = json.dumps({**json.loads(event), field: [None]})
    path.write_text(f"{header}\n{event}\n{end}\n", encoding="utf-8")

    with pytest.raises(ConfigError, match=f"line 2: {field} is"):
        requests_of(path)


def test_compressed_files_are_read_as_they_are(tmp_path):
    path = tmp_path / "azure.csv.gz"
    path.write_bytes(gzip.compress((FILES / "azure.csv").read_bytes()))

    assert requests_of(path) == requests_of(FILES / "azure.csv")


def test_line_ends_byte_order_marks_and_blank_lines_do_not_matter(tmp_path):
    text = (FILES / "azure.csv").read_text(encoding="utf-8")
    path = tmp_path / "trace"
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n\r\n").encode() + b"\r\n\r\n")

    assert requests_of(path) == requests_of(FILES / "azure.csv")


def test_cells_in_quotes_are_read(tmp_path):
    text = BURSTGPT.replace("ChatGPT", '"Chat, GPT"')

    assert lengths(requests_of(written(tmp_path, text)))[0] == (472, 18)


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("azure.csv", "azure"),
        ("mooncake.jsonl", "mooncake"),
        ("vidur.csv", "vidur"),
        ("vllm_requests.jsonl", "vllm"),
    ],
)
def test_a_format_is_detected_and_said(name, format):
    trace = open_trace(FILES / name)

    assert trace.format == format
    assert trace.title == f"{name}, format {format} (detected)"
    assert open_trace(FILES / name, format).title == f"{name}, format {format} (as told)"


def test_all_formats_are_told_apart():
    assert FORMATS == ("azure", "mooncake", "vidur", "burstgpt", "jsonl", "eventlog", "vllm")


def test_a_file_that_fits_two_formats_is_refused_until_one_is_named(tmp_path):
    row = {"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1}
    both = {**row, "arrival_time": 0, "input_toks": 1, "output_toks": 1}
    path = written(tmp_path, objects(both))

    with pytest.raises(ConfigError, match="fit the formats jsonl and vllm: say which it is"):
        open_trace(path)
    assert len(requests_of(path, "vllm")) == 1


@pytest.mark.parametrize(
    ("text", "format", "told"),
    [
        ("", None, "the trace is empty"),
        ("a,b\n1,2\n", None, 'columns "a", "b", which fit no format: azure TIMESTAMP'),
        ('{"a": 1}\n', None, 'keys "a", which fit no format: mooncake timestamp'),
        ("[1]\n", None, "which fit no format"),
        (BURSTGPT, "azure", "has no TIMESTAMP, ContextTokens, GeneratedTokens, which the format"),
        (BURSTGPT, "jsonl", "is CSV, but the format jsonl is JSON Lines"),
        (BURSTGPT, "burst", '"burst" is no format of traces (did you mean "burstgpt"?)'),
        (BURSTGPT.replace("\n", "\r"), None, "line 1: a carriage return alone ends no line"),
        ("Timestamp,Timestamp\n", None, 'line 1: the column "Timestamp" comes twice'),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, text, format, told):
    with pytest.raises(ConfigError) as error:
        open_trace(written(tmp_path, text), format)

    assert told in str(error.value)


def test_a_file_that_is_not_there_or_no_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        open_trace(tmp_path / "none")
    with pytest.raises(ConfigError, match="is not a file"):
        open_trace(tmp_path)
