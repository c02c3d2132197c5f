"""`everbatch compare`: what differs, who pays, and what is refused."""

import json
import os
import re

import pytest
from command_line import IN_SECONDS, everbatch, scenario_text

REQUESTS = [
    {"id": "a", "prompt_tokens": 4, "output_tokens": 7},
    {"id": "b", "prompt_tokens": 6, "output_tokens": 7},
    {"id": "c", "prompt_tokens": 4, "output_tokens": 2},
]


@pytest.fixture
def write(tmp_path):
    """Writes a scenario and gives its path."""

    def write_scenario(name: str, requests=REQUESTS, run=None, **engine) -> str:
        path = tmp_path / name
        path.write_text(scenario_text(requests, run, **engine), encoding="utf-8")
        return str(path)

    return write_scenario


def compared(*arguments) -> dict:
    answer = everbatch("compare", *arguments, "--json")
    assert answer.status == 0, answer.err
    return json.loads(answer.out)


def test_configuration_and_figures_that_differ_are_told(write):
    result = compared(write("a.json"), write("b.json", num_blocks=5))

    assert result["config"] == [{"name": "num_blocks", "a": 64, "b": 5}]
    figures = {figure["name"]: (figure["a"], figure["b"]) for figure in result["figures"]}
    assert figures["num_preemptions"][0] == 0 < figures["num_preemptions"][1]
    assert "useful_tokens" not in figures


def test_those_who_pay_come_worst_first(write):
    result = compared(write("a.json"), write("b.json", max_num_seqs=4, num_blocks=4))
    delays = {fate["id"]: fate["delay"] for fate in result["paying"]}

    assert list(delays) == ["c", "b"]
    assert delays["c"] >= delays["b"] > 0
    assert result["num_gaining"] == 0
    assert result["num_unchanged"] == 1


def test_the_other_way_round_they_gain(write):
    result = compared(write("a.json", num_blocks=4), write("b.json"))

    assert result["paying"] == []
    assert [fate["id"] for fate in result["gaining"]] == ["c", "b"]
    assert result["num_gaining"] == 2
    assert result["gaining"][0]["delay"] <= result["gaining"][1]["delay"] < 0


def test_who_does_not_end_within_the_horizon_pays_most(write):
    run = {"horizon": 9}
    result = compared(write("a.json", run=run), write("b.json", run=run, num_blocks=4))
    worst = result["paying"][0]

    assert worst["finished"][0] is not None
    assert worst["finished"][1] is None
    assert worst["note"] == "stop → DECODE" or worst["note"].startswith("stop → ")


def test_who_gains_is_named(write):
    out = everbatch("compare", "lesson-static", "lesson-continuous").out

    assert "who gains" in out and "who pays" not in out
    assert re.search(r"^5 +– → 21 +– → 60 +– +0 → 40", out, re.MULTILINE)
    assert "0 requests pay, 2 gain, 4 fare the same" in out


def test_one_is_told_as_one(write):
    out = everbatch("compare", write("a.json"), write("b.json", max_model_len=12)).out

    assert "1 request pays, " in out


def test_how_many_ended_is_a_figure(write):
    run = {"horizon": 9}
    result = compared(write("a.json", run=run), write("b.json", run=run, num_blocks=4))

    assert {"name": "num_finished stop", "a": 3, "b": 1} in result["figures"]


def test_who_is_refused_pays(write):
    result = compared(write("a.json"), write("b.json", max_model_len=12))

    assert [(fate["id"], fate["note"]) for fate in result["paying"]] == [("b", "refused in B")]


def test_a_run_does_not_differ_from_itself(write):
    path = write("a.json")
    answer = everbatch("compare", path, path)

    assert "The two runs are the same." in answer.out
    assert "0 requests pay, 0 gain, 3 fare the same" in answer.out


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"requests": REQUESTS[:2]}, "arrivals: 3 requests"),
        ({"max_num_seqs": 2}, "slots: 4 in A, 2 in B"),
        ({"run": {"horizon": 5}}, "horizon: None in A, 5 in B"),
    ],
)
def test_runs_that_are_not_alike_are_refused_unless_anyway(write, other, told):
    pair = write("a.json"), write("b.json", **other)
    refused, anyway = everbatch("compare", *pair), everbatch("compare", *pair, "--anyway")

    assert (refused.status, refused.out) == (2, "")
    assert told in refused.err
    assert anyway.status == 0
    assert anyway.out.startswith(f"NOT ALIKE ({told.split(':')[0]} differ)")


