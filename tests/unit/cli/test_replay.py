"""`everbatch replay`: what it says of a log, alone and under another configuration."""

import json

import pytest
from command_line import everbatch, scenario_text

REQUESTS = [
    {"id": "a", "prompt_tokens": 4, "output_tokens": 7},
    {"id": "b", "prompt_tokens": 6, "output_tokens": 7},
]
SECONDS = {
    "clock": {"kind": "nominal"},
    "hardware": {"flops": 1e12, "memory_bandwidth": 1e12},
    "model": {"num_params": 1e9, "bytes_per_value": 2},
}


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


def test_a_log_in_seconds_needs_a_clock_for_other_steps(log, tmp_path):
    path = log(SECONDS, num_blocks=4)
    refused = everbatch("replay", path, "--set", "num_blocks=8")
    answer = everbatch(
        "replay", path, "--set", "num_blocks=8", "--clock", tmp_path / "s.json", "--json"
    )
    result = json.loads(answer.out)

    assert refused.status == 2
    assert "give --clock SCENARIO" in refused.err
    assert result["reproduced"] is True
    assert result["changed"]["num_preemptions"] == 0
    assert result["changed"]["clock"] == "nominal"


def test_the_clock_alone_shows_how_far_its_model_is_off(log, tmp_path):
    path = log(SECONDS)
    slower = {**SECONDS, "hardware": {"flops": 5e11, "memory_bandwidth": 5e11}}
    scenario = tmp_path / "slow.json"
    scenario.write_text(json.dumps(json.loads(scenario_text(REQUESTS)) | slower))
    result = json.loads(everbatch("replay", path, "--clock", scenario, "--json").out)
    figures = {figure["name"]: figure for figure in result["comparison"]["figures"]}

    assert figures["duration_s"]["b"] == pytest.approx(2 * figures["duration_s"]["a"])


def test_a_clock_of_another_unit_is_refused(log, tmp_path):
    scenario = tmp_path / "seconds.json"
    scenario.write_text(json.dumps(json.loads(scenario_text(REQUESTS)) | SECONDS))
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
