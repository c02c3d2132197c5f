"""Streams that decode together: which events and steps count, and what is made of their times."""

import pytest
from http_streams import Run, run_figures
from streams_workload import (
    NUM_OUTPUT_TOKENS,
    NUM_PROMPT_TOKENS,
    NUM_WARM_OUTPUT_TOKENS,
    Streamed,
    delays_ns,
    percentile,
    run_batches,
    step_figures,
    stream_figures,
    whole_streams,
)

MS = 1_000_000


def stream(*at_ms: float) -> Streamed:
    return Streamed(len(at_ms), [int(at * MS) for at in at_ms])


def steps(*ends: tuple[float, int]) -> list[tuple[int, int]]:
    return [(int(at * MS), num_tokens) for at, num_tokens in ends]


def test_only_what_comes_while_all_decode_counts():
    """The first waits for the second's prompt, 90 ms; the second goes on alone, 1 ms a piece."""
    first = stream(0, 10, 100, 110, 120, 130)
    second = stream(100, 110, 120, 130, 131, 132)

    figures = stream_figures([first, second], 2)

    assert figures == {"itl_ms_p50": 10, "itl_ms_p99": 10, "decode_tokens_per_s": 200}


def test_steps_that_brought_a_token_for_all_count():
    ends = steps((0, 1), (10, 1), (100, 2), (110, 2), (130, 2), (131, 1))

    figures = step_figures(ends, 2)

    assert (figures["itl_ms_p50"], figures["itl_ms_p99"]) == (10, 20)
    assert figures["decode_tokens_per_s"] == pytest.approx(4 / 0.03)


def test_events_that_come_at_once_have_no_gap():
    figures = stream_figures([stream(0, 20, 20, 40)], 1)

    assert (figures["itl_ms_p50"], figures["itl_ms_p99"]) == (20, 20)
    assert figures["decode_tokens_per_s"] == pytest.approx(75)


def test_an_event_is_as_late_as_the_step_before_it_is_old():
    assert delays_ns([stream(11, 25), stream(20)], steps((10, 2), (20, 2))) == [
        1 * MS,
        5 * MS,
        0,
    ]


def test_gaps_over_http_are_told_beside_the_engines_of_the_same_run():
    run = Run([stream(1, 12, 21, 36)], 1, 4, start_ns=0, end_ns=40 * MS, client_cpu_s=0.002)

    figures = run_figures(run, steps((-5, 1), (0, 1), (10, 1), (20, 1), (32, 1), (99, 1)))

    assert (figures["itl_ms_p99"], figures["engine_itl_ms_p99"]) == (15, 12)
    assert figures["itl_p99_by_engines"] == pytest.approx(1.25)
    assert figures["delay_ms_p99"] == 4
    assert figures["client_cpu_us_per_token"] == pytest.approx(500)


def test_what_never_decodes_together_proves_nothing():
    with pytest.raises(RuntimeError, match="hardly decoded together"):
        stream_figures([stream(0, 10, 20), stream(30, 40, 50)], 2)
    with pytest.raises(RuntimeError, match="hardly decoded together"):
        step_figures(steps((0, 1), (10, 2), (20, 1)), 2)


@pytest.mark.parametrize(
    ("num", "percent", "expected"), [(100, 99, 99), (101, 99, 100), (1, 50, 1)]
)
def test_so_many_percent_are_not_above_a_percentile(num, percent, expected):
    assert percentile(range(num, 0, -1), percent) == expected


def test_each_batch_has_prompts_of_its_own_after_a_short_run():
    asked: list[tuple[int, int, int]] = []

    def generate(prompts: list[list[int]], num_outputs: int) -> None:
        asked.append((len(prompts), len(prompts[0]), num_outputs))
        assert len({tuple(prompt) for prompt in prompts}) == len(prompts)

    run_batches(generate, (2, 3))

    assert asked[1::2] == [(size, NUM_PROMPT_TOKENS, NUM_OUTPUT_TOKENS) for size in (2, 3)]
    assert [(size, outputs) for size, _, outputs in asked[::2]] == [
        (2, NUM_WARM_OUTPUT_TOKENS),
        (3, NUM_WARM_OUTPUT_TOKENS),
    ]


def test_the_rate_is_that_of_the_batch_when_some_of_its_streams_count():
    figures = stream_figures([stream(0, 10, 20), stream(0, 10, 20)], 3)

    assert figures["decode_tokens_per_s"] == pytest.approx(300)


def test_another_number_of_tokens_than_asked_for_is_an_error():
    with pytest.raises(RuntimeError, match=r"asked for 8 tokens a stream, got \{7\}"):
        whole_streams([stream(*range(7))], 8)


def test_streams_in_which_a_token_has_no_text_do_not_count():
    whole, broken = Streamed(3, range(3)), Streamed(3, range(2))

    assert whole_streams([whole] * 4 + [broken], 3) == [whole] * 4
    with pytest.raises(RuntimeError, match="only 3 of 4 streams had a text a token"):
        whole_streams([whole] * 3 + [broken], 3)
