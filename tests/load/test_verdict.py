"""What a storm is judged by, where there is nothing to compare it with."""

import pytest
from load.storm import Course, Plan
from load.verdict import Check, judge
from load.watched import Look, Span

PLAN = Plan(warm_s=0.0, calm_s=10.0, settle_s=0.0, storm_s=10.0)
TOKENS = ("generation_tokens_total", "computed_tokens_total")
STEPS = "forward_step_duration_seconds"


def span(num_tokens: float) -> Span:
    """Ten seconds in which so many tokens were computed, one a step of a millisecond."""
    counts = dict.fromkeys((*TOKENS, f"{STEPS}_count/decode"), num_tokens)
    counts[f"{STEPS}_sum/decode"] = num_tokens / 1e3
    return Span(Look(0.0, 0.0, 0.0, {}), Look(10.0, 1.0, 1.0, counts))


def timed(calm: float, stormy: float) -> dict[str, Check]:
    """Give the checks of times, by the first words of their names."""
    course = Course(PLAN, before=span(calm), storm=span(stormy), after=span(calm))
    course.memory = [1, 1, 1]
    course.idle = dict.fromkeys(
        ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"), 0.0
    )
    checks = judge(course, "", with_times=True)
    return {one.name: one for one in checks if one.name.startswith(("step time", "throughput"))}


@pytest.mark.parametrize(
    ("calm", "stormy", "keeps_throughput"),
    [(100.0, 100.0, True), (100.0, 76.0, True), (100.0, 74.0, False)],
)
def test_throughput_is_that_of_the_calm_time_within_a_quarter(
    calm: float, stormy: float, keeps_throughput: bool
) -> None:
    checks = timed(calm, stormy)

    assert checks["step time is as before"].is_kept
    assert {checks[f"throughput of accepted work, {name}"].is_kept for name in TOKENS} == {
        keeps_throughput
    }


@pytest.mark.parametrize("stormy", [0.0, 100.0])
def test_a_calm_time_in_which_nothing_ran_proves_nothing(stormy: float) -> None:
    checks = timed(0.0, stormy)

    assert [one.is_kept for one in checks.values()] == [False] * 3
    assert all("nothing to compare with" in one.seen for one in checks.values())
