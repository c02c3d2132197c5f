"""The thread that runs the engine.

Belongs here: taking the inbox, running a step, sending a batch to the event loop. Not here: what
the loop makes of it (bridge.py). Made and started by the bridge.

The thread takes what the loop left in the inbox, runs one step and sends one batch back: one wake
of the loop a step, not one a token.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from everbatch.base.units import NS_PER_S, div_ceil
from everbatch.engine.engine import Engine, EngineRequest, StepResult
from everbatch.engine.metrics import EngineStats
from everbatch.scheduler.admission import Rejection, RejectReason
from everbatch.server.inbox import Inbox, Mail
from everbatch.server.live import Refused
from everbatch.server.progress import Progress
from everbatch.server.service_rate import MIN_RETRY_S

logger = logging.getLogger("everbatch.server")


@dataclass(slots=True)
class Batch:
    """All that one turn of the engine thread brought."""

    refused: list[tuple[str, Refused]]
    result: StepResult | None
    stats: EngineStats


class EngineThread:
    """Runs an engine until its inbox is closed. `deliver` and `die` are called on the loop."""

    def __init__(
        self,
        engine: Engine,
        inbox: Inbox,
        progress: Progress,
        deliver: Callable[[Batch], None],
        die: Callable[[Exception], None],
    ) -> None:
        self._engine = engine
        self._inbox = inbox
        self._progress = progress
        self._deliver = deliver
        self._die = die
        self._loop: asyncio.AbstractEventLoop | None = None
        # A daemon, so that a step that never returns cannot keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="everbatch-engine", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start()

    async def join(self, limit_s: float) -> None:
        """Wait for the thread to end, but no longer than the limit."""
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, limit_s)
        if self._thread.is_alive():
            logger.error("the engine is still in a step after %g s; leaving it", limit_s)

    def _run(self) -> None:
        try:
            while (mail := self._inbox.take(wait=not self._engine.has_work)) is not None:
                self._progress.begin()
                batch = self._turn(mail)
                self._progress.end()
                self._post(batch)
            self._tell_last_aborts()
        except Exception as error:  # The thread's border: its requests are ended, then it exits.
            logger.critical("the engine thread has died", exc_info=True)
            self._progress.end()
            self._post(error)

    def _turn(self, mail: Mail) -> Batch:
        for request_id, reason in mail.aborts:
            self._engine.abort(request_id, reason)
        refused: list[tuple[str, Refused]] = []
        for request in mail.adds:
            rejection = self._engine.add(request)
            if rejection is not None:
                refused.append((request.id, self._refused(request, rejection)))
        result = self._engine.step(self._inbox.take_aborts) if self._engine.has_work else None
        return Batch(refused, result, self._engine.stats())

    def _refused(self, request: EngineRequest, rejection: Rejection) -> Refused:
        if rejection.reason is RejectReason.TENANT_RATE:
            wait_s = div_ceil(self._engine.tenant_wait_ns(request.tenant), NS_PER_S)
            return Refused(rejection, max(MIN_RETRY_S, wait_s))
        return Refused(rejection, None)

    def _tell_last_aborts(self) -> None:
        """Let the engine, and its event log, know how its last requests ended."""
        for request_id, reason in self._inbox.take_aborts():
            self._engine.abort(request_id, reason)
        if self._engine.has_work:
            self._engine.step()

    def _post(self, news: Batch | Exception) -> None:
        assert self._loop is not None
        try:
            if isinstance(news, Exception):
                self._loop.call_soon_threadsafe(self._die, news)
            else:
                self._loop.call_soon_threadsafe(self._deliver, news)
        except RuntimeError:
            # The loop is closed: the server went away without waiting, nobody listens.
            self._inbox.close()
