"""The simulator against our own engine: runs, disturbances, and what one workload teaches."""

import json

import numpy as np
import pytest
from fidelity import engine_runs, own_engine
from fidelity.engine_runs import Figures, Workload, at_once, draw, run_engine, run_simulator
from fidelity.own_engine import Record, Runner, change, measure, rows
from harness import BenchmarkError, Probe

from everbatch.assemble.wallclock import WallClock
from everbatch.costs.fitted import FittedStepTime, Prices, Region
from everbatch.engine.engine import Engine
from everbatch.executors.scripted import ScriptedExecutor
from everbatch.scheduler.config import SchedulerConfig
from everbatch.sim.run import RunOptions, simulate
from everbatch.workload.run_sections import ClockSpec
from everbatch.workload.scenario import Scenario

TRUE = FittedStepTime(
    Prices(12e6, 15e6, decode=1e6, decode_context=4e3, prompt_token=5e5, prompt_pair=20.0), Region()
)
STEADY = Probe(30.0, 100.0)
SMALL = Workload(
    "small", (4, 20), (2, 6), 1, {"max_num_seqs": 4, "max_num_batched_tokens": 32, "num_blocks": 64}
)


def simulated_engine(workload, specs, log, model=None):
    """Stand in for the engine: the simulator, with prices that the fit does not know."""
    config = SchedulerConfig(**workload.options)
    scenario = Scenario("a run", config, tuple(specs), clock=ClockSpec("calibrated"))
    with log.open("w", encoding="utf-8") as events:
        simulate(scenario, events, options=RunOptions(step_time=TRUE))
    return run_simulator(config, specs, TRUE), config


def probes(*values):
    given = iter(values)
    return lambda: next(given)


def test_equal_seeds_draw_equal_requests_and_bursts_come_together():
    workload = Workload("w", (5, 9), (2, 4), burst=3)
    specs = draw(workload, 10.0, 5.0, seed=1)

    assert specs == draw(workload, 10.0, 5.0, seed=1)
    assert specs != draw(workload, 10.0, 5.0, seed=2)
    assert len(specs) % 3 == 0
    assert all(specs[n].arrival == specs[n - n % 3].arrival for n in range(len(specs)))
    assert all(5 <= s.prompt.num_tokens <= 9 and 2 <= s.max_tokens <= 4 for s in specs)
    assert {spec.arrival for spec in at_once(specs)} == {0}


def test_the_engine_gets_all_requests_and_its_tokens_are_counted(tmp_path, monkeypatch):
    class ScriptedLLM:
        def __init__(self, model, **options):
            self.real = self
            self.vocab_size = 1_000
            config = SchedulerConfig(**SMALL.options)
            executor = ScriptedExecutor(config.block_size, lambda request: request.prompt_token_ids)
            self.engine = Engine(config, executor, WallClock())
            self.is_closed = False
            made.append(self)

        def close(self):
            self.is_closed = True

    made: list[ScriptedLLM] = []
    monkeypatch.setattr(engine_runs, "LLM", ScriptedLLM)
    specs = at_once(draw(SMALL, 100.0, 0.1, seed=0))
    figures, config = run_engine(SMALL, specs, tmp_path / "log")
    num_tokens = sum(spec.max_tokens for spec in specs)

    assert figures.num_requests == len(specs)
    assert made[0].is_closed
    assert config.max_num_seqs == 4
    assert 0 < figures.ttft_mean <= figures.e2e_mean <= figures.e2e_p99
    assert figures.output_tokens_per_s > num_tokens / 60


def test_a_disturbed_run_is_run_again(tmp_path, monkeypatch):
    monkeypatch.setattr(own_engine, "run_engine", simulated_engine)
    runner = Runner(tmp_path, probes(STEADY, Probe(20.0, 100.0), STEADY, STEADY), None)
    record = Record()
    runner.run(record, SMALL, draw(SMALL, 10.0, 1.0, seed=0))

    assert [run.is_kept for run in record.runs] == [False, False, True]


def test_a_machine_that_is_never_steady_proves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(own_engine, "run_engine", simulated_engine)
    unsteady = [Probe(30.0, 100.0 * (1 + n % 2)) for n in range(own_engine.MAX_TRIES + 1)]
    runner = Runner(tmp_path, probes(*unsteady), None)

    with pytest.raises(BenchmarkError, match="moved by more than 5%"):
        runner.run(Record(), SMALL, draw(SMALL, 10.0, 1.0, seed=0))


def test_a_change_is_that_of_the_ceiling_that_moved_more():
    assert change(Probe(30.0, 100.0), Probe(27.0, 98.0)) == pytest.approx(0.1)
    assert change(Probe(30.0, 80.0), Probe(30.0, 100.0)) == pytest.approx(0.2)


def test_an_engine_that_obeys_the_model_is_predicted_from_the_other_workload(tmp_path, monkeypatch):
    monkeypatch.setattr(own_engine, "run_engine", simulated_engine)
    record, _ = measure(Runner(tmp_path, lambda: STEADY, None), seconds=15.0)
    found = rows(record)

    assert [row.name for row in found if row.passed is False] == []
    assert sum(row.passed is True for row in found) >= 21
    assert np.isclose(record.capacity, 2.5, atol=1.5)
    assert list(record.by_load) == [0.5, 0.85, 1.1]
    of_own_times = [row.measured for row in found if "its own step times" in row.name]
    assert of_own_times == pytest.approx([0.0] * 9, abs=1e-6)


def test_the_command_prints_the_table_and_writes_all_runs(tmp_path, monkeypatch, capsys):
    class SteadyMachine:
        def probe(self):
            return STEADY

    monkeypatch.setattr(own_engine, "run_engine", simulated_engine)
    monkeypatch.setattr(own_engine, "ThisMachine", SteadyMachine)
    monkeypatch.setattr(own_engine, "LOCK_PATH", tmp_path / "lock")
    status = own_engine.main(["--seconds", "8", "--json", str(tmp_path / "out.json")])
    told = json.loads((tmp_path / "out.json").read_text())
    printed = capsys.readouterr().out

    assert status == int(any(row["passed"] is False for row in told["rows"]))
    assert "own engine at 85%: mean ITL" in printed
    assert [run["load"] for run in told["runs"]].count(1.1) == own_engine.RUNS_A_LOAD


def test_what_is_predicted_too_fast_is_missed_and_few_preemptions_are_only_told():
    real = Figures(10, 100.0, 5, 0.2, 0.4, 0.05, 0.1, 2.0, 3.0)
    fast = Figures(10, 106.0, 9, 0.2, 0.4, 0.045, 0.1, 2.0, 3.0)
    record = Record(
        by_load={0.5: [real, real]}, as_recorded={0.5: [real, real]}, predictions={0.5: fast}
    )
    judged = [row for row in rows(record) if "its own step times" not in row.name]
    by_name = {row.name.split(": ")[1]: row.passed for row in judged}

    assert [name for name, passed in by_name.items() if passed is False] == [
        "output tokens/s",
        "mean ITL",
    ]
    assert by_name["preemptions"] is None
