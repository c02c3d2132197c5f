"""Every pair of options, under random crowds; and every seed that ever failed."""

import json
from itertools import combinations
from pathlib import Path

import pytest
from builders import Client, alone, spoken_text
from crowd import Crowd, run_steps
from option_rows import OPTIONS, covering_rows, pairs_of

ROWS = covering_rows()
SEEDS = sorted(Path(__file__).with_name("seeds").glob("*.json"))
QUICK_STEPS = 300
FULL_STEPS = 50_000
FULL_CHECK_EVERY = 8


def test_rows_cover_every_pair_of_options_and_are_always_the_same():
    covered = {pair for row in ROWS for pair in pairs_of(row)}

    assert len(covered) == sum(
        len(OPTIONS[name]) * len(OPTIONS[other]) for name, other in combinations(OPTIONS, 2)
    )
    assert len(ROWS) < 45
    assert covering_rows() == ROWS


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_a_crowd_under_each_row(number):
    assert run_steps(ROWS[number], first_seed=1_000 * number, num_steps=QUICK_STEPS) > 0


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(len(ROWS)))
def test_a_long_crowd_under_each_row(number):
    assert run_steps(ROWS[number], 0, FULL_STEPS, FULL_CHECK_EVERY) > 100


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_seeds_that_failed_once(path):
    known = json.loads(path.read_text())
    for seed in known["seeds"]:
        Crowd(known["row"], seed).run()


def test_the_text_of_crowds_is_the_text_that_a_client_gets_alone():
    prompt = [5, 6, 7]

    assert spoken_text(tuple(prompt), 0, 6) == alone(Client("lone", prompt, 6))
