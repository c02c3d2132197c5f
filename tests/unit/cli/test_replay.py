"""`everbatch replay`: what it says of a log, alone and under another configuration."""

import json
import re

import pytest
from command_line import IN_SECONDS, everbatch, scenario_text

REQUESTS = [
    {"id": "a", "prompt_tokens": 4, "output_tokens": 7},
    {"id": "b", "prompt_tokens": 6, "output_tokens": 7},
]


@pytest.fixture
def log(tmp_path):
    """Runs a scenario and gives its log, beside which the scenario lies."""

    def write(tables=None, **engine) -> str:
        scenario = tmp_path / "s.json"
        text = json.loads(scenario_text(REQUESTS, **engine)) | (tables or {})
        scenario.write_text(json.dumps(text), encoding="utf-8")
        path = tmp_path / "events.jsonl"
        assert everbatch("simulate", scenario, "--json", "--events", path).status == 0
        return str(path)

    return write


def test_with_nothing_set_it_says_that_all_came_out_again(log):
    answer = everbatch("replay", log(num_blocks=4))

    assert answer.status == 0
    assert "2 requests, 12 steps" in answer.out
    assert "every recorded decision came out again: 23 of them, digest " in answer.out


def test_with_an_option_set_it_shows_what_changes(log):
    answer = everbatch("replay", log(num_blocks=4), "--set", "num_blocks=8", "--json")
    result = json.loads(answer.out)

    assert result["reproduced"] is True
    assert result["recorded"]["num_preemptions"] == 1
    assert result["changed"]["num_preemptions"] == 0
    names = [figure["name"] for figure in result["comparison"]["figures"]]
    assert {"num_preemptions", "e2e p99"} <= set(names)
    assert result["comparison"]["num_gaining"] == 1


def test_people_see_a_table(log):
    out = everbatch("replay", log(), "--set", "max_num_seqs=1").out

    assert "A = as recorded" in out
    assert "max_num_seqs" in out
    assert "1 request pays" in out


def test_a_short_log_in_seconds_needs_a_clock_for_other_steps(log, tmp_path):
    path = log(IN_SECONDS, num_blocks=4)
    refused = everbatch("replay", path, "--set", "num_blocks=8")
    answer = everbatch(
        "replay", path, "--set", "num_blocks=8", "--clock", tmp_path / "s.json", "--json"
    )
    result = json.loads(answer.out)

    assert refused.status == 2
    assert "a fit needs 20 of each" in refused.err
    assert "give --clock SCENARIO" in refused.err
    assert result["reproduced"] is True
    assert result["changed"]["num_preemptions"] == 0
    assert result["changed"]["clock"] == "nominal"


def test_the_clock_alone_shows_how_far_its_model_is_off(log, tmp_path):
    path = log(IN_SECONDS)
    slower = {**IN_SECONDS, "hardware": {"flops": 5e11, "memory_bandwidth": 5e11}}
    scenario = tmp_path / "slow.json"
    scenario.write_text(json.dumps(json.loads(scenario_text(REQUESTS)) | slower))
    result = json.loads(everbatch("replay", path, "--clock", scenario, "--json").out)
    figures = {figure["name"]: figure for figure in result["comparison"]["figures"]}

    assert figures["duration_s"]["b"] == pytest.approx(2 * figures["duration_s"]["a"])


def test_a_clock_of_another_unit_is_refused(log, tmp_path):
    scenario = tmp_path / "seconds.json"
    scenario.write_text(json.dumps(json.loads(scenario_text(REQUESTS)) | IN_SECONDS))
    answer = everbatch("replay", log(), "--clock", scenario)

    assert answer.status == 2
    assert "the log has times in steps" in answer.err


def test_decisions_that_differ_are_told_and_end_with_1(log):
    path = log(num_blocks=4)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace('"num_blocks":4', '"num_blocks":5', 1))
    answer = everbatch("replay", path)

    assert answer.status == 1
    assert "other decisions than recorded from number" in answer.out
    assert '"free_blocks"' in answer.out


@pytest.mark.parametrize("content", [b"", b'{"event":"arrived"}\n', b"\xff\xfe\x00\n", b"{}"])
def test_a_file_that_is_no_log_is_refused(content, tmp_path):
    path = tmp_path / "no.jsonl"
    path.write_bytes(content)
    answer = everbatch("replay", path)

    assert answer.status == 2
    assert "this is not an event log" in answer.err


def test_a_log_in_a_pipe_is_refused_since_it_is_read_twice():
    answer = everbatch("replay", "/dev/stdin")

    assert answer.status == 2
    assert "must be a file" in answer.err


LONG = {
    "run": {"seed": 1},
    "clock": {"kind": "roofline", "noise": 0.05},
    "hardware": {"name": "h100-sxm"},
    "model": {"name": "llama-3.1-8b"},
    "engine": {"max_num_seqs": 16, "max_num_batched_tokens": 512, "num_blocks": 2000},
    "workload": {
        **{"arrivals": "poisson", "rate": 20, "num_requests": 80},
        "prompt": {"lengths": "uniform", "min": 20, "max": 600},
        "output": {"lengths": "uniform", "min": 5, "max": 60},
    },
}


@pytest.fixture
def long_log(tmp_path):
    """Runs a scenario of some hundred steps in seconds and gives its log and its summary."""
    scenario, path = tmp_path / "long.json", tmp_path / "long.jsonl"
    scenario.write_text(json.dumps(LONG), encoding="utf-8")
    answer = everbatch("simulate", scenario, "--json", "--events", path)
    assert answer.status == 0, answer.err
    return path, json.loads(answer.out)


def test_other_steps_take_what_prices_fitted_to_the_log_say(long_log):
    path, summary = long_log
    answer = everbatch("replay", path, "--set", "max_num_batched_tokens=128", "--json")
    result = json.loads(answer.out)
    figures = {figure["name"]: figure for figure in result["comparison"]["figures"]}

    assert answer.status == 0
    assert result["reproduced"] is True
    assert result["changed"]["clock"] == "fitted"
    assert result["fit"]["held_out"]["all"]["mean"] < 0.1
    # Of the fit, not of the record; but near it.
    recorded, fitted = summary["itl"]["mean"], figures["itl mean"]["a"]
    assert fitted == pytest.approx(recorded, rel=0.05) and fitted != recorded
    assert figures["itl p99"]["b"] < figures["itl p99"]["a"]


def test_people_are_told_what_the_fit_is_worth(long_log):
    path, _ = long_log
    out = everbatch("replay", path, "--set", "max_num_seqs=64").out

    assert "step times: fitted to this log; of " in out
    assert "A = as recorded, fitted step times; B = max_num_seqs=64, fitted step times" in out


def test_steps_of_which_the_log_has_no_like_are_told(long_log):
    path, _ = long_log
    out = everbatch("replay", path, "--set", "max_num_batched_tokens=4096").out

    assert re.search(
        r"^B is outside the profile: \d+ of \d+ steps, in tokens of", out, re.MULTILINE
    )


def test_a_last_line_that_is_torn_is_told(log, tmp_path):
    path = log(num_blocks=4)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    (tmp_path / "torn.jsonl").write_text(text[:-5], encoding="utf-8")
    whole, torn = everbatch("replay", path), everbatch("replay", tmp_path / "torn.jsonl")

    assert "line is torn" not in whole.out
    assert "the last line is torn" in torn.out
    assert torn.status == 0
