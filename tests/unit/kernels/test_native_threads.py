"""What the kernels' threads leave to others: Python's lock while they compute, and the CPU when
they have nothing to do. That their number changes no bit is tested with each kernel."""

import operator
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models.network_builders import TINY, Runner, random_prompt, random_tensors
from native_kernels import PATHS, backend, random_bf16, runtime
from unit.kernels.sampling_builders import sampling_rows

from everbatch.kernels import _native
from everbatch.kernels.native import NativeStep, sample_with

NUM_TOKENS = 400
MOST_CALLS = 2_000
"""The shortest calls take 50 us, as long as it may take to wake a thread up."""
LOOKING_NS = 50_000_000
"""Of CPU time a thread may take to find that there is no work; it looks for 1 ms."""


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def one_step() -> NativeStep:
    runner = Runner(TINY, random_tensors(TINY), backend=backend())
    runner.add("a", random_prompt(TINY, NUM_TOKENS))
    return runner.network._kernels.begin_step(runner.pack({"a": NUM_TOKENS}), runner.kv)


def native_call(name: str) -> Callable[[], object]:
    """A call of the extension that takes a millisecond or so."""
    threads, rng = runtime(), np.random.default_rng(0)
    op, layers = _native.Operation, [(_native.Operation.EMBED, 0)]
    layers += [(kind, 0) for kind in (op.NORM_QKV_ROPE_WRITE, op.PAGED_ATTENTION)]
    match name:
        case "Matrix":
            return partial(_native.Matrix, threads, [floats(900, 900)])
        case "Matrix.multiply":
            matrix, out = _native.Matrix(threads, [floats(640, 640)]), floats(900, 640)
            return partial(matrix.multiply, threads, random_bf16(rng, 900, 640), out)
        case "Matrix.silu_times":
            matrix = _native.Matrix(threads, [floats(640, 640)] * 2, None, True)
            out = np.empty((900, 640), np.uint16)
            return partial(matrix.silu_times, threads, random_bf16(rng, 900, 640), out)
        case "attention":
            keys = random_bf16(rng, 40, 16, 2, 64)
            queries = random_bf16(rng, 640, 4, 64)
            tables = np.arange(40, dtype=np.int32)[None]
            starts, lens = np.array([0, 640], np.int32), np.array([640], np.int32)
            return partial(
                *(_native.attention, threads, queries, keys, keys.copy(), starts, lens, tables),
                np.empty_like(queries),
            )
        case "Step.run":
            return partial(one_step()._step.run, layers * 4)
        case "Step.norm_logits":
            return partial(
                one_step()._step.norm_logits, np.empty((NUM_TOKENS, TINY.vocab_size), np.float32)
            )
        case "Step.norm_sample":
            return handed_over(partial(one_step()._step.norm_sample, all_of(NUM_TOKENS)))
    assert name == "sample"
    logits = floats(NUM_TOKENS, TINY.vocab_size)
    return handed_over(partial(_native.sample, threads, logits, all_of(NUM_TOKENS)))


def all_of(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.int32)


def handed_over(sample: Callable[..., Any]) -> Callable[[], object]:
    """The call with the rows and arrays that sample_with makes, which is Python."""
    rows = sampling_rows(NUM_TOKENS, temperature=1.0, top_p=0.9)
    handed: list[object] = []
    sample_with(lambda *given: handed.extend(given), rows, TINY.vocab_size)
    return partial(sample, *handed)


CALLS = [
    *("Matrix", "Matrix.multiply", "Matrix.silu_times", "attention"),
    *("Step.run", "Step.norm_logits", "Step.norm_sample", "sample"),
]


def runs_beside(call: Callable[[], object]) -> bool:
    """Whether this thread gets to run Python while another one is in `call`.

    That thread takes note of begin and end without a step of the interpreter in between, where it
    could let the lock go: a list is made of calls that are all C.
    """
    begun: list[int] = []
    ended: list[int] = []
    ready, enough = threading.Barrier(2), threading.Event()

    def other() -> None:
        ready.wait()
        for number in range(MOST_CALLS):
            if enough.is_set():
                break
            notes = [partial(begun.append, number), call, partial(ended.append, number)]
            list(map(operator.call, notes))

    thread = threading.Thread(target=other)
    thread.start()
    ready.wait()
    seen = False
    while thread.is_alive() and not seen:
        # In this order: what began after the first look is not seen as under way.
        num_ended = len(ended)
        seen = len(begun) > num_ended == len(ended)
    enough.set()
    thread.join()
    return seen


@pytest.mark.parametrize("name", CALLS)
def test_python_runs_beside_the_kernels(name: str) -> None:
    assert runs_beside(native_call(name))


def test_a_call_that_keeps_the_lock_would_be_found() -> None:
    assert not runs_beside(partial(sum, range(20_000)))


def thread_facts(task: Path) -> tuple[str, int]:
    """The state of a thread as the system tells it, and the nanoseconds that it has computed."""
    state = (task / "stat").read_text().rpartition(")")[2].split()[0]
    return state, int((task / "schedstat").read_text().split()[0])


@pytest.mark.skipif(sys.platform != "linux", reason="reads threads as Linux tells them")
@pytest.mark.parametrize("path", PATHS)
def test_threads_without_work_sleep_soon(path: str) -> None:
    tasks = Path("/proc/self/task")
    before = set(tasks.iterdir())
    own = _native.Runtime(4, path)
    matrix, x = (
        _native.Matrix(own, [floats(640, 640)]),
        random_bf16(np.random.default_rng(0), 64, 640),
    )
    pool = sorted(set(tasks.iterdir()) - before)
    assert len(pool) == 3
    wait = threading.Event().wait
    for _ in range(3):
        matrix.multiply(own, x, np.empty((64, 640), np.float32))
        computed = sum(thread_facts(task)[1] for task in pool)
        for _ in range(2_000):
            states = [thread_facts(task)[0] for task in pool]
            if states == ["S"] * 3:
                break
            wait(0.002)
        facts = [thread_facts(task) for task in pool]

        assert [state for state, _ in facts] == ["S"] * 3
        assert sum(time for _, time in facts) - computed < LOOKING_NS
