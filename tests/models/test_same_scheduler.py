"""One scheduler, two clocks: what served a model makes the same plans on a virtual clock."""

from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from random import Random

import pytest
from network_builders import TINY, random_prompt, random_tensors
from real_engine import greedy

from everbatch.assemble.wallclock import WallClock
from everbatch.base.eventlog import EventLogWriter
from everbatch.engine.engine import Engine
from everbatch.executors.model.executor import ModelExecutor
from everbatch.kernels.reference import ReferenceKernels
from everbatch.models.llama import LlamaForCausalLM
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.plan import StepPlan
from everbatch.sim.recorded import RecordedStepTimes, read_log
from everbatch.sim.run import RunOptions, simulate

TIGHT = SchedulerConfig(
    max_num_seqs=6,
    max_num_batched_tokens=24,
    num_blocks=30,
    block_size=4,
    admission="now",
)
NUM_REQUESTS = 24


def bytes_of(plan: StepPlan) -> bytes:
    """Give everything a plan says but what only the executor reads, and when it was made.

    A replay counts the time between two passes to the later one.
    """
    anonymous = [replace(admission, payload=None) for admission in plan.admitted]
    return repr(asdict(replace(plan, admitted=anonymous, start_ns=0))).encode()


class Plans:
    """Keeps the plans of a simulated run."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def planned(self, plan, step):
        self.seen.append(bytes_of(plan))

    def happened(self, events):
        pass

    def ran(self, plan, step, scheduler):
        pass

    def idled(self, step):
        pass


def serve(config: SchedulerConfig, log: Path, seed: int) -> list[bytes]:
    """Answer a crowd that comes while others run, on the wall clock; gives the plans."""
    network = LlamaForCausalLM(TINY, random_tensors(TINY), ReferenceKernels)
    executor = ModelExecutor(network, config, eos_token_ids=(), seed=0)
    text = StringIO()
    writer = EventLogWriter(text, {"config": asdict(config)})
    engine = Engine(config, executor, WallClock(), lambda events, is_idle: writer.write(events))
    draw, plans = Random(seed), []
    for number in range(NUM_REQUESTS):
        prompt = random_prompt(TINY, draw.randint(1, 40), seed=number)
        assert engine.add(greedy(f"r{number}", prompt, draw.randint(1, 30))) is None
        for _ in range(draw.randrange(4)):
            plans.append(engine.step().plan)
    while engine.has_work:
        plans.append(engine.step().plan)
    writer.flush()
    log.write_text(text.getvalue(), encoding="utf-8")
    return [bytes_of(plan) for plan in plans if plan is not None]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"enable_prefix_caching": True},
        {"policy": "srpt", "admission": "prompt"},
        {"preemption_trigger": "stall", "min_prefill_tokens": 4},
        {"preemption_mode": "swap", "num_host_blocks": 40, "preemption_extent": "whole"},
        {"preemption_extent": "tail", "preemption_victim": "least_lost"},
        {"batching": "static", "admission": "reserve"},
    ],
    ids=str,
)
def test_a_served_crowd_is_planned_again_byte_for_byte(options, tmp_path):
    log = tmp_path / "events.jsonl"
    served = serve(replace(TIGHT, **options), log, seed=7)
    recorded = read_log(log)
    plans = Plans()

    summary = simulate(
        recorded.scenario, None, [plans], RunOptions(RecordedStepTimes(recorded.durations))
    )

    assert len(served) > 100
    assert plans.seen == served
    assert summary["num_finished"] == {"length": NUM_REQUESTS}
    assert summary["num_preemptions"] > 0 or options.get("batching") == "static"
