"""`--perfetto`: spans and counters of a run, as a trace viewer reads them."""

import json
from itertools import pairwise
from random import Random

import pytest
from command_line import everbatch, scenario_text

from everbatch.sim.perfetto import microseconds

REQUESTS = [
    {"id": "a", "prompt_tokens": 4, "output_tokens": 7},
    {"id": "b", "prompt_tokens": 6, "output_tokens": 7},
]


@pytest.fixture
def traced(tmp_path):
    """Runs a scenario and gives the events of its trace."""

    def run(requests=REQUESTS, clock=None, run=None, **engine) -> list[dict]:
        tables = json.loads(scenario_text(requests, run, **engine))
        if clock is not None:
            tables["clock"] = {"kind": clock}
            tables["hardware"] = {"flops": 1e12, "memory_bandwidth": 1e12}
            tables["model"] = {"num_params": 1e9, "bytes_per_value": 2}
        (tmp_path / "s.json").write_text(json.dumps(tables), encoding="utf-8")
        trace = tmp_path / "trace.json"
        answer = everbatch("simulate", tmp_path / "s.json", "--json", "--perfetto", trace)
        assert answer.status == 0, answer.err
        return json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]

    return run


def spans(events: list[dict], slot: int) -> list[tuple]:
    return [
        (event["name"], event["cat"], event["ts"], event["dur"])
        for event in events
        if event["ph"] == "X" and event["tid"] == slot
    ]


def counter(events: list[dict], name: str) -> list[tuple]:
    return [(event["ts"], event["args"]) for event in events if event["name"] == name]


def test_a_slot_shows_who_did_what_when(traced):
    events = traced(num_blocks=4)

    # The golden run: b loses its slot in step 4 and is rebuilt in step 8. A step is 1,000 µs.
    assert spans(events, 1) == [
        ("a", "prefill", 0, 1000),
        ("a", "decode", 1000, 6000),
        ("b", "prefill", 7000, 1000),
        ("b", "decode", 8000, 4000),
    ]
    assert spans(events, 2) == [
        ("b", "prefill", 0, 1000),
        ("b", "decode", 1000, 2000),
        ("b", "preempted", 3000, 1000),
    ]


def test_each_chunk_is_a_span(traced):
    events = traced(max_num_batched_tokens=4)

    assert spans(events, 2)[:2] == [("b", "prefill", 1000, 1000), ("b", "prefill", 2000, 1000)]


def test_counters_are_written_where_they_change(traced):
    events = traced(REQUESTS[:1])

    assert counter(events, "step tokens") == [
        (0, {"decode": 0, "prefill": 4}),
        (1000, {"decode": 1, "prefill": 0}),
    ]
    used = [(ts, values["used"]) for ts, values in counter(events, "KV blocks")]
    assert used == [(1000, 1), (2000, 2), (6000, 3), (7000, 0)]
    assert all(sum(values.values()) == 64 for _, values in counter(events, "KV blocks"))


def test_the_queue_is_counted(traced):
    events = traced(max_num_seqs=1)

    assert counter(events, "queue") == [(1000, {"waiting": 1}), (8000, {"waiting": 0})]


def test_on_other_clocks_times_are_microseconds(traced):
    events = traced(REQUESTS[:1], clock="nominal")

    # 2 GB of weights at 1 TB/s: 2 ms a pass; 2 FLOPs × 1e9 × 4 tokens take 8 ms.
    assert spans(events, 1) == [("a", "prefill", 0.0, 8000.0), ("a", "decode", 8000.0, 12000.0)]


def test_slots_have_names(traced):
    names = [
        (event["tid"], event["args"]["name"])
        for event in traced()
        if event["name"] == "thread_name"
    ]

    assert names == [(1, "slot 1"), (2, "slot 2")]


def test_a_run_of_nobody_is_a_trace_too(traced):
    gone = [{"id": "a", "prompt_tokens": 4, "output_tokens": 7, "abort_at": 0}]

    assert [event["ph"] for event in traced(gone)] == ["M"]


def test_slots_stand_in_order(traced):
    order = [
        (event["tid"], event["args"]["sort_index"])
        for event in traced()
        if event["name"] == "thread_sort_index"
    ]

    assert order == [(1, 1), (2, 2)]


@pytest.mark.parametrize("to_ns", [int, round])
def test_a_reader_gets_every_nanosecond_whether_it_cuts_or_rounds(to_ns):
    draw = Random(0)
    times = [draw.randrange(10 ** draw.randrange(1, 16)) for _ in range(20_000)]
    written = json.loads(json.dumps([microseconds(time) for time in times]))

    assert [to_ns(time_us * 1000.0) for time_us in written] == times


def test_spans_of_a_slot_never_overlap_in_a_reader_that_cuts(tmp_path):
    trace = tmp_path / "trace.json"
    assert everbatch("simulate", "incident", "--json", "--perfetto", trace).status == 0
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    by_slot: dict[int, list[tuple[int, int]]] = {}
    for event in events:
        if event["ph"] == "X":
            start, length = int(event["ts"] * 1000.0), int(event["dur"] * 1000.0)
            by_slot.setdefault(event["tid"], []).append((start, start + length))

    assert sum(map(len, by_slot.values())) > 500
    for spans_of_slot in by_slot.values():
        assert all(end <= start for (_, end), (start, _) in pairwise(spans_of_slot))


def test_every_event_has_what_its_phase_needs(tmp_path):
    trace = tmp_path / "trace.json"
    assert everbatch("simulate", "incident", "--json", "--perfetto", trace).status == 0
    told = json.loads(trace.read_text(encoding="utf-8"))

    assert told["displayTimeUnit"] == "ms"
    needed = {"M": {"args", "tid"}, "X": {"ts", "dur", "tid", "cat"}, "C": {"ts", "args"}}
    for event in told["traceEvents"]:
        assert {"name", "ph", "pid"} | needed[event["ph"]] <= set(event)
    counters: dict[str, list[float]] = {}
    for event in told["traceEvents"]:
        if event["ph"] == "C":
            counters.setdefault(event["name"], []).append(event["ts"])
            assert all(type(value) is int for value in event["args"].values())
    assert sorted(counters) == ["KV blocks", "queue", "step tokens"]
    assert all(times == sorted(times) for times in counters.values())
