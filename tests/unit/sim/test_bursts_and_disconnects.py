"""Requests that come besides, and clients who leave, as the faults of a scenario say."""

import json

import pytest

from everbatch.base.errors import ConfigError
from everbatch.sim.run import RunOptions, simulate
from everbatch.workload.scenario import parse_scenario

ENGINE = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "num_blocks": 200, "block_size": 4}
ON_SECONDS = {
    "clock": {"kind": "nominal"},
    "hardware": {"name": "h100-sxm"},
    "model": {"name": "nominal-8b"},
}
POISSON = {"arrivals": "poisson", "rate": 20, "num_requests": 40, "prompt": 30, "output": 20}
BURST = {"kind": "burst", "count": 3, "prompt_tokens": 8, "output_tokens": 5}


def scenario(*faults, seed=0, **sections):
    tables = {"engine": ENGINE, "faults": list(faults), "run": {"seed": seed}, **sections}
    return parse_scenario(json.dumps(tables), "given", "given")


def listed(*faults, count=4, **fields):
    requests = [{"id": "r", "count": count, "prompt_tokens": 8, "output_tokens": 5, **fields}]
    return scenario(*faults, requests=requests)


def drawn(*faults, seed=0, **workload):
    return scenario(*faults, seed=seed, workload={**POISSON, **workload}, **ON_SECONDS)


def ends(summary):
    return {id: entry["finish_reason"] for id, entry in summary["requests"].items()}


def test_a_burst_comes_beside_a_workload_evenly_until_its_end():
    summary = simulate(drawn({**BURST, "start": 1, "end": 1.3}, BURST))
    arrivals = {id: entry["arrival_s"] for id, entry in summary["requests"].items()}

    assert summary["num_finished"] == {"stop": 40 + 6}
    assert [arrivals[f"burst0-{n}"] for n in range(3)] == pytest.approx([1.0, 1.1, 1.2])
    assert [arrivals[f"burst1-{n}"] for n in range(3)] == [0, 0, 0]
    assert summary["workload"]["num_requests"] == 46
    assert summary["workload"]["digest"] != simulate(drawn())["workload"]["digest"]


def test_a_burst_comes_beside_requests_that_are_written_out_at_boundaries():
    summary = simulate(listed({**BURST, "start": 10, "end": 12}))
    arrivals = {id: entry["arrival"] for id, entry in summary["requests"].items()}

    assert [arrivals[f"burst0-{n}"] for n in range(3)] == [10, 10, 11]
    assert summary["num_finished"] == {"stop": 7}


def test_an_id_of_a_burst_that_a_request_has_is_refused():
    with pytest.raises(
        ConfigError, match='"burst0-0" is the id of a request and of one of a burst'
    ):
        listed(BURST, id="burst0-")


def test_clients_who_disconnect_leave_at_that_moment_and_those_who_come_later_stay():
    summary = simulate(listed({"kind": "disconnect", "start": 3}, count=4, every=2))

    assert ends(summary) == {"r0": "abort", "r1": "abort", "r2": "stop", "r3": "stop"}
    assert summary["requests"]["r0"]["output_tokens"] == 3
    assert summary["requests"]["r0"]["finished_step"] == 3


def test_a_share_of_those_who_are_there_disconnects_by_the_seed():
    fault = {"kind": "disconnect", "start": 0.2, "share": 0.5}
    runs = [
        simulate(drawn(fault, seed=seed, arrivals="burst", rate=5_000, burst_size=200, **many))
        for seed in (1, 1, 2)
        for many in ({"num_requests": 200},)
    ]

    assert runs[0]["digest"] == runs[1]["digest"] != runs[2]["digest"]
    # All 200 are there: five standard deviations around a half.
    assert all(65 < run["num_finished"]["abort"] < 135 for run in runs)


def test_who_has_disconnected_tries_again():
    summary = simulate(drawn({"kind": "disconnect", "start": 1}, retries=1, backoff=0.5))
    left = [id for id, reason in ends(summary).items() if reason == "abort"]

    assert left
    assert summary["num_finished"] == {"abort": len(left), "stop": 40}
    assert all(ends(summary)[f"{id}.1"] == "stop" for id in left)
    assert f"{len(left)} retries" in " ".join(summary["workload"]["notes"])


def test_leaps_change_nothing():
    faults = ({**BURST, "start": 0.5}, {"kind": "disconnect", "start": 1, "share": 0.5})
    runs = [simulate(drawn(*faults), options=RunOptions(leaps=leaps)) for leaps in (True, False)]

    assert runs[0] == runs[1]
