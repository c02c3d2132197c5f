"""Scenarios of other engines' test suites that are about more than one thing.

vLLM (blocks of 16), OpenVINO GenAI (blocks of 4) and TGI; each docstring says which.
"""

import pytest
from command_line import everbatch, request, run_scenario, scenario_text

# vLLM, scheduler tests


def test_ten_that_fit_all_start_in_step_1_in_order():
    """vLLM: ten prompts of 10; all new, whole prompts granted, order kept."""
    run = run_scenario(
        *(request(f"r{n}", 10, 16) for n in range(10)),
        max_num_seqs=16,
        max_num_batched_tokens=8_192,
        num_blocks=4_096,
        block_size=16,
    )

    assert run.lines[1]["scheduled"] == {f"r{n}": 10 for n in range(10)}
    assert list(run.lines[1]["scheduled"]) == [f"r{n}" for n in range(10)]


@pytest.mark.parametrize(
    ("enable_chunked_prefill", "first"), [(True, {"r0": 800, "r1": 224}), (False, {"r0": 800})]
)
def test_short_prompts_do_not_overtake_one_that_does_not_fit(enable_chunked_prefill, first):
    """vLLM: T = 1,024, three slots, prompts of 800, 800, 10 and 10."""
    run = run_scenario(
        *(request(f"r{n}", tokens, 4) for n, tokens in enumerate((800, 800, 10, 10))),
        max_num_batched_tokens=1_024,
        max_num_seqs=3,
        num_blocks=1_024,
        enable_chunked_prefill=enable_chunked_prefill,
    )

    assert run.lines[1]["scheduled"] == first


def test_a_prompt_behind_a_full_step_runs_in_the_next():
    """vLLM: T = 200, two prompts of 200; the second is held by capacity for one step."""
    run = run_scenario(
        request("a", 200, 3), request("b", 200, 3), max_num_batched_tokens=200, num_blocks=256
    )

    assert run.lines[1]["deferred"] == {"b": "token_budget"}
    assert run.lines[2]["scheduled"] == {"a": 1, "b": 199}


@pytest.mark.parametrize("victim", ["newest", "priority", "largest", "least_lost"])
def test_the_more_urgent_stays_though_it_came_later(victim):
    """vLLM: five blocks; low has three, high comes later and takes two; low yields."""
    run = run_scenario(
        request("low", 32, 17, priority=5),
        request("high", 32, 17, arrival=1, priority=0),
        block_size=16,
        num_blocks=5,
        policy="priority",
        preemption_victim=victim,
    )

    assert run.lines[2]["free_blocks"] == 0
    assert run.lines[3]["preempted"] == ["low"]
    assert run.lines[3]["scheduled"] == {"high": 1}
    assert run.finish_order() == ["high", "low"]


def test_who_is_behind_a_victim_is_served_in_the_same_step():
    """vLLM: when A is taken out of the step that is being planned, C still runs.

    A reads in chunks of 15; B needs a block in the step in which A would read on.
    """
    run = run_scenario(
        request("A", 70, 2, priority=9),
        request("B", 15, 9, priority=0, arrival=1),
        request("C", 1, 30, priority=1, arrival=1),
        block_size=16,
        num_blocks=5,
        policy="priority",
        preemption_victim="priority",
        admission="now",
        long_prefill_token_threshold=15,
    )
    step = next(step for step, line in run.lines.items() if line["preempted"])

    assert run.lines[step]["preempted"] == ["A"]
    assert run.lines[step]["scheduled"] == {"B": 1, "C": 1}
    assert run.request("A")["finish_reason"] == "stop"


def test_a_newcomer_runs_beside_one_that_decodes():
    """vLLM: two prompts of 512, two slots, T = 1,024; the second comes while the first is there."""
    run = run_scenario(
        request("a", 512, 5),
        request("b", 512, 5, arrival=1),
        max_num_seqs=2,
        max_num_batched_tokens=1_024,
        num_blocks=512,
    )

    assert run.lines[2]["scheduled"] == {"a": 1, "b": 512}


# OpenVINO GenAI, scheduler tests


