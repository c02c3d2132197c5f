"""The harness's probe: what it measures is real, and it leaves the process as it was."""

import os

import machine_probe
import pytest
from harness import Round
from machine_probe import MachineProbe, Probe, best_seconds, measured_cores, others_share


def test_a_probe_measures_and_gives_the_cores_back():
    before = os.sched_getaffinity(0)

    first = MachineProbe(read_s=0.01, matrix_s=0.01).take()

    assert os.sched_getaffinity(0) == before
    assert first.read_gb_per_s > 0.1
    assert first.matrix_gflop_per_s > 0.1
    assert first.at_s > 0


def test_at_most_four_cores_are_measured_spread_evenly():
    assert measured_cores([3]) == [3]
    assert measured_cores([0, 1, 2, 3]) == [0, 1, 2, 3]
    assert measured_cores(list(range(64))) == [0, 16, 32, 48]


def test_what_others_use_is_a_share_of_all_cores():
    first, last = Probe(30.0, 100.0, at_s=10.0, others_s=5.0), Probe(30.0, 100.0, 20.0, 5.4)

    assert others_share(first, last) == pytest.approx(0.04)
    assert others_share(last, first) == 0.0


def test_own_processor_time_is_not_that_of_others(monkeypatch):
    monkeypatch.setattr(machine_probe, "busy_seconds", lambda stat: 100.0)
    own = os.times()

    assert machine_probe.others_seconds() == pytest.approx(
        100.0 - own.user - own.system - own.children_user - own.children_system, abs=0.5
    )


def test_a_round_in_which_others_used_more_than_a_twentieth_is_dropped():
    def one(others_s: float) -> Round:
        probes = (
            Probe(30.0, 100.0, 0.0, 0.0),
            Probe(30.0, 100.0),
            Probe(30.0, 100.0, 10, others_s),
        )
        return Round({}, {}, probes)

    assert one(0.5).kept
    assert not one(0.51).kept


def test_the_shortest_run_counts(monkeypatch):
    # The clock at the start, and after each of three runs of 5, 2 and 9 ns.
    ticks = iter([0, 5, 7, 16])
    monkeypatch.setattr(machine_probe.time, "perf_counter_ns", lambda: next(ticks))

    assert best_seconds(lambda: None, duration_s=10e-9) == pytest.approx(2e-9)
