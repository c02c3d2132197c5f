"""The simulator against our own engine: runs, disturbances, and what one workload teaches."""

import json
from dataclasses import replace

import numpy as np
import pytest
from fidelity import engine_runs, own_engine
from fidelity.engine_runs import (
    EngineRun,
    Figures,
    Speed,
    Workload,
    at_once,
    draw,
    read_measured,
    run_engine,
    run_simulator,
)
from fidelity.own_comparison import compared, rows
from fidelity.own_engine import Record, Runner, measure, slower
from harness import BenchmarkError

from everbatch.assemble.wallclock import WallClock
from everbatch.base.units import NS_PER_S
from everbatch.costs.fitted import FittedStepTime, Prices, Region
from everbatch.costs.work import StepWork
from everbatch.engine.engine import Engine
from everbatch.executors.scripted import ScriptedExecutor
from everbatch.scheduler.config import SchedulerConfig
from everbatch.sim.run import RunOptions, simulate
from everbatch.workload.run_sections import ClockSpec
from everbatch.workload.scenario import Scenario

TRUE = FittedStepTime(
    Prices(12e6, 15e6, decode=1e6, decode_context=4e3, prompt_token=5e5, prompt_pair=20.0), Region()
)
STEADY, DISTURBED, BUSY = Speed(0.1, 0.01), Speed(0.11, 0.011), Speed(0.2, 0.02)
SMALL = Workload(
    "small", (4, 20), (2, 6), 1, {"max_num_seqs": 4, "max_num_batched_tokens": 32, "num_blocks": 64}
)


def simulated_engine(workload, specs, log, model=None, *, cpu_time=False, speed=STEADY):
    """Stand in for the engine: the simulator, with prices that the fit does not know."""
    config = SchedulerConfig(**workload.options)
    scenario = Scenario("a run", config, tuple(specs), clock=ClockSpec("calibrated"))
    with log.open("w", encoding="utf-8") as events:
        simulate(scenario, events, options=RunOptions(step_time=TRUE))
    header = {"model": {"kernels": "none"}}
    return EngineRun(run_simulator(config, specs, TRUE), config, header, speed, speed)


def speeds(monkeypatch, *values):
    """Let runs of the engine be beside these probes, the last one from then on."""
    given = list(values)

    def run(*arguments, **options):
        speed = given.pop(0) if len(given) > 1 else given[0]
        return simulated_engine(*arguments, **options, speed=speed)

    monkeypatch.setattr(own_engine, "run_engine", run)


def rows_of(record):
    comparison = compared(record.predictions, record.by_load)
    return rows(comparison, record.by_load, record.as_recorded)


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
        def __init__(self, model, *, event_log, threads, **options):
            self.real = self
            self.vocab_size = 1_000
            self.clock, self.threads = WallClock(), threads
            config = SchedulerConfig(**SMALL.options)
            executor = ScriptedExecutor(config.block_size, lambda request: request.prompt_token_ids)
            self.engine = Engine(config, executor, self.clock)
            self.options, self.is_closed = self, False
            made.append(self)

        def header(self):
            return {"model": "scripted"}

        def close(self):
            self.is_closed = True

    made: list[ScriptedLLM] = []
    monkeypatch.setattr(engine_runs, "LLM", ScriptedLLM)
    specs = at_once(draw(SMALL, 100.0, 0.1, seed=0))
    on_wall = run_engine(SMALL, specs, tmp_path / "log")
    in_cpu_time = run_engine(SMALL, specs, tmp_path / "log", cpu_time=True)
    num_tokens = sum(spec.max_tokens for spec in specs)

    assert made[0].is_closed
    assert [llm.threads for llm in made] == [None, 1]
    for run in (on_wall, in_cpu_time):
        assert run.figures.num_requests == len(specs)
        assert run.config.max_num_seqs == 4
        assert run.header == {"model": "scripted"}
        assert 0 < run.figures.ttft_mean <= run.figures.e2e_mean <= run.figures.e2e_p99
        assert run.figures.output_tokens_per_s > num_tokens / 60
        assert min(run.before.prompt_s, run.before.decode_s, run.after.decode_s) > 0


def test_a_fit_sees_the_steps_of_the_requests_and_not_those_before_and_after(tmp_path):
    specs = draw(SMALL, 10.0, 1.0, seed=0)
    names = [f"warm-up-{n}" for n in range(3)], ["after-prompt-0", "after-decode-0"]
    before, after = (
        [replace(spec, id=id) for spec, id in zip(specs, ids, strict=False)] for ids in names
    )
    last = specs[-1].arrival + 10 * NS_PER_S
    spread = [
        *before,
        *(replace(spec, arrival=spec.arrival + 10 * NS_PER_S) for spec in specs),
        *(replace(spec, arrival=spec.arrival + last + 10 * NS_PER_S) for spec in after),
    ]
    simulated_engine(SMALL, spread, tmp_path / "all")
    simulated_engine(SMALL, specs, tmp_path / "alone")

    seen = read_measured(tmp_path / "all", specs, "a")

    assert seen.steps == read_measured(tmp_path / "alone", specs, "b").steps
    assert len(seen.steps) > 20


