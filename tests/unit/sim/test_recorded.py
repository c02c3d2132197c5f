"""Event logs replayed with their own step times: every recorded decision comes out again."""

import json
import random
from pathlib import Path

import pytest
from command_line import scenario_text

from everbatch.base.errors import ConfigError
from everbatch.sim.decisions import DecisionCheck
from everbatch.sim.recorded import RecordedStepTimes, read_log, recorded_events
from everbatch.sim.run import RunOptions, simulate
from everbatch.workload.builtin_scenarios import builtin_names, find_scenario
from everbatch.workload.scenario import Scenario, parse_scenario

SECONDS = {
    "clock": {"kind": "nominal"},
    "hardware": {"flops": 1e12, "memory_bandwidth": 1e12},
    "model": {"num_params": 2e9, "bytes_per_value": 2},
}


def replayed(scenario: Scenario, folder: Path) -> tuple[DecisionCheck, list[str]]:
    """Log a run and replay the log."""
    path = folder / "events.jsonl"
    with path.open("w", encoding="utf-8") as file:
        simulate(scenario, file)
    log = read_log(path)
    check = DecisionCheck(recorded_events(path))
    is_steps = log.scenario.clock.unit.is_steps
    times = None if is_steps else RecordedStepTimes(log.durations)
    simulate(log.scenario, None, [check], RunOptions(times))
    check.close()
    return check, log.notes


def drawn(seed: int) -> Scenario:
    """A busy scenario with everything in it that a log tells."""
    draw = random.Random(seed)
    is_steps = draw.random() < 0.3

    def time(longest: float) -> float:
        # Not at the very nanosecond of a pass's end: then a log cannot tell before from after.
        return draw.randrange(int(longest * 60) + 1) if is_steps else draw.uniform(0.0001, longest)

    def one(number: int) -> dict:
        request = {
            "id": str(number),
            "arrival": time(1.5),
            "prompt_tokens": draw.randrange(1, 60),
            "output_tokens": draw.randrange(2, 20),
            "max_tokens": draw.randrange(2, 25),
            "priority": draw.randrange(3),
            "tenant": draw.choice("ab"),
            "n": draw.choice([1, 1, 1, 3]),
        }
        if draw.random() < 0.3:
            request["abort_at"] = request["arrival"] + time(0.5)
        if draw.random() < 0.2:
            request["deadline"] = time(0.2)
        return request

    tables = json.loads(
        scenario_text(
            [one(number) for number in range(draw.randrange(2, 25))],
            {"horizon": time(2) or 1} if draw.random() < 0.4 else {},
            max_num_seqs=draw.randrange(3, 8),
            max_num_batched_tokens=draw.choice([8, 32, 128]),
            num_blocks=draw.randrange(20, 40),
            policy=draw.choice(["fcfs", "priority", "srpt", "vtc"]),
            backfill=draw.choice(["none", "safe", "greedy"]),
            admission=draw.choice(["now", "prompt", "peak", "reserve"]),
            preemption_trigger=draw.choice(["shortage", "stall"]),
            preemption_extent=draw.choice(["whole", "tail"]),
            preemption_mode=draw.choice(["recompute", "swap"]),
            num_host_blocks=10,
        )
    )
    return parse_scenario(json.dumps(tables if is_steps else tables | SECONDS), "drawn", "drawn")


@pytest.mark.parametrize("seed", range(40))
def test_drawn_runs_come_out_again(seed, tmp_path):
    check, notes = replayed(drawn(seed), tmp_path)

    assert notes == []
    assert check.difference is None
    assert check.num_decisions > 0


@pytest.mark.parametrize("name", builtin_names())
def test_built_in_runs_come_out_again(name, tmp_path):
    check, notes = replayed(find_scenario(name), tmp_path)

    # Where prompts hit the cache the log does not tell what they say.
    assert (check.difference is None) == (notes == [])


def test_what_a_log_cannot_tell_is_said(tmp_path):
    cached = find_scenario("system-prompt").with_settings(["enable_prefix_caching=true"])
    check, notes = replayed(cached, tmp_path)

    assert notes == ["not replayed: hits of the prefix cache: what prompts say is not in a log"]
    assert check.difference is not None


def test_the_first_decision_that_differs_is_told(tmp_path):
    path = tmp_path / "events.jsonl"
    with path.open("w", encoding="utf-8") as file:
        simulate(find_scenario("golden-shortage"), file)
    check = DecisionCheck(recorded_events(path))
    simulate(find_scenario("golden-stall"), None, [check])
    check.close()

    recorded, replay = (json.loads(line) for line in check.difference)
    assert (recorded["event"], recorded["id"]) == ("preempted", "b")
    assert (replay["event"], replay["id"], replay["reason"]) == ("deferred", "b", "kv_budget")


def test_a_record_that_goes_on_is_a_difference(tmp_path):
    path = tmp_path / "events.jsonl"
    with path.open("w", encoding="utf-8") as file:
        simulate(find_scenario("golden-shortage"), file)
    check = DecisionCheck(recorded_events(path))
    simulate(find_scenario("golden-shortage").with_run(horizon=3), None, [check])
    check.close()

    assert check.difference[1] is None


def test_a_server_s_log_begins_at_0(tmp_path):
    path = tmp_path / "events.jsonl"
    with path.open("w", encoding="utf-8") as file:
        simulate(drawn(2), file)
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    header = {key: value for key, value in json.loads(header).items() if key != "clock"}
    later = []
    for line in map(json.loads, lines):
        times = {key: line[key] + 10**15 for key in ("t", "start") if key in line}
        later.append({**line, **times})
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *later]))
    specs = read_log(path).scenario.requests

    assert specs[0].arrival == 0
    assert all(0 <= spec.arrival < 10**12 for spec in specs)


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ({"config": {}}, "the event log has no step"),
        ({}, "the event log has no step"),
    ],
)
def test_a_log_without_steps_is_refused(header, told, tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(json.dumps({"event": "header", "version": 1, **header}) + "\n")

    with pytest.raises(ConfigError, match=told):
        read_log(path)


ARRIVED = {
    "event": "arrived",
    "t": 0,
    "id": "a",
    "prompt_tokens": 1,
    "max_tokens": 1,
    "priority": 0,
    "tenant": "",
}
FINISHED = {
    "event": "finished",
    "t": 1,
    "step": 1,
    "id": "a",
    "reason": "length",
    "output_tokens": 1,
    "cached_tokens": 0,
    "recomputed_tokens": 0,
    "preemptions": 0,
}
QUIET = {"event": "steps", "t": 5, "step": 1, "start": 3, "count": 1, "decodes": 1}


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([FINISHED], '"a" ends and has not come'),
        ([ARRIVED, FINISHED, FINISHED], '"a" ends and has not come, or ends twice'),
        ([ARRIVED, ARRIVED], '"a" comes twice'),
        ([{**QUIET, "t": 2}], "1 steps from 3 to 2"),
        ([{**QUIET, "count": 0}], "0 steps from 3 to 5"),
        ([{**QUIET, "count": 10**15}], "1,000,000,000,000,000 steps from 3 to 5"),
    ],
)
def test_a_log_that_contradicts_itself_is_refused(events, told, tmp_path):
    path = tmp_path / "events.jsonl"
    lines = [{"event": "header", "version": 1, "config": {}}, *events]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    with pytest.raises(ConfigError, match=told):
        read_log(path)


def test_a_log_without_its_beginning_is_refused(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(json.dumps({"event": "header", "version": 1, "dropped": 7}) + "\n")

    with pytest.raises(ConfigError, match="lacks its beginning"):
        read_log(path)
