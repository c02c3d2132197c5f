"""The lesson's two runs and three exercises, figure by figure, through the command line."""

import pytest
from command_line import simulate


@pytest.fixture(scope="module")
def continuous():
    return simulate("lesson-continuous")


def test_continuous_batching_uses_300_of_320_slot_iterations(continuous):
    summary = continuous.summary

    assert (summary["useful_tokens"], summary["slot_iterations"]) == (300, 320)
    assert summary["slot_occupancy"] == 0.9375
    assert summary["steps"] == 80


@pytest.mark.parametrize(
    ("step", "useful"), [(20, 80), (21, 84), (50, 200), (51, 204), (60, 240), (80, 300)]
)
def test_useful_tokens_after_each_of_the_lesson_s_steps(continuous, step, useful):
    emitted = sum(
        sum(line["emitted"].values()) for line in continuous.lines.values() if line["step"] <= step
    )

    assert continuous.summary["horizons"][str(step)]["useful_tokens"] == useful
    assert emitted == useful
    assert simulate("lesson-continuous", "--horizon", step).summary["useful_tokens"] == useful


def test_request_5_starts_at_21_and_request_6_at_51_without_waiting(continuous):
    starts = {id: continuous.request(id)["first_step"] for id in ("5", "6")}
    waits = {id: continuous.request(id)["queue_wait"] for id in ("5", "6")}

    assert starts == {"5": 21, "6": 51}
    assert waits == {"5": 0, "6": 0}


def test_slot_1_is_empty_from_61_to_80_because_nobody_waits(continuous):
    empty = [step for step, line in continuous.lines.items() if line["slots"][0] is None]

    assert empty == list(range(61, 81))
    assert continuous.summary["idle_slot_iterations"] == {"queue_empty": 20}


def test_at_80_request_6_has_30_tokens_and_two_go_on(continuous):
    facts = {
        id: (request["state"], request["output_tokens"], request["finished_step"])
        for id, request in continuous.summary["requests"].items()
    }

    assert facts == {
        "1": ("FINISHED", 20, 20),
        "2": ("FINISHED", 50, 50),
        "3": ("FINISHED", 80, 80),
        "4": ("DECODE", 80, None),
        "5": ("FINISHED", 40, 60),
        "6": ("DECODE", 30, None),
    }


def test_the_line_of_step_21_is_the_documented_one(continuous):
    assert continuous.lines[21] == {
        "step": 21,
        "t": 21,
        "scheduled": {"2": 1, "3": 1, "4": 1, "5": 10},
        "prefill": ["5"],
        "decode": ["2", "3", "4"],
        "masked": [],
        "emitted": {"2": 1, "3": 1, "4": 1, "5": 1},
        "admitted": ["5"],
        "resumed": [],
        "preempted": [],
        "swapped_out": [],
        "swapped_in": [],
        "finished": [],
        "deferred": {},
        "tokens": 13,
        "waiting": 0,
        "running": 4,
        "slots": ["5", "2", "3", "4"],
        "free_blocks": 4089,
        "cached_blocks": 0,
        "used_blocks": 7,
    }
    assert list(continuous.lines[21]["scheduled"]) == ["2", "3", "4", "5"]


def test_static_batching_uses_230_of_320_and_350_of_800_slot_iterations():
    at_80, at_200 = (simulate("lesson-static").summary["horizons"][step] for step in ("80", "200"))

    assert (at_80["useful_tokens"], at_80["slot_iterations"]) == (230, 320)
    assert at_80["slot_occupancy"] == 0.71875
    assert (at_200["useful_tokens"], at_200["slot_iterations"]) == (350, 800)
    assert at_200["slot_occupancy"] == 0.4375
    assert at_80["masked_slot_iterations"] == 90
    assert at_200["masked_slot_iterations"] == 450


def test_under_static_batching_requests_5_and_6_wait_for_step_201():
    run = simulate("lesson-static", "--horizon", 240)

    assert [run.request(id)["queue_wait"] for id in ("5", "6")] == [180, 150]
    assert [run.request(id)["first_step"] for id in ("5", "6")] == [201, 201]
    assert run.lines[200]["deferred"] == {"5": "static_batch", "6": "static_batch"}
    assert run.lines[200]["masked"] == ["1", "2", "3"]
    assert list(run.lines[200]["scheduled"]) == ["4"]


def test_exercise_1_static_is_75_and_55_percent_and_waits_120():
    run = simulate("exercise-1")

    assert run.summary["horizons"]["90"]["slot_occupancy"] == 0.75
    assert run.summary["horizons"]["150"]["slot_occupancy"] == 0.55
    assert (run.request("5")["queue_wait"], run.request("5")["first_step"]) == (120, 151)


def test_exercise_1_continuous_waits_0():
    run = simulate("exercise-1-continuous")

    assert (run.request("5")["queue_wait"], run.request("5")["first_step"]) == (0, 31)


def test_exercise_2_needs_0_0_and_3_blocks_and_leaves_3():
    lines = simulate("exercise-2").lines

    assert lines[1]["scheduled"] == {"A": 28, "B": 15}
    assert lines[1]["free_blocks"] == 6
    assert lines[2]["scheduled"] == {"A": 1, "B": 1, "C": 35}
    assert lines[2]["free_blocks"] == 3
    assert lines[2]["tokens"] == 37


def test_exercise_3_chunks_are_12_12_and_6():
    run = simulate("exercise-3")

    assert run.chunks("prompt") == [12, 12, 6]
    assert [len(run.lines[step]["decode"]) for step in (2, 3, 4)] == [500, 500, 500]
    assert run.request("prompt")["first_token_step"] == 4


def test_exercise_3_unchunked_waits_until_482_decode():
    run = simulate("exercise-3-unchunked")
    decodes = {step: len(line["decode"]) for step, line in run.lines.items()}

    assert [decodes[step] for step in (10, 11, 20, 21)] == [500, 483, 483, 482]
    assert all(run.lines[step]["deferred"] == {"prompt": "token_budget"} for step in range(2, 21))
    assert run.lines[21]["scheduled"]["prompt"] == 30
    assert run.deferrals("prompt") == [("token_budget", 30, 12)]