def test_a_disturbed_run_is_run_again_and_the_calmest_is_kept(tmp_path, monkeypatch):
    speeds(monkeypatch, STEADY, DISTURBED, STEADY, BUSY, DISTURBED, BUSY)
    runner, record = Runner(tmp_path), Record()
    for _ in range(3):
        runner.run(record, SMALL, draw(SMALL, 10.0, 1.0, seed=0))

    assert [run.is_kept for run in record.runs] == [True, False, True, False, True, False]
    assert [round(run.slowdown, 2) for run in record.runs] == [0, 0.1, 0, 1, 0.1, 1]


def test_a_machine_that_is_never_calm_proves_nothing(tmp_path, monkeypatch):
    speeds(monkeypatch, STEADY, STEADY, BUSY)
    runner, record = Runner(tmp_path), Record()
    for _ in range(2):
        runner.run(record, SMALL, draw(SMALL, 10.0, 1.0, seed=0))

    with pytest.raises(BenchmarkError, match="25% slower than before in each of 3 tries"):
        runner.run(record, SMALL, draw(SMALL, 10.0, 1.0, seed=0))


def test_a_hundredth_slower_is_that_in_every_step():
    [line] = [StepWork(9, decode_context=900, prefill_tokens=40, num_chunks=1, prefill_pairs=820)]
    prices = replace(TRUE.prices, wide_token=1e5, narrow_tokens=8, tile=2e6, tile_tokens=12)
    once, again = (
        FittedStepTime(some, Region()).duration_ns(line) for some in (prices, slower(prices))
    )

    assert again == pytest.approx(1.01 * once, rel=1e-9)


def test_an_engine_that_obeys_the_model_is_predicted_from_the_other_workload(tmp_path, monkeypatch):
    monkeypatch.setattr(own_engine, "run_engine", simulated_engine)
    record, _ = measure(Runner(tmp_path), seconds=15.0, num_runs=2)
    found = rows_of(record)

    assert [row.name for row in found if row.passed is False] == []
    assert sum(row.passed is True for row in found) >= 21
    assert np.isclose(record.capacity, 2.5, atol=1.5)
    assert list(record.by_load) == [0.5, 0.85, 1.1]
    of_own_times = [row.measured for row in found if "its own step times" in row.name]
    assert of_own_times == pytest.approx([0.0] * 9, abs=1e-6)


def test_the_command_prints_the_table_and_writes_all_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(own_engine, "run_engine", simulated_engine)
    monkeypatch.setattr(own_engine, "LOCK_PATH", tmp_path / "lock")
    out, logs = tmp_path / "out.json", tmp_path / "logs"
    files = ["--json", str(out), "--logs", str(logs)]
    status = own_engine.main(["--seconds", "8", "--runs", "1", *files])
    told = json.loads(out.read_text())
    printed = capsys.readouterr().out

    assert status == int(any(one["is_kept"] is False for one in told["compared"]))
    assert "own engine at 85%: mean ITL" in printed
    assert [run["load"] for run in told["runs"]].count(1.1) == 1
    assert len(list(logs.iterdir())) == len(told["runs"])


@pytest.mark.parametrize(
    ("option", "value"),
    [("--runs", "0"), ("--runs", "x"), *(("--seconds", v) for v in ("0", "-3", "nan", "inf", "x"))],
)
def test_the_command_refuses_numbers_that_make_no_run(option, value, monkeypatch, capsys):
    monkeypatch.setattr(own_engine, "machine_lock", lambda path: pytest.fail("it was begun"))

    with pytest.raises(SystemExit, match="2"):
        own_engine.main([option, value])
    assert f"argument {option}: '{value}' must be a" in capsys.readouterr().err


def test_what_is_predicted_too_fast_is_missed_and_few_preemptions_are_only_told():
    real = Figures(10, 100.0, 5, 0.2, 0.4, 0.05, 0.1, 2.0, 3.0)
    fast = Figures(10, 106.0, 9, 0.2, 0.4, 0.045, 0.1, 2.0, 3.0)
    record = Record(
        by_load={0.5: [real, real]},
        as_recorded={0.5: [real, real]},
        predictions={0.5: (fast, real)},
    )
    judged = [row for row in rows_of(record) if "its own step times" not in row.name]
    by_name = {row.name.split(": ")[1]: row.passed for row in judged}

    assert [name for name, passed in by_name.items() if passed is False] == [
        "output tokens/s",
        "mean ITL",
    ]
    assert by_name["preemptions"] is None
