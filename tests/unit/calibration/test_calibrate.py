"""A fit finds the prices that steps were made with, and says how sure it is and what it saw."""

import json
from dataclasses import asdict, replace

import pytest
from measured_runs import PRICES, poisson_log, priced, read, recorded

from everbatch.base.errors import ConfigError, EventLogError
from everbatch.calibration.calibrate import (
    ALL,
    MIN_LINES,
    WITH_PROMPT,
    WITHOUT_PROMPT,
    Calibration,
)
from everbatch.calibration.calibrate import calibrate as calibrate_logs
from everbatch.calibration.fit import counts_of, fit_prices, predicted_ns
from everbatch.calibration.holdout import split, step_errors
from everbatch.calibration.steps import MeasuredLog, MeasuredSteps
from everbatch.costs.fitted import Prices
from everbatch.costs.profile import parse_profile, profile_text
from everbatch.costs.work import StepWork

SPREAD = 0.05
EXACT = poisson_log(60)
NOISY = poisson_log(150, SPREAD)


def calibrate(logs: list[MeasuredLog]) -> Calibration:
    return calibrate_logs(logs, "1.2.3")


def decodes(num: int, context: int, duration: float, count: int = 1) -> MeasuredSteps:
    first = StepWork(num, decode_context=context)
    last = StepWork(num, decode_context=context + num * (count - 1))
    return MeasuredSteps(count, round(duration), first, last)


# Prices


def test_a_log_without_noise_gives_the_prices_back():
    made = calibrate([read(EXACT)])

    assert asdict(made.fit.prices) == pytest.approx(asdict(PRICES), rel=1e-3)
    assert made.errors[ALL].mean < 1e-6
    assert made.notes == [
        "simulated, clock nominal: the profile describes that model of step time, not a machine"
    ]


def test_a_noisy_log_gives_each_price_back_within_three_of_its_standard_errors():
    fit = calibrate([read(NOISY)]).fit

    for name, error in fit.standard_errors.items():
        assert abs(getattr(fit.prices, name) - getattr(PRICES, name)) < 3 * error, name
    assert len(fit.standard_errors) == 6
    assert fit.spread == pytest.approx(SPREAD, rel=0.1)


def test_a_noisy_log_predicts_another_one_within_half_a_percent():
    prices = calibrate([read(NOISY)]).fit.prices

    other = step_errors(prices, read(poisson_log(60, seed=2)).steps)

    assert abs(other.total) < 0.005
    assert other.p99 < 0.02


def test_steps_of_twenty_times_the_length_hardly_move_the_prices():
    lines = [decodes(n, 50 * n * n, 1e6 + 1e4 * n + 10 * 50 * n * n) for n in range(1, 40)] * 10
    stalled = [decodes(9, 4050, 20 * 1.1e6)] * 8

    fit = fit_prices(lines + stalled)

    assert predicted_ns(fit.prices, lines) == pytest.approx(
        [line.duration_ns for line in lines], rel=1e-3
    )
    assert fit.num_outliers == 8
    assert fit.outlier_time == pytest.approx(8 * 22 / (8 * 22 + sum(map(length_ms, lines))), 1e-3)


def length_ms(line: MeasuredSteps) -> float:
    return line.duration_ns / 1e6


def test_no_price_is_below_zero():
    # The longer the context, the shorter the step: no price of context explains that.
    lines = [decodes(4, 100 + 10 * n, 1e6 - 1e3 * n) for n in range(50)]

    prices = fit_prices(lines).prices

    assert min(asdict(prices).values()) == prices.decode_context == 0
    assert prices.decode_step + 4 * prices.decode == pytest.approx(0.975e6, rel=1e-2)


def test_counts_that_are_one_and_the_same_share_no_price():
    lines = [decodes(4, 400, 1e6)] * 50

    fit = fit_prices(lines)

    assert predicted_ns(fit.prices, lines)[0] == pytest.approx(1e6, rel=1e-5)
    assert sum(price > 0 for price in asdict(fit.prices).values()) == 1


