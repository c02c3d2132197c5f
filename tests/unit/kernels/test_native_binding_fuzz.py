"""Every function of the extension, handed anything in place of what it wants.

CALLS has a right call of each. One argument after the other is replaced by what is certainly wrong,
which must be refused. A crash ends the process, and with it the tests.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from native_kernels import runtime

from everbatch.kernels import _native

Arguments = dict[str, Any]
REFUSALS = (TypeError, ValueError, RuntimeError, OverflowError, MemoryError)


def floats(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def bf16s(*shape: int) -> np.ndarray:
    return np.full(shape, 0x3F80, np.uint16)


def int32s(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


def matrix(num_outputs: int, num_inputs: int, *, interleaved: bool = False) -> _native.Matrix:
    parts = [floats(num_outputs // (1 + interleaved), num_inputs)] * (1 + interleaved)
    return _native.Matrix(runtime(), parts, None, interleaved)


def layer_arguments() -> Arguments:
    return {
        "attention_norm": floats(8),
        "qkv": matrix(16, 8),
        "q_norm": floats(4),
        "k_norm": floats(4),
        "o": matrix(8, 8),
        "mlp_norm": floats(8),
        "gate_up": matrix(24, 8, interleaved=True),
        "down": matrix(8, 12),
    }


def network_arguments() -> Arguments:
    return {
        "runtime": runtime(),
        "hidden_size": 8,
        "intermediate_size": 12,
        "vocab_size": 20,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 4,
        "rms_norm_eps": 1e-5,
        "layers": [_native.Layer(**layer_arguments())],
        "embedding": matrix(20, 8),
        "lm_head": None,
        "final_norm": floats(8),
        "inverse_frequencies": floats(2),
        "rotary_scale": 1.0,
    }


def step_arguments() -> Arguments:
    """Two tokens of a prompt and one decode, in blocks of 4."""
    return {
        "network": _native.Network(**network_arguments()),
        "input_ids": int32s(1, 2, 3),
        "positions": int32s(0, 1, 6),
        "cu_seqlens_q": int32s(0, 2, 3),
        "context_lens": int32s(2, 7),
        "block_tables": int32s([0, 0], [1, 2]),
        "slot_mapping": int32s(0, 1, 10),
        "logit_rows": int32s(1, 2),
        "keys": bf16s(1, 3, 4, 1, 4),
        "values": bf16s(1, 3, 4, 1, 4),
    }


def attention_arguments() -> Arguments:
    batch = step_arguments()
    tables = {name: batch[name] for name in ("cu_seqlens_q", "context_lens", "block_tables")}
    return {
        "runtime": runtime(),
        "queries": bf16s(3, 2, 4),
        "keys": bf16s(3, 4, 1, 4),
        "values": bf16s(3, 4, 1, 4),
        **tables,
        "out": bf16s(3, 2, 4),
    }


def extras_arguments() -> Arguments:
    return {
        "token_history": np.array([1, 2, 1]),
        "prompt_length": 1,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "bias_ids": np.array([3, 90]),
        "bias_values": floats(2),
        "forbidden_ids": np.array([4, 2**40]),
    }


def rows_arguments() -> Arguments:
    return {
        "temperature": floats(2),
        "top_k": int32s(0, 3),
        "top_p": floats(2) * np.float32(0.9),
        "min_p": np.zeros(2, np.float32),
        "seed": np.arange(2, dtype=np.uint64),
        "position": np.arange(2),
        "wants_logprobs": np.array([True, False]),
        "num_logprobs": int32s(2, 0),
        "extras": [(1, _native.RowExtras(**extras_arguments()))],
    }


def results_arguments() -> Arguments:
    return {
        "token_ids": np.zeros(2, np.int32),
        "failed": np.zeros(2, np.bool_),
        "logprobs": floats(2),
        "ranks": np.zeros(2, np.int64),
        "top_ids": np.zeros((2, 3), np.int64),
        "top_logprobs": floats(2, 3),
    }


def sampling_arguments() -> Arguments:
    return {
        "logits_of": int32s(0, 1),
        "rows": _native.SamplingRows(**rows_arguments()),
        "out": _native.SampledArrays(**results_arguments()),
    }


def sample_all(arguments: Arguments, changed: str) -> None:
    """Sample with rows, extras or results that were changed."""
    rows, results = rows_arguments(), results_arguments()
    if changed == "extras":
        rows["extras"] = [(1, _native.RowExtras(**arguments))]
    elif changed == "rows":
        rows = arguments
    else:
        results = arguments
    sample_rows(rows, results)


def sample_rows(rows: Arguments, results: Arguments, logits: np.ndarray | None = None) -> None:
    _native.sample(
        runtime(),
        np.linspace(0, 3, 40, dtype=np.float32).reshape(2, 20) if logits is None else logits,
        int32s(0, 1),
        _native.SamplingRows(**rows),
        _native.SampledArrays(**results),
    )


def run_step(**arguments: Any) -> None:
    step = _native.Step(**arguments)
    op = _native.Operation
    step.run([(op.EMBED, 0), (op.NORM_QKV_ROPE_WRITE, 0), (op.PAGED_ATTENTION, 0)])
    step.run([(op.PROJECT_ADD, 0), (op.NORM_MLP_ADD, 0)])
    step.norm_logits(np.zeros((len(arguments["logit_rows"]), 20), np.float32))


def run_network(**arguments: Any) -> None:
    run_step(**{**step_arguments(), "network": _native.Network(**arguments)})


def run_layer(**arguments: Any) -> None:
    run_network(**{**network_arguments(), "layers": [_native.Layer(**arguments)]})


CALLS: dict[str, tuple[Callable[..., Any], Callable[[], Arguments]]] = {
    "Runtime": (
        lambda **given: _native.Runtime(**given),
        lambda: {"num_threads": 2, "path": "portable", "without": ["kv-ahead"]},
    ),
    "Matrix": (
        lambda **given: _native.Matrix(**given),
        lambda: {
            "runtime": runtime(),
            "parts": [floats(4, 8), floats(2, 8)],
            "biases": [floats(4), floats(2)],
            "interleaved": False,
        },
    ),
    "Matrix.multiply": (
        lambda **given: matrix(6, 7).multiply(**given),
        lambda: {"runtime": runtime(), "x": bf16s(3, 7), "out": floats(3, 6)},
    ),
    "Matrix.silu_times": (
        lambda **given: matrix(6, 7, interleaved=True).silu_times(**given),
        lambda: {"runtime": runtime(), "x": bf16s(3, 7), "out": bf16s(3, 3)},
    ),
    "attention": (lambda **given: _native.attention(**given), attention_arguments),
    "Layer": (run_layer, layer_arguments),
    "Network": (run_network, network_arguments),
    "Network.max_workspace_bytes": (
        lambda **given: _native.Network(**network_arguments()).max_workspace_bytes(**given),
        lambda: {"num_tokens": 3, "context_len": 7},
    ),
    "Step": (run_step, step_arguments),
    "Step.run": (
        lambda **given: _native.Step(**step_arguments()).run(**given),
        lambda: {"operations": [(_native.Operation.EMBED, 0)]},
    ),
    "Step.norm_logits": (
        lambda **given: _native.Step(**step_arguments()).norm_logits(**given),
        lambda: {"logits": floats(2, 20)},
    ),
    "Step.norm_sample": (
        lambda **given: _native.Step(**step_arguments()).norm_sample(**given),
        sampling_arguments,
    ),
    "sample": (
        lambda **given: _native.sample(**given),
        lambda: {"runtime": runtime(), "logits": floats(2, 20), **sampling_arguments()},
    ),
    "RowExtras": (lambda **given: sample_all(given, "extras"), extras_arguments),
    "SamplingRows": (lambda **given: sample_all(given, "rows"), rows_arguments),
    "SampledArrays": (lambda **given: sample_all(given, "results"), results_arguments),
    "uniform": (lambda **given: _native.uniform(**given), lambda: {"seed": 1, "position": 2}),
}
WRITTEN = {"out", "logits", "keys", "values", *results_arguments()}
MAY_BE_NONE = {"path", "cpus", "biases", "q_norm", "k_norm", "lm_head"}
ARRAYS = [
    (call, name)
    for call, (_, make) in CALLS.items()
    for name, value in make().items()
    if isinstance(value, np.ndarray)
]
ARGUMENTS = [(call, name) for call, (_, make) in CALLS.items() for name in make()]


def misaligned(array: np.ndarray) -> np.ndarray:
    memory = np.zeros(array.nbytes + 1, np.uint8)[1:]
    copy = memory.view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


WRONG_ARRAYS: dict[str, Callable[[np.ndarray], Any]] = {
    "a list": lambda array: array.tolist(),
    "of float64": lambda array: array.astype(np.float64),
    "of the other byte order": lambda array: array.astype(array.dtype.newbyteorder()),
    "of a dimension more": lambda array: array[None],
    "with gaps": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    "backwards": lambda array: np.ascontiguousarray(array[::-1])[::-1],
    "misaligned": misaligned,
}


@pytest.mark.parametrize("call", CALLS)
def test_right_call_is_taken(call: str) -> None:
    function, make = CALLS[call]
    function(**make())


def test_every_function_of_the_module_has_a_call() -> None:
    names = {name for name in vars(_native) if not name.startswith("_")}
    without_arguments = {"Operation", "available_paths", "optimisations"}
    assert names - without_arguments == {name.partition(".")[0] for name in CALLS}


@pytest.mark.parametrize("wrong", WRONG_ARRAYS)
@pytest.mark.parametrize(("call", "name"), ARRAYS)
def test_array_of_another_kind_is_refused(call: str, name: str, wrong: str) -> None:
    function, make = CALLS[call]
    given = make()
    if given[name].itemsize == 1 and wrong in ("misaligned", "of the other byte order"):
        pytest.skip("a byte has no order")
    if len(given[name]) == 1 and wrong == "backwards":
        pytest.skip("one is the same backwards")
    given[name] = WRONG_ARRAYS[wrong](given[name])

    with pytest.raises((TypeError, ValueError)):
        function(**given)


@pytest.mark.parametrize(("call", "name"), [pair for pair in ARRAYS if pair[1] in WRITTEN])
def test_array_that_may_not_be_written_is_refused(call: str, name: str) -> None:
    if (call, name) in {("attention", "keys"), ("attention", "values"), ("sample", "logits")}:
        pytest.skip("is only read")
    function, make = CALLS[call]
    given = make()
    given[name].setflags(write=False)

    with pytest.raises(TypeError):
        function(**given)


class SomethingElse:
    """An object that no argument takes, named alike in every process that collects tests."""

    def __repr__(self) -> str:
        return "something else"


@pytest.mark.parametrize("wrong", [None, SomethingElse(), "7", -1, 2**70, [None], [[1]]], ids=repr)
@pytest.mark.parametrize(("call", "name"), ARGUMENTS)
def test_argument_that_is_something_else_is_refused(call: str, name: str, wrong: Any) -> None:
    function, make = CALLS[call]
    is_number = isinstance(make()[name], float)
    if (wrong is None and name in MAY_BE_NONE) or (is_number and isinstance(wrong, int)):
        pytest.skip("is allowed")

    with pytest.raises((TypeError, ValueError, OverflowError)):
        function(**{**make(), name: wrong})


@pytest.mark.parametrize("name", ["token_history", "bias_ids", "bias_values", "forbidden_ids"])
@pytest.mark.parametrize("result", ["top_ids", "top_logprobs"])
def test_results_that_lie_in_what_is_read_are_refused(name: str, result: str) -> None:
    results = results_arguments()
    memory = np.zeros(6, np.int64)
    results[result] = memory.view(results[result].dtype)[:6].reshape(2, 3)
    extras = extras_arguments() | {"prompt_length": 0}
    extras["bias_ids"], extras["bias_values"] = np.zeros(2, np.int64), floats(2)
    extras[name] = memory.view(extras[name].dtype)[:2]
    rows = rows_arguments() | {"extras": [(1, _native.RowExtras(**extras))]}

    with pytest.raises(ValueError, match=f"{name} and {result} share memory"):
        sample_rows(rows, results)


def test_logits_that_are_results_are_refused() -> None:
    logits = floats(2, 20)
    results = results_arguments() | {"top_logprobs": logits.reshape(-1)[:6].reshape(2, 3)}

    with pytest.raises(ValueError, match="logits and top_logprobs share memory"):
        sample_rows(rows_arguments(), results, logits)


def test_sizes_whose_products_wrap_around_are_refused() -> None:
    with pytest.raises(ValueError, match="num_heads is too large"):
        _native.Network(**network_arguments() | {"num_heads": 2**62 + 2})


def test_any_byte_but_zero_is_true() -> None:
    expected, given = results_arguments(), results_arguments()
    odd = rows_arguments() | {"wants_logprobs": np.array([2, 0], np.uint8).view(np.bool_)}

    sample_rows(rows_arguments(), expected)
    sample_rows(odd, given)

    for name, values in expected.items():
        assert np.array_equal(values, given[name]), name
