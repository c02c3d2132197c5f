"""Two requests and memory for one and a half, under both triggers, step by step."""

import pytest
from command_line import simulate


def scheduled(run):
    return [line["scheduled"] for line in run.lines.values()]


BOTH = {"a": 1, "b": 1}
ALONE = {"a": 1}


@pytest.mark.parametrize("name", ["golden-shortage", "golden-stall"])
def test_who_runs_when(name):
    run = simulate(name)

    assert scheduled(run) == [
        {"a": 4, "b": 6},
        BOTH,
        BOTH,
        *[ALONE] * 4,
        {"b": 8},
        *[{"b": 1}] * 4,
    ]
    assert [line["emitted"].get("b", 0) for line in run.lines.values()] == [1] * 3 + [0] * 5 + [
        1
    ] * 4
    assert run.summary["steps"] == 12


@pytest.mark.parametrize("name", ["golden-shortage", "golden-stall"])
def test_b_is_preempted_once_and_recomputes_8_tokens(name):
    run = simulate(name)
    a, b = run.request("a"), run.request("b")

    assert (a["finished_step"], b["finished_step"]) == (7, 12)
    assert (a["num_preemptions"], b["num_preemptions"]) == (0, 1)
    assert (a["recomputed_tokens"], b["recomputed_tokens"]) == (0, 8)
    assert run.summary["recomputed_tokens"] == 8
    assert run.lines[8]["resumed"] == ["b"]
    assert run.lines[8]["admitted"] == []


def test_shortage_preempts_when_step_4_is_planned():
    run = simulate("golden-shortage")
    preemption = next(event for event in run.events if event["event"] == "preempted")

    assert run.lines[4]["preempted"] == ["b"]
    assert run.lines[4]["deferred"] == {"b": "cooldown"}
    assert (preemption["t"], preemption["computed_tokens"]) == (3, 8)
    assert run.request("b")["preempted_wait"] == 4


def test_stall_keeps_b_s_blocks_in_steps_4_and_5():
    run = simulate("golden-stall")
    held = [run.lines[step] for step in (4, 5)]

    assert [line["deferred"] for line in held] == [{"b": "kv_budget"}] * 2
    assert [line["free_blocks"] for line in held] == [0, 0]
    assert [line["slots"][:2] for line in held] == [["a", "b"]] * 2


def test_a_preemption_without_a_step_stands_in_the_next_line():
    run = simulate("golden-stall")

    assert [step for step, line in run.lines.items() if line["preempted"]] == [6]
    assert run.lines[6]["preempted"] == ["b"]
    assert run.summary["num_preemptions"] == 1
    assert run.request("b")["preempted_wait"] == 2
