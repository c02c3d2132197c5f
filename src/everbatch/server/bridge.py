"""The bridge between the event loop and the one thread that runs the engine.

Belongs here: handing requests and aborts to the engine, handing its tokens back, ending every
request exactly once. Not here: the thread (engine_thread.py), text, HTTP, what a step does. Used by
the routes, the metrics and the runner.

An abort takes effect between two steps; the loop has dropped the request by then, so that nothing
of it is seen any more.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from math import ceil

from everbatch.base import events
from everbatch.base.clock import Clock
from everbatch.base.events import Admitted
from everbatch.base.units import counted
from everbatch.engine.engine import Engine, EngineRequest, StepResult, TokenOutput
from everbatch.scheduler.admission import RejectReason
from everbatch.scheduler.request import FinishReason
from everbatch.server.engine_thread import Batch, EngineThread
from everbatch.server.errors import ApiError, unavailable
from everbatch.server.failed_steps import FailedSteps
from everbatch.server.inbox import Inbox
from everbatch.server.limits import LiveLimits
from everbatch.server.live import (
    EndCause,
    Ending,
    Failed,
    Finished,
    LiveRequest,
    LiveRequests,
    LiveSample,
    Receiver,
    Refused,
    TimedOut,
    Unserved,
)
from everbatch.server.metrics import ServerMetrics
from everbatch.server.progress import Progress
from everbatch.server.recent_events import RecentEvents
from everbatch.server.service_rate import MAX_RETRY_S
from everbatch.server.settings import ServerSettings
from everbatch.server.span_recorder import SpanRecorder
from everbatch.server.spans import SpanSink

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


class AsyncEngine:
    """The engine as the event loop sees it: submit, abort, and receivers that are called back.

    All methods belong to the event loop on which `start` was called.
    """

    def __init__(
        self,
        engine: Engine,
        metrics: ServerMetrics,
        clock: Clock,
        settings: ServerSettings,
        spans: SpanSink | None = None,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._inbox = Inbox(settings.max_pending_requests, MAX_BATCHES_UNREAD)
        self._live = LiveRequests()
        self.limits = LiveLimits(self._live, metrics, settings)
        self._idle = asyncio.Event()
        self._idle.set()
        self._hangs = False
        self.progress = Progress(clock, settings.step_timeout_s)
        self._failed_steps = FailedSteps(clock)
        self._thread = EngineThread(engine, self._inbox, self.progress, self._deliver, self._die)
        self.metrics = metrics
        self._spans = SpanRecorder(metrics.model_name, spans)
        self.config = engine.config
        self.recent_events = RecentEvents(engine.config)
        self.stats = engine.stats()
        self.state = EngineState.NEW

    # On the event loop.

    def start(self) -> None:
        """Start the engine thread; its batches go to the loop that runs now."""
        assert self.state is EngineState.NEW
        self.state = EngineState.RUNNING
        self._thread.start(asyncio.get_running_loop())

    def submit(
        self,
        requests: Sequence[tuple[EngineRequest, Sequence[Receiver]]],
        max_total_s: float | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> None:
        """Hand requests over, all or none, each with a receiver for every sample; raises ApiError
        503 when they cannot be taken now, 429 when there are enough of them.

        What has not ended after `max_total_s` ends as TimedOut. A refusal by the engine comes
        later, as the receivers' ending. Ids must be new.
        """
        self.check_accepting()
        now_ns = self._clock.now_ns()
        self.limits.check([request for request, _ in requests], now_ns)
        if not self._inbox.put_adds([request for request, _ in requests]):
            raise unavailable(
                f"{self._inbox.max_adds} requests already wait to be handed to the engine: "
                "try again in a moment",
                "server_overloaded",
            )
        for request, receivers in requests:
            live = LiveRequest(
                request.id,
                request.num_prompt_tokens,
                now_ns,
                tenant=request.tenant,
                num_samples=request.n,
                max_tokens=request.sampling.max_tokens,
                trace=self._spans.begin(request, trace_headers or {}),
            )
            self._live.add(live, zip(request.sample_ids, receivers, strict=True))
            if max_total_s is not None:
                self._live.limit(live, max_total_s)
        self._idle.clear()

    def check_alive(self) -> None:
        """Raise ApiError 503 if only a new process can help."""
        if self.state is EngineState.DEAD:
            raise unavailable("the engine has failed and must be restarted", "engine_dead")

    def check_accepting(self) -> None:
        """Raise ApiError 503 unless new requests are taken and the engine makes progress."""
        self.check_alive()
        if self.state is not EngineState.RUNNING:
            # Whoever balances load shall send the client's next request somewhere else.
            raise unavailable("the server is shutting down", "shutting_down", closes=True)
        hung_s = self.progress.hung_s()
        if hung_s is not None:
            raise _hangs(hung_s)

    def check_ready(self) -> None:
        """Raise ApiError 503 unless new requests are taken and most likely answered."""
        self.check_accepting()
        num_failed = self._failed_steps.many()
        if num_failed is not None:
            told = f"the last {num_failed:,} steps failed; why is in the server's log"
            raise unavailable(told, "steps_fail")

    def look(self) -> None:
        """See what the engine does not tell; to be called again and again.

        Whose time is over ends. If the engine hangs in a step, those who wait are told; who runs is
        left alone: its answer goes on if the step comes back.
        """
        self._end_overdue(self._clock.now_ns())
        hung_s = self.progress.hung_s()
        if hung_s is None:
            if self._hangs:
                logger.warning("the engine makes progress again")
            self._hangs = False
            return
        waiting = [one for one in self._live.requests() if one.admitted_ns is None]
        if not self._hangs:
            logger.error("%s: %s", _hang_text(hung_s), _waiting_text(len(waiting)))
        self._hangs = True
        for request in waiting:
            self._cut(request, Unserved(_hang_text(hung_s), "engine_hangs"), EndCause.HANG)

    def abort(
        self, request_id: str, reason: FinishReason, cause: EndCause = EndCause.CLIENT
    ) -> None:
        """End a live request, or one sample of it, without calling its receivers; otherwise do
        nothing. `cause` is counted if the reason is ABORT."""
        samples = self._live.named(request_id)
        if samples:
            self._inbox.put_abort(request_id, reason)
        for sample in samples:
            self._forget(sample, reason, cause)

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
        for request in self._live.requests():
            self._cut(request, Finished(FinishReason.ABORT), EndCause.SHUTDOWN)

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
        await self._thread.join(THREAD_JOIN_S)
        if self.state is not EngineState.DEAD:
            self.state = EngineState.STOPPED

    # Called for the engine thread.

    def _deliver(self, batch: Batch) -> None:
        self._inbox.batch_read()
        self.stats = batch.stats
        self.metrics.fold_stats(batch.stats)
        for request_id, refused in batch.refused:
            self._refuse(request_id, refused)
        if batch.result is not None:
            self._deliver_result(batch.result)
            self._end_overdue(self._clock.now_ns())

    def _deliver_result(self, result: StepResult) -> None:
        now_ns = self._clock.now_ns()
        self.metrics.fold_events(result.events, now_ns)
        self.recent_events.add(result.events)
        self._spans.note(result.events, self._live)
        self._tell_admissions(result)
        stopped = {
            request_id for request_id, reason in result.finished if reason is FinishReason.STOP
        }
        for output in result.outputs:
            sample = self._live.sample(output.request_id)
            if sample is not None:
                self._push(sample, output, now_ns, output.request_id in stopped)
        if result.plan is not None or result.error is not None:
            self._failed_steps.note(failed=result.error is not None)
        if result.error is not None and any(
            isinstance(event, events.StepFailed) for event in result.events
        ):
            logger.error("a step failed and is tried again in parts: %s", result.error)
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
                    sample.request.admitted_ns = event.t
                    sample.request.num_cached_tokens = event.cached_tokens
                    self.metrics.observe_admission(sample.request)
                    sample.receiver.admitted(event.cached_tokens)

    def _push(
        self, sample: LiveSample, output: TokenOutput, now_ns: int, is_stop_token: bool
    ) -> None:
        self.metrics.observe_token(sample, now_ns)
        sample.note_token(now_ns)
        try:
            sample.receiver.push(output, is_stop_token=is_stop_token)
        except Exception:  # The request's border: one bad text must not end the others.
            logger.exception("request %s: a token could not be turned into text", sample.id)
            self._inbox.put_abort(sample.id, FinishReason.ERROR)
            self._end(sample, Failed("a token could not be turned into text"))

    def _end(self, sample: LiveSample, ending: Ending, cause: EndCause = EndCause.SHUTDOWN) -> None:
        """End a sample that is live, and tell its receiver."""
        if self._live.sample(sample.id) is not sample:
            # Ending another sample of its answer was one text too many for a slow client.
            return
        match ending:
            case Finished(reason):
                self._forget(sample, reason, cause)
            case Refused():
                if self._live.remove(sample):
                    why = ending.rejection.reason.value
                    self._spans.end(sample.request, self._clock.now_ns(), refused=why)
            case TimedOut() | Unserved():
                self._forget(sample, FinishReason.ABORT, cause)
            case Failed():
                self._forget(sample, FinishReason.ERROR, cause)
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
            retry_s = self.metrics.queue_retry_s(refused.rejection, self._clock.now_ns())
            refused = replace(refused, retry_after_s=retry_s)
        for sample in samples:
            self._end(sample, refused)
        self._note_idle()

    def _forget(self, sample: LiveSample, reason: FinishReason, cause: EndCause) -> None:
        """Take a sample out; with the last one its request has ended."""
        request = sample.request
        if request.reason is None or request.reason in _WHOLE:
            request.reason = reason
            request.cause = cause
        if not self._live.remove(sample):
            return
        now_ns = self._clock.now_ns()
        self.metrics.fold_request(request, now_ns)
        self._spans.end(request, now_ns)
        self._note_idle()

    def _end_overdue(self, now_ns: int) -> None:
        for request, limit_s in self._live.take_overdue(now_ns):
            self._cut(request, TimedOut(limit_s), EndCause.DEADLINE)

    def _cut(self, request: LiveRequest, ending: Ending, cause: EndCause) -> None:
        """End a whole request before its end, and tell its receivers."""
        self._inbox.put_abort(request.id, FinishReason.ABORT)
        for sample in list(request.samples.values()):
            self._end(sample, ending, cause)

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


def _hangs(hung_s: float) -> ApiError:
    # Nobody knows when it comes back; who asks twice as late each time does not ask often.
    retry_s = min(ceil(hung_s), MAX_RETRY_S)
    return unavailable(_hang_text(hung_s), "engine_hangs", retry_after_s=retry_s)


def _hang_text(hung_s: float) -> str:
    return f"the engine has been in one step for {hung_s:.1f} s"


def _waiting_text(num_waiting: int) -> str:
    if not num_waiting:
        return "nobody waits, new requests get 503 (--step-timeout)"
    return f"{counted(num_waiting, 'request')} waiting for it, and new ones, get 503"
