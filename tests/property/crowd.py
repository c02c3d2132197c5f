"""A crowd on a small machine: random clients, aborts, failures and rollbacks, everything checked.

One seed and one row of options give one run. Called by test_options, test_seeds and soak.
"""

from dataclasses import dataclass, field
from random import Random

from builders import Client, World, spoken_text
from event_audit import Audit
from option_rows import Row

from everbatch.base.errors import ExecutorError
from everbatch.base.events import Finished, Preempted, Rejected, SampleFinished
from everbatch.base.sample_ids import request_of_sample
from everbatch.engine.engine import StepResult
from everbatch.scheduler.config import PreemptionCosts, SchedulerConfig, TenantConfig
from everbatch.scheduler.digest import state_digest
from everbatch.scheduler.plan import DeferReason, StepPlan
from everbatch.scheduler.request import FinishReason

MAX_PROMPT_TOKENS = 14
MAX_OUTPUT_TOKENS = 14
MAX_LIVE = 9
NUM_BOUNDARIES = 60
"""Boundaries at which somebody may arrive; then the crowd runs to its end."""
MAX_CALLS_TO_END = 3_000
MAX_FAILURES_IN_A_ROW = 3
"""Of which the last ends somebody: with all rows, with one group of them, with one row."""
TENANTS = ("", "a", "b", "slow")


def draw_config(row: Row, draw: Random) -> SchedulerConfig:
    """Give a row's options their numbers, and the machine its sizes."""
    budget = draw.choice([1, 2, 4, 8, 16, 64, 64])
    mode, _, extent = str(row["preemption"]).partition(", ")
    if mode == "tail":
        mode, extent = "recompute", "tail"
    policy = str(row["policy"])
    prefill = str(row["prefill"])
    is_bounded = row["queue"] == "bounded"
    return SchedulerConfig(
        max_num_seqs=draw.choice([1, 2, 3, 3, 4, 5]),
        max_num_batched_tokens=budget,
        num_blocks=draw.randint(2, 12),
        block_size=draw.randint(1, 4),
        max_model_len=draw.choice([0, 0, 0, 20]),
        num_host_blocks=draw.choice([0, 3, 8, 40]),
        batching=row["batching"],
        policy="priority" if policy == "aged" else policy,
        aging_steps=draw.randint(1, 6) if policy == "aged" else 0,
        backfill=row["backfill"],
        admission=row["admission"],
        watermark=row["watermark"],
        enable_chunked_prefill=row["chunks"] != "off",
        long_prefill_token_threshold=draw.randint(1, 4) if row["chunks"] == "capped" else 0,
        min_prefill_tokens=draw.randint(1, budget) if "share" in prefill else 0,
        prefill_aging_steps=draw.randint(1, 5) if "aged" in prefill else 0,
        enable_prefix_caching=row["enable_prefix_caching"],
        preemption_trigger=row["preemption_trigger"],
        preemption_mode=mode,
        preemption_extent=extent or "whole",
        preemption_victim=row["preemption_victim"],
        max_preemptions=row["max_preemptions"],
        max_queue_requests=draw.randint(1, 4) if is_bounded else 0,
        max_queue_tokens=draw.randint(5, 30) if is_bounded else 0,
        tenants={"a": TenantConfig(2.0), "slow": TenantConfig(0.5, 3)},
        preemption_costs=PreemptionCosts(draw.randint(1, 9), draw.randint(1, 3)),
    )


