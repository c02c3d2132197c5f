"""Threads share tasks; whatever happens, `run` returns when all have ended."""

import threading

import pytest

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


def test_a_thread_that_fell_asleep_is_woken():
    workers = Workers(2)
    asleep = threading.Event()
    # Far longer than a thread looks for work before it sleeps; nothing depends on the time itself.
    asleep.wait(0.05)
    ran = []
    workers.run([lambda: ran.append(0), lambda: ran.append(1)])

    assert sorted(ran) == [0, 1]


def test_threads_end_with_their_workers():
    before = set(threading.enumerate())
    workers = Workers(3)
    started = set(threading.enumerate()) - before
    del workers
    for thread in started:
        thread.join(timeout=60)

    assert len(started) == 2
    assert not any(thread.is_alive() for thread in started)
