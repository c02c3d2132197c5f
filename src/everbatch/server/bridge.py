"""The bridge between the event loop and the one thread that runs the engine.

Belongs here: handing requests and aborts to the engine, handing its tokens back, ending every
request exactly once. Not here: text, HTTP, what a step does. Used by the routes, the metrics and
the runner.

The thread takes what the loop left in the inbox, runs one step and sends one batch back: one wake
of the loop a step, not one a token. An abort takes effect between two steps; the loop has dropped
the request by then, so that nothing of it is seen any more.
"""

import asyncio
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from everbatch.base.clock import Clock
from everbatch.base.events import Admitted
from everbatch.engine.engine import Engine, EngineRequest, StepResult, TokenOutput
from everbatch.engine.metrics import EngineStats
from everbatch.scheduler.admission import Rejection
from everbatch.scheduler.request import FinishReason
from everbatch.server.errors import unavailable
from everbatch.server.inbox import Inbox, Mail
from everbatch.server.metrics import ServerMetrics

logger = logging.getLogger("everbatch.server")

# Steps that the engine may run ahead of an event loop that is busy; then it waits.
MAX_BATCHES_UNREAD = 8
THREAD_JOIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Finished:
    """The request ended in the engine's own way."""

    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine would not take the request."""

    rejection: Rejection


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine broke; `message` is for the client."""

    message: str


Ending = Finished | Refused | Failed


class Receiver(Protocol):
    """Whoever waits for a request's tokens. Called on the event loop, in order; must not block."""

    def push(self, output: TokenOutput, *, is_stop_token: bool) -> None:
        """Take one token; `is_stop_token`: it ended the request and is no text."""
        ...

    def end(self, ending: Ending) -> None:
        """Learn how it ended. Called once, and last, unless the receiver aborted."""
        ...


class EngineState(Enum):
    NEW = "new"
    RUNNING = "running"
    DRAINING = "draining"
    DEAD = "dead"
    STOPPED = "stopped"


@dataclass(slots=True)
class _Live:
    """A request between submission and its end, with what the metrics need."""

    receiver: Receiver
    num_prompt_tokens: int
    arrival_ns: int
    last_token_ns: int | None = None
    num_output_tokens: int = 0


@dataclass(slots=True)
class _Batch:
    """All that one turn of the engine thread brought."""

    rejections: list[tuple[str, Rejection]]
    result: StepResult | None
    stats: EngineStats


