"""The benchmark harness: which rounds count, what is made of them, and that one runs at a time."""

import json
import sys

import pytest
from harness import (
    BenchmarkError,
    Candidate,
    Plan,
    Probe,
    Round,
    ThisMachine,
    compare,
    excesses_of_a,
    machine_lock,
    medians_of_a,
    num_kept,
    parse_figures,
    run_rounds,
    shortfalls,
    summarize,
)
from provenance import ROOT

STEADY = Probe(read_gb_per_s=30.0, matrix_gflop_per_s=100.0)


class ScriptedMachine:
    """Gives the listed probes, then steady ones; A's figures count up from 1, B's are always 2."""

    def __init__(self, probes: list[Probe] | None = None) -> None:
        self.log: list[str] = []
        self._probes = list(probes or [])
        self._runs_of_a = 0

    def probe(self) -> Probe:
        self.log.append("probe")
        return self._probes.pop(0) if self._probes else STEADY

    def run(self, candidate: Candidate) -> dict[str, float]:
        self.log.append(candidate.label)
        if candidate.label == "b":
            return {"rate": 2.0}
        self._runs_of_a += 1
        return {"rate": float(self._runs_of_a)}


def make_plan(**changes: object) -> Plan:
    fields = {"name": "example", "figures": ("rate",), "a": Candidate("a", ()), **changes}
    return Plan(b=Candidate("b", ()), **fields)


def make_round(*, a: float = 1.0, b: float = 2.0, after: Probe = STEADY) -> Round:
    return Round({"rate": a}, {"rate": b}, (STEADY, STEADY, after))


def test_candidates_alternate_with_a_probe_around_each():
    machine = ScriptedMachine()

    run_rounds(make_plan(min_kept_rounds=2), machine)

    assert machine.log == ["probe", "a", "probe", "b", "probe", "a", "probe", "b", "probe"]


def test_a_round_is_kept_while_the_probe_moves_by_five_percent():
    assert make_round(after=Probe(28.5, 100.0)).kept
    assert not make_round(after=Probe(28.4, 100.0)).kept


def test_a_round_is_dropped_when_the_matrix_rate_moves_either_way():
    assert not make_round(after=Probe(30.0, 94.0)).kept
    assert not make_round(after=Probe(30.0, 106.0)).kept


def test_a_disturbance_between_the_candidates_drops_the_round():
    disturbed = Round({}, {}, (STEADY, Probe(15.0, 100.0), STEADY))

    assert not disturbed.kept
    assert disturbed.probe_change == pytest.approx(0.5)


def test_dropped_rounds_are_repeated_until_enough_are_kept():
    machine = ScriptedMachine([STEADY, STEADY, Probe(15.0, 100.0)])

    rounds = run_rounds(make_plan(min_kept_rounds=3), machine)

    assert [one.kept for one in rounds] == [False, False, True, True, True]
    assert num_kept(rounds) == 3


def test_rounds_end_at_the_limit_and_too_few_kept_ones_prove_nothing():
    unsteady = [Probe(float(2**i), 100.0) for i in range(99)]
    plan = make_plan(min_kept_rounds=2, max_rounds=4)

    rounds = run_rounds(plan, ScriptedMachine(unsteady))

    assert len(rounds) == 4
    with pytest.raises(BenchmarkError, match="only 0 of 4 rounds kept, 2 are needed"):
        summarize(plan, rounds)


def test_summary_takes_medians_and_the_median_of_the_rounds_ratios():
    """The median of ratios is not the ratio of medians: here 2, against 6 / 4."""
    rounds = [make_round(a=2, b=4), make_round(a=6, b=3), make_round(a=100, b=5)]

    (summary,) = summarize(make_plan(min_kept_rounds=3), rounds)

    assert (summary.median_a, summary.median_b) == (6, 4)
    assert summary.ratios == (0.5, 2.0, 20.0)
    assert summary.ratio == 2.0


def test_summary_leaves_dropped_rounds_out():
    rounds = [make_round(a=1), make_round(a=50, after=Probe(15.0, 100.0)), make_round(a=3)]

    (summary,) = summarize(make_plan(min_kept_rounds=2), rounds)

    assert summary.ratios == (0.5, 1.5)


