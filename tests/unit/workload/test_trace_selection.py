"""Windows, samples, limits and speeds of traces; rows without tokens."""

import json
import tracemalloc

import pytest
from trace_rows import FILES, drained, lengths, requests_of, seconds

from everbatch.base.errors import ConfigError
from everbatch.workload.traces.formats import open_trace
from everbatch.workload.traces.requests import TraceRequests
from everbatch.workload.traces.selection import Selection

SECOND = 1_000_000_000
NUM_ROWS = 200


@pytest.fixture
def trace(tmp_path):
    """A row a second, with its number + 1 as length."""
    return plain(tmp_path, [(number, number + 1, 1) for number in range(NUM_ROWS)])


def plain(tmp_path, rows):
    path = tmp_path / "trace.jsonl"
    keys = ("arrival_s", "prompt_tokens", "output_tokens")
    text = "".join(f"{json.dumps(dict(zip(keys, row, strict=True)))}\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_window_has_its_start_at_0_and_not_its_end(trace):
    specs = requests_of(trace, start_ns=5 * SECOND, duration_ns=3 * SECOND)

    assert [spec.id for spec in specs] == ["5", "6", "7"]
    assert seconds(specs) == [0, 1, 2]


def test_a_window_between_rows_counts_from_where_it_begins(trace):
    assert seconds(requests_of(trace, start_ns=SECOND // 2, limit=2)) == [0.5, 1.5]


def test_a_limit_takes_the_first_rows(trace):
    assert len(requests_of(trace, limit=7)) == 7
    assert len(requests_of(trace, limit=NUM_ROWS + 1)) == NUM_ROWS


def test_speed_divides_times_exactly(trace):
    specs = requests_of(trace, speed=3.0, limit=4)

    assert [spec.arrival for spec in specs] == [0, 333_333_333, 666_666_667, SECOND]


def test_a_sample_is_the_same_for_a_seed_whatever_the_window(trace):
    sample = [spec.id for spec in requests_of(trace, sample=0.25, seed=3)]
    late = [spec.id for spec in requests_of(trace, sample=0.25, seed=3, start_ns=100 * SECOND)]

    assert 30 < len(sample) < 70
    assert late == [id for id in sample if int(id) >= 100]
    assert sample != [spec.id for spec in requests_of(trace, sample=0.25, seed=4)]


def test_rows_without_tokens_are_left_out_and_counted(tmp_path):
    path = plain(tmp_path, [(0, 5, 0), (1, 0, 4), (2, 5, 4), (3, 0, 0)])
    source = TraceRequests(open_trace(path), Selection())

    specs = drained(source)

    assert [spec.id for spec in specs] == ["2"]
    # The first row of the file is at 0, taken or not.
    assert seconds(specs) == [2]
    assert source.notes() == [
        "read trace.jsonl, format jsonl (detected)",
        "trace.jsonl: 1 row left out: no output tokens",
        "trace.jsonl: 2 rows left out: no prompt tokens",
    ]


def test_rows_without_tokens_can_count_as_one(tmp_path):
    path = plain(tmp_path, [(0, 5, 0), (1, 0, 4)])
    source = TraceRequests(open_trace(path), Selection(zeros_are_ones=True))

    assert lengths(drained(source)) == [(5, 1), (1, 4)]
    assert source.notes() == [
        "read trace.jsonl, format jsonl (detected)",
        "trace.jsonl: 2 rows taken as one token: no prompt or no output tokens",
    ]


def test_a_selection_of_nothing_is_refused(trace):
    with pytest.raises(
        ConfigError, match="no row is left of what is asked for: from 900 s for 5 s"
    ):
        requests_of(trace, start_ns=900 * SECOND, duration_ns=5 * SECOND)


def test_ends_move_with_the_window_and_the_speed(tmp_path):
    path = tmp_path / "trace.jsonl"
    row = {"arrival_s": 10, "prompt_tokens": 4, "output_tokens": 2}
    ends = {"abort_s": 14, "deadline_s": 3}
    path.write_text(f"{json.dumps(row)}\n{json.dumps({**row, **ends})}\n", encoding="utf-8")

    _, spec = requests_of(path, speed=2.0)

    assert (spec.arrival, spec.abort_at, spec.deadline) == (0, 2 * SECOND, 3 * SECOND // 2)


def test_a_source_is_peeked_without_being_spent():
    source = TraceRequests(open_trace(FILES / "azure.csv"), Selection())

    assert source.peek() == source.peek() == 0
    assert source.num_requests is None
    source.ended("0", 5)
    assert source.pop().id == "0"


def test_a_long_trace_is_not_kept_in_memory(tmp_path):
    path = tmp_path / "azure.csv"
    with path.open("w", encoding="utf-8") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for number in range(40_000):
            minute, second = divmod(number % 3600, 60)
            file.write(f"2023-11-16 {number // 3600:02}:{minute:02}:{second:02},100,10\n")
    tracemalloc.start()
    try:
        source = TraceRequests(open_trace(path), Selection())
        num_requests = 0
        while source.peek() is not None:
            source.pop()
            num_requests += 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert num_requests == 40_000
    # The file has 1.2 MB, its requests would have 20 MB; the look-ahead has 1,024 rows.
    assert peak < 2_000_000
