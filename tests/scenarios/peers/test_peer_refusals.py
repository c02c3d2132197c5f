"""Requests that can never run, budgets that must hold, and who waits behind whom.

Each docstring names the report of another engine that it answers, by its project and number.
"""

import pytest
from command_line import everbatch, request, run_scenario, scenario_text


def crowd(**engine):
    """Twenty requests that share, leave, expire, and are refused."""
    requests = [
        request(
            f"r{number}",
            1 + 3 * number % 17,
            1 + 5 * number % 11,
            arrival=number // 4,
            priority=number % 3,
            tenant="ab"[number % 2],
            n=1 + number % 2,
            **({"abort_at": 9} if number % 5 == 0 else {}),
            **({"deadline": 3} if number % 7 == 0 else {}),
        )
        for number in range(20)
    ]
    return run_scenario(
        *requests,
        **{"num_blocks": 24, "max_num_batched_tokens": 16, "max_model_len": 200, **engine},
    )


# Never fits


def test_a_prompt_larger_than_the_pool_is_refused_and_blocks_nobody():
    """vllm#39734: it waited for ever, and all behind it."""
    run = run_scenario(
        request("A", 80, 1), request("b", 8), block_size=16, num_blocks=4, max_model_len=100
    )

    assert "need 5 KV blocks of 16, the pool has 4" in run.request("A")["rejected"]
    assert run.request("b")["first_step"] == 1


@pytest.mark.parametrize("admission", ["now", "prompt", "peak", "reserve"])
@pytest.mark.parametrize(("output_tokens", "fits"), [(1, True), (2, False)])
def test_a_prompt_that_fills_the_pool_has_room_for_one_output(admission, output_tokens, fits):
    """vllm#39734: the edge, under every gate, watermark and cache included."""
    run = run_scenario(
        request("A", 64, output_tokens),
        request("b", 8),
        block_size=16,
        num_blocks=4,
        max_model_len=100,
        admission=admission,
        watermark=0.5,
        enable_prefix_caching=True,
    )

    assert (run.request("A")["rejected"] is None) == fits
    assert run.request("b")["finish_reason"] == "stop"


def test_an_output_that_outgrows_the_pool_is_refused_at_arrival():
    """nano-vllm#274: the first decode failed an assertion."""
    run = run_scenario(request("a", 8, 4), num_blocks=2, max_model_len=100)

    assert "need 3 KV blocks of 4, the pool has 2" in run.request("a")["rejected"]
    assert run.summary["steps"] == 0


def test_samples_that_fit_alone_but_not_together_are_refused():
    """vllm#39734, nano-vllm#274: the same kind with n > 1."""
    one, three = (
        run_scenario(
            request("a", 6, 7, n=n), num_blocks=6, max_model_len=100, max_num_seqs=4
        ).request("a")["rejected"]
        for n in (1, 3)
    )

    # One full block is shared, each sample has two of its own.
    assert one is None
    assert "in 3 samples need 7 KV blocks" in three


def test_an_unchunked_prompt_beyond_the_token_budget_is_refused():
    """model_server#4503 and its kind: what no step can hold waits for no step."""
    run = run_scenario(
        request("a", 13), request("b", 12), enable_chunked_prefill=False, max_num_batched_tokens=12
    )

    assert "13 tokens, max_num_batched_tokens is 12" in run.request("a")["rejected"]
    assert run.request("b")["first_step"] == 1


# Heads and holders


@pytest.mark.parametrize("backfill", ["none", "safe", "greedy"])
@pytest.mark.parametrize("preemption_extent", ["whole", "tail"])
def test_blocks_kept_by_who_waits_do_not_stop_the_head(backfill, preemption_extent):
    """vllm#45388: parked requests held the blocks that the head needed, and never woke.

    x yields to the older w and keeps its first blocks; then y, more urgent, is the head and needs
    more than is free.
    """
    run = run_scenario(
        request("w", 8, 9, priority=0),
        request("x", 11, 9, priority=5),
        request("y", 16, 4, priority=1, arrival=4),
        num_blocks=6,
        policy="priority",
        preemption_extent=preemption_extent,
        backfill=backfill,
    )

    assert {run.request(id)["finish_reason"] for id in "wxy"} == {"stop"}
    assert run.request("x")["num_preemptions"] >= 1
    assert run.lines[len(run.lines)]["free_blocks"] == 6


