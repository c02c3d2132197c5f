"""A run of more work than can be done ends, with figures and a sentence."""

import json

import pytest
from command_line import everbatch, scenario_text

from everbatch.sim.run import simulate
from everbatch.workload.scenario import parse_scenario


def run(count, every, horizon=None, **engine) -> dict:
    request = {"id": "a", "prompt_tokens": 4, "output_tokens": 10, "count": count, "every": every}
    run = {} if horizon is None else {"horizon": horizon}
    return simulate(parse_scenario(scenario_text([request], run, **engine), "given", "given"))


def test_who_comes_as_fast_as_served_is_no_overload():
    summary = run(20, 10, max_num_seqs=1)

    assert summary["backlog"] == {"last_arrival": 190, "waiting_then": 0, "unfinished": 0}
    assert summary["overload"] is None


@pytest.mark.parametrize(("count", "is_overloaded"), [(3, False), (4, True)])
def test_more_waiting_than_slots_when_the_last_comes_is_overload(count, is_overloaded):
    # One slot, 10 steps each, one a step: none, none, one, two of them wait.
    summary = run(count, 1, max_num_seqs=1)

    assert (summary["overload"] is not None) == is_overloaded


def test_the_sentence_has_the_figures():
    summary = run(20, 5, max_num_seqs=1)

    assert summary["overload"] == (
        "more came than could be served: of 20 requests within 95 steps 9 waited when the last "
        "one came; the last ended 105 steps later"
    )
    assert sum(summary["num_finished"].values()) == 20


def test_at_a_horizon_the_sentence_tells_who_has_not_ended():
    summary = run(20, 5, horizon=100, max_num_seqs=1)

    assert summary["overload"].endswith("; 10 have not ended at 100 steps")


def test_requests_that_come_all_at_once_are_no_overload():
    assert run(20, 0, max_num_seqs=1)["overload"] is None


def test_people_read_the_sentence_too(tmp_path):
    request = {"id": "a", "prompt_tokens": 4, "output_tokens": 10, "count": 20, "every": 5}
    path = tmp_path / "s.json"
    path.write_text(json.dumps(json.loads(scenario_text([request], max_num_seqs=1))))

    assert "more came than could be served" in everbatch("simulate", path).out
