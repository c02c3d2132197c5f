"""Benchmark: CPU time that a streamed token costs the server, without the network's.

    python benchmarks/token_cost.py [MODEL] [--streams 1 32 64] [--steps 300] [--step-ms 10]

A real server on the loopback address, its clients in another process, and in place of a network an
executor that sleeps and then says an English text. Prints, for each number of streams, the CPU
microseconds a token on the event loop (text, JSON, HTTP, metrics, the kernel's part of sending) and
on the engine's thread (plan, commit, events, handing over), over the steps in which all streams
decode. MODEL gives the tokenizer.
"""

import argparse
import asyncio
import json
import multiprocessing
import signal
import sys
import threading
import time
from array import array
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

import raw_client
import uvloop
from positive_numbers import positive

from everbatch.assemble.model_source import resolve_model
from everbatch.assemble.wallclock import WallClock
from everbatch.base.units import div_ceil
from everbatch.engine.engine import Engine
from everbatch.engine.executor import EmittedTokens
from everbatch.kv_cache.content import in_blocks
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.plan import StepOutcome, StepPlan
from everbatch.server.app import create_app
from everbatch.server.bridge import AsyncEngine
from everbatch.server.metrics import ServerMetrics
from everbatch.server.run import bind_socket, serve
from everbatch.server.served import ServedModel
from everbatch.server.settings import ServerSettings
from everbatch.tokenizer.grammars import Grammars
from everbatch.tokenizer.tokenizer import Tokenizer

TEXT = (
    "A language model answers one token at a time. Each token is a forward pass that reads all "
    "weights, and reading them costs nearly the same for one request as for thirty. So requests "
    "must share passes. But they arrive at any moment, have prompts of any length and end whenever "
    "they like, and each keeps a growing cache of keys and values in a memory that runs out.\n\n"
)
NUM_PROMPT_TOKENS = 32
BLOCK_SIZE = 16
STOP_S = 1.0
MIN_STEPS = 20
"""In which all decode; a run with fewer says nothing."""


@dataclass(slots=True)
class PacedExecutor:
    """Sleeps for `step_s`, then says the next token of `text` in each row that emits.

    Reads, before and after, how much CPU time the event loop and this thread have had.
    """

    text: Sequence[int]
    step_s: float
    num_streams: int
    loop_clock: int
    """Of the event loop's thread."""
    loop_ns: list[int] = field(default_factory=list)
    engine_ns: list[int] = field(default_factory=list)
    """A step's each, of those in which all streams decode."""
    _last: tuple[int, int] | None = None
    """Both clocks after the step before, if all streams decoded in it."""
    _slots: dict[int, str] = field(default_factory=dict)
    _decodes: dict[int, None] = field(default_factory=dict)
    _num_said: int = 0

    @property
    def tokens(self) -> "PacedExecutor":
        return self

    def read(
        self, request_id: str, payload: object, sample: int, blocks: range, block_size: int
    ) -> list[bytes]:
        first = blocks.start * block_size
        known = array("i", range(first, blocks.stop * block_size))
        return in_blocks(known.tobytes(), block_size)

    def execute(self, plan: StepPlan) -> StepOutcome:
        loop_ns, engine_ns = self._clocks()
        if self._last is not None:
            self.loop_ns.append(loop_ns - self._last[0])
            self.engine_ns.append(engine_ns - self._last[1])
        for slot in plan.released:
            self._slots.pop(slot, None)
            self._decodes.pop(slot, None)
        for slot in plan.left:
            del self._decodes[slot]
        self._slots.update((one.slot, one.request_id) for one in plan.admitted)
        self._decodes.update(dict.fromkeys(plan.joined))
        rows = [*(chunk.slot for chunk in plan.chunks if chunk.emits), *self._decodes]
        self._num_said += 1
        token_id = self.text[self._num_said % len(self.text)]
        said = EmittedTokens([self._slots[slot] for slot in rows], [token_id] * len(rows), None)
        time.sleep(self.step_s)
        self._last = None
        if len(self._decodes) == self.num_streams and not plan.chunks:
            # What the loop does while this thread sleeps is of the step before.
            self._last = (loop_ns, time.thread_time_ns())
        return StepOutcome(tokens=said)

    def reset(self) -> None:
        raise AssertionError("no pass fails here")

    def _clocks(self) -> tuple[int, int]:
        return time.clock_gettime_ns(self.loop_clock), time.thread_time_ns()


