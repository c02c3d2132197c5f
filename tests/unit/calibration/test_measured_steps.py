"""What a log says of its steps is what ran, count by count and nanosecond by nanosecond."""

import json
from dataclasses import replace
from itertools import islice

import pytest
from measured_runs import priced, read, recorded

from everbatch.base.errors import EventLogError
from everbatch.calibration.steps import BEGAN_BEFORE, NO_TIME, MeasuredSteps
from everbatch.costs.work import StepWork

PREFIX = [{"text": "system", "tokens": 12}, {"tokens": 9}]
CROWD = [
    {"id": "a", "prompt_tokens": 30, "output_tokens": 40},
    {"id": "b", "prompt_tokens": 90, "output_tokens": 30, "arrival": 0.02},
    {"id": "c", "prompt_tokens": 50, "output_tokens": 35, "arrival": 0.1},
    {"id": "d", "prompt_tokens": 8, "output_tokens": 1, "arrival": 0.3},
    {"id": "e", "prompt_tokens": 20, "output_tokens": 30, "arrival": 0.3, "abort_at": 0.5},
]
RUNS = {
    "plain": (CROWD, {}),
    "preemptions": (CROWD, {"num_blocks": 34}),
    "parts of victims": (CROWD, {"num_blocks": 34, "preemption_extent": "tail"}),
    "stalls": (CROWD, {"num_blocks": 34, "preemption_trigger": "stall"}),
    "swaps": (CROWD, {"num_blocks": 34, "num_host_blocks": 64, "preemption_mode": "swap"}),
    "static batches": (CROWD, {"batching": "static"}),
    "shares": (CROWD, {"max_num_batched_tokens": 16, "min_prefill_tokens": 15}),
    "samples": ([{**CROWD[0], "n": 3}, CROWD[1]], {}),
    "shared prefixes": (
        [{"id": str(n), "arrival": n / 10, "prompt": PREFIX, "output_tokens": 9} for n in range(4)],
        {"enable_prefix_caching": True},
    ),
    "idle moments": ([{**CROWD[0], "arrival": 10.0}, {**CROWD[1], "arrival": 0.5}], {}),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_line_says_what_its_steps_did_and_took(name):
    requests, engine = RUNS[name]
    recorder, text = recorded(priced(), {"requests": requests}, **engine)

    log = read(text)

    assert log.left_out == {}
    assert sum(line.count for line in log.steps) == len(recorder.works)
    ran = iter(zip(recorder.works, recorder.durations, strict=True))
    for line in log.steps:
        works, durations = zip(*islice(ran, line.count), strict=True)
        assert line.duration_ns == sum(durations)
        assert line.num_decodes == sum(work.num_decodes for work in works)
        assert line.decode_context == sum(work.decode_context for work in works)
        assert line.first == told(works[0])
        assert line.last == replace(told(works[-1]), swapped_blocks=line.last.swapped_blocks)


def told(work: StepWork) -> StepWork:
    """What a log tells of a step: all but rows with logits and copies."""
    return replace(work, num_logits=0, copied_blocks=0)


def test_the_runs_have_what_they_are_named_for():
    logs = {name: recorded(priced(), {"requests": r}, **e) for name, (r, e) in RUNS.items()}

    assert '"preempted"' in logs["preemptions"][1]
    assert '"way":"tail"' in logs["parts of victims"][1]
    assert sum(work.swapped_blocks for work in logs["swaps"][0].works) > 0
    assert '"left":["' in logs["shares"][1]
    assert any(line.count > 1 for line in read(logs["plain"][1]).steps)
    assert any(not line.has_prompt for line in read(logs["samples"][1]).steps)


def test_the_host_s_time_between_two_steps_is_part_of_the_second():
    log = read(lines_of(arrived(0), admitted(5), step(5, 15, chunk=4), step(18, 28, joined=True)))

    assert [line.duration_ns for line in log.steps] == [10, 13]


def test_idle_time_is_part_of_no_step():
    end = {"event": "finished", "t": 15, "step": 1, "id": "a", "reason": "length"}
    end |= {"output_tokens": 1, "cached_tokens": 0, "recomputed_tokens": 0, "preemptions": 0}
    log = read(
        lines_of(
            arrived(0), admitted(5), step(5, 15, chunk=4), end,
            arrived(90), admitted(100), step(100, 107, chunk=4),
        )
    )  # fmt: skip

    assert [line.duration_ns for line in log.steps] == [10, 7]


def test_decodes_that_began_before_the_log_are_left_out():
    log = read(lines_of(step(0, 10, decodes=1), {**quiet(10, 40, 3), "decodes": 1}))

    assert (log.steps, log.left_out) == ([], {BEGAN_BEFORE: 4})


def test_a_step_without_time_is_left_out():
    log = read(lines_of(arrived(0), admitted(5), step(5, 5, chunk=4)))

    assert (log.steps, log.left_out) == ([], {NO_TIME: 1})


def test_a_run_of_steps_is_one_line_whose_context_grows():
    first, last = StepWork(2, decode_context=20), StepWork(2, decode_context=26)
    line = MeasuredSteps(4, 100, first, last)

    assert (line.num_decodes, line.decode_context) == (8, 20 + 22 + 24 + 26)


def test_a_torn_last_line_is_passed_over_and_told():
    text = lines_of(arrived(0), admitted(5), step(5, 15, chunk=4))

    log = read(text + '{"event":"step","t":')

    assert (len(log.steps), log.torn_line) == (1, 5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "log: line 1: this is not an event log, it is empty"),
        ("request,tokens\n", "log: line 1 is not JSON"),
        ('{"request_id":"a","input_toks":3}\n', "its first line is no header"),
        ('{"event":"header","version":1}\n', "has no configuration"),
        ('{"event":"header","version":1,"config":{}}\n', "has no block_size"),
    ],
)
def test_what_is_no_event_log_is_refused(text, message):
    with pytest.raises(EventLogError, match=message):
        read(text)


