"""Steps that fail as a scenario says: who pays, what is counted, what the logs say."""

import io
import json

import pytest

from everbatch.sim.run import simulate
from everbatch.sim.slot_history import SlotHistory
from everbatch.sim.step_lines import StepLines
from everbatch.workload.scenario import parse_scenario

ENGINE = {"max_num_seqs": 2, "max_num_batched_tokens": 64, "num_blocks": 40, "block_size": 4}
REQUESTS = [{"id": "r", "count": 4, "prompt_tokens": 8, "output_tokens": 5}]


def scenario(faults, seed=0, requests=REQUESTS, **sections):
    tables = {"engine": ENGINE, "requests": requests, "faults": faults, "run": {"seed": seed}}
    return parse_scenario(json.dumps(tables | sections), "given", "given")


def failing(**fields) -> list[dict]:
    return [{"kind": "fail", **fields}]


def test_a_step_that_fails_once_costs_time_alone():
    summary, calm = simulate(scenario(failing(start=3, end=4))), simulate(scenario([]))

    assert summary["num_finished"] == calm["num_finished"] == {"stop": 4}
    assert summary["failed_steps"] == 1
    # The tick passed and the step was made again.
    assert summary["steps"] == calm["steps"] + 1


def test_who_fails_again_alone_ends_with_error_and_the_others_go_on():
    summary = simulate(scenario(failing(start=3, end=6)))

    ends = {id: entry["finish_reason"] for id, entry in summary["requests"].items()}
    assert ends == {"r0": "error", "r1": "stop", "r2": "stop", "r3": "stop"}
    assert summary["failed_steps"] == 3
    # What the three steps before brought counts, what the failed ones computed does not.
    assert summary["requests"]["r0"]["output_tokens"] == 3


def test_if_all_steps_fail_everybody_ends():
    summary = simulate(scenario(failing()))

    assert summary["num_finished"] == {"error": 4}
    # Each pair fails together twice, then one after the other alone.
    assert summary["failed_steps"] == 8
    assert summary["useful_tokens"] == 0


def test_a_share_fails_the_same_for_the_same_seed_and_others_for_another():
    many = [{"id": "r", "count": 200, "every": 3, "prompt_tokens": 8, "output_tokens": 5}]
    runs = [simulate(scenario(failing(share=0.2), seed, many)) for seed in (1, 1, 2)]

    assert runs[0]["digest"] == runs[1]["digest"] != runs[2]["digest"]
    for summary in runs:
        # 600 to 1,100 steps, of which a fifth fails: five standard deviations around that.
        share = summary["failed_steps"] / (summary["failed_steps"] + summary["steps"])
        assert 0.12 < share < 0.28


def test_the_logs_tell_of_the_failure():
    events, steps = io.StringIO(), io.StringIO()
    history = SlotHistory(2)
    simulate(
        scenario(failing(start=3, end=4)),
        events,
        [history, StepLines(steps, ENGINE["max_num_seqs"])],
    )

    told = [json.loads(line) for line in events.getvalue().splitlines()]
    failed = [event for event in told if event["event"] == "step_failed"]
    assert [(event["step"], event["t"]) for event in failed] == [(4, 4)]
    lines = {line["step"]: line for line in map(json.loads, steps.getvalue().splitlines())}
    assert 4 not in lines
    assert lines[5]["slots"] == ["r0", "r1"]
    assert lines[5]["decode"] == ["r0", "r1"]


@pytest.mark.parametrize("kind", ["nominal", "roofline"])
def test_clients_of_a_workload_try_again_after_a_failure(kind):
    tables = {
        "engine": ENGINE,
        "clock": {"kind": kind},
        "hardware": {"name": "h100-sxm"},
        "model": {"name": "llama-3.1-8b"},
        "workload": {
            "arrivals": "uniform",
            "rate": 10,
            "num_requests": 20,
            "prompt": 16,
            "output": 8,
            "retries": 3,
        },
        "faults": failing(end=0.5),
    }

    summary = simulate(parse_scenario(json.dumps(tables), "given", "given"))

    assert summary["failed_steps"] > 0
    assert summary["num_finished"]["error"] >= 1
    assert summary["num_finished"]["stop"] + summary["num_finished"].get("length", 0) >= 15