def test_a_ratio_at_its_limit_is_enough_and_below_it_is_named():
    rounds = [make_round(a=1.4, b=2.0)]
    enough = make_plan(min_kept_rounds=1, at_least={"rate": 0.7})
    too_much = make_plan(min_kept_rounds=1, at_least={"rate": 0.71})

    assert shortfalls(enough, summarize(enough, rounds)) == []
    assert shortfalls(too_much, summarize(too_much, rounds)) == ["rate: ratio 0.70 is below 0.71"]


def test_what_a_alone_has_is_a_median_of_the_kept_rounds():
    rounds = [make_round(a=1), make_round(a=50, after=Probe(15.0, 100.0)), make_round(a=3)]
    plan = make_plan(figures=(), told_of_a=("rate",), min_kept_rounds=2)

    assert medians_of_a(plan, rounds) == {"rate": 2}


def test_a_figure_of_a_alone_may_have_a_largest_value():
    plan = make_plan(told_of_a=("gaps",), a_at_most={"gaps": 1.2})

    assert excesses_of_a(plan, {"gaps": 1.2}) == []
    assert excesses_of_a(plan, {"gaps": 1.21}) == ["gaps: 1.21 is above 1.2"]


def test_what_a_alone_should_have_and_has_not_is_an_error():
    with pytest.raises(BenchmarkError, match="a gave cpu = None"):
        run_rounds(make_plan(told_of_a=("cpu",)), ScriptedMachine())


def test_a_missing_figure_is_an_error_that_says_what_there_is():
    with pytest.raises(BenchmarkError, match=r"a gave speed = None.*it gave rate"):
        run_rounds(make_plan(figures=("speed",)), ScriptedMachine())


def test_figures_are_the_last_json_line_of_the_output():
    output = '{"rate": 1}\nloading {"x"}\n{"rate": 2.5}\n{not json\ndone\n'

    assert parse_figures("a", output) == {"rate": 2.5}


def test_output_without_json_is_an_error():
    with pytest.raises(BenchmarkError, match="a printed no JSON object"):
        parse_figures("a", "done\n")


def test_the_lock_is_refused_while_held_and_free_afterwards(tmp_path):
    path = tmp_path / "lock"

    with (
        machine_lock(path),
        pytest.raises(BenchmarkError, match="another benchmark runs here"),
        machine_lock(path),
    ):
        pass
    with machine_lock(path):
        pass


def test_a_candidate_is_a_process_whose_json_line_counts():
    script = "print('noise'); print('{\"rate\": 7}')"

    figures = ThisMachine().run(Candidate("a", (sys.executable, "-c", script)))

    assert figures == {"rate": 7}


def test_a_failing_candidate_is_reported_with_its_last_words():
    script = "raise SystemExit('no such model')"

    with pytest.raises(BenchmarkError, match=r"a ended with status 1:\nno such model"):
        ThisMachine().run(Candidate("a", (sys.executable, "-c", script)))


def test_the_record_keeps_dropped_rounds_and_machine_facts(tmp_path):
    machine = ScriptedMachine([STEADY, STEADY, Probe(15.0, 100.0)])
    plan = make_plan(min_kept_rounds=1, max_rounds=9, at_least={"rate": 0.5})

    status = compare(plan, machine, tmp_path / "results", tmp_path / "lock")

    (path,) = (tmp_path / "results").iterdir()
    record = json.loads(path.read_text())
    assert status == 0
    assert [one["kept"] for one in record["rounds"]] == [False, False, True]
    assert record["summary"][0]["ratio"] == 1.5
    assert record["machine"]["num_cores"] >= 1
    assert record["versions"]["numpy"]


def test_the_record_names_no_folder_of_the_machine(tmp_path):
    machine = ScriptedMachine()
    argv = (str(ROOT / "benchmarks" / "offline.py"), f"LIBRARY={tmp_path / 'lib.so'}", "N=0")
    compare(
        make_plan(a=Candidate("a", (sys.executable, *argv))),
        machine,
        tmp_path / "results",
        tmp_path / "lock",
    )

    [record] = (tmp_path / "results").glob("*.json")
    told = json.loads(record.read_text())["plan"]["a"]["argv"]
    assert told[1:] == ["benchmarks/offline.py", "LIBRARY=lib.so", "N=0"]
    assert not told[0].startswith("/")
