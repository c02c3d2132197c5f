"""What a scheduling step costs: schedule + apply while all running requests decode.

Prints one line a size: `N running: X us per running sequence and step`. Prefix caching is on,
history is hashed as blocks fill, length limits are checked, events are made and folded into
metrics, as when serving. Requests that wait and blocks that nobody uses should cost nothing:
`--waiting 100000` and `--blocks 10000000` show it.
Usage: python benchmarks/bench_scheduler.py [N ...] [--waiting W] [--blocks B]
"""

import argparse
import statistics
import time
from array import array

from everbatch.engine.metrics import EngineMetrics
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.plan import StepOutcome, StepPlan
from everbatch.scheduler.request import Request
from everbatch.scheduler.scheduler import Scheduler

PROMPT_TOKENS = 100
MAX_TOKENS = 400
NUM_STEPS = 300


class PrivateTokens:
    """A token store in which no two requests share anything."""

    def __init__(self, num_requests: int) -> None:
        """The waiting ones come after the first `num_requests`; the head of theirs is looked up."""
        self._waiting = array("i", range(PROMPT_TOKENS + 16))
        first = range(0, num_requests << 16, 1 << 16)
        self._tokens = [array("i", range(at, at + PROMPT_TOKENS + 16 + MAX_TOKENS)) for at in first]

    def read(self, request_id: str, payload: object, sample: int, start: int, stop: int) -> bytes:
        number = int(request_id)
        tokens = self._tokens[number] if number < len(self._tokens) else self._waiting
        return tokens[start:stop].tobytes()


def step_costs_us(num_running: int, num_waiting: int = 0, num_blocks: int = 0) -> list[float]:
    """Give the microseconds of each of NUM_STEPS steps with `num_running` requests decoding.

    num_waiting more wait for a slot; num_blocks 0: as many as those who run can need.
    """
    config = SchedulerConfig(
        max_num_seqs=num_running,
        max_num_batched_tokens=8192,
        num_blocks=num_blocks or num_running * 40,
        block_size=16,
        enable_prefix_caching=True,
    )
    scheduler, metrics = Scheduler(config, PrivateTokens(num_running)), EngineMetrics()
    for number in range(num_running + num_waiting):
        # Lengths differ, as those of real prompts do: blocks fill at different steps.
        request = Request(str(number), 0, 0, PROMPT_TOKENS + number % 16, MAX_TOKENS)
        assert scheduler.add(request, 0) is None
    costs: list[float] = []
    while len(costs) < NUM_STEPS:
        start = time.perf_counter()
        plan = scheduler.schedule(0)
        assert isinstance(plan, StepPlan)
        for event in scheduler.apply(plan, StepOutcome(), 0):
            metrics.fold(event)
        if plan.num_decodes == num_running:
            costs.append((time.perf_counter() - start) * 1e6)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("running", type=int, nargs="*", default=[64, 256, 1024])
    parser.add_argument("--waiting", type=int, default=0)
    parser.add_argument("--blocks", type=int, default=0)
    options = parser.parse_args()
    for num_running in options.running:
        costs = step_costs_us(num_running, options.waiting, options.blocks)
        # The mean, not the median: blocks fill in some steps only and must be paid for.
        per_request = statistics.fmean(costs) / num_running
        print(f"{num_running} running: {per_request:.3f} us per running sequence and step")


if __name__ == "__main__":
    main()
