"""Small builders that tests share: configurations, requests, and a world to run them in.

A World runs the real Engine over a ScriptedExecutor on a clock of steps, and checks every invariant
after every step. Standard library only.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from zlib import crc32

from everbatch.base.clock import VirtualClock
from everbatch.base.events import Event, Finished
from everbatch.base.sample_ids import sample_ids
from everbatch.engine.engine import Engine, EngineRequest, StepResult
from everbatch.engine.sampling_params import SamplingParams
from everbatch.executors.scripted import VOCAB_SIZE, ScriptedExecutor
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.plan import StepOutcome, StepPlan, TokenStore
from everbatch.scheduler.request import FinishReason
from everbatch.scheduler.verify import verify_plan, verify_scheduler


def make_config(**options: object) -> SchedulerConfig:
    """A small configuration: 4 slots, 512 tokens, 64 blocks of 4."""
    defaults = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 512,
        "num_blocks": 64,
        "block_size": 4,
    }
    return SchedulerConfig(**{**defaults, **options})


@dataclass(slots=True)
class Client:
    """What one client does: arrives, wants outputs, perhaps leaves. Times are boundaries.

    `abort_during` is the step while which it leaves, in place of a boundary.
    """

    id: str
    prompt: Sequence[int]
    output_tokens: int
    arrival: int = 0
    max_tokens: int | None = None
    abort_at: int | None = None
    abort_during: int | None = None
    cache_salt: str = ""
    priority: int = 0
    tenant: str = ""
    n: int = 1
    deadline: int | None = None
    """Boundaries that it may wait for its first step."""

    def sample_ids(self) -> list[str]:
        """The ids under which its tokens come."""
        return sample_ids(self.id, self.n)


def client(
    id: str,
    prompt_tokens: int,
    output_tokens: int,
    *,
    arrival: int = 0,
    stream: int | None = None,
    max_tokens: int | None = None,
    abort_at: int | None = None,
    abort_during: int | None = None,
    cache_salt: str = "",
    **more: object,
) -> Client:
    """A client whose prompt is private to its id, or the start of the numbered `stream`."""
    # Prompts that begin otherwise share no block. Private ones begin above all numbered streams.
    base = (1 << 30) + (crc32(id.encode()) >> 3) if stream is None else 1_000 * (1 + stream)
    prompt = [base + position for position in range(prompt_tokens)]
    return Client(
        id, prompt, output_tokens, arrival, max_tokens, abort_at, abort_during, cache_salt, **more
    )


class PlanChecker:
    """An executor before an executor: verifies each plan before it is carried out."""

    def __init__(self, executor: ScriptedExecutor) -> None:
        self._executor = executor
        self.engine: Engine | None = None
        self.is_on = True
        self.store: TokenStore = executor.tokens

    @property
    def tokens(self) -> TokenStore:
        return self

    def read(
        self, request_id: str, payload: object, sample: int, blocks: range, block_size: int
    ) -> list[bytes]:
        return self.store.read(request_id, payload, sample, blocks, block_size)

    def execute(self, plan: StepPlan) -> StepOutcome:
        assert self.engine is not None
        if self.is_on:
            verify_plan(self.engine.scheduler, plan)
        return self._executor.execute(plan)

    def reset(self) -> None:
        self._executor.reset()


@dataclass(slots=True)
class StepRecord:
    """One forward pass as a client's side sees it."""

    step: int
    scheduled: dict[str, int]
    """Tokens of prompts and histories; decodes take one each."""
    decodes: int
    emitted: list[str]
    finished: dict[str, str]
    preempted: list[str]
    free_blocks: int


