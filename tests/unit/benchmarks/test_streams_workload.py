"""Streams that decode together: which pieces of text count, and what is made of their times."""

import pytest
from streams_workload import (
    NUM_OUTPUT_TOKENS,
    NUM_PROMPT_TOKENS,
    Streamed,
    figures_of,
    measure,
    percentile,
)

MS = 1_000_000


def stream(*at_ms: float, num_tokens: int | None = None) -> Streamed:
    return Streamed(num_tokens or len(at_ms), [int(at * MS) for at in at_ms])


def test_only_what_comes_while_all_decode_counts():
    """The first waits for the second's prompt, 90 ms; the second goes on alone, 1 ms a piece."""
    first = stream(0, 10, 100, 110, 120, 130)
    second = stream(100, 110, 120, 130, 131, 132)

    figures = figures_of([first, second])

    assert figures["itl_ms_p50"] == figures["itl_ms_p99"] == 10
    assert figures["decode_tokens_per_s"] == pytest.approx(200)


def test_tokens_without_text_are_tokens_all_the_same():
    figures = figures_of([stream(0, 10, 20, 30, num_tokens=8)])

    assert figures["decode_tokens_per_s"] == pytest.approx(200)


def test_pieces_that_come_at_once_have_no_gap():
    figures = figures_of([stream(0, 20, 20, 40)])

    assert (figures["itl_ms_p50"], figures["itl_ms_p99"]) == (20, 20)
    assert figures["decode_tokens_per_s"] == pytest.approx(75)


def test_streams_that_never_decode_together_prove_nothing():
    with pytest.raises(RuntimeError, match="hardly decoded together"):
        figures_of([stream(0, 10, 20), stream(30, 40, 50)])


@pytest.mark.parametrize(
    ("num", "percent", "expected"), [(100, 99, 99), (101, 99, 100), (1, 50, 1)]
)
def test_so_many_percent_are_not_above_a_percentile(num, percent, expected):
    assert percentile(range(1, num + 1), percent) == expected


def test_each_batch_is_warmed_up_and_measured_with_prompts_of_its_own():
    asked: list[tuple[int, int, int]] = []

    def generate(prompts: list[list[int]], num_outputs: int) -> list[Streamed]:
        asked.append((len(prompts), len(prompts[0]), num_outputs))
        assert len({tuple(prompt) for prompt in prompts}) == len(prompts)
        return [stream(*range(num_outputs)) for _ in prompts]

    figures = measure(generate, (2, 3))

    assert asked[1::2] == [
        (2, NUM_PROMPT_TOKENS, NUM_OUTPUT_TOKENS),
        (3, NUM_PROMPT_TOKENS, NUM_OUTPUT_TOKENS),
    ]
    assert [batch for batch, _, _ in asked[::2]] == [2, 3]
    assert figures["decode_tokens_per_s_3"] == pytest.approx(3_000)


def test_another_number_of_tokens_than_asked_for_is_an_error():
    with pytest.raises(RuntimeError, match=r"asked for 2 x 256 tokens, got 2 x \{8\}"):
        measure(lambda prompts, _: [stream(*range(8)) for _ in prompts], (2,))
