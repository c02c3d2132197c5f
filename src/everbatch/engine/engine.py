"""One engine around one scheduler: add, abort, step.

Pure: the clock and the executor are handed in, nothing here blocks, waits or knows threads. The
same Engine serves real traffic and simulates. Callers: server.bridge (a thread), llm (a loop).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from everbatch.base.clock import Clock
from everbatch.base.errors import ExecutorError
from everbatch.base.events import Event, Finished, SampleFinished, StepsRan
from everbatch.base.sample_ids import sample_ids
from everbatch.engine.executor import EmittedTokens, Executor, TokenLogprobs
from everbatch.engine.metrics import EngineMetrics, EngineStats
from everbatch.engine.sampling_params import SamplingParams
from everbatch.scheduler.admission import (
    Rejection,
    most_output_tokens,
    queue_refusal,
    refusal,
)
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.leap import Runner
from everbatch.scheduler.plan import StepOutcome, StepPlan
from everbatch.scheduler.request import FinishReason, Request
from everbatch.scheduler.scheduler import NothingToRun, Scheduler

# Asking the enumeration takes ten times as long.
_REASONS = {reason.value: reason for reason in FinishReason}

AbortInbox = Callable[[], Iterable[tuple[str, FinishReason]]]


class EventSink(Protocol):
    """Whoever keeps the events of an engine; called after every step, must not raise."""

    def __call__(self, events: Sequence[Event], *, is_idle: bool) -> None: ...


@dataclass(slots=True)
class EngineRequest:
    """A request as a client's side hands it in. With n > 1 its samples are "ID/0", "ID/1", …

    `prompt_token_ids` is whatever the executor takes (the model executor: a numpy int32 array); the
    core only needs its length.
    """

    id: str
    prompt_token_ids: object
    num_prompt_tokens: int
    sampling: SamplingParams
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    n: int = 1
    """Samples that share the prompt."""
    deadline_ns: int | None = None
    """The last moment, on the engine's clock, at which its first step may be planned."""
    arrival_number: int = 0
    """Given by the engine: the position among all accepted requests."""
    max_tokens: int = 0
    """Given by the engine: what the client asked for, or what the limits leave."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Filled by the executor, if asked for: of each prompt token but the first. All are there when
    the first output is."""
    executor_state: dict[int, object] = field(default_factory=dict)
    """What the executor remembers of each sample while it holds no slot."""

    @property
    def sample_ids(self) -> list[str]:
        """The ids under which its tokens come."""
        return sample_ids(self.id, self.n)


@dataclass(slots=True)
class TokenOutput:
    """One new token of one request."""

    request_id: str
    token_id: int
    logprobs: TokenLogprobs | None


