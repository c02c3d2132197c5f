"""Fitted step times, their profiles, and noise."""

import json
from dataclasses import replace
from statistics import fmean, pstdev

import pytest

from everbatch.base.errors import ConfigError
from everbatch.costs.fitted import FittedStepTime, Prices, Region
from everbatch.costs.noise import NoisyStepTime, noise_factor
from everbatch.costs.profile import Profile, parse_profile, profile_text, read_profile
from everbatch.costs.work import StepWork

PRICES = Prices(1000, 3000, 10, 0.5, 7, 0.25, 100, 40)


def decodes(count: int, context: int) -> StepWork:
    return StepWork(count, decode_context=context)


def mixed(count: int, context: int, *chunks: tuple[int, int]) -> StepWork:
    work = decodes(count, context)
    for start, tokens in chunks:
        work.add_chunk(start, tokens)
    return work


def fitted(prices: Prices = PRICES, *seen: StepWork) -> FittedStepTime:
    return FittedStepTime(prices, Region.of(seen))


# Prices


def test_a_step_of_decodes_pays_its_fixed_part_sequences_and_context():
    assert fitted().duration_ns(decodes(3, 70)) == 1000 + 3 * 10 + 70 // 2


def test_a_step_with_a_prompt_has_a_fixed_part_of_its_own():
    # 4 tokens at 0 and 2 at 10: 10 and 23 pairs.
    work = mixed(3, 70, (0, 4), (10, 2))

    assert fitted().duration_ns(work) == round(3000 + 3 * 10 + 35 + 6 * 7 + 33 * 0.25)


def test_blocks_that_move_are_paid_one_by_one():
    work = StepWork(1, swapped_blocks=2, copied_blocks=3)

    assert fitted().duration_ns(work) == 1000 + 10 + 200 + 120


def test_a_token_beyond_the_first_few_of_a_step_costs_more():
    model = fitted(replace(PRICES, wide_token=1000, narrow_tokens=4))

    assert model.duration_ns(decodes(4, 70)) == 1000 + 4 * 10 + 35
    assert model.duration_ns(decodes(5, 70)) == 1000 + 5 * 10 + 35 + 1000
    # 3 decodes and 4 tokens of a prompt, 10 pairs.
    assert model.duration_ns(mixed(3, 70, (0, 4))) == round(3000 + 30 + 35 + 28 + 2.5) + 3 * 1000


def test_a_tile_that_is_begun_is_paid_whole():
    model = fitted(replace(PRICES, tile=500, tile_tokens=4))

    assert model.duration_ns(decodes(4, 70)) == 1000 + 4 * 10 + 35 + 500
    assert model.duration_ns(decodes(5, 70)) == 1000 + 5 * 10 + 35 + 2 * 500
    assert model.duration_ns(mixed(3, 70, (0, 6))) == round(3000 + 30 + 35 + 42 + 5.25) + 3 * 500


def test_a_fitted_step_takes_a_nanosecond_at_least():
    assert fitted(Prices(0, 0)).duration_ns(decodes(1, 1)) == 1


# The region seen


def test_a_step_within_all_ranges_is_inside_and_one_past_an_end_is_not():
    model = fitted(PRICES, decodes(2, 100), mixed(8, 400, (0, 50)))

    assert model.outside(decodes(2, 100)) == model.outside(decodes(8, 400)) == ()
    assert model.outside(decodes(5, 200)) == ()
    assert model.outside(decodes(1, 100)) == ("num_decodes",)
    assert model.outside(decodes(9, 401)) == ("num_decodes", "decode_context")


def test_steps_without_prompts_say_nothing_about_prompts():
    model = fitted(PRICES, decodes(2, 100))
    told = model.outside(mixed(2, 100, (0, 50)))

    assert told == ("num_chunks", "prefill_tokens", "prefill_pairs")


def test_nothing_is_inside_of_nothing():
    assert fitted().outside(decodes(1, 1)) == ("num_decodes", "decode_context")


# Profiles


def test_a_profile_is_read_as_it_was_written(tmp_path):
    region = Region.of([mixed(8, 400, (0, 50)), decodes(2, 100)])
    profile = Profile(PRICES, region, {"itl_mean": 0.011, "ttft_p99": -0.02}, "run.jsonl")
    path = tmp_path / "profile.json"
    path.write_text(profile_text(profile), encoding="utf-8")

    assert read_profile(path) == profile
    assert read_profile(path).step_time().duration_ns(decodes(3, 70)) == 1065
    assert json.loads(path.read_text())["region"]["num_decodes"] == [2, 8]