def test_steps_and_seconds_are_not_alike(write, tmp_path):
    path = tmp_path / "seconds.json"
    tables = json.loads(scenario_text(REQUESTS)) | IN_SECONDS
    path.write_text(json.dumps(tables), encoding="utf-8")
    pair = write("steps.json"), path
    refused, anyway = everbatch("compare", *pair), everbatch("compare", *pair, "--anyway")

    assert refused.status == 2
    assert "clock: steps in A, nominal in B" in refused.err
    assert anyway.status == 0
    assert "Who pays is not known" in anyway.out


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("throughput", 3, "it lacks the table throughput"),
        ("idle_slot_iterations", None, "it lacks the table idle_slot_iterations"),
        ("requests", [], "it lacks the table requests"),
        ("conditions", [1], "it lacks the table conditions"),
        ("step_times", 5, "it lacks step_times as rows"),
        ("step_times", [1], "it lacks step_times as rows"),
        ("step_times", [{"mean": 1}], "it lacks step_times as rows"),
        ("step_times", [{"tokens": ["a", 1], "mean": 1}], "it lacks step_times as rows"),
        ("step_times", [{"tokens": [2, 3], "mean": "x"}], "it lacks step_times as rows"),
        ("config", {}, "it lacks config max_num_seqs"),
        ("workload", {"num_requests": 3}, "it lacks workload digest"),
        ("workload", {"num_requests": "3", "digest": ""}, "it lacks workload num_requests"),
        ("requests", {"a": 1}, 'it lacks what became of request "a"'),
        ("requests", {"a": {"state": "WAITING"}}, 'it lacks what became of request "a"'),
    ],
)
def test_a_summary_that_is_not_whole_is_refused(write, tmp_path, name, value, told):
    path, saved = write("a.json"), tmp_path / "saved.json"
    summary = json.loads(everbatch("simulate", path, "--json").out)
    saved.write_text(json.dumps({**summary, name: value}))
    answer = everbatch("compare", path, saved)

    assert answer.status == 2
    assert told in answer.err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("finished_step", "late"),
        ("first_token_step", [1]),
        ("output_tokens", None),
        ("num_preemptions", "x"),
    ],
)
def test_a_fact_of_a_request_of_another_kind_is_refused(write, tmp_path, name, value):
    path, saved = write("a.json"), tmp_path / "saved.json"
    summary = json.loads(everbatch("simulate", path, "--json").out)
    request_id = next(iter(summary["requests"]))
    summary["requests"][request_id][name] = value
    saved.write_text(json.dumps(summary))
    answer = everbatch("compare", path, saved)

    assert answer.status == 2
    assert f'it lacks what became of request "{request_id}"' in answer.err


def test_saved_summaries_are_compared_like_their_scenarios(write, tmp_path):
    pair = write("a.json"), write("b.json", num_blocks=4)
    saved = []
    for path in pair:
        answer = everbatch("simulate", path, "--json")
        saved.append(tmp_path / f"{len(saved)}.summary")
        saved[-1].write_text(answer.out, encoding="utf-8")
    fresh, from_files = compared(*pair), compared(*saved)

    names = ("config", "figures", "paying", "num_gaining")
    assert {name: fresh[name] for name in names} == {name: from_files[name] for name in names}


def test_without_the_part_on_requests_nobody_is_said_to_pay(write, tmp_path):
    path, saved = write("a.json"), tmp_path / "saved.json"
    saved.write_text(everbatch("simulate", path, "--json", "--requests", "none").out)

    answer = everbatch("compare", path, saved)

    assert answer.status == 0
    assert "Who pays is not known" in answer.out


