"""A run on a clock of seconds: what comes while a pass runs, idle time, horizons, figures."""

import json
from io import StringIO

import pytest
from command_line import scenario_text

from everbatch.base.errors import ConfigError
from everbatch.costs.work import StepWork
from everbatch.sim.latencies import MAX_TIME
from everbatch.sim.run import RunOptions, simulate
from everbatch.sim.step_lines import StepLines
from everbatch.workload.scenario import parse_scenario
from everbatch.workload.times import SECONDS


class MillisecondATokenAndTen:
    """10 ms a pass and 1 ms a token of it."""

    def duration_ns(self, work: StepWork) -> int:
        return 1_000_000 * (10 + work.num_tokens)


class Lasting:
    """Every pass takes as long."""

    def __init__(self, duration_ns: int) -> None:
        self._duration_ns = duration_ns

    def duration_ns(self, work) -> int:
        return self._duration_ns


def request(id: str, prompt_tokens: int = 4, output_tokens: int = 3, **fields) -> dict:
    return {"id": id, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens, **fields}


def run(*requests, run=None, slo=None, keeps_requests=True, lines=None, **engine) -> dict:
    tables = json.loads(scenario_text(requests, run, **engine))
    tables |= {"clock": {"kind": "nominal"}, "slo": slo or {}}
    scenario = parse_scenario(json.dumps(tables), "given", "given")
    observers = [] if lines is None else [StepLines(lines, scenario.engine.max_num_seqs, SECONDS)]
    options = RunOptions(MillisecondATokenAndTen(), keeps_requests)
    return simulate(scenario, None, observers, options)


def facts(summary: dict, id: str, *names: str) -> tuple:
    return tuple(summary["requests"][id][name] for name in names)


def test_times_are_seconds():
    lines = StringIO()
    summary = run(request("a", arrival=0.5), lines=lines)

    # A prompt of 4, then two decodes: 14, 11 and 11 ms.
    assert facts(
        summary, "a", "arrival_s", "first_scheduled_s", "first_token_s", "finished_s"
    ) == pytest.approx((0.5, 0.5, 0.514, 0.536))
    assert summary["duration_s"] == pytest.approx(0.536)
    assert summary["e2e"]["mean"] == pytest.approx(0.036)
    assert [json.loads(line)["t"] for line in lines.getvalue().splitlines()] == pytest.approx(
        [0.514, 0.525, 0.536]
    )


def test_idle_time_is_skipped():
    summary = run(request("a"), request("b", arrival=100))

    assert summary["steps"] == 6
    assert summary["slot_iterations"] == 24
    assert summary["idle_slot_iterations"] == {"queue_empty": 18}


def test_who_comes_while_a_pass_runs_comes_at_its_end():
    summary = run(request("a"), request("b", arrival=0.001))

    assert facts(summary, "b", "first_scheduled_s", "queue_wait_s") == pytest.approx((0.014, 0.013))


def test_a_deadline_counts_from_the_arrival_not_from_the_boundary():
    late = request("b", arrival=0.001, deadline=0.0129)
    in_time = request("c", arrival=0.001, deadline=0.013)
    summary = run(request("a"), late, in_time)

    assert facts(summary, "b", "finish_reason") == ("deadline",)
    assert facts(summary, "c", "finish_reason") == ("stop",)


@pytest.mark.parametrize(
    ("abort_at", "outputs", "finished"),
    [
        # Passes end at 14 and 25 ms.
        (0.014, 1, 0.014),
        (0.0141, 1, 0.025),
        (0.0249, 1, 0.025),
        (0.025, 2, 0.025),
    ],
)
def test_what_a_pass_samples_for_who_left_meanwhile_is_dropped(abort_at, outputs, finished):
    summary = run(request("a", output_tokens=9, abort_at=abort_at), request("b", arrival=1))

    assert facts(summary, "a", "finish_reason", "output_tokens") == ("abort", outputs)
    assert facts(summary, "a", "finished_s") == pytest.approx((finished,))
    assert summary["useful_tokens"] == outputs + 3


def test_who_comes_and_leaves_within_a_pass_gets_no_token():
    summary = run(request("a"), request("b", arrival=0.001, abort_at=0.002))

    assert facts(summary, "b", "finish_reason", "output_tokens") == ("abort", 0)
    assert facts(summary, "b", "finished_s") == pytest.approx((0.014,))


@pytest.mark.parametrize(("horizon", "outputs"), [(0.014, 1), (0.0141, 2), (0.025, 2), (0.026, 3)])
def test_a_pass_that_began_before_the_horizon_counts_whole(horizon, outputs):
    summary = run(request("a", output_tokens=9), run={"horizon": horizon})

    assert facts(summary, "a", "output_tokens", "state") == (outputs, "DECODE")
    assert summary["horizon"] == horizon
    assert summary["duration_s"] == pytest.approx(0.003 + 0.011 * outputs)


def test_an_idle_horizon_is_the_end():
    assert run(request("a"), run={"horizon": 7})["duration_s"] == 7.0


