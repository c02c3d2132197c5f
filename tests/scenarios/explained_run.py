"""Runs a scenario step by step, and once more with something added at one boundary.

So a test can ask what an explanation says would have let a request run, add exactly that, and see
whether it runs. Up to the boundary the second run is the first: `Replay.add` changes nothing but
what it adds. Added blocks are there from the start, held back by nobody until they are added.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappush
from io import StringIO
from unittest.mock import patch

from everbatch.base.clock import VirtualClock
from everbatch.base.eventlog import EventLogWriter
from everbatch.base.events import Deferred, Event, Preempted, StepRan
from everbatch.base.sample_ids import sample_id
from everbatch.diagnose.explain import explain
from everbatch.diagnose.life import Lack, Life
from everbatch.engine.engine import Engine, EngineRequest, StepResult
from everbatch.engine.sampling_params import SamplingParams
from everbatch.executors.simulated import SimulatedExecutor
from everbatch.kv_cache.block_pool import BlockPool
from everbatch.scheduler import state as scheduler_state
from everbatch.scheduler.request import Request
from everbatch.sim.texts import TextMaker
from everbatch.workload.scenario import Scenario

MAX_CALLS = 300


@dataclass(slots=True)
class Call:
    """One call of the engine: the boundary at which it planned, and what happened up to its end."""

    boundary: int
    events: list[Event]
    has_run: bool

    @property
    def deferred(self) -> list[Deferred]:
        return [event for event in self.events if isinstance(event, Deferred)]


@dataclass(slots=True)
class Replay:
    """A scenario on the production engine; `num_spare` blocks can be added later."""

    scenario: Scenario
    num_spare: int = 0
    engine: Engine = field(init=False)
    calls: list[Call] = field(default_factory=list)
    _clock: VirtualClock = field(default_factory=VirtualClock)
    _spare: list[int] = field(default_factory=list)
    _next: int = 0

    def __post_init__(self) -> None:
        executor, pools = SimulatedExecutor(self._clock), []

        def make_pool(num_blocks: int) -> BlockPool:
            # The device's pool is made first; the host tier's stays as it is.
            pools.append(BlockPool(num_blocks if pools else num_blocks + self.num_spare))
            return pools[-1]

        with patch.object(scheduler_state, "BlockPool", make_pool):
            self.engine = Engine(self.scenario.engine, executor, self._clock)
        if self.num_spare:
            self._spare = self.engine.scheduler.state.pool.allocate(self.num_spare) or []
        self._texts = TextMaker()

    _texts: TextMaker = field(init=False)

    def run(self, max_calls: int = MAX_CALLS) -> "Replay":
        """Run to the end, or up to a number of calls."""
        while len(self.calls) < max_calls and self.prepare():
            self.step()
        return self

    def prepare(self) -> bool:
        """Let everything happen that happens at a boundary before planning; False: at the end."""
        requests = self.scenario.requests
        while True:
            now = self._clock.now_ns()
            while self._next < len(requests) and requests[self._next].arrival <= now:
                self._add(requests[self._next])
                self._next += 1
            for spec in requests:
                if spec.abort_at is not None and spec.arrival <= spec.abort_at == now:
                    self.engine.abort(spec.id)
            if self.engine.scheduler.has_work:
                return True
            if self._next == len(requests):
                return False
            self._clock.advance(requests[self._next].arrival - now)

    def step(self) -> StepResult:
        boundary = self._clock.now_ns()
        result = self.engine.step()
        self.calls.append(Call(boundary, result.events, result.plan is not None))
        return result

    def log(self, num_calls: int) -> list[str]:
        """Give the event log up to a call."""
        file = StringIO()
        header = {"config": _config(self.scenario), "clock": "steps"}
        writer = EventLogWriter(file, header)
        for call in self.calls[:num_calls]:
            writer.write(call.events)
        writer.flush()
        return file.getvalue().splitlines(keepends=True)

    def life(self, id: str, num_calls: int) -> Life:
        """Explain a request, knowing the log up to a call."""
        return explain(self.log(num_calls), id).lives[0]

    # Adding

    def add(self, lack: Lack) -> None:
        """Add resources at this boundary, for whoever is planned first."""
        scheduler = self.engine.scheduler
        for _ in range(lack.slots):
            heappush(scheduler.state.free_slots, len(scheduler.state.slots))
            scheduler.state.slots.append(None)
        if lack.blocks:
            given, self._spare = self._spare[: lack.blocks], self._spare[lack.blocks :]
            scheduler.state.pool.release(given)
        if lack.tokens:
            planner = scheduler._planner
            parts = (planner._decodes, planner._prefills, planner._static, planner._grants)
            for part in (planner, *parts):
                budget = part._config.max_num_batched_tokens + lack.tokens
                part._config = replace(part._config, max_num_batched_tokens=budget)

    def add_for_decodes(self, lack: Lack) -> None:
        """Add resources that go to decodes: what prompts are promised stays as it is."""
        planner = self.engine.scheduler._planner
        share = planner._prefill_share()
        planner._prefill_share = lambda: share
        self.add(lack)

    def add_at_turn(self, id: str, lack: Lack) -> None:
        """Add resources when the request's turn comes in the plan of this boundary."""
        planner = self.engine.scheduler._planner
        for part, name, place in (
            (planner._prefills, "_try_admit", 1),
            (planner._prefills, "_plan_chunk", 1),
            (planner._static, "_grant_first", 1),
            (planner._decodes, "_place", 1),
            (planner._decodes, "_place_spare", 1),
        ):
            setattr(part, name, self._before(getattr(part, name), place, id, lack))

    def _before(self, method: Callable, place: int, id: str, lack: Lack) -> Callable:
        def call(*arguments: object) -> object:
            request = arguments[place]
            assert isinstance(request, Request)
            if id in (request.id, request.label) and not self._added:
                self._added.append(id)
                self.add(lack)
            return method(*arguments)

        return call

    _added: list[str] = field(default_factory=list)

    def runs(self, id: str) -> bool:
        """Plan and run the step after this boundary; whether the request gets a token in it."""
        decodes = [request.id for request in self.engine.scheduler.state.decodes]
        result = self.step()
        steps = [event for event in result.events if isinstance(event, StepRan)]
        if not steps or any(isinstance(e, Preempted) and e.id == id for e in result.events):
            return False
        [step] = steps
        served = {*step.joined, *(chunk[0] for chunk in step.chunks)}
        served |= {request for request in decodes if request not in step.left}
        return id in served or sample_id(id, 0) in served

    def _add(self, spec: object) -> None:
        self.engine.add(
            EngineRequest(
                id=spec.id,
                prompt_token_ids=self._texts.make(spec),
                num_prompt_tokens=spec.prompt.num_tokens,
                sampling=SamplingParams(max_tokens=spec.max_tokens),
                priority=spec.priority,
                tenant=spec.tenant,
                n=spec.num_samples,
            )
        )


def replay_to(first: Replay, call: int, num_spare: int) -> Replay:
    """Run a scenario again up to the boundary of a call, which is not planned yet."""
    again = Replay(first.scenario, num_spare)
    again.run(call)
    assert again.prepare()
    assert list(map(_told, again.calls)) == list(map(_told, first.calls[:call]))
    return again


def _told(call: Call) -> Sequence[object]:
    """What a call said, but for the numbers of blocks: those may be others."""
    return [
        replace(event, blocks=tuple((id, len(blocks)) for id, blocks in event.blocks))
        if isinstance(event, StepRan)
        else event
        for event in call.events
    ]


def _config(scenario: Scenario) -> dict[str, object]:
    config = scenario.engine
    return {name: getattr(config, name) for name in config.__slots__ if name[0] not in "tp_"} | {
        "policy": config.policy
    }
