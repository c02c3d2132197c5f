"""Each fuzz target with its seeds, what was found before, and the same broken inputs every time."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.mutations import mutated
from fuzz.targets import TARGETS

FOUND = Path(__file__).parent / "found"
NUM_MUTATED = {"tokenizer": 150, "template": 400, "event_log": 60}
DEFAULT_NUM_MUTATED = 250


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_read(name):
    target = TARGETS[name]
    read = [target.check(seed) for seed in target.seeds()]

    assert any(read)


@pytest.mark.parametrize("name", TARGETS)
def test_broken_inputs_raise_declared_errors_alone(name):
    target, draw = TARGETS[name], random.Random(5)
    seeds, refused = target.seeds(), 0
    for number in range(NUM_MUTATED.get(name, DEFAULT_NUM_MUTATED)):
        data = mutated(draw.choice(seeds), draw, seeds, target.words)
        try:
            refused += not target.check(data)
        except BaseException as error:
            error.add_note(f"input {number} of {name}: {data[:200]!r}")
            raise

    assert refused


@pytest.mark.parametrize(
    "path", sorted(FOUND.rglob("*.bin")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_what_was_found_once_is_refused(path):
    TARGETS[path.parent.name].check(path.read_bytes())


def test_found_inputs_belong_to_targets():
    assert {path.parent.name for path in FOUND.rglob("*.bin")} <= set(TARGETS)


def test_undeclared_error_comes_out():
    target = TARGETS["request"]
    broken = type(target)(target.name, lambda data: data[5], target.declared, target.seeds)

    with pytest.raises(IndexError):
        broken.check(b"")


def test_a_run_without_time_ends_without_a_finding(tmp_path):
    command = [sys.executable, str(Path(__file__).parent / "run.py"), "request", "--by-chance"]
    command += ["--seconds", "0", "--memory", "16384", "--findings", str(tmp_path)]

    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "request: 0 inputs, 0 findings\n", "")