def test_prices_of_blocks_to_the_host_are_fitted_too():
    crowd = [
        {"id": str(n), "arrival": 0.01 * n, "prompt_tokens": 20 + n % 7, "output_tokens": 30}
        for n in range(60)
    ]
    swaps = {"num_blocks": 34, "num_host_blocks": 64, "preemption_mode": "swap"}
    prices = Prices(1e6, 2e6, 1e4, 100, 3e4, 10, swapped_block=5e4)
    log = read(recorded(priced(prices), {"requests": crowd}, **swaps)[1])

    fit = fit_prices(log.steps)

    assert fit.num_seen["swapped_block"] > 0
    assert fit.prices.swapped_block == pytest.approx(5e4, rel=1e-3)


def test_a_bend_is_found_where_more_tokens_take_longer_than_the_weights():
    # Up to 8 tokens of a step come with the weights.
    bent = replace(PRICES, decode=0.0, wide_token=400_000.0, narrow_tokens=8)
    fit = fit_prices(read(poisson_log(150, SPREAD, prices=bent)).steps)
    straight = fit_prices(read(poisson_log(150, SPREAD)).steps)
    alone, crowd = decodes(1, 200, 1), decodes(30, 6_000, 1)

    assert straight.prices.wide_token == straight.prices.narrow_tokens == 0
    assert fit.prices.narrow_tokens in (6, 8, 11)
    assert fit.num_seen["wide_token"] > 0
    for line in (alone, crowd):
        expected = priced(bent).duration_ns(line.first)
        assert predicted_ns(fit.prices, [line])[0] == pytest.approx(expected, rel=0.01)
        assert priced(fit.prices).duration_ns(line.first) == pytest.approx(expected, rel=0.01)


def test_tiles_are_found_where_kernels_compute_so_many_tokens_at_once():
    tiled = replace(PRICES, tile=3e6, tile_tokens=12)
    log = poisson_log(150, SPREAD, prices=tiled)
    made = calibrate([read(log)])

    assert made.fit.prices.tile_tokens == 12
    assert made.price_rows()[-1][1] == "12 tokens of a step, begun ones too"
    assert parse_profile(profile_text(made.profile), "given") == made.profile
    for num in (1, 12, 13, 24, 25):
        line = decodes(num, 200 * num, 1)
        expected = priced(tiled).duration_ns(line.first)
        assert predicted_ns(made.fit.prices, [line])[0] == pytest.approx(expected, rel=0.02)
        assert priced(made.fit.prices).duration_ns(line.first) == pytest.approx(expected, rel=0.02)


def test_a_bend_is_told_with_its_price():
    bent = replace(PRICES, wide_token=400_000.0, narrow_tokens=8)
    made = calibrate([read(poisson_log(60, prices=bent))])

    assert made.facts()["narrow_tokens"] == 8
    assert made.facts()["prices_ns"]["wide_token"]["price"] == pytest.approx(4e5, rel=1e-3)
    assert made.price_rows()[-1][1] == "a token of a step beyond the first 8"
    assert parse_profile(profile_text(made.profile), "given") == made.profile


def test_a_line_of_many_steps_counts_what_they_did_together():
    [row] = counts_of([decodes(2, 20, 100, count=3)])

    assert list(row) == [3, 0, 6, 20 + 22 + 24, 0, 0, 0]


def test_a_price_that_noise_hides_is_called_unsure():
    made = calibrate([read(poisson_log(60, noise=0.3))])

    [note] = [note for note in made.notes if note.startswith("prompt_pair")]
    assert "the log has little of it, or it moves together with something else" in note


def test_a_price_of_nothing_is_told():
    log = read(EXACT)
    alone = [line for line in log.steps if line.has_prompt and not line.num_decodes]
    log.steps = alone * MIN_LINES + [decodes(4, 100 + 10 * n, 1e6 - 1e3 * n) for n in range(200)]

    [note] = [note for note in calibrate([log]).notes if note.startswith("decode_context")]
    assert note.startswith("decode_context is 0: a token of its context costs nothing that can")


# What is held out


