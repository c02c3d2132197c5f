"""Mixed steps against their own FLOPs and bytes: prices from pure steps."""

import pytest
from bench_mixed import Prices, Step, compare, fit, shortfalls
from harness import BenchmarkError

from everbatch.costs.work import StepWork

TRUE = (0.002, 1.2, 1.7)  # seconds a step, and a second of floor


def step(*, decodes=0, context=0, chunk=0, start=0, slower=1.0):
    """Give a step that takes what the true prices say, times `slower`."""
    work = StepWork(num_decodes=decodes, decode_context=decodes * context)
    if chunk:
        work.add_chunk(start, chunk)
    other_s, decode_kv_s = 1e-4 * work.num_tokens, 1e-6 * work.decode_context
    seconds = slower * (TRUE[0] + TRUE[1] * other_s + TRUE[2] * decode_kv_s)
    return Step(work, other_s, decode_kv_s, seconds)


def pure_steps():
    decodes = [step(decodes=16, context=context) for context in range(40, 1500, 20)]
    return [*decodes, *(step(chunk=512, start=start) for start in (0, 512))]


def test_prices_come_from_pure_steps_alone():
    mixed = [step(decodes=16, context=100, chunk=496, slower=9.0)]

    prices = fit([*pure_steps(), *mixed])

    assert (prices.fixed_s, prices.other, prices.decode_kv) == pytest.approx(TRUE)


def test_one_hiccup_among_equal_steps_does_not_move_the_prices():
    hiccup = step(chunk=512, start=0, slower=10.0)

    prices = fit([*pure_steps(), step(chunk=512, start=0), hiccup])

    assert (prices.fixed_s, prices.other, prices.decode_kv) == pytest.approx(TRUE)


def test_without_chunks_there_are_no_prices():
    with pytest.raises(BenchmarkError, match="too few for three prices"):
        fit([step(decodes=16, context=40)])


def test_gaps_within_the_prompts_are_compared_with_their_own_steps():
    before = [step(decodes=16, context=50, slower=50.0)]  # ahead of the first prompt: not looked at
    mixed = [step(decodes=16, context=100 + k, chunk=496, slower=1.1) for k in range(4)]
    prices = Prices(*TRUE)

    found = compare([*before, *mixed], prices)

    assert (found["steps"], found["mixed_steps"], found["least_decodes"]) == (4, 4, 16)
    assert found["p99_ratio"] == pytest.approx(1.1)
    assert found["mixed_ratio_p99"] == pytest.approx(1.1)
    assert shortfalls(found) == []


def test_a_slow_mixed_step_and_a_decode_that_waits_are_shortfalls():
    mixed = [step(decodes=16, context=100, chunk=496, slower=1.2)]
    waits = [step(decodes=15, context=100, chunk=497)]
    prices = Prices(*TRUE)

    [slow] = shortfalls(compare(mixed, prices))
    [waited] = shortfalls(compare(waits, prices))

    assert slow == "p99 of the gaps is 1.20 times the predicted one, above 1.15"
    assert waited.startswith("in a step only 15 of 16 decoded")


def test_a_run_without_mixed_steps_proves_nothing():
    with pytest.raises(BenchmarkError, match="no step was mixed"):
        compare(pure_steps(), Prices(*TRUE))