def draw_client(row: Row, config: SchedulerConfig, draw: Random, id: str) -> Client:
    """Give a client whose prompt shares a prefix with many others."""
    pool_tokens = config.num_blocks * config.block_size
    fits = draw.random() < 0.95
    most_prompt = min(MAX_PROMPT_TOKENS, max(1, pool_tokens // 2)) if fits else MAX_PROMPT_TOKENS
    prompt_tokens = draw.randint(1, most_prompt)
    common = draw.randint(0, prompt_tokens)
    family, private = draw.randint(0, 1), draw.randint(1, 3)
    prompt = [1_000 * family + position for position in range(common)]
    prompt += [10_000 * private + position for position in range(common, prompt_tokens)]
    most_output = pool_tokens - prompt_tokens + 1 if fits else MAX_OUTPUT_TOKENS
    output_tokens = draw.randint(1, min(MAX_OUTPUT_TOKENS, most_output))
    return Client(
        id,
        prompt,
        output_tokens,
        max_tokens=draw.choice([None, None, None, output_tokens + 2, max(1, output_tokens - 2)]),
        cache_salt=draw.choice(["", "", "", "salt"]),
        priority=draw.randint(0, 3),
        tenant=draw.choice(TENANTS),
        n=draw.randint(1, int(str(row["samples"]))),
        deadline=draw.choice([None, None, None, None, draw.randint(0, 12)]),
    )


class FailingStore:
    """A token store that fails at its Nth read."""

    def __init__(self, tokens, failing_read):
        self._tokens = tokens
        self.reads_left = failing_read

    def read(self, *which):
        self.reads_left -= 1
        if self.reads_left == 0:
            raise ExecutorError("the token store was told to fail")
        return self._tokens.read(*which)


@dataclass
class Crowd:
    """One run; `check_every` calls apart the costly invariants are checked."""

    row: Row
    seed: int
    check_every: int = 1
    num_calls: int = 0
    clients: dict[str, Client] = field(default_factory=dict)
    audit: Audit = field(default_factory=Audit)

    def __post_init__(self) -> None:
        self.draw = Random(self.seed)
        self.config = draw_config(self.row, self.draw)
        self.world = World(self.config, [])
        self.arrivals_in_a_step = self.draw.choice([0.2, 0.5, 1.0, 3.0])
        self.storm = self.draw.choice([0, 0, 1, 3])
        """How often somebody leaves or something fails; 0: never."""
        self.deferred_calls = 0
        self.failures_in_a_row = 0
        """Failed passes since one that ran, or that ended somebody."""
        self.left: dict[str, None] = {}
        """Who left: requests and samples."""

    def run(self) -> "Crowd":
        """Run to the end; whatever does not hold raises."""
        for _ in range(NUM_BOUNDARIES):
            self.arrive()
            if self.storm:
                self.trouble()
            self.step()
        for _ in range(MAX_CALLS_TO_END):
            if not self.world.engine.has_work:
                break
            self.step()
        assert not self.world.engine.has_work, "somebody never ends"
        self.close()
        return self

    def arrive(self) -> None:
        draw, world = self.draw, self.world
        state = world.engine.scheduler.state
        while len(state.requests) < MAX_LIVE and draw.random() < self.arrivals_in_a_step / (
            1 + self.arrivals_in_a_step
        ):
            c = draw_client(self.row, self.config, draw, f"r{len(self.clients)}")
            self.clients[c.id] = c
            for sample, id in enumerate(c.sample_ids()):
                world.executor.output_lengths[id] = max(1, c.output_tokens - sample)
            world.add(c)

    def trouble(self) -> None:
        """Let somebody leave, or something fail, now or during the next step."""
        draw, world = self.draw, self.world
        kind = draw.random() / self.storm
        if kind < 0.06 and self.clients:
            world.engine.abort(self._leaving())
        elif kind < 0.12 and self.clients:
            world.leaving_next = [self._leaving() for _ in range(draw.randint(1, 3))]
        elif kind < 0.15:
            # One pass, or several in a row: then somebody fails again alone.
            first = world.executor.num_steps + 1
            world.executor.failing_steps = frozenset(
                range(first, first + draw.choice([1, 1, 2, 4]))
            )
        elif kind < 0.18 and self.clients:
            world.executor.failing_outputs[self._somebody()] = draw.randint(1, 6)
        elif kind < 0.22:
            self._fail_reading()
        elif kind < 0.30:
            self._roll_back()
        elif kind < 0.33 and self.clients:
            num_poisoned = draw.choice([0, 0, 1, 1, 2, 3])
            world.executor.poisoned = frozenset(self._somebody() for _ in range(num_poisoned))

    def _somebody(self) -> str:
        """A client or a sample, most likely a live one."""
        live = list(self.world.engine.scheduler.state.requests)
        if live and self.draw.random() < 0.8:
            id = self.draw.choice(live)
            return (request_of_sample(id) or id) if self.draw.random() < 0.4 else id
        return self.draw.choice(list(self.clients))

    def _leaving(self) -> str:
        """Somebody who leaves."""
        id = self._somebody()
        self.left[id] = None
        return id

    def _fail_reading(self) -> None:
        scheduler, checker = self.world.engine.scheduler, self.world.checker
        scheduler.expire(self.world.clock.now_ns())
        before = state_digest(scheduler)
        checker.store = FailingStore(self.world.executor.tokens, self.draw.randint(1, 4))
        try:
            self.step()
        except ExecutorError:
            assert state_digest(scheduler) == before, "a failed plan left traces"
        checker.store = self.world.executor.tokens

    def _roll_back(self) -> None:
        scheduler = self.world.engine.scheduler
        scheduler.expire(self.world.clock.now_ns())
        before = state_digest(scheduler)
        plan = scheduler.schedule(self.world.clock.now_ns())
        if not isinstance(plan, StepPlan):
            return
        if self.draw.random() < 0.3 and self.clients:
            self.world.engine.abort(self._leaving())
        scheduler.rollback(plan)
        assert state_digest(scheduler) == before, "a rollback left traces"

    def step(self) -> None:
        """One call of the engine, and what must hold after it."""
        world, scheduler = self.world, self.world.engine.scheduler
        self.num_calls += 1
        is_checked = self.num_calls % self.check_every == 0
        world.checker.is_on = is_checked
        result = world.step()
        self.audit.take(result.events)
        self._check_progress(result)
        self._check_failures(result)
        if result.plan is not None:
            self._check_protected()
        if is_checked:
            num_open = sum(
                not world.ends[id]
                for id in world.texts
                if request_of_sample(id) or self._single(id)
            )
            stats = world.engine.stats()
            assert stats.num_running <= self.config.max_num_seqs
            assert len(scheduler.state.requests) == num_open
            self._check_reasons(result)

    def _single(self, id: str) -> bool:
        return self.clients[id].n == 1

    def _check_progress(self, result: StepResult) -> None:
        """A call with live requests runs a pass, lets somebody yield, or ends somebody."""
        if result.plan is not None or result.error is not None:
            self.deferred_calls = 0
            return
        yielded = any(isinstance(event, Preempted) for event in result.events)
        if yielded:
            self.deferred_calls += 1
            assert self.deferred_calls <= self.config.max_num_seqs, "too many calls without a pass"
            return
        assert not self.world.engine.has_work, "requests live and nothing happened"

    def _check_failures(self, result: StepResult) -> None:
        """Failures end somebody soon, and of those whose row fails nobody else."""
        is_news = result.plan is not None or result.finished
        self.failures_in_a_row = 0 if is_news else self.failures_in_a_row + bool(result.error)
        assert self.failures_in_a_row < MAX_FAILURES_IN_A_ROW, "passes fail and nobody ends"
        poisoned = {request_of_sample(id) or id for id in self.world.executor.poisoned}
        for event in result.events:
            if not isinstance(event, SampleFinished | Finished) or not event.message:
                continue
            assert "can never run" not in event.message
            id = request_of_sample(event.id) or event.id
            # Members of a static batch end together, and a group tells what its samples told.
            is_own = isinstance(event, SampleFinished) or self._single(id)
            if is_own and self.config.batching != "static" and "a row of" in event.message:
                assert id in poisoned, f"{id} pays for another row"

    def _check_protected(self) -> None:
        scheduler = self.world.engine.scheduler
        for request in scheduler.state.protected:
            deferral = scheduler.deferrals.current.get(request)
            assert deferral is None or deferral.reason is not DeferReason.KV_BUDGET, (
                "a protected request lacks a block"
            )

    def _check_reasons(self, result: StepResult) -> None:
        """Whoever waits has a reason once a plan has passed it over."""
        if result.plan is None:
            return
        scheduler = self.world.engine.scheduler
        ended = {id for id, _ in result.finished}
        for request in scheduler.state.requests.values():
            if request.group is not None and any(r.id in ended for r in request.group.ended):
                # It may go on in place of a sample that left during the step.
                continue
            if request.slot is None and not request.is_follower:
                assert request in scheduler.deferrals.current, "somebody waits for no reason"

    def close(self) -> None:
        """Compare what came out with what was asked for, once everybody has ended."""
        world = self.world
        self.audit.close(world.engine.stats())
        for c in self.clients.values():
            if c.id in world.texts:
                self._check_client(c)
        stats = world.engine.stats()
        assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks
        host_pool = world.engine.scheduler.state.host_pool
        assert host_pool is None or host_pool.num_free == host_pool.num_blocks
        texts = sum(len(text) for text in world.texts.values())
        assert stats.generation_tokens == texts
        self._check_preemptions()

    def _check_preemptions(self) -> None:
        config = self.config
        for event in self.world.events:
            if isinstance(event, SampleFinished | Finished) and config.max_preemptions:
                samples = 1 if request_of_sample(event.id) else self.clients[event.id].n
                assert event.preemptions <= config.max_preemptions * samples
            if config.batching == "static" or config.admission == "reserve":
                assert not isinstance(event, Preempted), "somebody yielded whose life was reserved"
            if isinstance(event, Rejected) and event.reason == "queue_full":
                assert config.max_queue_requests or config.max_queue_tokens

    def _check_client(self, c: Client) -> None:
        world = self.world
        assert len(world.ends[c.id]) == 1, "not one final event"
        for sample, id in enumerate(c.sample_ids()):
            (reason,) = world.ends[id]
            length = max(1, c.output_tokens - sample)
            limit = c.output_tokens if c.max_tokens is None else c.max_tokens
            whole = spoken_text(tuple(c.prompt), sample, min(length, limit))
            text = world.texts[id]
            if reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert text == whole, f"{id} says something else than alone"
                assert reason is (FinishReason.STOP if length <= limit else FinishReason.LENGTH)
            else:
                assert text == whole[: len(text)], f"{id} says something else than alone"
            if reason is FinishReason.ABORT:
                assert id in self.left or c.id in self.left, f"{id} ended with another sample"
            assert self.audit.output_tokens(id) == len(text)


def run_steps(row: Row, first_seed: int, num_steps: int, check_every: int = 1) -> int:
    """Run one crowd after another under a row until so many calls were made; gives the crowds."""
    num_calls = num_crowds = 0
    while num_calls < num_steps:
        seed = first_seed + num_crowds
        try:
            num_calls += Crowd(row, seed, check_every).run().num_calls
        except Exception as error:
            error.add_note(f"seed {seed}, check_every {check_every}, row {dict(row)}")
            raise
        num_crowds += 1
    return num_crowds