@pytest.mark.parametrize("text", ["[1, 2]", '{"steps": 3}', "3"])
def test_json_that_is_no_summary_is_refused(write, tmp_path, text):
    other = tmp_path / "other.json"
    other.write_text(text)

    answer = everbatch("compare", write("a.json"), other)

    assert answer.status == 2
    assert "is no summary of `everbatch simulate --json`" in answer.err


def test_the_table_names_both_runs_and_those_who_pay(write):
    pair = write("a.json"), write("b.json", num_blocks=4)
    answer = everbatch("compare", *pair)

    # Where a line ends depends on how long the paths are.
    assert f"A={pair[0]},B={pair[1]}" in "".join(answer.out.split())
    assert "num_blocks" in answer.out
    assert "2 requests pay, 0 gain, 1 fares the same" in answer.out


def test_without_b_options_are_set_in_a(write):
    path = write("a.json")
    set_here = compared(path, "--set", "num_blocks=5", "--set", "preemption_trigger=stall")
    written = compared(path, write("b.json", num_blocks=5, preemption_trigger="stall"))

    assert set_here["b"] == f"{path} num_blocks=5 preemption_trigger=stall"
    assert {**set_here, "b": ""} == {**written, "b": ""}


def test_one_run_and_nothing_to_set_is_no_comparison(write):
    answer = everbatch("compare", write("a.json"))

    assert answer.status == 2
    assert "give B, or options of A to --set" in answer.err


def test_nothing_can_be_set_in_a_saved_summary(write, tmp_path):
    saved = tmp_path / "saved.json"
    saved.write_text(everbatch("simulate", write("a.json"), "--json").out)

    answer = everbatch("compare", write("b.json"), saved, "--set", "num_blocks=5")

    assert answer.status == 2
    assert "a run that is over: nothing can be --set in it" in answer.err


def test_simulate_sets_options_too(write):
    answer = everbatch("simulate", write("a.json"), "--json", "--set", "num_blocks=5")

    assert json.loads(answer.out)["config"]["num_blocks"] == 5


def test_runs_on_a_clock_of_seconds_differ_in_seconds(tmp_path):
    tables = json.loads(scenario_text(REQUESTS)) | IN_SECONDS | {"slo": {"ttft": 0.03}}
    path = tmp_path / "s.json"
    path.write_text(json.dumps(tables), encoding="utf-8")
    result = compared(path, "--set", "max_num_seqs=2", "--anyway")
    figures = {figure["name"]: (figure["a"], figure["b"]) for figure in result["figures"]}

    # Prompts of 14 tokens take 28 ms together; c waits for a slot in B.
    assert figures["goodput num_requests"] == (3, 2)
    assert figures["ttft mean"][0] == pytest.approx(0.028)
    assert figures["ttft mean"][1] > 0.028
    (fate,) = result["paying"]
    assert fate["id"] == "c"
    assert fate["first_token"][0] == pytest.approx(0.028)
    assert fate["delay"] == pytest.approx(fate["finished"][1] - fate["finished"][0])


@pytest.fixture
def piped():
    """Gives a text to read from a pipe, once, as `compare <(…)` and standard input do."""
    opened = []

    def pipe(text: str) -> str:
        reading, writing = os.pipe()
        opened.append(reading)
        os.write(writing, text.encode())
        os.close(writing)
        return f"/dev/fd/{reading}"

    yield pipe
    for descriptor in opened:
        os.close(descriptor)


def test_what_comes_from_a_pipe_is_read_once_for_both_runs(write, piped):
    path = write("a.json")
    from_pipe = compared(piped(scenario_text(REQUESTS)), "--set", "num_blocks=5")
    from_file = compared(path, "--set", "num_blocks=5")

    assert from_pipe["figures"] == from_file["figures"]
    assert from_pipe["figures"]


def test_a_summary_may_come_from_a_pipe(write, piped):
    path = write("a.json", num_blocks=4)
    summary = everbatch("simulate", path, "--json").out
    result = compared(piped(summary), write("b.json"))

    assert result["config"] == [{"name": "num_blocks", "a": 4, "b": 64}]
    assert result["num_gaining"] == 2


def test_standard_input_is_one_of_the_two_at_most():
    answer = everbatch("compare", "-", "-")

    assert answer.status == 2
    assert "save one of them" in answer.err
