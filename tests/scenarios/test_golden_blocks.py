"""Blocks that a step takes, with whole, shared and partial tails: in blocks of 16."""

from pathlib import Path

import pytest
from command_line import request, run_scenario, simulate

FILES = Path(__file__).parent


def blocks_taken(run, step: int) -> dict[str, int]:
    """How many blocks each request took in a step."""
    for event in run.events:
        if event["event"] == "step" and event["step"] == step:
            return {id: len(blocks) for id, blocks in event["blocks"]}
    return {}


def test_14_and_1_need_0_16_and_1_need_1_0_and_10_need_1():
    run = simulate(FILES / "blocks-of-16.toml")

    assert run.lines[2]["scheduled"] == {"14 + 1": 1, "16 + 1": 1, "0 + 10": 10}
    assert blocks_taken(run, 2) == {"16 + 1": 1, "0 + 10": 1}
    assert run.lines[1]["used_blocks"] == 2
    assert run.lines[2]["used_blocks"] == 4


@pytest.mark.parametrize(
    ("prompt_tokens", "first", "second"),
    [
        (14, {"a/0": 1}, {"a/0": 1}),
        (16, {"a/0": 1}, {"a/0": 1, "a/1": 1}),
        (30, {"a/0": 2}, {"a/0": 1}),
        (33, {"a/0": 3}, {"a/0": 1}),
    ],
)
def test_samples_copy_a_shared_tail_and_share_the_rest(prompt_tokens, first, second):
    run = run_scenario(request("a", prompt_tokens, 3, n=2), block_size=16)

    assert blocks_taken(run, 1) == first
    # The last reader of a tail writes in place: one copy for two samples.
    assert blocks_taken(run, 2) == second
    assert run.lines[2]["used_blocks"] == sum(first.values()) + sum(second.values())


@pytest.mark.parametrize("num_samples", [2, 3, 4])
def test_all_but_the_last_to_write_copy(num_samples):
    run = run_scenario(request("a", 20, 3, n=num_samples), block_size=16)

    assert sum(blocks_taken(run, 2).values()) == num_samples - 1
    assert run.lines[2]["used_blocks"] == 1 + num_samples


def test_a_copy_is_counted_in_the_budget():
    # One full block, one tail for each of two samples: 3 blocks for life; with 2 it is refused.
    fits, does_not = (
        run_scenario(request("a", 20, 3, n=2), block_size=16, num_blocks=blocks, max_model_len=99)
        for blocks in (3, 2)
    )

    assert fits.request("a")["output_tokens"] == 6
    assert "need 3 KV blocks of 16, the pool has 2" in does_not.request("a")["rejected"]


def test_shared_blocks_stay_until_the_last_sample_leaves():
    run = run_scenario(
        request("a", 32, 9, n=2), request("b", 5, 9, arrival=1), block_size=16, num_blocks=8
    )

    assert run.lines[1]["used_blocks"] == 2
    assert run.lines[8]["used_blocks"] == 2 + 2 + 1
    assert run.lines[9]["used_blocks"] == 1
