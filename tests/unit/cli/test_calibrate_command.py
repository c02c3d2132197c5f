"""`everbatch calibrate`: a log in, a table and a profile out, which a clock then takes."""

import json
import os
from pathlib import Path

import pytest
from command_line import everbatch

KNOWN = {
    "version": 1,
    "kind": "linear",
    "coefficients": {
        "decode_step": 8e6,
        "prompt_step": 11e6,
        "decode": 4e4,
        "decode_context": 120,
        "prompt_token": 6e4,
        "prompt_pair": 40,
    },
    "region": {},
}
SCENARIO = """
[engine]
max_num_seqs = 16
max_num_batched_tokens = 512
num_blocks = 2000
[clock]
kind = "calibrated"
file = "{profile}"
noise = {noise}
[workload]
arrivals = "poisson"
rate = 5
num_requests = {requests}
prompt = {{ lengths = "lognormal", mean = 300, cv = 1.0, max = 2000 }}
output = {{ lengths = "lognormal", mean = 40, cv = 0.8, max = 400 }}
"""


def scenario(folder: Path, profile: str, requests: int = 80, noise: float = 0.03) -> Path:
    path = folder / "scenario.toml"
    path.write_text(SCENARIO.format(profile=profile, requests=requests, noise=noise))
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a run with known prices, written on 2 January 2026."""
    (tmp_path / "known.json").write_text(json.dumps(KNOWN))
    path = tmp_path / "events.jsonl"
    run = scenario(tmp_path, "known.json")
    assert everbatch("simulate", run, "--json", "--events", path).status == 0
    os.utime(path, (1767312000, 1767312000))
    return path


def test_the_table_tells_prices_the_error_on_what_was_held_out_and_the_region(log, tmp_path):
    answer = everbatch("calibrate", log, "-o", tmp_path / "profile.json")
    profile = json.loads((tmp_path / "profile.json").read_text())

    assert answer.status == 0
    lines = [line.split() for line in answer.out.splitlines()]
    assert any(line[:2] == ["decode_step", "a"] for line in lines)
    [held_out] = [line for line in lines if line[:1] == ["all"]]
    assert held_out[3] == f"{profile['errors']['step_mean']:.2%}"
    assert 0.01 < profile["errors"]["step_mean"] < 0.04
    assert ["requests", "that", "decode", "1"] in [line[:4] for line in lines]
    assert answer.err == f"everbatch: the profile is in {tmp_path / 'profile.json'}\n"


def test_a_clock_takes_the_profile_and_says_where_it_is_asked_for_more(log, tmp_path):
    everbatch("calibrate", log, "-o", tmp_path / "profile.json")
    run = scenario(tmp_path, "profile.json", requests=20, noise=0.0)

    inside = json.loads(everbatch("simulate", run, "--json").out)
    run.write_text(run.read_text().replace("rate = 5", "rate = 1e3"))
    outside = everbatch("simulate", run, "--requests", "none").out

    assert inside["outside_profile"].get("num_decodes", 0) == 0
    assert "outside the profile: " in outside
    assert " steps, in requests that decode" in outside


def test_the_same_log_gives_the_same_profile_with_the_day_of_the_log(log, tmp_path):
    one, two = tmp_path / "one.json", tmp_path / "two.json"

    for path in (one, two):
        assert everbatch("calibrate", log, "-o", path).status == 0

    assert one.read_bytes() == two.read_bytes()
    assert json.loads(one.read_text())["origin"]["logs"][0]["date"] == "2026-01-02"


def test_json_tells_the_same(log, tmp_path):
    answer = everbatch("calibrate", log, "-o", tmp_path / "profile.json", "--json")
    told = json.loads(answer.out)
    profile = json.loads((tmp_path / "profile.json").read_text())

    assert told["prices_ns"]["decode"]["price"] == profile["coefficients"]["decode"]
    assert told["prices_ns"]["swapped_block"]["num_seen"] == 0
    assert round(told["held_out"]["all"]["p99"], 6) == profile["errors"]["step_p99"]
    assert told["region"] == profile["region"]


def test_several_logs_are_fitted_together(log, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_bytes(log.read_bytes())
    answer = everbatch("calibrate", log, other, "-o", tmp_path / "profile.json", "--json")
    once = everbatch("calibrate", log, "-o", tmp_path / "profile.json", "--json")

    steps = [json.loads(one.out)["num_fitted_steps"] for one in (answer, once)]
    assert 1.8 < steps[0] / steps[1] < 2.2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: this is not an event log, it is empty: give what --event-log"),
        ("a,b\n", "line 1 is not JSON"),
        ('{"event":"header","version":1,"clock":"steps","config":{}}\n', "the clock of steps"),
        (
            '{"event":"header","version":1,"config":{"block_size":16}}\n',
            "0 lines of steps with a prompt and 0 of decodes alone can be used, a fit needs 20",
        ),
    ],
)
def test_a_log_that_cannot_be_used_is_an_error_and_no_file(text, message, tmp_path):
    (tmp_path / "bad.jsonl").write_text(text)

    answer = everbatch("calibrate", tmp_path / "bad.jsonl", "-o", tmp_path / "profile.json")

    assert answer.status == 2
    assert answer.err.startswith("everbatch: bad.jsonl: ")
    assert message in answer.err
    assert not (tmp_path / "profile.json").exists()


def test_a_log_that_is_not_there_is_an_error(tmp_path):
    answer = everbatch("calibrate", tmp_path / "none.jsonl", "-o", tmp_path / "profile.json")

    assert (answer.status, answer.out) == (2, "")
    assert "none.jsonl (No such file or directory): give the file of --event-log" in answer.err


def test_the_log_is_not_written_over(log):
    before = log.read_bytes()

    answer = everbatch("calibrate", log, "-o", log)

    assert answer.status == 2
    assert "is the log itself" in answer.err
    assert log.read_bytes() == before


def test_a_log_given_twice_is_refused_under_any_name(log, tmp_path):
    other = tmp_path / "other.jsonl"
    other.symlink_to(log)

    answer = everbatch("calibrate", log, other, "-o", tmp_path / "profile.json")

    assert (answer.status, answer.out) == (2, "")
    assert f"{other} is the same log as {log}: give each log once" in answer.err