def test_the_last_of_three_yields_and_reads_all_again():
    """OpenVINO: six blocks, three prompts of 8: two blocks each, then the first two need a third.

    What it reads again is prompt and outputs but the last; OpenVINO samples in the same step, here
    the pending output is a decode of the next.
    """
    run = run_scenario(
        *(request(f"r{n}", 8, tokens) for n, tokens in enumerate((4, 5, 6))),
        num_blocks=6,
        max_num_batched_tokens=32,
    )

    assert run.lines[1]["tokens"] == 24
    assert run.lines[1]["used_blocks"] == 6
    assert run.lines[2]["scheduled"] == {"r0": 1, "r1": 1}
    assert run.lines[2]["preempted"] == ["r2"]
    assert run.chunks("r2") == [8, 8]
    assert run.lines[5]["resumed"] == ["r2"]


def test_a_tail_of_one_block_costs_one_token():
    """OpenVINO: six blocks, prompts of 11 and 8: the second loses one block and keeps two."""
    run = run_scenario(
        request("a", 11, 4), request("b", 8, 5), num_blocks=6, preemption_extent="tail"
    )
    (preempted,) = [event for event in run.events if event["event"] == "preempted"]

    assert run.lines[3]["preempted"] == ["b"]
    assert (preempted["way"], preempted["blocks"]) == ("tail", 1)
    assert run.chunks("b") == [8, 1]
    assert run.request("b")["recomputed_tokens"] == 1


# TGI, queue tests


def test_an_empty_queue_gives_no_step(tmp_path):
    """TGI: no entry, no batch."""
    run = run_scenario(request("a", 1, 1, arrival=5))

    assert list(run.lines) == [6]


@pytest.mark.parametrize(("max_num_seqs", "first"), [(1, ["a"]), (2, ["a", "b"])])
def test_as_many_as_there_are_slots(max_num_seqs, first):
    """TGI: max_size 1 gives one entry."""
    run = run_scenario(request("a", 1, 1), request("b", 1, 1), max_num_seqs=max_num_seqs)

    assert run.lines[1]["admitted"] == first


@pytest.mark.parametrize(("budget", "first"), [(1, ["a"]), (3, ["a", "b"])])
def test_as_many_as_the_budget_has_tokens_for(budget, first):
    """TGI: budgets of 1, then of 3, with two entries of one token."""
    run = run_scenario(request("a", 1, 1), request("b", 1, 1), max_num_batched_tokens=budget)

    assert run.lines[1]["admitted"] == first


def test_a_budget_of_nothing_is_no_configuration(tmp_path):
    """TGI: a budget of 0 gives none, for ever."""
    path = tmp_path / "zero.json"
    path.write_text(scenario_text(max_num_batched_tokens=0))

    answer = everbatch("simulate", path)

    assert answer.status == 2
    assert "max_num_batched_tokens must lie in [1," in answer.err


def test_who_left_while_waiting_is_passed_over():
    """TGI: an entry whose receiver was dropped is skipped."""
    run = run_scenario(
        request("a", 1, 4), request("gone", 1, 4, abort_at=2), request("b", 1, 4), max_num_seqs=1
    )

    assert run.starts() == ["a", "b"]
    assert run.request("b")["first_step"] == 5


def test_a_prompt_again_finds_its_blocks_after_they_were_freed():
    """TGI, radix allocator: blocks of 2; a prompt of 4 with 4 more to come: no prefix, then one."""
    run = run_scenario(
        *(
            request(f"r{n}", prompt=[{"text": "p", "tokens": 5}], output_tokens=4, arrival=9 * n)
            for n in range(2)
        ),
        block_size=2,
        num_blocks=11,
        enable_prefix_caching=True,
    )

    assert [run.request(f"r{n}")["cached_tokens"] for n in range(2)] == [0, 4]
    taken = [dict(event["blocks"]) for event in run.events if event["event"] == "step"]
    assert sum(len(blocks.get("r0", ())) for blocks in taken) == 4
    assert sum(len(blocks.get("r1", ())) for blocks in taken) == 2
