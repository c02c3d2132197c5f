"""Every small world: blocks of 2, pools of 1 to 4, up to three requests, one of whom may leave.

A world is a pool, a trigger, the cache on or off, and requests of 1 to 5 prompt and 1 to 4 output
tokens that arrive at boundaries 0 to 2; one may leave at a boundary. The prompts are starts of one
stream, so that they share blocks. Worlds that behave as another one are left out:

- arrivals are in order and begin at 0: ids are never compared, and idle boundaries change nothing;
- nobody is there who is refused: it would enter no queue;
- a run on shortage in which nobody lacked a block is the run on stall too;
- nobody looks at how many outputs are still to come, so whoever leaves needs only one length, the
  longest that its prompt may have, and it leaves only while it is alive.
"""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement, islice, product

import pytest
from builders import Client, alone

from everbatch.base.clock import VirtualClock
from everbatch.engine.engine import Engine, EngineRequest
from everbatch.engine.sampling_params import SamplingParams
from everbatch.executors.scripted import ScriptedExecutor
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.plan import StepOutcome, StepPlan
from everbatch.scheduler.verify import verify_plan, verify_scheduler

BLOCK_SIZE = 2
POOLS = (1, 2, 3, 4)
PROMPTS = range(1, 6)
OUTPUTS = range(1, 5)
LAST_ARRIVAL = 2
MAX_REQUESTS = 3
MAX_NUM_BATCHED_TOKENS = 6
"""Two prompts of 5 do not fit one step."""
MAX_CALLS = 200
QUICK_STRIDE = 97
"""A prime, so that every value of every dimension has its turn."""


@dataclass(frozen=True, slots=True)
class Life:
    prompt: int
    outputs: int
    arrival: int


@dataclass(frozen=True, slots=True)
class Setting:
    """What holds for all requests of a world."""

    num_blocks: int
    caching: bool


@dataclass(frozen=True, slots=True)
class Departure:
    """The request at `position` leaves at boundary `at`."""

    position: int
    at: int


class Checked(ScriptedExecutor):
    """Verifies each plan before it runs."""

    engine: Engine

    def execute(self, plan: StepPlan) -> StepOutcome:
        verify_plan(self.engine.scheduler, plan)
        return super().execute(plan)


class Run:
    """One world on its way to its end, everything checked."""

    def __init__(self, setting: Setting, trigger: str, lives: tuple[Life, ...]) -> None:
        config = config_of(setting.num_blocks, setting.caching, trigger)
        lengths = {str(position): life.outputs for position, life in enumerate(lives)}
        executor = Checked(BLOCK_SIZE, prompt_of, lengths)
        self.lives = lives
        self.engine = executor.engine = Engine(config, executor, VirtualClock())
        self.boundary = 0
        self.num_arrived = 0
        self.texts: list[list[int]] = [[] for _ in lives]
        self.ends: list[list[str]] = [[] for _ in lives]
        self.ended_at = [0] * len(lives)
        self.num_preemptions = 0

    def finish(
        self, departure: Departure | None = None, leavers: Sequence[int] = ()
    ) -> dict[int, bytes]:
        """Go on to the end; gives copies of the run at boundaries at which `leavers` can leave."""
        copies: dict[int, bytes] = {}
        for _ in range(MAX_CALLS):
            if self.boundary not in copies and self._is_live(leavers):
                copies[self.boundary] = pickle.dumps(self, pickle.HIGHEST_PROTOCOL)
            self._arrive()
            if departure is not None and departure.at == self.boundary:
                self.engine.abort(str(departure.position))
            if self.num_arrived == len(self.lives) and not self.engine.has_work:
                break
            self._step()
        self._check_end(departure)
        return copies

    def _is_live(self, positions: Sequence[int]) -> bool:
        return any(
            self.lives[position].arrival <= self.boundary and not self.ends[position]
            for position in positions
        )

    def _arrive(self) -> None:
        for position in range(self.num_arrived, len(self.lives)):
            life = self.lives[position]
            if life.arrival > self.boundary:
                return
            request = EngineRequest(str(position), None, life.prompt, sampling(life.outputs))
            assert self.engine.add(request) is None
            self.num_arrived += 1

    def _step(self) -> None:
        result = self.engine.step()
        verify_scheduler(self.engine.scheduler)
        num_preempted = sum(event.kind == "preempted" for event in result.events)
        self.num_preemptions += num_preempted
        # A call that only preempted takes no tick.
        self.boundary += result.plan is not None or num_preempted == 0
        for output in result.outputs:
            self.texts[int(output.request_id)].append(output.token_id)
        for request_id, reason in result.finished:
            self.ends[int(request_id)].append(reason.value)
            self.ended_at[int(request_id)] = self.boundary

    def _check_end(self, departure: Departure | None) -> None:
        assert not self.engine.has_work, "somebody never ends"
        for position, life in enumerate(self.lives):
            text, expected = self.texts[position], lone_text(life.prompt)
            if departure is not None and departure.position == position:
                assert self.ends[position] == ["abort"]
                assert text == expected[: len(text)]
            else:
                assert self.ends[position] == ["stop"]
                assert text == expected[: life.outputs]
        stats = self.engine.stats()
        assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks


