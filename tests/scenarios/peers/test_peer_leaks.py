"""Cancellation, slots and blocks that come back: what leaked in other engines.

Each docstring names the report that it answers. Clients that vanish from a connection are tested on
the server (tests/server/test_disconnect.py, tests/e2e/test_crowds.py).
"""

import pytest
from builders import World, client, make_config
from command_line import request, run_scenario

PROMPT, CHUNK, OUTPUTS = 22, 6, 5
LAST_CHUNK = -(-PROMPT // CHUNK)


def world_with(*clients) -> World:
    others = [client("other", 5, 12), client("late", 9, 4, arrival=6)]
    return World(make_config(max_num_batched_tokens=CHUNK + 1), [*clients, *others])


def test_an_abort_while_the_last_chunk_runs_shows_no_token():
    """sglang#34149: a token was shown all the same."""
    lone = World(
        make_config(max_num_batched_tokens=CHUNK), [client("a", PROMPT, 5, abort_during=LAST_CHUNK)]
    ).run()

    assert lone.texts["a"] == []
    assert [reason.value for reason in lone.ends["a"]] == ["abort"]
    assert lone.engine.stats().num_free_blocks == 64


def alone_text(id: str) -> list[int]:
    world = world_with().run()
    return world.texts[id]


@pytest.mark.parametrize("kind", ["abort_at", "abort_during"])
@pytest.mark.parametrize("boundary", range(12))
def test_an_abort_at_any_moment_frees_all_and_disturbs_nobody(kind, boundary):
    """SGLang's scripted tests: at admission, in the first, a middle, the last chunk, in decode."""
    world = world_with(client("a", PROMPT, OUTPUTS, **{kind: boundary})).run()

    assert [world.texts[id] for id in ("other", "late")] == [
        alone_text(id) for id in ("other", "late")
    ]
    assert len(world.ends["a"]) == 1
    stats = world.engine.stats()
    assert (stats.num_free_blocks, stats.num_running, stats.num_waiting) == (64, 0, 0)


def test_aborting_twice_or_somebody_unknown_does_nothing():
    """SGLang's scripted tests: twice, after the finish, an unknown id, five in a row."""
    world = world_with(client("a", PROMPT, OUTPUTS))
    world.arrive()
    world.step()
    for id in ("a", "a", "nobody", "a", "nobody"):
        world.engine.abort(id)
    world.run()
    world.engine.abort("a")
    world.engine.abort("other")

    assert len(world.ends["a"]) == len(world.ends["other"]) == 1
    assert world.engine.stats().num_free_blocks == 64


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_requests_that_end_in_their_prefill_give_their_slots_back(batching):
    """sglang#10871: a request that finished in its prefill kept its row."""
    run = run_scenario(
        request("r", 7, 1, count=100), num_blocks=16, max_num_seqs=3, batching=batching
    )
    last = run.lines[max(run.lines)]

    assert run.summary["num_finished"] == {"stop": 100}
    assert run.summary["useful_tokens"] == 100
    assert (last["running"], last["used_blocks"]) == (0, 0)
    # One output each: never a decode.
    assert not any(line["decode"] for line in run.lines.values())


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_one_after_another_they_use_more_than_the_pool_has(enable_prefix_caching):
    """llama.cpp#25566: blocks of those that had finished were never reclaimed."""
    run = run_scenario(
        request("r", 16, 3, count=20, every=3),
        num_blocks=16,
        enable_prefix_caching=enable_prefix_caching,
    )

    assert run.summary["num_finished"] == {"stop": 20}
    assert {facts["queue_wait"] for facts in run.summary["requests"].values()} == {0}


def test_when_all_are_aborted_nothing_starts_later():
    """qvac#2327: a cancel of everything left the queued ones, which then ran."""
    run = run_scenario(
        request("r", 6, 20, count=12, abort_at=4), request("next", arrival=9), max_num_seqs=3
    )

    assert run.summary["num_finished"] == {"abort": 12, "stop": 1}
    assert len(run.starts()) == 3 + 1
    assert max(step for n in range(12) for step in [0, *run.steps_of(f"r{n}")]) == 4
    assert run.lines[10]["used_blocks"] == 1


def test_a_hundred_requests_of_all_kinds_leave_nothing_behind():
    """SGLang's scripted tests: 100 requests, 50 in chunks, 30 long, waves of 20."""
    requests = [
        request(
            f"r{n}",
            40 if n < 50 else 6,
            30 if n % 3 == 0 else 4,
            arrival=5 * (n // 20),
            n=2 if n % 10 == 0 else 1,
        )
        for n in range(100)
    ]
    run = run_scenario(
        *requests, max_num_seqs=8, max_num_batched_tokens=16, num_blocks=60, admission="now"
    )
    last = run.lines[max(run.lines)]

    assert run.summary["num_finished"] == {"stop": 100}
    assert run.summary["num_preemptions"] > 0
    assert (last["free_blocks"], last["running"], last["waiting"]) == (60, 0, 0)


def test_256_prompts_with_90_000_outputs_run_on():
    """SGLang: 256 prompts of 1,234 tokens with 90,000 outputs crashed it. The first 3,000 steps."""
    run = run_scenario(
        request("r", 1_234, 90_000, count=256),
        run={"horizon": 3_000},
        max_num_seqs=256,
        max_num_batched_tokens=8_192,
        num_blocks=20_000,
        block_size=16,
    )

    assert run.summary["steps"] == 3_000
    assert run.summary["num_preemptions"] > 0
    assert run.summary["peak_blocks"] <= 20_000
    assert run.request("r0")["output_tokens"] > 2_900


# vLLM's tests of ending


def test_aborting_who_waits_shrinks_the_queue_one_by_one():
    """vLLM: each of ten waiting requests is aborted; nothing is left."""
    run = run_scenario(
        request("blocker", 4, 13),
        *(request(f"w{n}", abort_at=n + 2) for n in range(10)),
        max_num_seqs=1,
    )

    assert [line["waiting"] for line in run.lines.values()] == [10, 10, *range(9, -1, -1), 0]


def test_the_request_aborted_at_k_has_k_tokens():
    """vLLM, async scheduling: one of ten is aborted before each update; it has exactly k tokens."""
    run = run_scenario(*(request(f"r{k}", 5, 20, abort_at=k) for k in range(10)), max_num_seqs=10)

    assert [run.request(f"r{k}")["output_tokens"] for k in range(10)] == list(range(10))


@pytest.mark.parametrize(
    ("output_tokens", "max_tokens", "reason", "emitted"),
    [(1, 5, "stop", 1), (3, 3, "stop", 3), (9, 3, "length", 3), (9, 1, "length", 1)],
)
def test_how_a_text_ends(output_tokens, max_tokens, reason, emitted):
    """vLLM: by the end token, or by the limit. (Stop ids and texts: tests/unit, tests/models.)"""
    run = run_scenario(request("a", 4, output_tokens, max_tokens=max_tokens))

    assert run.request("a")["finish_reason"] == reason
    assert run.request("a")["output_tokens"] == emitted
