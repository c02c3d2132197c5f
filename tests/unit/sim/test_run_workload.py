"""Runs whose requests come from a [workload]: traces, synthetic arrivals, closed loops."""

import json

import pytest
from command_line import everbatch

from everbatch.base.errors import ConfigError
from everbatch.costs.work import StepWork
from everbatch.sim.run import RunOptions, simulate
from everbatch.workload.scenario import parse_scenario

FIXED = {"prompt": {"lengths": "fixed", "tokens": 8}, "output": {"lengths": "fixed", "tokens": 2}}
ENGINE = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "num_blocks": 64}


class TenMilliseconds:
    def duration_ns(self, work: StepWork) -> int:
        return 10_000_000


def scenario_of(folder, seed=0, clock="nominal", **workload):
    tables = {
        "engine": ENGINE,
        "clock": {"kind": clock},
        "run": {"seed": seed},
        "workload": workload,
    }
    return parse_scenario(json.dumps(tables), "given", "given", folder)


def run(scenario, *, keeps_requests=True):
    return simulate(scenario, options=RunOptions(TenMilliseconds(), keeps_requests))


@pytest.fixture
def trace(tmp_path):
    rows = [
        {"arrival_s": 5.0, "prompt_tokens": 8, "output_tokens": 2},
        {"arrival_s": 5.5, "prompt_tokens": 8, "output_tokens": 3},
        {"arrival_s": 6.0, "prompt_tokens": 0, "output_tokens": 3},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_trace_begins_at_0_and_its_requests_are_its_rows(trace):
    summary = run(scenario_of(trace.parent, trace=trace.name))

    assert [entry["arrival_s"] for entry in summary["requests"].values()] == [0.0, 0.5]
    assert list(summary["requests"]) == ["0", "1"]
    assert summary["duration_s"] == pytest.approx(0.53)
    assert summary["workload"]["num_requests"] == 2
    assert summary["workload"]["notes"] == [
        "read trace.jsonl, format jsonl (detected)",
        "trace.jsonl: 1 row left out: no prompt tokens",
    ]


def test_in_a_closed_loop_the_next_comes_when_one_has_ended(tmp_path):
    closed = scenario_of(
        tmp_path, arrivals="closed", users=2, think_time=1.0, num_requests=6, **FIXED
    )
    summary = run(closed)

    # Two passes of 10 ms each time, then the users think.
    assert [entry["arrival_s"] for entry in summary["requests"].values()] == pytest.approx(
        [0, 0, 1.02, 1.02, 2.04, 2.04]
    )
    assert run(closed) == summary


def test_in_a_closed_loop_a_refused_request_has_ended(tmp_path):
    long = {**FIXED, "prompt": {"lengths": "fixed", "tokens": 5000}}
    summary = run(scenario_of(tmp_path, arrivals="closed", users=1, num_requests=3, **long))

    assert summary["num_rejected"] == 3
    assert summary["first_rejection"].startswith("0 was refused: prompt has 5,000 tokens")


def test_another_seed_makes_other_requests(tmp_path):
    poisson = {"arrivals": "poisson", "rate": 20, "num_requests": 30, **FIXED}
    first = run(scenario_of(tmp_path, **poisson))
    other = run(scenario_of(tmp_path, **poisson).with_run(seed=1))

    assert other == run(scenario_of(tmp_path, seed=1, **poisson))
    assert other["duration_s"] != first["duration_s"]
    assert other["workload"]["digest"] != first["workload"]["digest"]


def test_equal_traces_in_other_places_are_one_workload(trace, tmp_path):
    elsewhere = tmp_path / "copies" / "copy.jsonl"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(trace.read_bytes())
    changed = tmp_path / "changed.jsonl"
    changed.write_bytes(trace.read_bytes().replace(b"5.5", b"5.6"))
    digest, same, other = (
        scenario_of(path.parent, trace=path.name).requests_digest()
        for path in (trace, elsewhere, changed)
    )

    assert digest == same != other


def test_records_go_when_requests_end(tmp_path):
    uniform = scenario_of(tmp_path, arrivals="uniform", rate=10, num_requests=40, **FIXED)
    kept, dropped = (run(uniform, keeps_requests=keeps) for keeps in (True, False))

    del kept["requests"]
    assert dropped == kept


def test_a_workload_needs_a_clock_of_seconds(tmp_path):
    with pytest.raises(ConfigError, match=r"\[workload\] has times in seconds"):
        scenario_of(tmp_path, clock="steps", arrivals="burst", num_requests=1, **FIXED)


def test_a_bad_row_far_down_writes_nothing(tmp_path):
    rows = [{"arrival_s": number, "prompt_tokens": 8, "output_tokens": 2} for number in range(3000)]
    rows[2900]["prompt_tokens"] = "many"
    (tmp_path / "bad.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scenario = {
        "engine": ENGINE,
        "clock": {"kind": "nominal"},
        "hardware": {"name": "h100-sxm"},
        "model": {"name": "nominal-8b"},
        "workload": {"trace": "bad.jsonl"},
    }
    (tmp_path / "bad.json").write_text(json.dumps(scenario))
    answer = everbatch(
        "simulate", tmp_path / "bad.json", "--events", tmp_path / "events.jsonl", "--json"
    )

    assert answer.status == 2
    assert "2901" in answer.err.replace(",", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.json", "bad.jsonl"]