@dataclass(slots=True)
class World:
    """The engine, its executor, and everything that came out."""

    config: SchedulerConfig
    clients: Sequence[Client]
    failing_steps: frozenset[int] = frozenset()
    """Passes that fail, counted from 1 with those that failed before."""
    engine: Engine = field(init=False)
    executor: ScriptedExecutor = field(init=False)
    checker: PlanChecker = field(init=False)
    clock: VirtualClock = field(init=False)
    boundary: int = 0
    leaving_next: list[str] = field(default_factory=list)
    """Who leaves while the next step runs, besides the clients who say so."""
    texts: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, list[FinishReason]] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)
    records: list[StepRecord] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        lengths = {id: c.output_tokens for c in self.clients for id in c.sample_ids()}
        self.executor = ScriptedExecutor(
            self.config.block_size, _prompt_of, lengths, self.failing_steps
        )
        self.clock = VirtualClock()
        self.checker = PlanChecker(self.executor)
        self.engine = self.checker.engine = Engine(self.config, self.checker, self.clock)

    def run(self, max_calls: int = 10_000) -> "World":
        """Run until every client has its answer."""
        last = max((c.arrival for c in self.clients), default=0)
        for _ in range(max_calls):
            self.arrive()
            self.leave()
            if self.boundary >= last and not self.engine.has_work:
                return self
            self.step()
        raise AssertionError(f"no end after {max_calls} calls")

    def arrive(self) -> None:
        """Hand in whoever arrives at this boundary."""
        for c in self.clients:
            if c.arrival == self.boundary and c.id not in self.texts and c.id not in self.rejected:
                self.add(c)

    def add(self, c: Client) -> None:
        limit = c.output_tokens if c.max_tokens is None else c.max_tokens
        sampling = SamplingParams(max_tokens=limit)
        now = self.clock.now_ns()
        request = EngineRequest(
            c.id,
            c.prompt,
            len(c.prompt),
            sampling,
            priority=c.priority,
            tenant=c.tenant,
            cache_salt=c.cache_salt,
            n=c.n,
            deadline_ns=None if c.deadline is None else now + c.deadline,
        )
        rejection = self.engine.add(request)
        if rejection is not None:
            self.rejected[c.id] = rejection.message
            return
        for id in (c.id, *c.sample_ids()):
            self.texts[id] = []
            self.ends[id] = []

    def leave(self) -> None:
        """Abort for whoever leaves at this boundary."""
        for c in self.clients:
            if c.abort_at is not None and c.abort_at <= self.boundary and c.id in self.texts:
                self.engine.abort(c.id)

    def step(self) -> StepResult:
        """One call of the engine; a call that deferred takes no tick."""
        result = self.engine.step(self._leaving_now)
        if self.checker.is_on:
            verify_scheduler(self.engine.scheduler)
        ran = result.plan is not None
        deferred = any(event.kind == "preempted" for event in result.events) and not ran
        if not deferred:
            self.boundary += 1
            self.clock.advance(1)
        for output in result.outputs:
            self.texts[output.request_id].append(output.token_id)
        for request_id, reason in result.finished:
            self.ends[request_id].append(reason)
        self.events += result.events
        if ran:
            self._record(result)
        return result

    def _leaving_now(self) -> list[tuple[str, FinishReason]]:
        """Who leaves while the step after this boundary runs."""
        step = self.boundary + 1
        leaving, self.leaving_next = self.leaving_next, []
        return [(id, FinishReason.ABORT) for id in leaving] + [
            (c.id, FinishReason.ABORT)
            for c in self.clients
            if c.abort_during == step and c.id in self.texts
        ]

    def _record(self, result: StepResult) -> None:
        kinds = {event.kind: event for event in result.events}
        step = kinds["step"]
        self.records.append(
            StepRecord(
                step=step.step,
                scheduled={id: count for id, _, count in step.chunks},
                decodes=step.decodes,
                emitted=[output.request_id for output in result.outputs],
                finished={id: reason.value for id, reason in result.finished},
                preempted=[e.id for e in result.events if e.kind == "preempted"],
                free_blocks=step.free_blocks,
            )
        )


def run_world(
    clients: Sequence[Client], *, failing_steps: Sequence[int] = (), **options: object
) -> World:
    """Run clients to their ends under a small configuration."""
    return World(make_config(**options), clients, frozenset(failing_steps)).run()


def alone(c: Client, **options: object) -> list[int]:
    """The text a client gets when nobody else is there and memory is plenty; one with n = 1."""
    options = {**options, "num_blocks": 256, "max_num_batched_tokens": 512, "max_model_len": 0}
    lone = Client(c.id, c.prompt, c.output_tokens, 0, c.max_tokens, None)
    return World(make_config(**options), [lone]).run().texts[c.id]


@lru_cache(maxsize=100_000)
def spoken_text(prompt: tuple[int, ...], sample: int, num_tokens: int) -> list[int]:
    """The outputs of the scripted executor, reckoned apart: each hashes all tokens before it."""
    state, text = crc32(array("i", prompt).tobytes(), sample), []
    for _ in range(num_tokens):
        text.append(state % VOCAB_SIZE)
        state = crc32(array("i", text[-1:]).tobytes(), state)
    return text


def deferrals(world: World) -> list[tuple[int, str, str, int, int]]:
    """Who was deferred, as (step, id, reason, needed, available), in order."""
    return [
        (e.step, e.id, e.reason, e.needed, e.available)
        for e in world.events
        if e.kind == "deferred"
    ]


def finals(world: World) -> dict[str, Finished]:
    """The final event of each request."""
    return {e.id: e for e in world.events if isinstance(e, Finished)}


def _prompt_of(payload: object) -> Sequence[int]:
    assert isinstance(payload, EngineRequest)
    prompt = payload.prompt_token_ids
    assert isinstance(prompt, Sequence)
    return prompt
