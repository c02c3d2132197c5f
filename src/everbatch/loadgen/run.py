"""A run: sends each request when it is due, whatever became of those before.

Belongs here: pace, concurrency, retries, clients who leave, Ctrl-C. Not here: when requests are due
(schedule.py), bytes (connection.py), what an answer means (answer.py), figures (figures.py).

A request's latency counts from when it was due, not from when the generator got round to sending
it: else a server that stalls would be asked less while it does, and look better for it
("coordinated omission", G. Tene). Only a closed loop, so many clients and no rate, knows no due
time: there a request is due when a client is free.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from everbatch.base.units import NS_PER_S
from everbatch.loadgen.answer import AnswerReader
from everbatch.loadgen.calls import Call, Calls
from everbatch.loadgen.clock import Clock
from everbatch.loadgen.connection import AnswerCut, ConnectionPool
from everbatch.loadgen.records import Outcome, Record
from everbatch.workload.sources import RequestSource

NO_CONNECTION = "no connection"
TIMED_OUT = "timeout"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How requests are sent. Times in nanoseconds; None: without that limit."""

    max_concurrency: int | None = None
    is_closed: bool = False
    """So many clients send one after the other; needs max_concurrency."""
    num_retries: int = 0
    timeout_ns: int | None = None
    duration_ns: int | None = None
    """After so long clients of a closed loop send nothing more. Who is due by a rate or a trace is
    sent, however late: the source has its own end."""


class LoadRun:
    """One run over a source. `records` grows as requests are sent."""

    def __init__(
        self,
        source: RequestSource,
        calls: Calls,
        pool: ConnectionPool,
        settings: RunSettings,
        clock: Clock,
    ) -> None:
        self._source = source
        self._calls = calls
        self._pool = pool
        self._settings = settings
        self._clock = clock
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._broken: BaseException | None = None
        self._none_runs = asyncio.Event()
        limit = settings.max_concurrency
        self._slots = None if limit is None else asyncio.Semaphore(limit)
        self._free_ns = 0
        """When somebody who was held back last got a slot."""
        self.records: list[Record] = []
        self.num_ended = 0
        self.num_failed = 0
        self.num_tokens = 0
        """Outputs of requests that have ended."""
        self.is_interrupted = False
        self.start_ns = 0
        self.end_ns = 0
        self.cpu_ns = 0

    @property
    def num_requests(self) -> int | None:
        """How many requests there will be; None if nobody knows."""
        return self._source.num_requests

    @property
    def num_running(self) -> int:
        return len(self._tasks)

    async def run(self) -> None:
        """Send everything and wait for its end. Cancelled, as by Ctrl-C, it ends early: requests
        that live are then `UNFINISHED`."""
        self.start_ns = self._clock.now_ns()
        cpu_ns = self._clock.cpu_ns()
        try:
            await self._send_all()
            while self._tasks and self._broken is None:
                self._none_runs.clear()
                await self._none_runs.wait()
        except asyncio.CancelledError:
            self.is_interrupted = True
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._pool.close()
            self.end_ns = self._clock.now_ns()
            self.cpu_ns = self._clock.cpu_ns() - cpu_ns
        if self._broken is not None:
            raise self._broken

    async def _send_all(self) -> None:
        settings, clock = self._settings, self._clock
        while (arrival := self._source.peek()) is not None and self._broken is None:
            # Made before it is due: a long prompt takes milliseconds.
            spec = self._source.pop()
            call = self._calls.make(spec)
            due_ns = self.start_ns + arrival
            await clock.sleep_until(due_ns)
            held_ns = await self._take_slot(due_ns)
            if settings.is_closed:
                due_ns, held_ns = clock.now_ns(), 0
                if self._is_past(settings.duration_ns, due_ns):
                    return
            record = Record(len(self.records), due_ns, call.prompt_tokens, call.output_tokens)
            record.held_ns = held_ns
            self.records.append(record)
            task = asyncio.create_task(self._one(record, call))
            self._tasks[task] = None
            task.add_done_callback(self._ended)

    def _is_past(self, duration_ns: int | None, now_ns: int) -> bool:
        return duration_ns is not None and now_ns - self.start_ns >= duration_ns

    async def _take_slot(self, due_ns: int) -> int:
        """Wait until one more may run; gives how long that held a request back."""
        if self._slots is None:
            return 0
        if self._slots.locked():
            await self._slots.acquire()
            self._free_ns = self._clock.now_ns()
        else:
            await self._slots.acquire()
        return max(0, self._free_ns - due_ns)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self.num_ended += 1
        if self._slots is not None:
            self._slots.release()
        if not task.cancelled() and task.exception() is not None:
            self._broken = task.exception()
        if not self._tasks or self._broken is not None:
            self._none_runs.set()

    async def _one(self, record: Record, call: Call) -> None:
        """Carry out one request, again if it is refused and may be."""
        record.sent_ns = self._clock.now_ns()
        record.late_ns = max(0, record.sent_ns - record.due_ns - record.held_ns)
        for num_left in range(self._settings.num_retries, -1, -1):
            reader = AnswerReader(record, call.cancel_after)
            await self._attempt(record, reader, call)
            wait_s = reader.retry_after_s() if num_left else None
            if wait_s is None:
                break
            record.send_again()
            await self._clock.sleep_until(self._clock.now_ns() + round(wait_s * NS_PER_S))
        self.num_failed += record.outcome is Outcome.FAILED
        self.num_tokens += record.num_output_tokens

    async def _attempt(self, record: Record, reader: AnswerReader, call: Call) -> None:
        timeout_ns = self._settings.timeout_ns
        leave_ns = None if call.leave_ns is None else self.start_ns + call.leave_ns
        give_up_ns = None if timeout_ns is None else record.due_ns + timeout_ns
        ends = [time for time in (leave_ns, give_up_ns) if time is not None]
        try:
            exchange = self._pool.carry(call.message, reader)
            if not ends:
                await exchange
            elif not await self._until(min(ends), exchange):
                if leave_ns == min(ends):
                    reader.leave()
                else:
                    reader.fail(TIMED_OUT, "the answer took longer than --timeout")
        except OSError as error:
            reader.fail(NO_CONNECTION, str(error) or type(error).__name__)
        except AnswerCut as error:
            reader.cut(str(error))
        reader.finish(self._clock.now_ns())

    async def _until(self, time_ns: int, exchange: Coroutine[Any, Any, None]) -> bool:
        """Carry out an exchange unless that time comes first; gives whether it came to its end."""
        task = asyncio.ensure_future(exchange)
        timer = asyncio.ensure_future(self._clock.sleep_until(time_ns))
        try:
            await asyncio.wait((task, timer), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
                return True
            return False
        finally:
            task.cancel()
            timer.cancel()
            await asyncio.gather(task, timer, return_exceptions=True)


Watch = Callable[[LoadRun], Coroutine[Any, Any, None]]
"""Shows how far a run is, until it is cancelled."""


async def watched(run: LoadRun, watch: Watch | None) -> None:
    """Carry out a run while somebody looks on."""
    if watch is None:
        await run.run()
        return
    watching = asyncio.create_task(watch(run))
    try:
        await run.run()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