@pytest.mark.parametrize("point", [0.014, 0.02, 0.5, 2])
def test_a_reporting_point_says_what_a_run_with_that_horizon_says(point):
    requests = [
        request("a", output_tokens=6),
        request("b", arrival=0.9),
        request("c", abort_at=0.02),
    ]
    slo = {"ttft": 0.02}
    lasting = run(*requests, run={"horizons": [0.014, 0.02, 0.5, 2]}, max_num_seqs=2, slo=slo)
    alone = run(*requests, run={"horizon": point}, max_num_seqs=2, slo=slo)

    reported = lasting["horizons"][str(point)]
    assert reported == {name: alone[name] for name in reported}


def test_rates_are_those_of_all_time():
    summary = run(request("a"), run={"horizon": 2})

    assert summary["throughput"] == {
        "requests_per_s": 0.5,
        "output_tokens_per_s": 1.5,
        "scheduled_tokens_per_s": 3.0,
    }
    # One slot of 4 for 36 ms; blocks of 4: one in the first pass, two in the others, of 64.
    assert summary["time_occupancy"] == pytest.approx(
        {"busy": 0.018, "slots": 0.0045, "blocks": (14 + 2 * 22) / 2000 / 64}
    )


@pytest.mark.parametrize(
    ("slo", "num_good"),
    [
        ({"ttft": 0.014}, 1),
        ({"ttft": 0.0139}, 0),
        ({"ttft": 1, "e2e": 0.0359}, 0),
        ({"itl": 0.011}, 1),
        ({"tpot": 0.0109}, 0),
    ],
)
def test_goodput_counts_who_met_every_goal(slo, num_good):
    summary = run(request("a"), request("gone", arrival=1, abort_at=1), slo=slo)

    assert summary["goodput"]["num_requests"] == num_good
    assert summary["goodput"]["share"] == num_good / 2
    assert summary["goodput"]["slo"] == slo


@pytest.mark.parametrize(("longest", "num_good"), [(0.035, 1), (0.036, 2)])
def test_one_long_gap_misses_the_goal_of_itl(longest, num_good):
    # b's prompt of 25 makes one pass of 36 ms for a; b itself sees none as long.
    requests = [request("a", output_tokens=9), request("b", 25, 3, arrival=0.02)]

    assert run(*requests, slo={"itl": longest})["goodput"]["num_requests"] == num_good


def test_a_run_without_the_part_of_each_request_has_the_same_figures():
    requests = [
        request("a", 6, 7, n=2),
        request("b", 9, 7, arrival=0.03),
        request("big", 300),
        request("gone", 5, 9, abort_at=0.03),
        request("late", arrival=9),
    ]
    options = {"num_blocks": 6, "run": {"horizon": 0.2}, "slo": {"itl": 0.02, "ttft": 0.1}}
    kept, dropped = (run(*requests, **options, keeps_requests=keeps) for keeps in (True, False))

    assert kept["num_preemptions"] > 0
    del kept["requests"]
    assert dropped == kept


def test_masked_rows_cost_what_decodes_cost():
    summary = run(request("a", 4, 2), request("b", 4, 4), batching="static")

    # Prompts of 8 tokens, then three passes of two rows, the last two with a's masked.
    assert summary["duration_s"] == pytest.approx(0.018 + 3 * 0.012)
    assert summary["masked_slot_iterations"] == 2


def test_a_request_beyond_all_times_is_refused_and_the_longest_is_not():
    tables = json.loads(scenario_text([request("a", output_tokens=1)]))
    scenario = parse_scenario(json.dumps({**tables, "clock": {"kind": "nominal"}}), "s", "s")
    longest = simulate(scenario, options=RunOptions(Lasting(MAX_TIME)))

    assert longest["duration_s"] == MAX_TIME / 1e9
    with pytest.raises(ConfigError, match=r"a request takes 9.22e\+09 s, at most 9.22e\+09 s are"):
        simulate(scenario, options=RunOptions(Lasting(MAX_TIME + 1)))


def test_step_times_are_told_by_the_tokens_of_a_step():
    summary = run(request("a", 5, 3), request("b", 4, 2, arrival=0.015))

    # 5 tokens take 15 ms; b's 4 and a decode 15 ms; the last decodes, two in one step, 12 ms.
    assert summary["step_times"] == [
        {"tokens": [2, 3], "steps": 1, "mean": pytest.approx(0.012)},
        {"tokens": [4, 7], "steps": 2, "mean": pytest.approx(0.015)},
    ]


def test_all_step_times_together_are_the_time_in_which_passes_ran():
    summary = run(*(request(f"r{n}", 3 + 9 * n, 9, arrival=0.1 * n) for n in range(9)))
    rows = summary["step_times"]

    assert sum(row["steps"] for row in rows) == summary["steps"]
    busy_s = summary["time_occupancy"]["busy"] * summary["duration_s"]
    assert sum(row["steps"] * row["mean"] for row in rows) == pytest.approx(busy_s)
    assert [row["tokens"] for row in rows] == sorted(row["tokens"] for row in rows)