def prompt_of(request: object) -> Sequence[int]:
    assert isinstance(request, EngineRequest)
    return range(request.num_prompt_tokens)


@cache
def config_of(num_blocks: int, caching: bool, trigger: str) -> SchedulerConfig:
    return SchedulerConfig(
        max_num_seqs=MAX_REQUESTS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=caching,
        preemption_trigger=trigger,
    )


@cache
def sampling(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens)


@cache
def lone_text(prompt: int) -> list[int]:
    """The longest text that follows a prompt; shorter ones are its starts."""
    return alone(Client("lone", range(prompt), max(OUTPUTS)))


def most_outputs(prompt: int, num_blocks: int) -> int:
    return min(max(OUTPUTS), num_blocks * BLOCK_SIZE - prompt + 1)


def worlds() -> Iterator[tuple[Setting, tuple[Life, ...]]]:
    """All worlds in which nobody leaves."""
    for num_blocks, caching, count in product(POOLS, (False, True), range(1, MAX_REQUESTS + 1)):
        setting = Setting(num_blocks, caching)
        kinds = [
            (prompt, outputs)
            for prompt in PROMPTS
            for outputs in range(1, most_outputs(prompt, num_blocks) + 1)
        ]
        later = combinations_with_replacement(range(LAST_ARRIVAL + 1), count - 1)
        for arrivals, chosen in product(later, product(kinds, repeat=count)):
            yield (
                setting,
                tuple(
                    Life(prompt, outputs, arrival)
                    for (prompt, outputs), arrival in zip(chosen, (0, *arrivals), strict=True)
                ),
            )


def run_all(setting: Setting, lives: tuple[Life, ...]) -> int:
    """Run a world on both triggers, with nobody and with each one leaving; gives the runs."""
    leavers = [
        position
        for position, life in enumerate(lives)
        if life.outputs == most_outputs(life.prompt, setting.num_blocks)
    ]
    num_preemptions, num_runs = run_departures(setting, "shortage", lives, leavers, {})
    if num_preemptions[None]:
        num_runs += run_departures(setting, "stall", lives, leavers, num_preemptions)[1]
    return num_runs


def run_departures(
    setting: Setting,
    trigger: str,
    lives: tuple[Life, ...],
    leavers: list[int],
    known: dict[Departure | None, int],
) -> tuple[dict[Departure | None, int], int]:
    """Run a world on one trigger; gives the preemptions of each of its runs, and the runs.

    `known` are the preemptions on shortage: where there were none, stall is the same.
    """
    base = Run(setting, trigger, lives)
    copies = base.finish(leavers=leavers)
    num_preemptions: dict[Departure | None, int] = {None: base.num_preemptions}
    for position in leavers:
        for at in range(lives[position].arrival, base.ended_at[position]):
            departure = Departure(position, at)
            if known.get(departure) == 0:
                continue
            run: Run = pickle.loads(copies[at])
            run.finish(departure)
            num_preemptions[departure] = run.num_preemptions
    return num_preemptions, len(num_preemptions)


def test_small_worlds_by_samples():
    num_runs = sum(
        run_all(setting, lives) for setting, lives in islice(worlds(), 0, None, QUICK_STRIDE)
    )

    assert num_runs > 1_000


@pytest.mark.full
@pytest.mark.timeout(3_600)
def test_all_small_worlds():
    num_runs = sum(run_all(setting, lives) for setting, lives in worlds())

    assert num_runs > 100_000