def changed(**changes: object) -> str:
    profile = json.loads(profile_text(Profile(PRICES, Region.of([decodes(2, 9)]))))
    return json.dumps({key: value for key, value in {**profile, **changes}.items() if value != ""})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "p.json is not JSON"),
        ("[]", "p.json must be a table"),
        ("{}", "p.json lacks version: it is no profile"),
        (changed(version=2), "version is 2, it must be 1: write the profile anew"),
        (changed(kind="forest"), 'kind is "forest", it must be one of linear'),
        (changed(coefficients={"decode_step": 1}), "coefficients lacks prompt_step"),
        (
            changed(coefficients={"decode_step": -1, "prompt_step": 1}),
            "coefficients decode_step is -1, it must be a number of at least 0",
        ),
        (
            changed(coefficients={"decode_step": 1, "prompt_step": 1.1e15}),
            "coefficients prompt_step is 1100000000000000.0, it must be a number from 0 to 1e+15",
        ),
        (changed(coefficients={"decodes": 1}), 'has no key "decodes" (did you mean "decode"?)'),
        (
            changed(coefficients={"decode_step": 1, "prompt_step": 1, "narrow_tokens": 1.5}),
            "coefficients narrow_tokens is 1.5, it must be an integer from 0",
        ),
        (
            changed(coefficients={"decode_step": 1, "prompt_step": 1, "tile": 2}),
            "coefficients has tile without tile_tokens",
        ),
        (
            changed(coefficients={"decode_step": 1, "prompt_step": 1, "tile_tokens": 2}),
            "coefficients has tile_tokens without tile: ",
        ),
        (
            changed(coefficients={"decode_step": 1, "prompt_step": 1, "narrow_tokens": 2}),
            "coefficients has narrow_tokens without wide_token: what they cost",
        ),
        (changed(region={"num_decodes": [3, 2]}), "num_decodes is [3, 2], it must be a list"),
        (changed(region={"num_decodes": [0, 2]}), "num_decodes is [0, 2], it must be a list"),
        (changed(region={"num_decodes": 2}), "num_decodes is 2, it must be a list"),
        (changed(errors=3), "errors is 3, it must be an object"),
        (changed(errors={"itl": "much"}), 'itl is "much", it must be a number'),
        (changed().replace("1000", "NaN"), "NaN is no number of JSON"),
    ],
)
def test_what_is_no_profile_is_refused_by_name(text, told):
    with pytest.raises(ConfigError) as error:
        parse_profile(text, "p.json")

    assert told in str(error.value)


def test_a_number_of_tokens_may_be_nothing_and_their_price_too():
    none = {"narrow_tokens": 0, "tile_tokens": 0}
    free = {"narrow_tokens": 2, "wide_token": 0, "tile_tokens": 2, "tile": 0}
    for more in (none, free):
        text = changed(coefficients={"decode_step": 1, "prompt_step": 1, **more})

        assert parse_profile(text, "p.json").prices.wide_token == 0


def test_the_longest_price_is_still_a_price():
    text = changed(coefficients={"decode_step": 1e15, "prompt_step": 1})

    assert parse_profile(text, "p.json").step_time().duration_ns(StepWork()) == 10**15


def test_a_profile_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / "long.json").write_text(" " * ((1 << 20) + 1))
    (tmp_path / "bytes.json").write_bytes(b"\xff")

    for name, told in (
        ("gone.json", "cannot read the profile"),
        ("long.json", "has more than 1,048,576 bytes"),
        ("bytes.json", "is not UTF-8"),
    ):
        with pytest.raises(ConfigError, match=told):
            read_profile(tmp_path / name)


# Noise


def test_noise_is_the_same_for_a_seed_and_another_for_another():
    runs = [
        [noisy.duration_ns(decodes(1, 1)) for _ in range(50)]
        for noisy in (NoisyStepTime(fitted(), 0.1, seed) for seed in (7, 7, 8))
    ]

    assert runs[0] == runs[1] != runs[2]
    assert len(set(runs[0])) > 30


def test_a_step_s_factor_depends_on_its_number_alone():
    noisy = NoisyStepTime(fitted(Prices(10**9, 0)), 0.1, seed=3)
    told = [noisy.duration_ns(StepWork()) for _ in range(5)]

    assert told == [round(10**9 * noise_factor(3, step, 0.1)) for step in range(5)]


def test_noise_has_mean_one_and_the_spread_that_was_asked_for():
    factors = [noise_factor(1, step, 0.2) for step in range(20_000)]

    # The mean of 20,000 strays by 0.2 / sqrt(20,000) = 0.0014.
    assert fmean(factors) == pytest.approx(1, abs=0.006)
    assert pstdev(factors) == pytest.approx(0.2020, abs=0.006)


def test_no_noise_changes_nothing():
    noisy = NoisyStepTime(fitted(), 0.0, seed=1)

    assert noisy.duration_ns(decodes(3, 70)) == fitted().duration_ns(decodes(3, 70))


@pytest.mark.parametrize("sigma", [-0.1, 2.01, float("nan")])
def test_impossible_noise_is_refused(sigma):
    with pytest.raises(ConfigError, match=r"noise must lie in \[0, 2\], got"):
        NoisyStepTime(fitted(), sigma, seed=1)
