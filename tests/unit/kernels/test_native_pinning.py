"""Threads that stay on CPUs of their own, as the system itself tells (/proc/self/task)."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from models.network_builders import TINY, Runner, random_prompt, random_tensors
from native_kernels import PATHS

from everbatch.base.errors import ConfigError
from everbatch.kernels import _native
from everbatch.kernels.backends import choose_backend
from everbatch.kernels.cores import CAN_PIN, cpus_to_pin, usable_cpus
from everbatch.kernels.native import NativeKernels, make_runtime

pytestmark = pytest.mark.skipif(not CAN_PIN, reason="pins as Linux does")

CPUS = usable_cpus() if CAN_PIN else []
needs_two = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


def affinities() -> dict[int, set[int]]:
    """Where each thread of this process may run."""
    threads = [int(entry.name) for entry in Path("/proc/self/task").iterdir()]
    return {thread: set(os.sched_getaffinity(thread)) for thread in threads}


@contextmanager
def new_threads() -> Iterator[Callable[[], list[set[int]]]]:
    """Give a function that tells where threads may run that were not there before."""
    before = affinities()
    yield lambda: [cpus for thread, cpus in affinities().items() if thread not in before]
    assert affinities().keys() <= before.keys() | {threading.get_native_id()}


@needs_two
def test_each_thread_of_the_pool_has_its_cpu_and_the_caller_is_free() -> None:
    first, second = CPUS[:2]
    with new_threads() as where:
        runtime = _native.Runtime(2, None, [first, second])

        assert runtime.cpus == [first, second]
        assert where() == [{second}]
        assert os.sched_getaffinity(0) == set(CPUS)
        del runtime


def test_threads_of_a_pool_that_is_not_pinned_may_run_everywhere() -> None:
    with new_threads() as where:
        runtime = _native.Runtime(3)

        assert runtime.cpus == []
        assert where() == [set(CPUS)] * 2
        del runtime


def test_caller_is_let_go_after_each_step_and_gets_the_same_bits() -> None:
    tensors, prompt = random_tensors(TINY), random_prompt(TINY, 30)
    logits = []
    for cpus in (None, CPUS[-1:]):
        runtime = _native.Runtime(1, PATHS[0], cpus)
        runner = Runner(
            TINY, tensors, backend=lambda *given, r=runtime: NativeKernels(*given, runtime=r)
        )
        runner.add("a", prompt)
        logits.append(runner.step({"a": 30})["a"])

        assert os.sched_getaffinity(0) == set(CPUS)

    np.testing.assert_array_equal(*logits)


@needs_two
def test_caller_is_on_the_first_cpu_while_it_computes() -> None:
    """A long step on the last CPU, watched from another thread."""
    runtime = _native.Runtime(1, PATHS[-1], CPUS[-1:])
    runner = Runner(
        TINY, random_tensors(TINY), backend=lambda *given: NativeKernels(*given, runtime=runtime)
    )
    runner.add("a", random_prompt(TINY, 300))
    step = runner.network._kernels.begin_step(runner.pack({"a": 300}), runner.kv)
    caller, stop, seen = threading.get_native_id(), threading.Event(), []

    def watch() -> None:
        while not stop.is_set():
            seen.append(frozenset(os.sched_getaffinity(caller)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(2_000):
        step.embed()
        step.finish()
        for layer in range(TINY.num_layers):
            step.norm_qkv_rope_write(layer, step.embed())
            step.finish()
        if frozenset(CPUS[-1:]) in seen:
            break
    stop.set()
    watcher.join()

    assert frozenset(CPUS[-1:]) in seen
    assert set(seen) <= {frozenset(CPUS[-1:]), frozenset(CPUS)}


def test_own_mask_of_the_process_is_heeded() -> None:
    os.sched_setaffinity(0, CPUS[-1:])
    try:
        assert make_runtime(pin=True).cpus == CPUS[-1:]
        with pytest.raises(ConfigError, match=rf"may use 1 \({CPUS[-1]}\): lower --threads"):
            make_runtime(2, pin=True)
    finally:
        os.sched_setaffinity(0, CPUS)


@needs_two
def test_backend_tells_where_its_threads_are() -> None:
    first, second = cpus_to_pin(2)

    name = choose_backend("native", 2, pin_threads=True).name
    assert name.endswith(f", 2 threads, pinned to CPU {first}, {second}")


@pytest.mark.parametrize(
    ("num_threads", "cpus", "words"),
    [
        (1, [], "one CPU for each thread"),
        (2, [0], "one CPU for each thread"),
        (1, [0, 1], "one CPU for each thread"),
        (1, [-1], r"does not give 1 threads on these CPUs \(.*\): take others"),
        (1, [1_023], "does not give 1 threads on these CPUs"),
        (1, [2**31 - 1], "does not give 1 threads on these CPUs"),
        (2, [CPUS[0] if CPUS else 0, 1_023], "does not give 2 threads on these CPUs"),
    ],
)
def test_cpus_that_cannot_be_are_refused(num_threads: int, cpus: list[int], words: str) -> None:
    with new_threads(), pytest.raises(ValueError, match=words):
        _native.Runtime(num_threads, None, cpus)


@pytest.mark.parametrize("cpus", [0, "0", [0.5], [None], [2**31], [2**70]])
def test_cpus_of_another_type_are_refused(cpus: object) -> None:
    with pytest.raises(TypeError):
        _native.Runtime(1, None, cpus)


def test_reference_kernels_refuse_to_pin() -> None:
    with pytest.raises(ConfigError, match=r"native kernels pin .*leave --pin-threads out"):
        choose_backend("reference", 1, pin_threads=True)
