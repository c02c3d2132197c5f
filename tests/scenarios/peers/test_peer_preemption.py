"""Preemption as users of other engines met it: thrash, victims, lost or doubled tokens.

Each docstring names the report that it answers, by its project and number.
"""

import json

import pytest
from builders import alone, client, run_world
from command_line import everbatch, request, run_scenario, scenario_text

WAYS = [
    {"preemption_mode": "recompute"},
    {"preemption_mode": "recompute", "preemption_extent": "tail"},
    {"preemption_mode": "swap", "num_host_blocks": 64},
    {"preemption_mode": "swap", "num_host_blocks": 2},
    {"preemption_mode": "recompute", "preemption_trigger": "stall"},
    {"preemption_mode": "recompute", "enable_prefix_caching": True},
]


def pressed(**engine):
    """Four requests of 4 + 12 tokens, and memory for one and a half of them."""
    requests = [request(id, 4, 12) for id in "abcd"]
    return run_scenario(*requests, **{"num_blocks": 6, "admission": "now", **engine})


def emissions(run, id):
    """The steps in which a request emitted."""
    return [step for step, line in run.lines.items() if id in line["emitted"]]


# Thrash


def test_recomputing_is_bounded_and_reported():
    """vllm#18115: speed collapsed when the KV cache was full, and there was no swap."""
    run = pressed()
    told = [run.request(id)["recomputed_tokens"] for id in "abcd"]

    assert run.summary["num_preemptions"] == sum(
        run.request(id)["num_preemptions"] for id in "abcd"
    )
    assert run.summary["recomputed_tokens"] == sum(told) > 0
    # Computed = prompts and outputs but the last, once each, and what was computed again.
    assert run.summary["scheduled_tokens"] == 4 * (4 + 12 - 1) + sum(told)
    # The first never yields; each yields only when one before it, or itself, needs a block.
    assert [run.request(id)["num_preemptions"] for id in "abcd"] == [0, 1, 3, 4]


@pytest.mark.parametrize(
    ("options", "preemptions", "recomputed"),
    [
        ({"admission": "reserve"}, 0, 0),
        ({"admission": "peak"}, 0, 0),
        ({"preemption_mode": "swap", "num_host_blocks": 16}, None, 0),
        ({"max_preemptions": 1}, None, None),
    ],
    ids=str,
)
def test_there_are_cures_for_recomputing(options, preemptions, recomputed):
    """vllm#18115: reserving, foreseeing, swapping, or a bound on preemptions."""
    run, without = pressed(**options), pressed()

    assert run.summary["recomputed_tokens"] < without.summary["recomputed_tokens"]
    if preemptions is not None:
        assert run.summary["num_preemptions"] == preemptions
    if recomputed is not None:
        assert run.summary["recomputed_tokens"] == recomputed
    if "max_preemptions" in options:
        assert max(run.request(id)["num_preemptions"] for id in "abcd") == 1


def test_optimistic_and_reserving_admission_can_be_compared(tmp_path):
    """TRT-LLM#16827: optimistic admission cost 40 % of the throughput and nine times the p99."""
    paths = []
    for admission in ("now", "reserve"):
        path = tmp_path / f"{admission}.json"
        requests = [request(f"r{n}", 4, 12, arrival=n) for n in range(12)]
        path.write_text(scenario_text(requests, num_blocks=8, admission=admission))
        paths.append(path)

    answer = everbatch("compare", *paths, "--json")
    figures = {fact["name"]: (fact["a"], fact["b"]) for fact in json.loads(answer.out)["figures"]}

    assert figures["recomputed_tokens"][0] > figures["recomputed_tokens"][1] == 0
    assert {"steps", "num_preemptions", "e2e p99"} <= set(figures)


def test_others_go_on_while_one_is_swapped():
    """vllm#546: a swap stopped all work."""
    run = pressed(preemption_mode="swap", num_host_blocks=16)

    swapping = [line for line in run.lines.values() if line["swapped_out"] or line["swapped_in"]]
    assert len(swapping) > 2
    assert all(line["tokens"] > 0 for line in swapping)
    assert emissions(run, "a") == list(range(1, 13))


@pytest.mark.parametrize("trigger", ["shortage", "stall"])
def test_one_that_outgrows_its_share_ends_nobody_else(trigger):
    """llama.cpp#23652, #4185, #6603, lemonade#3276: one overflow failed every active slot."""
    run = run_scenario(
        request("huge", 4, 50),
        *(request(f"r{n}", 4, 20) for n in range(3)),
        num_blocks=14,
        preemption_trigger=trigger,
    )

    assert {facts["finish_reason"] for facts in run.summary["requests"].values()} == {"stop"}
    assert [facts["output_tokens"] for facts in run.summary["requests"].values()] == [
        50,
        20,
        20,
        20,
    ]


def test_cached_blocks_go_before_anybody_yields():
    """llama.cpp#4989: old prompts in the cache filled the pool."""
    run = run_scenario(
        request("old", 39, 1),
        request("new", 8, 25, arrival=2),
        num_blocks=10,
        enable_prefix_caching=True,
    )

    assert run.lines[1]["cached_blocks"] == 9
    assert run.summary["num_preemptions"] == 0
    assert run.request("new")["finish_reason"] == "stop"


# Who yields, and when it comes back


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_victim_comes_back_to_its_place_by_arrival(policy):
    """vllm#41951: a victim lost its place to an older waiter of equal priority.

    Decided: arrival counts, whoever has run before. `old` could not be placed while `young`, which
    is smaller, could; when `young` has yielded, `old` is before it.
    """
    run = run_scenario(
        request("first", 11, 9),
        request("old", 14, 2),
        request("young", 4, 9),
        num_blocks=5,
        backfill="greedy",
        policy=policy,
    )

    assert run.starts() == ["first", "young", "old"]
    assert run.request("young")["num_preemptions"] == 1
    assert run.request("old")["first_step"] < run.steps_of("young")[-1]
    comeback = next(step for step, line in run.lines.items() if line["resumed"] == ["young"])
    assert run.request("old")["first_step"] <= comeback


