"""Threads share tasks; whatever happens, `run` returns when all have ended."""

import os
import threading

import pytest

from everbatch.base.errors import ConfigError
from everbatch.kernels.workers import Workers


@pytest.mark.parametrize("num_threads", [1, 2, 4])
@pytest.mark.parametrize("num_tasks", [0, 1, 2, 3, 4, 5, 17])
def test_every_task_runs_once(num_threads, num_tasks):
    ran = []
    Workers(num_threads).run([lambda n=n: ran.append(n) for n in range(num_tasks)])

    assert sorted(ran) == list(range(num_tasks))


def test_tasks_run_at_the_same_time():
    # Each waits for the other: one thread alone would never come back.
    meeting = threading.Barrier(2, timeout=60)
    Workers(2).run([meeting.wait, meeting.wait])

    assert not meeting.broken


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_is_raised_once_all_have_ended(failing):
    ran = []

    def task(number):
        if number == failing:
            raise MemoryError(f"task {number}")
        ran.append(number)

    workers = Workers(2)
    with pytest.raises(MemoryError, match=f"task {failing}"):
        workers.run([lambda n=n: task(n) for n in range(4)])

    assert sorted(ran) == [n for n in range(4) if n != failing]
    workers.run([lambda: ran.append(9)])
    assert ran[-1] == 9


@pytest.mark.parametrize("looking_s", [0.0, 60.0])
def test_a_thread_is_woken_whether_it_sleeps_at_once_or_looks_for_ever(looking_s):
    workers = Workers(2, looking_s=looking_s)
    ran = []
    for step in range(20):
        workers.run([lambda: ran.append(0), lambda: ran.append(1)])

        assert sorted(ran) == [0] * (step + 1) + [1] * (step + 1)


def test_cores_are_counted_where_the_system_tells_no_affinity(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)

    assert Workers().num_threads == 3


@pytest.mark.parametrize(
    ("environment", "num_threads"),
    [
        ({"OPENBLAS_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "2"}, 2),
        ({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "2"}, 1),
        ({"OPENBLAS_NUM_THREADS": "64"}, 4),
        ({"OPENBLAS_NUM_THREADS": "0"}, 4),
        ({"OPENBLAS_NUM_THREADS": "all"}, 4),
        ({}, 4),
    ],
)
def test_the_environment_may_ask_for_fewer_threads(monkeypatch, environment, num_threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert Workers().num_threads == num_threads


def test_threads_end_with_their_workers():
    before = set(threading.enumerate())
    workers = Workers(3)
    started = set(threading.enumerate()) - before
    del workers
    for thread in started:
        thread.join(timeout=60)

    assert len(started) == 2
    assert not any(thread.is_alive() for thread in started)


def test_more_threads_than_the_system_gives_are_refused_and_none_is_left(monkeypatch):
    start, started = threading.Thread.start, []

    def start_two(thread):
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    with pytest.raises(ConfigError, match=r"does not give 1,024 threads .*: take fewer"):
        Workers(1024)
    for thread in started:
        thread.join(timeout=60)

    assert not any(thread.is_alive() for thread in started)
