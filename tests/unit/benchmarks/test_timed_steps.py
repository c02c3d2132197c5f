"""The times of an engine's steps: those that bring tokens have one."""

import pytest
from builders import client, run_world
from timed_steps import time_steps

from everbatch.engine.engine import Engine


def test_each_step_that_brings_tokens_has_its_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Engine, "step", Engine.step)
    ends = time_steps()

    run_world([client("a", 4, 3), client("b", 4, 2)])

    assert [num_tokens for _, num_tokens in ends] == [2, 2, 1]
    assert [at for at, _ in ends] == sorted(at for at, _ in ends)
