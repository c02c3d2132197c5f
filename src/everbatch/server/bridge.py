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

from everbatch.base import events
from everbatch.base.clock import Clock
from everbatch.base.events import Admitted
from everbatch.base.units import NS_PER_S, div_ceil
from everbatch.engine.engine import Engine, EngineRequest, StepResult, TokenOutput
from everbatch.engine.metrics import EngineStats
from everbatch.scheduler.admission import Rejection, RejectReason
from everbatch.scheduler.request import FinishReason
from everbatch.server.errors import unavailable
from everbatch.server.inbox import Inbox, Mail
from everbatch.server.live import (
    Ending,
    Failed,
    Finished,
    LiveRequest,
    LiveRequests,
    LiveSample,
    Receiver,
    Refused,
)
from everbatch.server.metrics import MIN_RETRY_S, ServerMetrics
from everbatch.server.recent_events import RecentEvents

logger = logging.getLogger("everbatch.server")

# Steps that the engine may run ahead of an event loop that is busy; then it waits.
MAX_BATCHES_UNREAD = 8
THREAD_JOIN_S = 10.0


class EngineState(Enum):
    NEW = "new"
    RUNNING = "running"
    DRAINING = "draining"
    DEAD = "dead"
    STOPPED = "stopped"


@dataclass(slots=True)
class _Batch:
    """All that one turn of the engine thread brought."""

    refused: list[tuple[str, Refused]]
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
        self._live = LiveRequests()
        self._idle = asyncio.Event()
        self._idle.set()
        self._loop: asyncio.AbstractEventLoop | None = None
        # A daemon, so that a step that never returns cannot keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="everbatch-engine", daemon=True)
        self.metrics = metrics
        self.config = engine.config
        self.recent_events = RecentEvents(engine.config)
        self.stats = engine.stats()
        self.state = EngineState.NEW

    # On the event loop.

    def start(self) -> None:
        """Start the engine thread; its batches go to the loop that runs now."""
        assert self.state is EngineState.NEW
        self._loop = asyncio.get_running_loop()
        self.state = EngineState.RUNNING
        self._thread.start()

    def submit(self, requests: Sequence[tuple[EngineRequest, Sequence[Receiver]]]) -> None:
        """Hand requests over, all or none, each with a receiver for every sample; raises ApiError
        503 when they cannot be taken now.

        A refusal by the engine comes later, as the receivers' ending. Ids must be new.
        """
        self.check_accepting()
        if not self._inbox.put_adds([request for request, _ in requests]):
            raise unavailable(
                f"{self._inbox.max_adds} requests already wait to be handed to the engine: "
                "try again in a moment",
                "server_overloaded",
            )
        now_ns = self._clock.now_ns()
        for request, receivers in requests:
            live = LiveRequest(request.id, request.num_prompt_tokens, now_ns)
            self._live.add(live, zip(request.sample_ids, receivers, strict=True))
        self._idle.clear()

    def check_accepting(self) -> None:
        """Raise ApiError 503 unless new requests are taken."""
        if self.state is EngineState.DEAD:
            raise unavailable("the engine has failed and must be restarted", "engine_dead")
        if self.state is not EngineState.RUNNING:
            raise unavailable("the server is shutting down", "shutting_down")

    def abort(self, request_id: str, reason: FinishReason) -> None:
        """End a live request, or one sample of it, without calling its receivers; otherwise do
        nothing."""
        samples = self._live.named(request_id)
        if samples:
            self._inbox.put_abort(request_id, reason)
        for sample in samples:
            self._forget(sample, reason)

    @property
    def num_live(self) -> int:
        """Requests between their submission and their end."""
        return self._live.num_requests

    def max_output_tokens(self, num_prompt_tokens: int, n: int) -> int:
        """Give what max_model_len and the pool leave for outputs; below 1: there is no room."""
        return self._engine.max_output_tokens(num_prompt_tokens, n)

    def begin_drain(self) -> None:
        """Take no new requests from now on; those that run go on."""
        if self.state is EngineState.RUNNING:
            self.state = EngineState.DRAINING

    async def wait_idle(self) -> None:
        """Return when no request is live."""
        await self._idle.wait()

    def abort_all(self) -> None:
        """End every live request with reason abort; the receivers are told."""
        for request_id in self._live.request_ids():
            self._inbox.put_abort(request_id, FinishReason.ABORT)
        self._end_all(Finished(FinishReason.ABORT))

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
        refused: list[tuple[str, Refused]] = []
        for request in mail.adds:
            rejection = self._engine.add(request)
            if rejection is not None:
                refused.append((request.id, self._refused(request, rejection)))
        result = self._engine.step(self._inbox.take_aborts) if self._engine.has_work else None
        return _Batch(refused, result, self._engine.stats())

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
        for request_id, refused in batch.refused:
            self._refuse(request_id, refused)
        if batch.result is None:
            return
        self._deliver_result(batch.result)

    def _deliver_result(self, result: StepResult) -> None:
        now_ns = self._clock.now_ns()
        self.metrics.fold_events(result.events)
        self.recent_events.add(result.events)
        self._tell_admissions(result)
        stopped = {
            request_id for request_id, reason in result.finished if reason is FinishReason.STOP
        }
        for output in result.outputs:
            sample = self._live.sample(output.request_id)
            if sample is not None:
                self._push(sample, output, now_ns, output.request_id in stopped)
        if result.error is not None:
            logger.error("a step failed, its requests end: %s", result.error)
        else:
            self._log_failures(result)
        for request_id, reason in result.finished:
            # A request with several samples has ended with the last of them.
            sample = self._live.sample(request_id)
            if sample is None:
                continue
            if reason is FinishReason.ERROR and result.error is not None:
                self._end(sample, Failed(f"the step failed: {result.error}"))
            else:
                self._end(sample, Finished(reason))

    def _log_failures(self, result: StepResult) -> None:
        """Say why single requests failed, while the others of the step went on."""
        for event in result.events:
            if isinstance(event, events.Finished) and event.message is not None:
                logger.error("request %s failed: %s", event.id, event.message)

    def _tell_admissions(self, result: StepResult) -> None:
        for event in result.events:
            # The sample that computes the prompt speaks for all.
            if isinstance(event, Admitted) and not event.resumed and event.prompt_tokens:
                sample = self._live.sample(event.id)
                if sample is not None:
                    self.metrics.observe_admission(sample.request, event.t)
                    sample.receiver.admitted(event.cached_tokens)

    def _push(
        self, sample: LiveSample, output: TokenOutput, now_ns: int, is_stop_token: bool
    ) -> None:
        request = sample.request
        self.metrics.observe_token(sample, now_ns)
        sample.last_token_ns = now_ns
        request.num_output_tokens += 1
        try:
            sample.receiver.push(output, is_stop_token=is_stop_token)
        except Exception:  # The request's border: one bad text must not end the others.
            logger.exception("request %s: a token could not be turned into text", sample.id)
            self._inbox.put_abort(sample.id, FinishReason.ERROR)
            self._end(sample, Failed("a token could not be turned into text"))

    def _end(self, sample: LiveSample, ending: Ending) -> None:
        """End a sample that is live, and tell its receiver."""
        match ending:
            case Finished(reason):
                self._forget(sample, reason)
            case Refused():
                self._live.remove(sample)
            case Failed():
                self._forget(sample, FinishReason.ERROR)
        try:
            sample.receiver.end(ending)
        except Exception:  # The request's border, as above; its writer is told by `end` or not.
            logger.exception("request %s: could not be ended", sample.id)

    def _refuse(self, request_id: str, refused: Refused) -> None:
        samples = self._live.named(request_id)
        if not samples:
            return
        reason = refused.rejection.reason
        self.metrics.count_rejection(reason.value)
        if reason is RejectReason.QUEUE_FULL:
            refused = replace(refused, retry_after_s=self.metrics.queue_retry_s())
        for sample in samples:
            self._end(sample, refused)
        self._note_idle()

    def _forget(self, sample: LiveSample, reason: FinishReason) -> None:
        """Take a sample out; with the last one its request has ended."""
        request = sample.request
        if request.reason is None or request.reason in _WHOLE:
            request.reason = reason
        if not self._live.remove(sample):
            return
        self.metrics.fold_request(
            request.reason.value,
            e2e_s=(self._clock.now_ns() - request.arrival_ns) / NS_PER_S,
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=request.num_output_tokens,
        )
        self._note_idle()

    def _end_all(self, ending: Ending) -> None:
        for sample in self._live.samples():
            self._end(sample, ending)

    def _note_idle(self) -> None:
        if not self._live.num_requests:
            self._idle.set()

    def _die(self, error: Exception) -> None:
        self.state = EngineState.DEAD
        self._inbox.close()
        self.stats = replace(self.stats, num_running=0, num_waiting=0)
        self.metrics.fold_stats(self.stats)
        self.metrics.forget_waiting()
        self._end_all(Failed(f"the engine failed: {type(error).__name__}"))


_WHOLE = (FinishReason.STOP, FinishReason.LENGTH)
