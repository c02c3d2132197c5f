"""Engines without a model for tests of benchmarks: scripted tokens, steps as long as prices say."""

from dataclasses import asdict

from driven_engine import DrivenEngine

from everbatch.base.clock import VirtualClock
from everbatch.costs.fitted import FittedStepTime, Prices, Region
from everbatch.costs.work import StepWork
from everbatch.engine.engine import Engine
from everbatch.executors.scripted import ScriptedExecutor
from everbatch.scheduler.config import SchedulerConfig

PRICES = Prices(10e6, 14e6, decode=0.5e6, prompt_token=0.2e6)


class PricedExecutor:
    """A scripted executor whose passes move the clock."""

    def __init__(self, config, clock, prices):
        self._scripted = ScriptedExecutor(config.block_size, lambda given: given.prompt_token_ids)
        self._clock, self._times = clock, FittedStepTime(prices, Region())
        self.tokens = self._scripted.tokens
        self.reset = self._scripted.reset

    def execute(self, plan):
        work = StepWork(plan.num_decodes + len(plan.masked))
        for chunk in plan.chunks:
            work.add_chunk(chunk.start, chunk.count)
        self._clock.advance(self._times.duration_ns(work))
        return self._scripted.execute(plan)


def driven_engine(prices=PRICES, **options):
    """Give an engine on a virtual clock of its own, for a benchmark to drive."""
    config, clock = SchedulerConfig(**options), VirtualClock(5_000_000_000)
    engine = Engine(config, PricedExecutor(config, clock, prices), clock)
    header = {"config": asdict(config), "model": {"name": "scripted"}}

    def sleep(seconds):
        clock.advance(max(1, round(seconds * 1e9)))

    return DrivenEngine(engine, clock, 50_000, header, sleep)
