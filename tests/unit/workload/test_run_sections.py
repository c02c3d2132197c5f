"""[clock], [run] and [slo]: times in the clock's unit, and errors by key, value and range."""

import json

import pytest
from command_line import scenario_text

from everbatch.base.errors import ConfigError
from everbatch.workload.scenario import Scenario, parse_scenario


def slowed(**fields) -> dict:
    return {
        "clock": {"kind": "nominal"},
        "faults": [{"kind": "slow", "factor": 2, **fields}],
    }


def burst(**fields) -> dict:
    return {"kind": "burst", "count": 3, "prompt_tokens": 8, "output_tokens": 5, **fields}


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"clock": {"kind": "calibrated"}}, "[clock] lacks file: the profile"),
        ({"clock": {"link_efficiency": 1}}, '[clock] link_efficiency belongs to the kind "roofl'),
        (
            {"clock": {"kind": "nominal"}, "run": {"horizon": -1}},
            "[run] horizon is -1, it must be a number of seconds above 0, up to 9,007,199",
        ),
        (
            {"clock": {"kind": "nominal"}, "run": {"horizons": [0.0]}},
            "[run] horizons holds 0.0, it must be a number of seconds above 0",
        ),
        ({"clock": {"noise": 0.1}}, "[clock] noise is 0.1, it must be 0 on the clock of steps"),
        ({"clock": {"kind": "nominal", "noise": 3}}, "[clock] noise is 3, it must be a number fr"),
        ({"slo": {"ttft": 0.5}}, "[slo] ttft is 0.5, it must be an integer from 1"),
        ({"faults": [{"kind": "slow", "factor": 2}]}, "on the clock of steps a step has no length"),
        ({"faults": [{"kind": "fail", "share": 0}]}, "faults[0] share is 0, it must be a number"),
        ({"faults": [{"kind": "fail", "share": 1.5}]}, "share is 1.5, it must be a number above 0"),
        ({"faults": [{"kind": "fail", "factor": 2}]}, 'factor belongs to the kind "slow"'),
        (
            slowed(share=0.5),
            'faults[0] share belongs to the kind "fail" and "disconnect", the kind is "slow"',
        ),
        ({"faults": [{"kind": "burst", "count": 0}]}, "faults[0] lacks prompt_tokens: how long"),
        ({"faults": [burst(count=0)]}, "faults[0] count is 0, it must be an integer from 1 to"),
        ({"faults": [burst(count=2_000_000)]}, "bursts are 2,000,001 requests, at most 2,000,000"),
        ({"faults": [burst(share=1)]}, 'share belongs to the kind "fail" and "disconnect", the'),
        ({"faults": [{"kind": "disconnect"}]}, "faults[0] lacks start: when clients leave"),
        ({"faults": [{"kind": "disconnect", "start": 1, "end": 2}]}, "disconnect at one moment"),
        ({"faults": [{"kind": "disconnect", "start": 1, "share": 2}]}, "share is 2, it must be a"),
        ({"faults": [{"kind": "fail", "start": 5, "end": 5}]}, "end is 5, it must be later than"),
        (slowed(kind="sloow"), 'faults[0] kind is "sloow", it must be one of slow'),
        (slowed(factor=0), "faults[0] factor is 0, it must be a number above 0"),
        (slowed(factor=1e7), "faults[0] factor is 10000000.0, it must be a number above 0, up to"),
        (slowed(start=2, end=2), "faults[0] end is 2, it must be later than start"),
        ({"clock": {"kind": "nominal"}, "faults": [{"kind": "slow"}]}, "faults[0] lacks factor"),
        ({"clock": {"kind": "nominal"}, "faults": {}}, "faults is {}, it must be a list"),
        ({"slo": {"p99": 1}}, '[slo] has no key "p99"'),
    ],
)
def test_a_wrong_time_or_clock_is_named(sections, told):
    with pytest.raises(ConfigError) as error:
        parse_scenario(json.dumps({**json.loads(scenario_text()), **sections}), "given", "given")

    assert told in str(error.value)


def on_seconds(**tables) -> Scenario:
    text = json.dumps({**json.loads(scenario_text()), "clock": {"kind": "nominal"}, **tables})
    return parse_scenario(text, "given", "given")


def test_times_on_other_clocks_are_seconds_to_the_nanosecond():
    request = {"id": "a", "prompt_tokens": 1, "output_tokens": 1}
    found = on_seconds(
        requests=[
            {**request, "arrival": 1.5, "abort_at": 2, "deadline": 1e-9, "count": 2, "every": 0.1}
        ],
        run={"horizon": 2.5, "horizons": [1]},
        slo={"ttft": 0.25},
        tenants={"a": {"max_requests_per_minute": 7}},
    )

    assert [spec.arrival for spec in found.requests] == [1_500_000_000, 1_600_000_000]
    assert (found.requests[0].abort_at, found.requests[0].deadline) == (2_000_000_000, 1)
    assert (found.run.horizon, found.run.horizons) == (2_500_000_000, (1_000_000_000,))
    assert found.goals == {"ttft": 250_000_000}
    assert found.engine.tenants["a"].max_requests_per_minute == 7


def test_goals_beside_a_scenario_replace_its_own():
    found = on_seconds(slo={"ttft": 0.25, "e2e": 9}).with_goals(["ttft=0.5", "itl=0.1"])

    assert found.goals == {"ttft": 500_000_000, "e2e": 9_000_000_000, "itl": 100_000_000}


@pytest.mark.parametrize(
    ("goal", "told"),
    [
        ("ttft", '"ttft" sets no goal: write NAME=TIME'),
        ("tfft=1", '[slo] has no key "tfft" (did you mean "ttft"?)'),
        ("ttft=soon", '[slo] ttft is "soon", it must be a number of seconds above 0'),
        ("ttft=0", "[slo] ttft is 0.0, it must be a number of seconds above 0"),
        ("ttft=nan", "[slo] ttft is nan, it must be"),
    ],
)
def test_a_goal_that_is_none_is_refused_by_name(goal, told):
    with pytest.raises(ConfigError) as error:
        on_seconds().with_goals([goal])

    assert told in str(error.value)