def test_priority_changes_nothing_where_nothing_is_scarce():
    """vllm#11361: priority gave no speed-up. It orders who waits; here nobody does."""
    requests = [request(f"r{n}", 4 + n, 9, priority=n % 5) for n in range(31)]
    sizes = {"max_num_seqs": 32, "num_blocks": 512, "max_num_batched_tokens": 4096}
    plain, urgent = (
        run_scenario(*requests, **sizes, policy=policy) for policy in ("fcfs", "priority")
    )

    assert [facts["finished_step"] for facts in plain.summary["requests"].values()] == [
        facts["finished_step"] for facts in urgent.summary["requests"].values()
    ]


# Nothing lost, nothing doubled


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_text_is_that_of_a_run_without_preemption(options):
    """vllm#38624, sglang#39645: a token was repeated, a stream spliced, after preemption."""
    clients = [client(id, 3 + 2 * number, 9) for number, id in enumerate("abcd")]

    world = run_world(clients, num_blocks=7, admission="now", **options)

    assert any(event.kind == "preempted" for event in world.events)
    assert world.texts == {c.id: alone(c) for c in clients}


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_every_output_is_emitted_once_and_one_a_step(options):
    """sglang#39645: a stream has no gap and no repetition, in every way of preemption."""
    run = pressed(**options)

    assert run.summary["num_preemptions"] > 0
    for id in "abcd":
        assert len(emissions(run, id)) == 12 == run.request(id)["output_tokens"]


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_who_comes_back_is_not_new(options):
    """vllm#31583: a resumed request was flagged as new."""
    run = pressed(**options)

    assert run.starts() == list("abcd")
    resumed = [id for line in run.lines.values() for id in line["resumed"]]
    assert len(resumed) == run.summary["num_preemptions"] > 0
    for id in "abcd":
        assert run.request(id)["first_step"] == run.steps_of(id)[0]


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_a_victim_that_emitted_nothing_comes_back_as_a_fresh_prompt(options):
    """sglang#23154: a preempted request reached the output stage with no token, and crashed."""
    run = run_scenario(
        request("a", 3, 12),
        request("b", 20, 4, arrival=1),
        num_blocks=6,
        admission="now",
        max_num_batched_tokens=5,
        **options,
    )
    first = run.request("b")["first_token_step"]

    assert run.request("b")["num_preemptions"] > 0
    assert emissions(run, "b")[0] == first == run.request("b")["finished_step"] - 3
    assert any(line["preempted"] == ["b"] for step, line in run.lines.items() if step < first)


def test_a_victim_in_the_step_of_its_own_output_keeps_its_place_in_the_text():
    """sglang#23154: it is chosen when the step is planned, so it emits nothing in it."""
    run = run_scenario(request("a", 4, 7), request("b", 6, 7), num_blocks=4)
    (step,) = [step for step, line in run.lines.items() if line["preempted"]]

    assert run.lines[step]["preempted"] == ["b"]
    assert "b" not in run.lines[step]["emitted"]


def test_who_finds_its_own_blocks_in_the_cache_computes_the_rest_only():
    """nano-vllm#211: a prefix hit after preemption made the grant too large."""
    with_cache, without = (
        run_scenario(
            request("a", 4, 7),
            request("b", 10, 7),
            num_blocks=5,
            admission="now",
            enable_prefix_caching=cached,
        )
        for cached in (True, False)
    )

    # It yields with 12 tokens consumed, three full blocks; one token at least is computed again.
    assert with_cache.request("b")["num_preemptions"] > 0
    assert with_cache.chunks("b")[:2] == [10, 4]
    assert without.chunks("b")[:2] == [10, 12]
    assert with_cache.summary["useful_tokens"] == 14


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("num_blocks", [7, 8, 9, 10])
def test_samples_are_preempted_and_come_back(options, num_blocks):
    """vllm#4451: n > 1 and preemption failed an assertion."""
    run = run_scenario(
        request("a", 6, 9),
        request("s", 6, 9, n=2),
        num_blocks=num_blocks,
        admission="now",
        **options,
    )

    assert run.summary["num_preemptions"] > 0 or num_blocks > 8
    assert [run.request(id)["output_tokens"] for id in ("a", "s", "s/0", "s/1")] == [9, 18, 9, 9]
    assert run.lines[max(run.lines)]["used_blocks"] == 0


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_prompt_survives_being_preempted_at_any_of_its_chunks(times):
    """SGLang's scripted tests: retract at the first, a middle and the last chunk, again and again.

    `long` arrives at every moment relative to the growth of those before it.
    """
    places = set()
    for arrival in range(14):
        run = run_scenario(
            *(request(f"d{n}", 2, 20, arrival=3 * n) for n in range(times)),
            request("long", 16, 3, arrival=arrival),
            num_blocks=5 + 3 * times,
            admission="now",
            max_num_batched_tokens=times + 3,
            policy="priority",
            preemption_victim="newest",
        )
        chunk = 0
        for line in run.lines.values():
            if "long" in line["preempted"]:
                places.add(chunk)
                chunk = 0
            chunk += "long" in line["prefill"]
        assert run.request("long")["finish_reason"] == "stop"
        assert run.lines[max(run.lines)]["free_blocks"] == 5 + 3 * times

    assert places
