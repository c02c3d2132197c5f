"""Jitter: gaps by kind of step, and a prediction that an engine by rule must meet."""

import json

import jitter
import pytest
from engines_by_rule import driven_engine
from harness import BenchmarkError
from jitter import KINDS, OPTIONS, Traces, facts, study, table, times_of, ttft_table, workload

BUDGETS = (512, 2048)


def engine(budget):
    return driven_engine(max_num_batched_tokens=budget, **OPTIONS)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return study(engine, BUDGETS, 2, Traces(tmp_path_factory.mktemp("traces")))


def test_a_mixed_step_takes_as_long_as_its_budget_allows(found):
    small, large = (row.measured.gaps for row in found.rows)

    # 14 ms, 8 × 0.5 ms, 0.2 ms a token: chunks of 504, 504 and 492, or all 1,500 at once.
    assert small["mixed"].longest == pytest.approx(0.1188)
    assert small["mixed"].count == 2 * 3 * 8
    assert large["mixed"].longest == pytest.approx(0.318)
    assert large["mixed"].count == 2 * 8
    assert small["decode"].p50 == large["decode"].p99 == pytest.approx(0.014)


def test_an_engine_that_obeys_the_model_is_predicted(found):
    for row in found.rows:
        for kind in KINDS:
            measured, predicted = row.measured.gaps[kind], row.predicted.gaps[kind]
            assert predicted.p50 == pytest.approx(measured.p50, rel=1e-3)
            assert predicted.longest == pytest.approx(measured.longest, rel=1e-3)
        assert row.predicted.ttft_s == pytest.approx(row.measured.ttft_s, rel=0.05)


def test_both_runs_of_each_budget_are_traced(tmp_path):
    study(engine, (512,), 1, Traces(tmp_path / "new"))
    spans = {}
    for side in ("measured", "predicted"):
        text = (tmp_path / "new" / f"{side}-512.json").read_text(encoding="utf-8")
        events = json.loads(text)["traceEvents"]
        assert events[0]["args"] == {"name": f"{side}-512"}
        spans[side] = [e["dur"] for e in events if e.get("name") == "prompt-0" and e["ph"] == "X"]

    assert spans["measured"] == pytest.approx([118_800, 118_800, 116_400])
    assert spans["predicted"] == pytest.approx(spans["measured"], rel=1e-3)


def test_tables_have_a_row_for_each_budget_and_kind(found):
    told = facts(found)

    assert json.loads(json.dumps(told))["rows"] == told["rows"]
    assert [line.split(" | ")[:2] for line in table(told).splitlines()[2:]] == [
        [f"| {budget:,}", kind] for budget in BUDGETS for kind in KINDS
    ]
    assert len(ttft_table(told).splitlines()) == 2 + len(BUDGETS)


def test_decodes_that_end_before_the_last_prompt_prove_nothing(monkeypatch):
    monkeypatch.setattr(jitter, "NUM_OUTPUTS", 5)
    recording = engine(512).run(workload(10**9, 1))

    with pytest.raises(BenchmarkError, match="give fewer --prompts"):
        times_of(recording.events, recording.due_ns)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--budgets", "64,14"], "a budget of 14 leaves no tokens for prompts"),
        (["--budgets", "64,x"], "'x' must be a whole number of at least 1"),
        (["--prompts", "0"], "'0' must be a whole number of at least 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, said, capsys):
    with pytest.raises(SystemExit):
        jitter.main(arguments)

    assert said in capsys.readouterr().err


def test_the_command_prints_tables_and_writes_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(jitter, "LOCK_PATH", tmp_path / "lock")
    monkeypatch.setattr(jitter, "_engine", lambda model, budget, cpu_time: engine(budget))
    arguments = ["--budgets", "1024", "--prompts", "1", "--json", str(tmp_path / "f.json")]

    assert jitter.main(arguments) == 0
    assert "| 1,024 | mixed |" in capsys.readouterr().out
    assert [row["budget"] for row in json.loads((tmp_path / "f.json").read_text())["rows"]] == [
        1024
    ]
