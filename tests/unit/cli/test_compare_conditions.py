"""`everbatch compare`: what besides the scheduler's options differs, and times with their unit."""

import json
import re

import pytest
from command_line import IN_SECONDS, everbatch, scenario_text

REQUESTS = [
    {"id": "a", "prompt_tokens": 4, "output_tokens": 7},
    {"id": "b", "prompt_tokens": 6, "output_tokens": 7},
    {"id": "c", "prompt_tokens": 4, "output_tokens": 2},
]


@pytest.fixture
def in_seconds(tmp_path):
    """Writes a scenario on a clock of seconds and gives its path."""

    def write_scenario(name: str, requests=REQUESTS, **sections) -> str:
        path = tmp_path / name
        tables = json.loads(scenario_text(requests)) | IN_SECONDS | sections
        if "workload" in sections:
            del tables["requests"]
        path.write_text(json.dumps(tables), encoding="utf-8")
        return str(path)

    return write_scenario


def compared(*arguments) -> dict:
    answer = everbatch("compare", *arguments, "--json")
    assert answer.status == 0, answer.err
    return json.loads(answer.out)


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        (
            {"hardware": {"flops": 1e12, "memory_bandwidth": 2e12}},
            [{"name": "[hardware] memory_bandwidth", "a": 1e12, "b": 2e12}],
        ),
        (
            {"clock": {"kind": "nominal", "noise": 0.1}},
            [{"name": "[clock] noise", "a": None, "b": 0.1}],
        ),
        (
            {
                "faults": [
                    {"kind": "fail", "start": 0.5, "share": 0.5},
                    {"kind": "slow", "factor": 2},
                ]
            },
            [{"name": "faults", "a": None, "b": "fail start 0.5 share 0.5; slow start 0 factor 2"}],
        ),
    ],
)
def test_conditions_that_differ_are_told_as_options_are(in_seconds, sections, told):
    result = compared(in_seconds("a.json"), in_seconds("b.json", **sections))

    assert result["config"] == told


@pytest.mark.parametrize("leaving", [{"abort_at": 0.004}, {"deadline": 0.5}])
def test_whether_clients_stay_is_a_condition_and_no_other_arrivals(in_seconds, leaving):
    leavers = [REQUESTS[0], {**REQUESTS[1], **leaving}, REQUESTS[2]]
    result = compared(in_seconds("a.json"), in_seconds("b.json", leavers))
    [key] = leaving

    assert result["obstacles"] == []
    assert result["config"] == [
        {"name": "clients who leave", "a": None, "b": f"1 with {key}, of 3"}
    ]


def test_patience_is_a_condition_unless_those_who_lose_it_come_again(in_seconds):
    drawn = {"arrivals": "poisson", "rate": 200, "num_requests": 9, "prompt": 9, "output": 9}
    patient, impatient = drawn, {**drawn, "patience": 0.05}
    again = {"retries": 2, "backoff": 0.1}
    alike = compared(
        in_seconds("a.json", workload=patient), in_seconds("b.json", workload=impatient)
    )
    answer = everbatch(
        "compare",
        in_seconds("a.json", workload=patient | again),
        in_seconds("b.json", workload=impatient | again),
    )

    assert alike["config"] == [{"name": "clients who leave", "a": None, "b": "patience 0.05"}]
    assert answer.status == 2
    assert "arrivals: " in answer.err


def test_an_older_summary_without_conditions_is_compared_by_its_digest(in_seconds, tmp_path):
    scenario = in_seconds("a.json")
    summary = json.loads(everbatch("simulate", scenario, "--json").out)
    for name in ("conditions", "step_times"):
        del summary[name]
    del summary["workload"]["arrivals_digest"]
    (tmp_path / "old.json").write_text(json.dumps(summary), encoding="utf-8")

    result = compared(tmp_path / "old.json", scenario)

    assert (result["obstacles"], result["config"], result["figures"]) == ([], [], [])


def test_people_read_times_with_their_unit(in_seconds):
    out = everbatch("compare", in_seconds("a.json"), "--set", "max_num_seqs=2", "--anyway").out

    assert re.search(r"^ttft p50 +[\d.]+ ms +[\d.]+ ms +[+-][\d.]+ ms$", out, re.MULTILINE)
    assert "first token, s" in out


def test_on_the_clock_of_steps_times_have_none():
    out = everbatch("compare", "lesson-static", "lesson-continuous").out

    assert re.search(r"^e2e p50 +[\d.]+ +[\d.]+ +[+-][\d.]+$", out, re.MULTILINE)
    assert "first token, s" not in out


def test_a_time_that_is_none_is_told_as_it_stands(in_seconds, tmp_path):
    scenario = in_seconds("a.json")
    summary = json.loads(everbatch("simulate", scenario, "--json").out)
    summary["ttft"]["p50"] = "soon"
    (tmp_path / "other.json").write_text(json.dumps(summary), encoding="utf-8")

    answer = everbatch("compare", scenario, tmp_path / "other.json")

    assert answer.status == 0
    assert re.search(r"^ttft p50 +[\d.]+ ms +soon *$", answer.out, re.MULTILINE)
