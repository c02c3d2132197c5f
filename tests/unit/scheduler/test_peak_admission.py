"""Admission by the peak of the future: what running requests will hold at most, in blocks."""

from random import Random

import pytest
from builders import client, run_world
from command_line import scenario_text

from everbatch.scheduler.admission import Future, peak_blocks
from everbatch.sim.run import simulate
from everbatch.workload.scenario import parse_scenario


def test_the_peak_is_just_before_somebody_ends():
    # Blocks of 4: after 3 steps 7 and 5 tokens, 2 + 2 blocks; after 9 the second alone, 3 blocks.
    assert peak_blocks([Future(4, 3), Future(2, 9)], 4) == 4
    assert peak_blocks([Future(4, 3), Future(2, 19)], 4) == 6


def test_samples_hold_their_prompt_s_full_blocks_once():
    # 8 tokens are two blocks for all three; a third block for each.
    assert peak_blocks([Future(8, 4, num_samples=3, num_shared_blocks=2)], 4) == 2 + 3


def test_samples_that_were_accepted_are_admitted_when_they_are_alone():
    # For life: two blocks of the prompt, and one more for each of two samples.
    text = scenario_text(
        [{"id": "a", "prompt_tokens": 8, "output_tokens": 5, "n": 2}],
        num_blocks=4,
        admission="peak",
    )

    summary = simulate(parse_scenario(text, "given", "given"))

    assert summary["requests"]["a"]["first_step"] == 1


def test_nobody_is_preempted_when_peaks_are_foreseen():
    clients = [client(id, 3 + number, 9) for number, id in enumerate("abcdef")]

    peak = run_world(clients, num_blocks=9, admission="peak")

    assert not any(event.kind == "preempted" for event in peak.events)
    assert any(event.kind == "preempted" for event in run_world(clients, num_blocks=9).events)


@pytest.mark.parametrize("options", [{}, {"backfill": "greedy"}, {"backfill": "safe"}])
@pytest.mark.parametrize("seed", range(12))
def test_who_reads_a_prompt_at_once_is_foreseen_to_the_last_step(seed, options):
    # All prompts of a step fit into it, and so do all decodes: everybody grows as foreseen.
    draw = Random(seed)
    clients = [
        client(
            f"r{number}",
            draw.randint(1, 20),
            draw.randint(1, 25),
            arrival=draw.randrange(60),
            abort_at=draw.choice([None, None, None, draw.randrange(90)]),
        )
        for number in range(40)
    ]

    world = run_world(clients, max_num_seqs=8, num_blocks=24, admission="peak", **options)

    assert not [event for event in world.events if event.kind == "preempted"]
