"""The bounds that docs/scheduling.md states, over many sizes: nobody waits longer."""

from itertools import pairwise

import pytest
from command_line import request, run_scenario

PLENTY = {"num_blocks": 20_000, "max_num_seqs": 80}


def starved(num_decodes: int, prompt_tokens: int, budget: int, **engine):
    """A prompt that arrives at boundary 200 among decodes that fill every step."""
    return run_scenario(
        request("d", 1, 400, count=num_decodes),
        request("p", prompt_tokens, 2, arrival=200),
        max_num_batched_tokens=budget,
        run={"horizon": 350},
        **{**PLENTY, **engine},
    )


def longest_gap(run, id: str, until: int) -> int:
    """The most steps from one output of a request to the next, from boundary 200 on."""
    steps = [s for s, line in run.lines.items() if id in line["emitted"] and 200 <= s <= until]
    return max(later - earlier for earlier, later in pairwise(steps))


@pytest.mark.parametrize(("decodes", "budget"), [(16, 16), (40, 16), (17, 16), (64, 48)])
@pytest.mark.parametrize("share", [1, 15])
@pytest.mark.parametrize("prompt_tokens", [1, 33, 60])
def test_a_share_of_m_reads_a_prompt_of_p_in_p_over_m_steps(decodes, budget, share, prompt_tokens):
    run = starved(decodes, prompt_tokens, budget, min_prefill_tokens=share)
    first_token = run.request("p")["first_token_step"]

    assert run.request("p")["first_step"] == 201
    assert first_token <= 200 + -(-prompt_tokens // share)
    # The decodes share what is left, in turn; the one that reads makes one more at its end.
    bound = -(-(decodes + 1) // (budget - share))
    until = first_token + 2 * bound
    assert max(longest_gap(run, f"d{n}", until) for n in range(decodes)) <= bound


@pytest.mark.parametrize(("decodes", "budget"), [(4, 16), (16, 16), (23, 16)])
@pytest.mark.parametrize("left", [0, 1, 5])
def test_decodes_are_served_in_turn_beside_prompts_without_end(decodes, budget, left):
    """A share that is the whole step stops them for as long as prompts come."""
    num_prompts = 120
    run = run_scenario(
        request("d", 1, 200, count=decodes),
        request("p", budget, 1, arrival=50, count=num_prompts, every=1),
        max_num_batched_tokens=budget,
        min_prefill_tokens=budget - left,
        run={"horizon": 50 + num_prompts},
        **PLENTY,
    )
    served = [
        [step for step in range(51, 51 + num_prompts) if id in run.lines[step]["emitted"]]
        for id in (f"d{number}" for number in range(decodes))
    ]

    if left == 0:
        assert not any(served)
        return
    gaps = [later - earlier for steps in served for earlier, later in pairwise([50, *steps])]
    assert max(gaps) <= -(-decodes // left)
    assert min(map(len, served)) >= num_prompts // -(-decodes // left)


@pytest.mark.parametrize(("decodes", "budget"), [(16, 16), (40, 16), (17, 16)])
@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("prompt_tokens", [1, 33])
@pytest.mark.parametrize("cap", [0, 4])
def test_aging_by_k_steps_gives_a_chunk_at_least_every_k_and_one(
    decodes, budget, steps, prompt_tokens, cap
):
    run = starved(
        decodes, prompt_tokens, budget, prefill_aging_steps=steps, long_prefill_token_threshold=cap
    )
    num_chunks = -(-prompt_tokens // (cap or budget))

    assert run.request("p")["first_token_step"] <= 200 + (steps + 1) * num_chunks


@pytest.mark.parametrize("budget", [81, 100])
@pytest.mark.parametrize("decodes", [60, 79])
def test_slots_below_the_budget_leave_tokens_for_prompts_in_every_step(budget, decodes):
    run = starved(decodes, 200, budget)

    assert run.request("p")["first_step"] == 201
    assert min(run.chunks("p")[:-1]) >= budget - 80


@pytest.mark.parametrize("aging_steps", [1, 2, 5])
@pytest.mark.parametrize("priority", [1, 3])
@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("max_num_seqs", [1, 3])
def test_an_aged_request_stands_behind_those_only_that_came_within_its_levels(
    aging_steps, priority, every, max_num_seqs
):
    run = run_scenario(
        request("urgent", 4, 6, count=60, every=every),
        request("patient", 4, 2, arrival=2, priority=priority),
        policy="priority",
        aging_steps=aging_steps,
        max_num_seqs=max_num_seqs,
        num_blocks=256,
    )
    before = run.starts()[: run.starts().index("patient")]
    arrivals = [run.request(id)["arrival"] for id in before]

    assert max(arrivals, default=0) <= 2 + priority * aging_steps


@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 1.0), (1.0, 5.0)])
@pytest.mark.parametrize("sizes", [((8, 8), (8, 8)), ((40, 2), (2, 20)), ((5, 30), (60, 1))])
@pytest.mark.parametrize("max_num_seqs", [1, 4])
def test_two_tenants_that_wait_are_served_alike_within_the_paper_s_bound(
    weights, sizes, max_num_seqs
):
    num_blocks = 64
    requests = [
        request(f"{tenant}{number}", *sizes["ab".index(tenant)], tenant=tenant)
        for number in range(60)
        for tenant in "ab"
    ]
    run = run_scenario(
        *requests,
        run={"horizon": 120},
        tenants={tenant: {"weight": weight} for tenant, weight in zip("ab", weights, strict=True)},
        policy="vtc",
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
    )
    service = {"a": 0.0, "b": 0.0}
    longest = max(prompt for prompt, _ in sizes)
    bound = 2 * max(longest, 2 * num_blocks * 4) / min(weights)
    num_checked = 0
    for line in run.lines.values():
        for id in line["prefill"]:
            service[id[0]] += line["scheduled"][id] / weights["ab".index(id[0])]
        for id in line["emitted"]:
            service[id[0]] += 2 / weights["ab".index(id[0])]
        waiting = {id[0] for id in line["deferred"]}
        if waiting == {"a", "b"}:
            num_checked += 1
            assert abs(service["a"] - service["b"]) <= bound

    assert num_checked > 40


@pytest.mark.parametrize("admission", ["now", "prompt", "peak", "reserve"])
@pytest.mark.parametrize("enable_chunked_prefill", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_safe_backfill_starts_a_head_when_it_would_start_without(
    admission, enable_chunked_prefill, seed
):
    """Every text runs to its limit, so the limits are the truth."""
    runners = [request(f"runner{n}", 4 + seed + n, 6 + 3 * n, n=1 + seed % 2) for n in range(2)]
    small = [
        request(f"small{n}", 2 + (n + seed) % 3, 2 + (5 * n + seed) % 7, arrival=1 + n)
        for n in range(12)
    ]
    head = request("head", 30 + seed % 6, 3, arrival=1)
    starts = [
        run_scenario(
            *runners,
            head,
            *small,
            num_blocks=14 + seed % 5,
            max_num_seqs=6,
            max_num_batched_tokens=40,
            enable_chunked_prefill=enable_chunked_prefill,
            backfill=backfill,
            admission=admission,
        ).request("head")["first_step"]
        for backfill in ("none", "safe")
    ]

    assert starts[1] <= starts[0]
