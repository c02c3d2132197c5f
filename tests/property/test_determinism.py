"""One seed gives the same bytes in every process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


def event_log(seed: int, hash_seed: str) -> bytes:
    path = os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])
    return subprocess.run(
        [sys.executable, str(Path(__file__).with_name("seeded_run.py")), str(seed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
        capture_output=True,
        check=True,
        timeout=60,
    ).stdout


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_processes_with_different_hash_seeds_write_the_same_event_log(seed):
    first, second = event_log(seed, "0"), event_log(seed, "4242")

    assert first == second
    assert first.count(b'"preempted"') > 5
    assert first.count(b'"finished"') == 60


def test_seeds_differ():
    assert event_log(1, "0") != event_log(2, "0")
