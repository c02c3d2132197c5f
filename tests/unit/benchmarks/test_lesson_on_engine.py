"""The lesson's comparison on an engine: what is counted, and that both get the same list."""

import json
import time
from types import SimpleNamespace

import lesson_on_engine
import pytest
from driven_engine import DrivenEngine, first_token_ns, replay, request_spec, token_gaps
from engines_by_rule import driven_engine
from harness import BenchmarkError
from lesson_on_engine import MODES, facts, measure, table

from everbatch.assemble.wallclock import WallClock
from everbatch.base.events import StepRan
from everbatch.base.units import NS_PER_S

OPTIONS = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 512,
    "num_blocks": 256,
    "enable_prefix_caching": False,
}


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    engines = {mode: driven_engine(batching=mode, **OPTIONS) for mode in MODES}
    return measure(engines, 2, tmp_path_factory.mktemp("logs"))


def test_the_lesson_s_counts_come_out_on_an_engine(record):
    told = facts(record)

    # A step with a prompt takes longer than the tick, so both come before their slot is free.
    assert told["static"]["useful_at_horizon"] == 230
    assert told["continuous"]["useful_at_horizon"] == 300
    assert [told[mode]["useful"] for mode in MODES] == [430, 430]
    assert [told[mode]["steps"] for mode in MODES] == [240, 200]
    assert [told[mode]["masked"] for mode in MODES] == [450, 0]


def test_a_tick_is_a_step_of_four_decodes(record):
    assert record.tick_ns == 12_000_000


def test_who_comes_late_waits_for_the_whole_static_batch(record):
    [static, _], [continuous, _] = (record.rounds[mode] for mode in MODES)
    first_step, tick, last_step = 0.022, 0.012, 0.018

    # The batch runs to the end of step 200; then both prompts take one step.
    assert static.ttft_s["5"] == pytest.approx(
        first_step + 199 * tick - 20 * tick + last_step, abs=1e-6
    )
    assert continuous.ttft_s["5"] < 0.05
    assert continuous.tokens_per_s > static.tokens_per_s


def test_equal_rounds_give_equal_figures_and_the_table_has_them(record):
    told = facts(record)
    assert record.rounds["static"][0] == record.rounds["static"][1]
    assert told["tokens_per_s_ratio"]["min"] == told["tokens_per_s_ratio"]["max"] > 1
    assert "230 of 320, 71.9% | 300 of 320, 93.8%" in table(told)
    json.dumps(told)


def test_the_picture_has_the_slots_and_who_came_late(record):
    rows = record.pictures["continuous"]

    assert [name for _, name in rows.marks] == ["5 comes", "6 comes"]
    assert [span.request_id for span in rows.slots[0]] == ["1", "1", "5", "5", None]
    assert rows.slots[3][-1].end_ns == rows.slots[0][-1].end_ns


def test_requests_come_at_their_times_and_a_refusal_ends_the_benchmark():
    driven = driven_engine(**OPTIONS)
    recording = driven.run([request_spec("a", 0, 0, 4, 1), request_spec("b", 1, 500_000_000, 4, 1)])
    first = first_token_ns(recording.events)

    assert recording.due_ns["b"] - recording.due_ns["a"] == 500_000_000
    # It slept until then, and not beyond: a step with a prompt of 4 takes 14.8 ms.
    assert first["b"] - recording.due_ns["b"] == pytest.approx(14_800_000, abs=1_000)
    with pytest.raises(BenchmarkError, match="request c is refused"):
        driven.run([request_spec("c", 0, 0, 9_000, 1)])


def test_those_that_nobody_waits_for_are_aborted_at_the_end():
    specs = [request_spec("long", 0, 0, 4, 900), request_spec("short", 1, 1_000, 4, 3)]
    driven = driven_engine(**OPTIONS)

    assert len(driven.run(specs, ["short"]).steps) < 10
    assert not driven.engine.has_work


def test_a_gap_is_of_the_kind_of_the_step_that_ended_it():
    chunk = (("p", 0, 8),)
    steps = [
        StepRan(t, n, t - 10, 0, 0, decodes, chunks, (), (), (), 0, 0)
        for n, (t, decodes, chunks) in enumerate(
            [(10, 0, chunk), (20, 2, ()), (35, 2, chunk), (45, 1, ())]
        )
    ]

    assert token_gaps(steps) == {"decode": [10, 10, 10], "mixed": [15, 15]}
    assert token_gaps(steps, 2) == {"decode": [], "mixed": [15, 15]}


def test_a_replay_that_goes_another_way_is_told(tmp_path):
    recording = driven_engine(**OPTIONS).run([request_spec("a", 0, 0, 4, 3)])
    replay(recording, tmp_path)
    recording.events[:] = [
        event for event in recording.events if not isinstance(event, StepRan) or event.step != 2
    ]

    with pytest.raises(BenchmarkError, match="other steps than the engine"):
        replay(recording, tmp_path)


def test_the_command_writes_figures_and_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lesson_on_engine, "LOCK_PATH", tmp_path / "lock")
    monkeypatch.setattr(
        lesson_on_engine,
        "_engine",
        lambda model, mode, cpu_time: driven_engine(batching=mode, **OPTIONS),
    )
    files = tmp_path / "f.json", tmp_path / "f.svg"

    assert (
        lesson_on_engine.main(["--rounds", "1", "--json", str(files[0]), "--svg", str(files[1])])
        == 0
    )
    assert "tokens/s" in capsys.readouterr().out
    assert json.loads(files[0].read_text())["continuous"]["useful_at_horizon"] == 300
    assert files[1].read_text().count("5 comes") == 2


def test_a_model_that_is_not_there_is_told_in_a_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lesson_on_engine, "LOCK_PATH", tmp_path / "lock")

    assert lesson_on_engine.main([str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_on_cpu_time_the_engine_s_clock_stands_still_while_it_sleeps():
    class FakeReal:
        engine, clock, vocab_size, options = None, WallClock(), 9, SimpleNamespace(header=dict)

    driven = DrivenEngine.of(SimpleNamespace(real=FakeReal), cpu_time=True)
    before_ns = driven.clock.now_ns()
    driven.sleep(0.002)

    # As much as it waited, and nothing of what this process did not compute.
    assert driven.clock.now_ns() - before_ns >= 2_000_000
    assert abs(driven.clock.now_ns() - time.process_time_ns()) < NS_PER_S
