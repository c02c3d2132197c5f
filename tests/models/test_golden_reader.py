"""The golden files and the rule by which a text counts as the oracle's."""

import pytest
from models.golden import NEAR_TIE, GoldenPrompt, compare, load


def golden_prompt(*, gap: float = 1.0, runner_up: int = 99) -> GoldenPrompt:
    """One prompt with the answer 10, 11, 12, whose second token has the given gap."""
    return GoldenPrompt(
        name="example",
        prompt_token_ids=(1, 2, 3),
        output_token_ids=(10, 11, 12),
        gaps=(1.0, gap, 1.0),
        runner_up={1: runner_up},
        eos_positions=(),
    )


def test_the_same_tokens_are_equal():
    comparison = compare([golden_prompt()], [[10, 11, 12]])

    assert comparison.equal
    assert comparison.allowed
    assert comparison.first_difference is None
    assert comparison.num_tokens_compared == 3


def test_another_token_at_a_clear_position_is_wrong():
    comparison = compare([golden_prompt(gap=NEAR_TIE)], [[10, 99, 12]])

    assert not comparison.allowed
    assert comparison.first_difference.position == 1
    assert comparison.first_difference.produced_token_id == 99


def test_the_runner_up_of_a_near_tie_is_allowed_and_cuts_the_prompt():
    comparison = compare([golden_prompt(gap=NEAR_TIE / 2)], [[10, 99, 55]])

    assert comparison.allowed
    assert not comparison.equal
    assert comparison.num_prompts_cut == 1
    assert comparison.num_tokens_compared == 2


def test_a_third_token_at_a_near_tie_is_wrong():
    comparison = compare([golden_prompt(gap=NEAR_TIE / 2)], [[10, 55, 12]])

    assert not comparison.allowed


def test_a_text_that_ends_early_is_wrong():
    comparison = compare([golden_prompt()], [[10, 11]])

    assert not comparison.allowed
    assert comparison.first_difference.produced_token_id is None


def test_a_wrong_token_is_named_before_an_allowed_one():
    golden = [golden_prompt(gap=0.0), golden_prompt()]

    comparison = compare(golden, [[10, 99, 12], [10, 11, 55]])

    assert comparison.first_difference.position == 2
    assert "1 prompts cut" in comparison.summary()


def test_only_the_first_tokens_count_when_fewer_were_asked_for():
    comparison = compare([golden_prompt()], [[10, 11]], num_tokens=2)

    assert comparison.equal
    assert comparison.num_tokens_expected == 2


def test_a_text_longer_than_expected_is_refused():
    with pytest.raises(ValueError, match="example: 3 tokens produced, only 2"):
        compare([golden_prompt()], [[10, 11, 12]], num_tokens=2)


def test_small_is_a_part_of_full():
    small, full = load("small"), load("full")

    assert len(small) == 12
    assert len(full) == 50
    assert all(prompt in full for prompt in small)


def test_prompts_cover_the_lengths_that_matter():
    full = load("full")
    lengths = {len(prompt.prompt_token_ids) for prompt in full}

    assert (min(lengths), max(lengths)) == (1, 1500)
    assert lengths >= {15, 16, 17, 31, 32, 33, 48, 64, 128, 256, 512, 1024}
    assert max(len(prompt.prompt_token_ids) for prompt in load("small")) <= 400


def test_pairs_share_exactly_whole_blocks():
    """A prefix cache must reuse these blocks of 16 and not one token more."""
    by_name = {prompt.name: prompt.prompt_token_ids for prompt in load("full")}
    pairs = {
        ("four_blocks_then_queues", "four_blocks_then_sql"): 64,
        ("four_blocks_exactly", "four_blocks_and_one"): 64,
        ("sixteen_blocks", "sixteen_blocks_then_prose"): 256,
        ("thirty_two_blocks_then_code", "thirty_two_blocks_then_clock"): 512,
        ("twice_first", "twice_second"): 128,
    }
    shared = {(a, b): num_shared(by_name[a], by_name[b]) for a, b in pairs}

    assert shared == pairs


def test_each_output_position_has_a_gap_and_each_near_tie_a_runner_up():
    for prompt in load("full"):
        near_ties = {i for i, gap in enumerate(prompt.gaps) if gap < NEAR_TIE}

        assert len(prompt.output_token_ids) == len(prompt.gaps) == 48
        assert near_ties <= prompt.runner_up.keys()
        assert all(gap < 1e-3 for gap in map(prompt.gaps.__getitem__, prompt.runner_up))


def num_shared(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """How many leading tokens two prompts have in common."""
    for count, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return count
    return min(len(left), len(right))
