"""Threads that share the work of one operation.

Belongs here: handing pieces to threads and waiting for them. Not here: how work is cut into pieces.
Used by the reference backend.

BLAS libraries have threads of their own, which wait for each other in a busy loop without end:
where anything else runs on a core, such as the server's event loop, a step of 32 decodes took 0.78
to 2.53 s with them and 0.29 to 0.67 s with these (docs/lab-log.md). So BLAS is told to use one
thread, and the products are cut here. A thread that has nothing to do looks for work a little
longer, as handing work to one that sleeps costs 90 us, and then sleeps.
"""

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import TypeVar

from threadpoolctl import ThreadpoolController

from everbatch.base.errors import ConfigError
from everbatch.kernels.cores import usable_cpus

Task = Callable[[], None]
Item = TypeVar("Item")

LOOKING_S = 0.0005
"""How long a thread looks for the next piece before it sleeps: as long as the longest piece of a
small step takes (60 to 500 us). So hardly anybody sleeps within a step, and between two little is
lost."""


class Workers:
    """`num_threads` threads, the caller's own among them; None: one for each core we may
    use, or what OPENBLAS_NUM_THREADS says. ConfigError where the system does not give them.

    Sets the threads of this process's BLAS, to one unless told otherwise. Tasks of one `run` must
    not touch the same memory, and must spend their time where Python's lock is released, as numpy's
    loops do. One caller at a time.
    """

    def __init__(self, num_threads: int | None = None, *, looking_s: float = LOOKING_S) -> None:
        """looking_s: how long a thread looks for the next piece before it sleeps."""
        self.num_threads = num_threads or _default_threads(os.environ)
        self._looking_s = looking_s
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._tasks: list[SimpleQueue[Task | None]] = []
        self._blas = ThreadpoolController().select(user_api="blas").lib_controllers
        self.blas_shares = True
        self.let_blas_share(False)
        try:
            self._start_threads()
        except RuntimeError as error:
            _end(self._tasks)
            raise ConfigError(
                f"the system does not give {self.num_threads:,} threads ({error}): take fewer"
            ) from error
        # The threads know nothing of this object, so that they can end when it is no longer used.
        # When the process ends they are daemons: nothing is left to be done then.
        weakref.finalize(self, _end, self._tasks).atexit = False

    def let_blas_share(self, shares: bool) -> None:
        """Let BLAS use as many threads itself as there are here, or one."""
        if shares != self.blas_shares:
            self.blas_shares = shares
            for library in self._blas:
                library.set_num_threads(self.num_threads if shares else 1)

    def run(self, tasks: Sequence[Task]) -> None:
        """Run all tasks, dealt out in turn to the threads; returns when all are done.

        Raises what a task raised, after all have ended.
        """
        for number, task in enumerate(tasks):
            if number % self.num_threads:
                self._tasks[number % self.num_threads - 1].put(task)
        own = [_problem_of(task) for task in tasks[:: self.num_threads]]
        others = [_soon(self._done, self._looking_s) for _ in range(len(tasks) - len(own))]
        for problem in (*own, *others):
            if problem is not None:
                raise problem

    def _start_threads(self) -> None:
        for number in range(1, self.num_threads):
            tasks: SimpleQueue[Task | None] = SimpleQueue()
            self._tasks.append(tasks)
            # Daemons: they hold nothing that would have to be put in order at the end.
            name, arguments = f"everbatch-worker-{number}", (tasks, self._done, self._looking_s)
            threading.Thread(target=_work, args=arguments, name=name, daemon=True).start()


def _work(
    tasks: "SimpleQueue[Task | None]", done: "SimpleQueue[BaseException | None]", looking_s: float
) -> None:
    while (task := _soon(tasks, looking_s)) is not None:
        done.put(_problem_of(task))
        # A task holds arrays: nothing may keep them alive until the next one comes.
        del task


def _end(queues: "list[SimpleQueue[Task | None]]") -> None:
    """Let the threads behind the queues end."""
    for tasks in queues:
        tasks.put(None)


def _default_threads(environ: Mapping[str, str]) -> int:
    """Give the cores we may use, or fewer if the variables say so that users set for BLAS."""
    limits = [environ.get(name, "") for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")]
    wished = [int(limit) for limit in limits if limit.isdecimal() and int(limit) > 0]
    return min(len(usable_cpus()), *wished[:1], sys.maxsize)


def _problem_of(task: Task) -> BaseException | None:
    try:
        task()
    except BaseException as problem:  # A thread's border: `run` raises it.
        return problem
    return None


def _soon(queue: "SimpleQueue[Item]", looking_s: float) -> Item:
    """Take the next item, which most likely comes at once."""
    give_up = time.perf_counter() + looking_s
    while queue.empty() and time.perf_counter() < give_up:
        time.sleep(0)  # Lets whoever else wants the core, or Python's lock, have it.
    return queue.get()