@dataclass(slots=True)
class StepResult:
    """What a call of `Engine.step` brought: new tokens in row order, and who has ended."""

    outputs: list[TokenOutput] = field(default_factory=list)
    finished: list[tuple[str, FinishReason]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    plan: StepPlan | None = None
    leapt: StepsRan | None = None
    """Steps that ran without a plan, before the events."""
    error: str | None = None
    """Why the forward pass failed, if it did; it is tried again in parts. Or why nobody
    can run, now or later, by a bug of ours; the first who waits ended with ERROR."""


class Engine:
    """Iteration-level serving over an executor."""

    def __init__(
        self,
        config: SchedulerConfig,
        executor: Executor,
        clock: Clock,
        sink: EventSink | None = None,
        *,
        fails_stuck: bool = True,
    ) -> None:
        """fails_stuck: whether a request that nothing can let run ends with ERROR; if not, `step`
        brings nothing while it lives, and whoever calls it has to give up.
        """
        self.config = config
        self.scheduler = Scheduler(config, executor.tokens)
        self.metrics = EngineMetrics()
        self._executor = executor
        self._clock = clock
        self._sink = sink
        self._fails_stuck = fails_stuck
        self._num_scored = 0

    def max_output_tokens(self, num_prompt_tokens: int, n: int = 1) -> int:
        """Give what max_model_len and the pool leave for outputs; below 1: nothing."""
        return most_output_tokens(num_prompt_tokens, self.config, n)

    def refusal(
        self, num_prompt_tokens: int, max_tokens: int | None, n: int = 1
    ) -> Rejection | None:
        """Say why a request can never run, without adding one."""
        limit = self._resolve(num_prompt_tokens, max_tokens, n)
        return refusal(num_prompt_tokens, limit, self.config, n)

    def add(self, request: EngineRequest) -> Rejection | None:
        """Accept a request, or say why it can never run."""
        now_ns = self._clock.now_ns()
        request.max_tokens = self._resolve(
            request.num_prompt_tokens, request.sampling.max_tokens, request.n
        )
        salt = request.cache_salt
        if request.sampling.prompt_logprobs is not None:
            # What is found in the cache is not computed, and so has no log probabilities.
            self._num_scored += 1
            salt = f"{salt}\x00scored {self._num_scored}"
        core_request = Request(
            id=request.id,
            arrival_number=0,
            num_prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.max_tokens,
            priority=request.priority,
            tenant=request.tenant,
            cache_salt=salt,
            payload=request,
            deadline_ns=request.deadline_ns,
        )
        rejection = self.scheduler.add(core_request, now_ns, request.n)
        request.arrival_number = core_request.arrival_number
        return rejection

    def has_queue_room(self, num_prompt_tokens: int) -> bool:
        """Whether the limits of the queue let one more such request wait now."""
        state = self.scheduler.state
        num_waiting, num_tokens = state.num_fresh_waiting, state.fresh_waiting_tokens
        return queue_refusal(num_prompt_tokens, num_waiting, num_tokens, self.config) is None

    def tenant_wait_ns(self, tenant: str) -> int:
        """Give how long until a tenant's rate lets one more request in."""
        return self.scheduler.state.rates.wait_ns(tenant, self._clock.now_ns())

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> None:
        """End a request, or one sample of it, at the next step boundary; unknown ids are left
        alone."""
        self.scheduler.abort(request_id, reason, self._clock.now_ns())

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do or to tell."""
        return self.scheduler.has_work or self.scheduler.has_events

    def step(self, inbox: AbortInbox | None = None) -> StepResult:
        """Make one scheduling decision and run its forward pass.

        `inbox` gives the aborts that came while the pass ran: what it sampled for them is dropped.
        If somebody had to yield before anybody can run, there is no pass and the result says so by
        its events; the next call plans anew.
        """
        plan = self.scheduler.schedule(self._clock.now_ns())
        if isinstance(plan, NothingToRun):
            error = None
            if plan.preempted is None and self.scheduler.has_work and self._fails_stuck:
                error = self.scheduler.fail_stuck(self._clock.now_ns())
            return self._result(self.scheduler.take_events(), None, error)
        try:
            outcome = self._executor.execute(plan)
        except ExecutorError as error:
            return self._fail(plan, str(error))
        dropped: set[str] = set()
        for request_id, reason in inbox() if inbox is not None else ():
            dropped.update(self.scheduler.sample_ids(request_id))
            self.scheduler.abort(request_id, reason, self._clock.now_ns())
        events = self.scheduler.apply(plan, outcome, self._clock.now_ns())
        result = self._result(events, plan, None)
        result.outputs = _outputs(outcome, dropped)
        return result

    def leap(self, run: Runner) -> StepResult | None:
        """Let `run` carry out the next steps as far as none needs a plan; None if the next does.

        For those who do not look at single steps (scheduler/leap.py): the result has no plan and no
        outputs, and the sink hears of who ended alone. `run` stands in for the executor.
        """
        leapt = self.scheduler.leap(run)
        if leapt is None:
            return None
        self.metrics.fold_steps(leapt)
        result = self._result(self.scheduler.take_events(), None, None)
        result.leapt = leapt
        return result

    def stats(self) -> EngineStats:
        """Give the counters and gauges as of the last boundary."""
        state = self.scheduler.state
        return self.metrics.stats(
            num_running=state.num_running,
            num_waiting=state.num_waiting,
            num_blocks=state.pool.num_blocks,
            num_free_blocks=state.pool.num_free,
            num_cached_blocks=state.pool.num_cached,
        )

    def _resolve(self, num_prompt_tokens: int, max_tokens: int | None, n: int) -> int:
        """Give the limit on outputs: the one asked for, else what the limits leave.

        With none asked for at least 1: the refusal then tells of the prompt, not of a limit of 0.
        """
        if max_tokens is not None:
            return max_tokens
        return max(1, self.max_output_tokens(num_prompt_tokens, n))

    def _fail(self, plan: StepPlan, message: str) -> StepResult:
        self._executor.reset()
        events = self.scheduler.fail_step(plan, message, self._clock.now_ns())
        return self._result(events, None, message)

    def _result(self, events: list[Event], plan: StepPlan | None, error: str | None) -> StepResult:
        self.metrics.fold(events)
        if self._sink is not None:
            self._sink(events, is_idle=not self.scheduler.has_work)
        finished = [
            (event.id, _REASONS[event.reason])
            for event in events
            if type(event) is Finished or type(event) is SampleFinished
        ]
        return StepResult(finished=finished, events=events, plan=plan, error=error)


def _outputs(outcome: StepOutcome, dropped: set[str]) -> list[TokenOutput]:
    emitted = outcome.tokens
    assert isinstance(emitted, EmittedTokens)
    if not emitted.token_ids:
        return []
    logprobs = emitted.logprobs or [None] * len(emitted.token_ids)
    return [
        TokenOutput(request_id, token_id, of_token)
        for request_id, token_id, of_token in zip(
            emitted.request_ids, emitted.token_ids, logprobs, strict=True
        )
        if request_id not in dropped
    ]