def costs_us(
    tokenizer: Tokenizer, num_streams: int, num_steps: int, step_s: float
) -> tuple[float, float]:
    """Give the CPU microseconds a token of the event loop and of the engine's thread.

    To be called in the main thread, which becomes the event loop's.
    """
    executor = PacedExecutor(
        tokenizer.encode(TEXT, add_special_tokens=False),
        step_s,
        num_streams,
        time.pthread_getcpuclockid(threading.get_ident()),
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_streams(tokenizer, executor, num_steps))
    num_tokens = num_streams * len(executor.loop_ns)
    if len(executor.loop_ns) < MIN_STEPS:
        sys.exit(f"all {num_streams} decoded in {len(executor.loop_ns)} steps only: ask for more")
    return sum(executor.loop_ns) / num_tokens / 1e3, sum(executor.engine_ns) / num_tokens / 1e3


async def _serve_streams(tokenizer: Tokenizer, executor: PacedExecutor, num_steps: int) -> None:
    """Serve one batch of streams to its end."""
    num_streams = executor.num_streams
    clock = WallClock()
    num_blocks = num_streams * (div_ceil(NUM_PROMPT_TOKENS + num_steps, BLOCK_SIZE) + 1)
    config = SchedulerConfig(
        max_num_seqs=num_streams,
        max_num_batched_tokens=num_streams * NUM_PROMPT_TOKENS,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
    )
    core = Engine(config, executor, clock)
    settings = ServerSettings(version="benchmark")
    engine = AsyncEngine(core, ServerMetrics("benchmark", core.stats(), config), clock, settings)
    grammars = Grammars(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    model = ServedModel("benchmark", tokenizer.vocab_size, tokenizer, grammars)
    app = create_app(engine, model, settings, clock)
    listening = bind_socket("127.0.0.1", 0)
    port = listening.getsockname()[1]
    ready = asyncio.Event()
    server = asyncio.create_task(serve(app, engine, listening, STOP_S, ready.set))
    await ready.wait()
    first = tokenizer.vocab_size - num_streams
    prompts = [[first + stream] * NUM_PROMPT_TOKENS for stream in range(num_streams)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        streaming = pool.submit(raw_client.stream_all, "127.0.0.1", port, prompts, num_steps)
        streams = await asyncio.wrap_future(streaming)
    assert all(one.num_tokens == num_steps for one in streams)
    signal.raise_signal(signal.SIGTERM)
    await server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", help="default: the default model")
    parser.add_argument("--streams", type=positive, nargs="+", default=[1, 32, 64])
    parser.add_argument("--steps", type=positive, default=300)
    parser.add_argument("--step-ms", type=positive, default=10, help="how long a step sleeps")
    parser.add_argument("--json", action="store_true", help="print one JSON line, as a candidate")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_path(resolve_model(options.model).path)
    figures: dict[str, float] = {}
    for streams in options.streams:
        loop_us, engine_us = costs_us(tokenizer, streams, options.steps, options.step_ms / 1e3)
        figures[f"loop_us_per_token_{streams}"] = round(loop_us, 3)
        figures[f"engine_us_per_token_{streams}"] = round(engine_us, 3)
        if not options.json:
            print(
                f"{streams} streams: {loop_us:.2f} us a token on the event loop, "
                f"{engine_us:.2f} us on the engine's thread"
            )
    if options.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