def test_a_fifth_of_each_kind_is_held_out_in_stretches():
    lines = [decodes(1, n, n) for n in range(1, 101)]

    fitted, held_out = split(lines)

    assert (len(fitted), len(held_out)) == (80, 20)
    assert [line.duration_ns for line in held_out] == [
        n for start in range(9, 101, 20) for n in range(start, start + 4)
    ]


def test_errors_are_of_what_was_held_out_and_told_by_kind():
    made = calibrate([read(NOISY)])
    _, held_out = split(read(NOISY).steps)

    assert made.errors[ALL] == step_errors(made.fit.prices, held_out)
    assert made.errors[ALL].num_steps == sum(line.count for line in held_out)
    assert made.errors[WITH_PROMPT].num_steps == sum(line.has_prompt for line in held_out)
    kinds = (made.errors[WITHOUT_PROMPT], made.errors[WITH_PROMPT])
    assert made.errors[ALL].num_steps == sum(kind.num_steps for kind in kinds)


def test_errors_are_fractions_of_the_measured_time_and_weigh_by_steps():
    prices = Prices(100, 0)
    lines = [decodes(1, 5, 100), decodes(1, 5, 125), decodes(1, 5, 400, count=8)]

    errors = step_errors(prices, lines)

    assert errors.num_steps == 10
    assert errors.total == pytest.approx(1000 / 625 - 1)
    assert errors.mean == pytest.approx((0 + 0.2 + 8 * 1.0) / 10)
    assert (errors.p50, errors.p99) == (1.0, 1.0)


# Refusals


def test_a_log_with_too_few_steps_is_refused_with_what_it_has():
    log = read(EXACT)
    plain = [line for line in log.steps if not line.has_prompt]
    *prompts, last = [line for line in log.steps if line.has_prompt][:MIN_LINES]
    log.steps = plain[:MIN_LINES] + prompts

    with pytest.raises(EventLogError, match="log: 19 lines of steps with a prompt and 20 of"):
        calibrate([log])
    log.steps.append(last)
    assert calibrate([log]).num_fitted_steps > 0


def test_logs_of_two_models_are_refused():
    other = read(with_header(EXACT, model={"name": "other"}), "other")

    with pytest.raises(EventLogError, match="other is the log of another model than log"):
        calibrate([read(EXACT), other])


def test_logs_of_an_engine_and_of_a_clock_are_refused():
    other = read(with_header(EXACT, clock=None), "other")

    with pytest.raises(EventLogError, match="other is the log of another clock than log"):
        calibrate([read(EXACT), other])


# Profiles


def test_a_profile_is_read_as_it_was_written_and_tells_where_it_comes_from():
    text = with_header(EXACT, model={"name": "small"}, clock=None)
    profile = calibrate([read(text, "a.jsonl", "2026-01-02")]).profile

    assert parse_profile(profile_text(profile), "given") == profile
    assert profile.source == "a.jsonl"
    assert profile.origin["everbatch"] == "1.2.3"
    assert profile.origin["model"] == {"name": "small"}
    [log] = profile.origin["logs"]
    assert (log["file"], log["date"]) == ("a.jsonl", "2026-01-02")
    assert log["config"]["max_num_seqs"] == 32


def test_an_origin_that_is_no_object_is_refused():
    text = profile_text(calibrate([read(EXACT)]).profile)

    with pytest.raises(ConfigError, match="given: origin is 3, it must be an object"):
        parse_profile(json.dumps({**json.loads(text), "origin": 3}), "given")


def test_the_same_log_gives_the_same_bytes():
    first, second = (profile_text(calibrate([read(NOISY)]).profile) for _ in range(2))

    assert first == second


def test_the_region_is_that_of_the_steps_that_were_fitted():
    fitted, _ = split(read(NOISY).steps)
    most = max(line.last.decode_context for line in fitted)

    region = calibrate([read(NOISY)]).profile.region

    assert region.ranges["decode_context"][1] == most
    assert region.outside(StepWork(1, decode_context=most + 1)) == ("decode_context",)


def with_header(log: str, **facts: object) -> str:
    """The log with other facts in its header; None takes one away."""
    header, _, rest = log.partition("\n")
    told = {**json.loads(header), **facts}
    return json.dumps({k: v for k, v in told.items() if v is not None}) + "\n" + rest