def test_the_clock_of_steps_is_refused():
    header = '{"event":"header","version":1,"clock":"steps","config":{"block_size":4}}\n'

    with pytest.raises(EventLogError, match="every step takes one tick: give the log of a real"):
        read(header)


def test_a_broken_line_is_refused_with_what_comes_before_it():
    text = lines_of(arrived(0), admitted(5)) + "{]\n"

    with pytest.raises(EventLogError, match=r"log: line 4 is not JSON.*; 2 events before it"):
        read(text)


def test_a_time_that_is_no_integer_is_refused():
    with pytest.raises(EventLogError, match="log: line 4: start is '5', as in no step event"):
        read(lines_of(arrived(0), admitted(5), {**step(5, 15, chunk=4), "start": "5"}))


def lines_of(*events: dict) -> str:
    header = {"event": "header", "version": 1, "config": {"block_size": 4}}
    return "".join(json.dumps(event) + "\n" for event in (header, *events))


def arrived(t: int) -> dict:
    facts = {"prompt_tokens": 4, "max_tokens": 9, "priority": 0, "tenant": ""}
    return {"event": "arrived", "t": t, "id": "a", **facts}


def admitted(t: int) -> dict:
    facts = {"slot": 0, "prompt_tokens": 4, "cached_tokens": 0, "computed_tokens": 0}
    return {"event": "admitted", "t": t, "step": 1, "id": "a", **facts, "resumed": False}


def step(start: int, t: int, *, chunk: int = 0, decodes: int = 0, joined: bool = False) -> dict:
    facts = {"tokens": chunk + decodes + joined, "emitted": 1, "decodes": decodes + joined}
    facts |= {"chunks": [["a", 0, chunk]] if chunk else [], "blocks": [], "left": []}
    facts |= {"joined": ["a"] if joined else [], "free_blocks": 9, "cached_blocks": 0}
    return {"event": "step", "t": t, "step": 1, "start": start, **facts}


def quiet(start: int, t: int, count: int) -> dict:
    return {"event": "steps", "t": t, "step": 2, "start": start, "count": count}