@pytest.mark.parametrize("trigger", ["shortage", "stall"])
def test_one_block_lacking_costs_one_victim(trigger):
    """vllm-ascend#16315: blocks freed a step later made the loop evict everybody."""
    run = run_scenario(
        request("a", 7, 5),
        request("b", 2, 3),
        request("c", 2, 3),
        num_blocks=4,
        preemption_trigger=trigger,
        admission="now",
    )
    victims = [line["preempted"] for line in run.lines.values() if line["preempted"]]

    assert all(len(names) == 1 for names in victims)
    assert run.summary["num_preemptions"] == (1 if trigger == "shortage" else 0)


# Budgets


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"min_prefill_tokens": 8},
        {"prefill_aging_steps": 2},
        {"enable_chunked_prefill": False},
        {"long_prefill_token_threshold": 3, "policy": "srpt"},
        {"preemption_trigger": "stall", "preemption_extent": "tail", "policy": "vtc"},
        {"preemption_mode": "swap", "num_host_blocks": 9, "backfill": "greedy"},
        {"batching": "static"},
    ],
    ids=str,
)
def test_no_step_is_granted_more_than_the_budget(options):
    """TRT-LLM#13318: planned tokens exceeded the cap by up to 2,890, and the loop died."""
    run = crowd(**options)

    for line in run.lines.values():
        assert line["tokens"] == sum(line["scheduled"].values()) <= 16
        assert sum(name is not None for name in line["slots"]) <= 4
    assert {facts["state"] for facts in run.summary["requests"].values()} == {"FINISHED"}


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_after_the_last_request_nothing_waits_and_nothing_is_held(batching):
    """TGI#2192: the gauge of waiting requests only grew.

    Some of them were refused, left while they waited, or waited too long.
    """
    run = crowd(max_queue_requests=5, batching=batching)
    last = run.lines[max(run.lines)]
    reasons = run.summary["num_finished"]

    assert run.summary["num_rejected"] > 0
    assert reasons["abort"] > 0
    assert reasons["deadline"] > 0
    assert (last["waiting"], last["running"], last["used_blocks"]) == (0, 0, 0)


T = 24


@pytest.mark.parametrize("prompt_tokens", [1, T - 1, T, T + 1, T + 6, 2 * T, 2 * T + 1])
@pytest.mark.parametrize("num_decodes", [0, 1, 5])
def test_prompts_around_the_budget_all_finish(prompt_tokens, num_decodes):
    """koboldcpp#2493: it hung when a prompt was the batch plus six."""
    decodes = [request(f"d{number}", 1, 60) for number in range(num_decodes)]
    run = run_scenario(
        *decodes,
        request("p", prompt_tokens, 2, arrival=1),
        max_num_batched_tokens=T,
        max_num_seqs=8,
        num_blocks=256,
    )

    assert run.request("p")["finish_reason"] == "stop"
    assert sum(run.chunks("p")) == prompt_tokens
    assert len(run.chunks("p")) == -(-prompt_tokens // (T - num_decodes))


# Deadlines


def test_who_waits_too_long_leaves_without_a_token_computed():
    """llm-d-deployer#339: the gateway gave up after 300 s, the engine worked on."""
    run = run_scenario(request("a", 4, 20), request("b", 8, deadline=5, arrival=2), max_num_seqs=1)

    assert run.request("b")["finish_reason"] == "deadline"
    assert run.steps_of("b") == []
    assert run.summary["scheduled_tokens"] == 4 + 19


def test_a_deadline_of_nothing_leaves_the_next_step_or_none():
    """SGLang's scripted test of a waiting timeout near zero."""
    run = run_scenario(
        request("a", 4, 3),
        request("b", deadline=0),
        request("c", deadline=0, arrival=9),
        max_num_seqs=1,
    )

    assert (run.request("b")["finish_reason"], run.request("b")["finished_step"]) == ("deadline", 1)
    assert run.request("c")["first_step"] == 10


def test_an_output_limit_of_nothing_is_no_scenario(tmp_path):
    """SGLang answers max_new_tokens 0 with one token; a limit of 0 is an error here."""
    path = tmp_path / "zero.json"
    path.write_text(scenario_text([request("a", max_tokens=0)]))

    answer = everbatch("simulate", path)

    assert answer.status == 2
    assert "max_tokens is 0, it must be an integer from 1" in answer.err