class AsyncEngine:
    """The engine as the event loop sees it: submit, abort, and receivers that are called back.

    All methods belong to the event loop on which `start` was called.
    """

    def __init__(
        self,
        engine: Engine,
        metrics: ServerMetrics,
        clock: Clock,
        *,
        max_pending_requests: int,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._inbox = Inbox(max_pending_requests, MAX_BATCHES_UNREAD)
        self._live: dict[str, _Live] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._loop: asyncio.AbstractEventLoop | None = None
        # A daemon, so that a step that never returns cannot keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="everbatch-engine", daemon=True)
        self.metrics = metrics
        self.config = engine.config
        self.stats = engine.stats()
        self.state = EngineState.NEW

    # On the event loop.

    def start(self) -> None:
        """Start the engine thread; its batches go to the loop that runs now."""
        assert self.state is EngineState.NEW
        self._loop = asyncio.get_running_loop()
        self.state = EngineState.RUNNING
        self._thread.start()

    def submit(self, requests: Sequence[tuple[EngineRequest, Receiver]]) -> None:
        """Hand requests over, all or none; raises ApiError 503 when they cannot be taken now.

        A refusal by the engine comes later, as the receiver's ending. Ids must be new.
        """
        self.check_accepting()
        if not self._inbox.put_adds([request for request, _ in requests]):
            raise unavailable(
                f"{self._inbox.max_adds} requests already wait to be handed to the engine: "
                "try again in a moment",
                "server_overloaded",
            )
        now_ns = self._clock.now_ns()
        for request, receiver in requests:
            assert request.id not in self._live
            self._live[request.id] = _Live(receiver, request.num_prompt_tokens, now_ns)
        self._idle.clear()

    def check_accepting(self) -> None:
        """Raise ApiError 503 unless new requests are taken."""
        if self.state is EngineState.DEAD:
            raise unavailable("the engine has failed and must be restarted", "engine_dead")
        if self.state is not EngineState.RUNNING:
            raise unavailable("the server is shutting down", "shutting_down")

    def abort(self, request_id: str, reason: FinishReason) -> None:
        """End a live request without calling its receiver; otherwise do nothing."""
        live = self._live.get(request_id)
        if live is None:
            return
        self._inbox.put_abort(request_id, reason)
        self._forget(request_id, live, reason)

    @property
    def num_live(self) -> int:
        """Requests between their submission and their end."""
        return len(self._live)

    def max_output_tokens(self, num_prompt_tokens: int) -> int:
        """Give what max_model_len and the pool leave for outputs; below 1: there is no room."""
        return self._engine.max_output_tokens(num_prompt_tokens)

    def begin_drain(self) -> None:
        """Take no new requests from now on; those that run go on."""
        if self.state is EngineState.RUNNING:
            self.state = EngineState.DRAINING

    async def wait_idle(self) -> None:
        """Return when no request is live."""
        await self._idle.wait()

    def abort_all(self) -> None:
        """End every live request with reason abort; the receivers are told."""
        for request_id in list(self._live):
            self._inbox.put_abort(request_id, FinishReason.ABORT)
            self._end(request_id, Finished(FinishReason.ABORT))

    def abandon(self) -> None:
        """End what is live; do not wait for the step that runs."""
        self.abort_all()
        self._inbox.close()
        self.state = EngineState.STOPPED

    async def stop(self) -> None:
        """End what is live and wait, within a bound, for the thread to end."""
        if self.state is EngineState.STOPPED:
            return
        self.begin_drain()
        self.abort_all()
        self._inbox.close()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, THREAD_JOIN_S)
        if self._thread.is_alive():
            logger.error("the engine is still in a step after %g s; leaving it", THREAD_JOIN_S)
        if self.state is not EngineState.DEAD:
            self.state = EngineState.STOPPED

    # On the engine thread.

    def _run(self) -> None:
        try:
            while (mail := self._inbox.take(wait=not self._engine.has_work)) is not None:
                self._post(self._turn(mail))
            self._tell_last_aborts()
        except Exception as error:  # The thread's border: its requests are ended, then it exits.
            logger.critical("the engine thread has died", exc_info=True)
            self._post(error)

    def _turn(self, mail: Mail) -> _Batch:
        for request_id, reason in mail.aborts:
            self._engine.abort(request_id, reason)
        rejections: list[tuple[str, Rejection]] = []
        for request in mail.adds:
            rejection = self._engine.add(request)
            if rejection is not None:
                rejections.append((request.id, rejection))
        result = self._engine.step(self._inbox.take_aborts) if self._engine.has_work else None
        return _Batch(rejections, result, self._engine.stats())

    def _tell_last_aborts(self) -> None:
        """Let the engine, and its event log, know how its last requests ended."""
        for request_id, reason in self._inbox.take_aborts():
            self._engine.abort(request_id, reason)
        if self._engine.has_work:
            self._engine.step()

    def _post(self, news: _Batch | Exception) -> None:
        assert self._loop is not None
        try:
            if isinstance(news, Exception):
                self._loop.call_soon_threadsafe(self._die, news)
            else:
                self._loop.call_soon_threadsafe(self._deliver, news)
        except RuntimeError:
            # The loop is closed: the server went away without waiting, nobody listens.
            self._inbox.close()

    # On the event loop again.

    def _deliver(self, batch: _Batch) -> None:
        self._inbox.batch_read()
        self.stats = batch.stats
        self.metrics.fold_stats(batch.stats)
        for request_id, rejection in batch.rejections:
            self._end(request_id, Refused(rejection))
        if batch.result is None:
            return
        self._deliver_result(batch.result)

    def _deliver_result(self, result: StepResult) -> None:
        now_ns = self._clock.now_ns()
        self._observe_queue_times(result)
        stopped = {
            request_id for request_id, reason in result.finished if reason is FinishReason.STOP
        }
        for output in result.outputs:
            live = self._live.get(output.request_id)
            if live is not None:
                self._push(live, output, now_ns, output.request_id in stopped)
        if result.error is not None:
            logger.error("a step failed, its requests end: %s", result.error)
        for request_id, reason in result.finished:
            if reason is FinishReason.ERROR and result.error is not None:
                self._end(request_id, Failed(f"the step failed: {result.error}"))
            else:
                self._end(request_id, Finished(reason))

    def _observe_queue_times(self, result: StepResult) -> None:
        for event in result.events:
            if isinstance(event, Admitted) and not event.resumed:
                live = self._live.get(event.id)
                if live is not None:
                    self.metrics.queue_time.observe((event.t - live.arrival_ns) * 1e-9)

    def _push(self, live: _Live, output: TokenOutput, now_ns: int, is_stop_token: bool) -> None:
        if live.last_token_ns is None:
            self.metrics.time_to_first_token.observe((now_ns - live.arrival_ns) * 1e-9)
        else:
            self.metrics.inter_token_latency.observe((now_ns - live.last_token_ns) * 1e-9)
        live.last_token_ns = now_ns
        live.num_output_tokens += 1
        try:
            live.receiver.push(output, is_stop_token=is_stop_token)
        except Exception:  # The request's border: one bad text must not end the others.
            logger.exception("request %s: a token could not be turned into text", output.request_id)
            self._inbox.put_abort(output.request_id, FinishReason.ERROR)
            self._end(output.request_id, Failed("a token could not be turned into text"))

    def _end(self, request_id: str, ending: Ending) -> None:
        live = self._live.get(request_id)
        if live is None:
            return
        match ending:
            case Finished(reason):
                self._forget(request_id, live, reason)
            case Refused(rejection):
                self._remove(request_id)
                self.metrics.count_rejection(rejection.reason.value)
            case Failed():
                self._forget(request_id, live, FinishReason.ERROR)
        try:
            live.receiver.end(ending)
        except Exception:  # The request's border, as above; its writer is told by `end` or not.
            logger.exception("request %s: could not be ended", request_id)

    def _forget(self, request_id: str, live: _Live, reason: FinishReason) -> None:
        self._remove(request_id)
        self.metrics.fold_request(
            reason.value,
            e2e_s=(self._clock.now_ns() - live.arrival_ns) * 1e-9,
            num_prompt_tokens=live.num_prompt_tokens,
            num_output_tokens=live.num_output_tokens,
        )

    def _remove(self, request_id: str) -> None:
        del self._live[request_id]
        if not self._live:
            self._idle.set()

    def _die(self, error: Exception) -> None:
        self.state = EngineState.DEAD
        self._inbox.close()
        self.stats = replace(self.stats, num_running=0, num_waiting=0)
        self.metrics.fold_stats(self.stats)
        for request_id in list(self._live):
            self._end(request_id, Failed(f"the engine failed: {type(error).__name__}"))
