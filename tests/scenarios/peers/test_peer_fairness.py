"""Starvation, latency and order, as users of other engines met them.

Each docstring names the report that it answers, by its project and number.
"""

import pytest
from command_line import request, run_scenario


def test_a_decode_gets_a_token_in_every_step_beside_a_prompt_of_fifty_steps():
    """FreeToken#483: a prompt in 58 chunks stalled another's stream for 77 s."""
    run = run_scenario(
        request("d", 4, 80),
        request("p", 50 * 16, 2, arrival=2),
        max_num_batched_tokens=16,
        num_blocks=256,
    )

    assert [step for step, line in run.lines.items() if "d" in line["emitted"]] == list(
        range(1, 81)
    )
    # All that a decode leaves of each step: 800 tokens in chunks of 15.
    assert run.chunks("p") == [15] * 53 + [5]


@pytest.mark.parametrize("threshold", [0, 4])
def test_short_prompts_pass_through_beside_a_long_one_with_a_cap_on_its_chunk(threshold):
    """FreeToken#483, the other side: whoever comes behind the long prompt."""
    run = run_scenario(
        request("long", 200, 2),
        request("short", 8, 2, arrival=1),
        max_num_batched_tokens=16,
        num_blocks=256,
        long_prefill_token_threshold=threshold,
    )

    assert run.request("short")["first_token_step"] == (3 if threshold else 13)


URGENT = [request("u", 4, 4, count=60, every=2)]


@pytest.mark.parametrize("aging_steps", [1, 3, 8])
def test_with_aging_the_least_urgent_runs_in_bounded_time(aging_steps):
    """vllm#20608: low priority starved under an endless stream of high priority.

    After 5 levels of aging it is as urgent as who arrives then, and older; one running request must
    still end.
    """
    run = run_scenario(
        *URGENT,
        request("low", priority=5),
        max_num_seqs=1,
        policy="priority",
        aging_steps=aging_steps,
    )
    arrived_before = 5 * aging_steps // 2 + 1

    assert run.request("low")["first_step"] <= 4 * (arrived_before + 1) + 1


def test_without_aging_it_starves():
    """vllm#20608: that is what strict priority means; docs/scheduling.md says so."""
    run = run_scenario(*URGENT, request("low", priority=5), max_num_seqs=1, policy="priority")

    assert run.starts()[-1] == "low"


def behind_a_runner(backfill: str):
    """A runner of 2 to 4 of 8 blocks until step 9; a head that needs 7; an endless stream of 2."""
    return run_scenario(
        request("runner", 8, 9),
        request("head", 25, 3, arrival=1),
        request("small", 3, 6, arrival=2, count=40, every=2),
        num_blocks=8,
        backfill=backfill,
    )


@pytest.mark.parametrize(
    ("backfill", "passed", "head"), [("none", 0, 10), ("safe", 1, 10), ("greedy", 40, 87)]
)
def test_small_ones_may_pass_a_head_that_lacks_memory(backfill, passed, head):
    """vllm#16969: the head of the line blocked memory that smaller requests could use.

    Safe backfill must not delay it past its earliest start. vllm#16876: requests of a loaded
    adapter overtook others for ever; greedy backfill, the lesson's loop, does so for as long as
    small ones come, and docs/scheduling.md says so.
    """
    run = behind_a_runner(backfill)

    assert run.starts().index("head") == 1 + passed
    assert run.request("head")["first_step"] == head


@pytest.mark.parametrize("num_decodes", [0, 1, 2, 127, 128])
def test_a_first_chunk_is_what_the_decodes_leave_exactly(num_decodes):
    """vllm-rbln#499: the first chunk was short, 127 of 128."""
    run = run_scenario(
        *([request("d", 1, 40, count=num_decodes)] if num_decodes else []),
        request("p", 300, 2, arrival=1),
        max_num_seqs=200,
        max_num_batched_tokens=128,
        num_blocks=4096,
    )
    chunks = run.chunks("p")

    assert chunks[0] == (128 - num_decodes or 128)
    assert sum(chunks) == 300


