"""Clients who try again: when, how often, as whom; and what a closed loop makes of it."""

import json

import pytest
from command_line import simulate
from trace_rows import FILES

from everbatch.base.fields import Fields
from everbatch.workload.sources import RequestSource
from everbatch.workload.workload_section import WORKLOAD_KEYS, read_workload

SECOND = 1_000_000_000


def source_of(seed: int = 0, **keys) -> RequestSource:
    table = {"arrivals": "uniform", "num_requests": 2, "prompt": 9, "output": 3, "retries": 2}
    rate = {} if "arrivals" in keys else {"rate": 1}
    section = Fields({**table, **rate, **keys}, "[workload]", WORKLOAD_KEYS)
    return read_workload(section, FILES, seed).source()


def test_a_refused_request_comes_again_after_the_backoff():
    source = source_of(backoff=0.1)
    source.ended(source.pop().id, 0, served=False)

    again = source.pop()

    assert again.id == "0.1"
    assert 0.05 * SECOND <= again.arrival <= 0.15 * SECOND
    assert (again.prompt.num_tokens, again.output_tokens) == (9, 3)


def test_each_backoff_is_twice_the_one_before():
    source = source_of(backoff=4, num_requests=1)
    now, gaps = source.pop().arrival, []
    for number in range(2):
        source.ended("0" if number == 0 else f"0.{number}", now, served=False)
        gaps.append(source.peek() - now)
        now = source.pop().arrival

    assert 2 * SECOND <= gaps[0] <= 6 * SECOND
    assert 4 * SECOND <= gaps[1] <= 12 * SECOND


def test_who_was_served_or_has_tried_often_enough_stays_away():
    source = source_of(num_requests=1, retries=1)
    source.ended(source.pop().id, 0, served=False)
    source.ended(source.pop().id, SECOND, served=False)

    assert source.peek() is None
    assert source.notes() == ["1 retry of requests that were not served"]

    served = source_of(num_requests=1)
    served.ended(served.pop().id, 0)
    assert served.peek() is None
    assert served.notes() == []


def test_retries_come_among_the_others_in_order():
    source = source_of(num_requests=4, backoff=1.5)
    source.ended(source.pop().id, 0, served=False)
    order = []
    while (time := source.peek()) is not None:
        spec = source.pop()
        assert spec.arrival == time
        order.append((spec.arrival, spec.id))
        source.ended(spec.id, spec.arrival)

    assert sorted(id for _, id in order) == ["0.1", "1", "2", "3"]
    assert order == sorted(order)


def test_a_retry_has_its_patience_anew():
    source = source_of(patience=5)
    source.ended(source.pop().id, 7 * SECOND, served=False)
    source.pop()

    again = source.pop()

    assert again.id == "0.1"
    assert again.abort_at == again.arrival + 5 * SECOND


def test_waits_depend_on_seed_and_request_alone():
    def first_wait(seed: int, order: list[str]) -> int:
        source = source_of(seed, rate=1e9)
        source.pop(), source.pop()
        for id in order:
            source.ended(id, 0, served=False)
        waits = {}
        while source.peek() is not None:
            spec = source.pop()
            waits[spec.id] = spec.arrival
        return waits["0.1"]

    assert first_wait(1, ["0", "1"]) == first_wait(1, ["1", "0"])
    assert first_wait(1, ["0", "1"]) != first_wait(2, ["0", "1"])


def test_a_user_of_a_closed_loop_goes_on_after_the_last_try():
    source = source_of(arrivals="closed", users=1, num_requests=2, retries=1)
    source.ended(source.pop().id, 0, served=False)
    retry = source.pop()
    source.ended(retry.id, retry.arrival, served=False)

    assert source.pop().id == "1"


@pytest.mark.parametrize("retries", [0, 3])
def test_a_run_serves_by_retries_what_was_refused_at_first(tmp_path, retries):
    scenario = {
        "engine": {
            "max_num_seqs": 1,
            "max_num_batched_tokens": 64,
            "num_blocks": 64,
            "max_queue_requests": 1,
        },
        "clock": {"kind": "nominal"},
        "hardware": {"name": "h100-sxm"},
        "model": {"name": "nominal-8b"},
        "workload": {
            "arrivals": "burst",
            "num_requests": 4,
            "prompt": 20,
            "output": 5,
            "retries": retries,
            **({"backoff": 2} if retries else {}),
        },
    }
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(scenario))

    requests = simulate(path).summary["requests"]

    served = {id for id, found in requests.items() if found["finish_reason"] == "stop"}
    if not retries:
        assert len(served) < 4 == len(requests)
    else:
        assert {id.partition(".")[0] for id in served} == {"0", "1", "2", "3"}
