"""A step that takes long runs in several calls, so that whoever watches it sees it go on."""

import numpy as np
import pytest
from models.network_builders import TINY, Runner, random_prompt, random_tensors
from native_kernels import backend

from everbatch.kernels import native
from everbatch.kernels.native import NativeStep

NUM_TOKENS = 12
QUERY_SIZE, KV_SIZE = TINY.num_heads * TINY.head_dim, TINY.num_kv_heads * TINY.head_dim
# Two matrices as wide as the queries, two as the keys, three of the MLP, and attention's two
# products with 12 keys each.
LAYER_WORK = NUM_TOKENS * (
    TINY.hidden_size * (2 * QUERY_SIZE + 2 * KV_SIZE + 3 * TINY.intermediate_size)
    + 2 * QUERY_SIZE * NUM_TOKENS
)


def run(monkeypatch: pytest.MonkeyPatch, work_per_call: int) -> tuple[list[int], np.ndarray]:
    """Give how many layers had run, for those who watch, before each call; and the logits."""
    monkeypatch.setattr(native, "WORK_PER_CALL", work_per_call)
    runner = Runner(TINY, random_tensors(TINY), backend=backend())
    seen: list[int] = []
    finish = NativeStep.finish

    def watched(step: NativeStep) -> None:
        seen.append(runner.network.num_layers_run)
        finish(step)

    monkeypatch.setattr(NativeStep, "finish", watched)
    runner.add("a", random_prompt(TINY, NUM_TOKENS))
    logits = runner.network.forward(runner.pack({"a": NUM_TOKENS}), runner.kv)
    monkeypatch.undo()
    return seen, logits


def test_layers_of_a_long_step_are_counted_as_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, LAYER_WORK)[0] == [*range(TINY.num_layers), TINY.num_layers]


def test_layers_of_a_short_step_run_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, native.WORK_PER_CALL)[0] == [TINY.num_layers]
    assert run(monkeypatch, TINY.num_layers * LAYER_WORK + 1)[0] == [TINY.num_layers]


def test_work_is_summed_up_until_it_is_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, LAYER_WORK + 1)[0] == [
        *range(1, TINY.num_layers, 2),
        TINY.num_layers,
    ]


def test_number_of_calls_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    _, in_one = run(monkeypatch, native.WORK_PER_CALL)
    _, in_several = run(monkeypatch, 1)

    np.testing.assert_array_equal(in_one, in_several)
