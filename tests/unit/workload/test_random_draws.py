"""Draws: right on average, and the same on every machine, bit by bit."""

import math
import random
import subprocess
import sys

import pytest

from everbatch.workload.random_draws import exp, exponential, gamma, ln, normal, stream

NUM_DRAWS = 20_000


def moments(draws: list[float]) -> tuple[float, float]:
    mean = sum(draws) / len(draws)
    return mean, sum((draw - mean) ** 2 for draw in draws) / len(draws)


def test_logarithms_are_the_library_s_to_the_last_places():
    draw = random.Random(1)
    values = [draw.random() * 10.0 ** draw.randint(-300, 300) for _ in range(5000)]

    assert [x for x in values if not math.isclose(ln(x), math.log(x), rel_tol=1e-15)] == []
    assert ln(1.0) == 0.0


def test_powers_of_e_are_the_library_s_to_the_last_places():
    draw = random.Random(2)
    values = [draw.uniform(-700, 700) for _ in range(5000)]

    assert [x for x in values if not math.isclose(exp(x), math.exp(x), rel_tol=1e-15)] == []
    assert exp(0.0) == 1.0


@pytest.mark.parametrize(
    ("draw_one", "mean", "variance"),
    [
        (exponential, 1.0, 1.0),
        (normal, 0.0, 1.0),
        (lambda draw: gamma(draw, 0.25), 0.25, 0.25),
        (lambda draw: gamma(draw, 4.0), 4.0, 4.0),
    ],
)
def test_moments_are_those_of_the_distribution(draw_one, mean, variance):
    draw = stream(7, "moments").random

    found_mean, found_variance = moments([draw_one(draw) for _ in range(NUM_DRAWS)])

    # Four standard errors of the mean; the variance has a heavier tail.
    assert abs(found_mean - mean) < 4 * math.sqrt(variance / NUM_DRAWS)
    assert abs(found_variance - variance) < 0.12 * variance


def test_draws_are_these_on_every_machine():
    draw = stream(0, "arrivals").random

    assert [exponential(draw).hex(), normal(draw).hex(), gamma(draw, 0.5).hex()] == EXPECTED


def test_streams_of_two_names_or_seeds_differ():
    first = [stream(seed, name).random() for seed, name in ((0, "a"), (0, "b"), (1, "a"))]

    assert len(set(first)) == 3


def test_another_process_draws_the_same():
    code = (
        "from everbatch.workload.random_draws import *\n"
        "draw = stream(0, 'arrivals').random\n"
        "print([exponential(draw).hex(), normal(draw).hex(), gamma(draw, 0.5).hex()])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "17"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.strip() == str(EXPECTED)


EXPECTED = [
    "0x1.e6052fd30b896p-2",
    "-0x1.efbeae2688333p-1",
    "0x1.7c78d11aab2b5p-3",
]