@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("num_chunks", [1, 2, 3, 7])
def test_nothing_is_emitted_before_the_last_chunk(num_chunks, extra):
    """sglang-jax#971: with three chunks or more a middle one was treated as the last."""
    prompt_tokens = num_chunks * 8 + extra
    run = run_scenario(request("p", prompt_tokens, 2), max_num_batched_tokens=8, num_blocks=64)
    steps = -(-prompt_tokens // 8)

    assert len(run.chunks("p")) == steps
    assert [step for step, line in run.lines.items() if line["emitted"]] == [steps, steps + 1]


@pytest.mark.parametrize("capped", [True, False])
@pytest.mark.parametrize(
    ("prompt_tokens", "chunks"), [(1, 1), (8, 1), (9, 2), (16, 2), (24, 3), (800, 100)]
)
def test_chunks_are_counted_exactly(prompt_tokens, chunks, capped):
    """SGLang's scripted tests: chunk size C; prompts of 1, C, C + 1, 2C, 3C, 100C."""
    sizes = {"long_prefill_token_threshold": 8} if capped else {"max_num_batched_tokens": 8}
    run = run_scenario(request("p", prompt_tokens, 1), num_blocks=256, **sizes)

    assert len(run.chunks("p")) == chunks
    assert run.request("p")["first_token_step"] == run.summary["steps"] == chunks


def test_a_budget_of_one_token_takes_a_prompt_token_by_token():
    """SGLang's scripted tests: C = 1, a prompt of 8 in 8 chunks."""
    assert run_scenario(request("p", 8, 2), max_num_batched_tokens=1).chunks("p") == [1] * 8


def test_without_a_cap_one_prompt_at_most_is_partly_read():
    """SGLang's scripted tests: one request in chunks at a time; it is continued first."""
    run = run_scenario(
        *(request(f"p{n}", 20 + n, 2) for n in range(6)), max_num_batched_tokens=16, num_blocks=64
    )
    read = dict.fromkeys([f"p{n}" for n in range(6)], 0)
    for line in run.lines.values():
        for id in line["prefill"]:
            read[id] += line["scheduled"][id]
        partly = [n for n in range(6) if 0 < read[f"p{n}"] < 20 + n]
        assert len(partly) <= 1

    assert read == {f"p{n}": 20 + n for n in range(6)}


def test_steps_mix_prompts_and_decodes():
    """SGLang's scripted tests: the mixed mode merges decodes at least once."""
    run = run_scenario(request("a", 4, 9), request("b", 9, 3, arrival=2))

    assert any(line["decode"] and line["prefill"] for line in run.lines.values())


# Order


def blocked(*waiting, **engine):
    """One slot, taken; who comes next is a matter of the order alone."""
    return run_scenario(
        request("blocker", 4, 10), *waiting, max_num_seqs=1, policy="priority", **engine
    ).starts()[1:]


@pytest.mark.parametrize(
    ("priorities", "arrivals", "order"),
    [
        ((2, 0, 1), (1, 1, 1), "1 2 0"),
        ((0, 0, 0), (3, 1, 2), "1 2 0"),
        ((2, 1, 1, 0), (1, 3, 2, 4), "3 2 1 0"),
    ],
)
def test_priority_then_arrival(priorities, arrivals, order):
    """vLLM's tests of the priority queue."""
    waiting = [
        request(str(n), priority=priority, arrival=arrival)
        for n, (priority, arrival) in enumerate(zip(priorities, arrivals, strict=True))
    ]

    assert blocked(*waiting) == order.split()


def test_more_urgent_ones_are_served_first_equals_by_arrival():
    """SGLang's priority tests (0, 1, 1, 2, higher first), turned round: lower first here."""
    waiting = [request(str(n), priority=-p, arrival=n) for n, p in enumerate((0, 1, 1, 2), 1)]

    assert blocked(*waiting) == ["4", "2", "3", "1"]


def test_when_the_queue_is_full_who_comes_later_is_refused_whatever_its_priority():
    """SGLang: seven arrive, from 7 down to 1, three may wait: the last three are refused."""
    for priorities in (range(7, 0, -1), range(1, 8)):
        run = run_scenario(
            *(request(f"p{p}", 4, 3, priority=p) for p in priorities),
            max_num_seqs=1,
            policy="priority",
            max_queue_requests=4,
        )
        refused = [id for id, facts in run.summary["requests"].items() if facts["rejected"]]

        assert refused == [f"p{p}" for p in list(priorities)[4:]]


@pytest.mark.parametrize("priority", [0, 5, 10, 20])
def test_who_waits_never_takes_the_slot_of_who_runs(priority):
    """SGLang preempts a running request for one whose priority differs by more than 10."""
    run = run_scenario(
        request("running", 4, 30, priority=priority),
        request("urgent", 4, 3, priority=-20, arrival=2),
        max_num_seqs=1,
        policy="priority",
    )

    assert run.finish_order() == ["running", "urgent"]
    assert run.summary["num_preemptions"] == 0
