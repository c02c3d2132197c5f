"""The whole core under any order of arrivals, aborts, failures and rollbacks.

Each call of the engine is verified by the World (scheduler after it, plan before it) and recounted
from its events. At the end everybody has one final event and, unless it left or failed, the text
it has alone.
"""

import pytest
from builders import World, spoken_text
from crowd import FailingStore
from event_audit import Audit
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from strategies import FULL, QUICK, clients, configs

from everbatch.base.errors import ExecutorError
from everbatch.scheduler.digest import state_digest
from everbatch.scheduler.plan import StepPlan
from everbatch.scheduler.request import FinishReason

MAX_CALLS_TO_END = 3_000


class EngineMachine(RuleBasedStateMachine):
    @initialize(config=configs())
    def start(self, config):
        self.clients = []
        self.world = World(config, self.clients)
        self.audit = Audit()
        self.left = {}

    @rule(data=st.data(), count=st.integers(1, 3))
    def arrive(self, data, count):
        for _ in range(count):
            c = data.draw(clients(f"r{len(self.clients)}"))
            self.clients.append(c)
            for id in c.sample_ids():
                self.world.executor.output_lengths[id] = c.output_tokens
            self.world.add(c)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data):
        """Somebody, or one of its samples, leaves at this boundary; it may have ended."""
        c = data.draw(st.sampled_from(self.clients))
        id = data.draw(st.sampled_from([c.id, *c.sample_ids()]))
        self.left[id] = None
        self.world.engine.abort(id)

    @rule(count=st.integers(1, 4))
    def steps(self, count):
        for _ in range(count):
            self.step()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def step_while_somebody_leaves(self, data):
        for c in data.draw(st.lists(st.sampled_from(self.clients), min_size=1, max_size=3)):
            id = data.draw(st.sampled_from([c.id, *c.sample_ids()]))
            self.left[id] = None
            self.world.leaving_next.append(id)
        self.step()

    @rule(fails=st.booleans())
    def step_that_fails(self, fails):
        if fails:
            self.world.executor.failing_steps = frozenset({self.world.executor.num_steps + 1})
        self.step()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), output=st.integers(1, 6), chance=st.integers(0, 2))
    def row_that_will_fail(self, data, output, chance):
        if chance == 0:
            c = data.draw(st.sampled_from(self.clients))
            id = data.draw(st.sampled_from(c.sample_ids()))
            self.world.executor.failing_outputs[id] = output

    @rule(failing_read=st.integers(1, 4))
    def step_whose_token_store_fails(self, failing_read):
        world = self.world
        world.engine.scheduler.expire(world.clock.now_ns())
        before = state_digest(world.engine.scheduler)
        world.checker.store = FailingStore(world.executor.tokens, failing_read)
        try:
            self.step()
        except ExecutorError:
            assert state_digest(world.engine.scheduler) == before
        world.checker.store = world.executor.tokens

    @rule(data=st.data(), leaves=st.booleans())
    def plan_and_roll_back(self, data, leaves):
        scheduler = self.world.engine.scheduler
        scheduler.expire(self.world.clock.now_ns())
        before = state_digest(scheduler)
        plan = scheduler.schedule(self.world.clock.now_ns())
        if not isinstance(plan, StepPlan):
            return
        if leaves and self.clients:
            c = data.draw(st.sampled_from(self.clients))
            self.left[c.id] = None
            self.world.engine.abort(c.id)
        scheduler.rollback(plan)
        assert state_digest(scheduler) == before
        if leaves:
            # Now is the boundary for whoever left.
            self.step()

    def step(self):
        """One call, its events recounted. With live requests it runs, or makes somebody yield."""
        world = self.world
        result = world.step()
        self.audit.take(result.events)
        ran = result.plan is not None or result.error is not None
        yielded = any(event.kind == "preempted" for event in result.events)
        assert ran or yielded or not world.engine.has_work
        stats = world.engine.stats()
        assert stats.num_running <= world.config.max_num_seqs
        assert stats.num_free_blocks + stats.num_cached_blocks <= stats.num_blocks
        live = [id for c in self.clients for id in c.sample_ids() if world.ends.get(id) == []]
        assert sorted(live) == sorted(world.engine.scheduler.state.requests)

    def teardown(self):
        if not hasattr(self, "world"):
            return
        world = self.world
        for _ in range(MAX_CALLS_TO_END):
            if not world.engine.has_work:
                break
            self.step()
        assert not world.engine.has_work, "somebody never ends"
        for c in self.clients:
            if c.id in world.texts:
                self.check_end(c)
        stats = world.engine.stats()
        assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks
        assert stats.generation_tokens == sum(map(len, world.texts.values()))
        self.audit.close(stats)

    def check_end(self, c):
        world = self.world
        limit = c.output_tokens if c.max_tokens is None else c.max_tokens
        natural = FinishReason.STOP if c.output_tokens <= limit else FinishReason.LENGTH
        assert len(world.ends[c.id]) == 1
        for sample, id in enumerate(c.sample_ids()):
            (reason,) = world.ends[id]
            text = world.texts[id]
            whole = spoken_text(tuple(c.prompt), sample, min(c.output_tokens, limit))
            if reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert (text, reason) == (whole, natural)
            else:
                assert text == whole[: len(text)]
            if reason is FinishReason.ABORT:
                assert id in self.left or c.id in self.left, "it ended with another sample"
            assert self.audit.output_tokens(id) == len(text)


class QuickEngineMachine(EngineMachine):
    pass


TestEngine = QuickEngineMachine.TestCase
TestEngine.settings = QUICK


class FullEngineMachine(EngineMachine):
    pass


TestEngineFull = pytest.mark.timeout(3_000)(pytest.mark.full(FullEngineMachine.TestCase))
TestEngineFull.settings = FULL
