"""One line now and then that says what the server is doing.

Belongs here: the line and when it is due. Not here: where it is printed.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from everbatch.base.clock import Clock
from everbatch.base.units import NS_PER_S
from everbatch.engine.metrics import EngineStats


@dataclass(frozen=True, slots=True)
class _Seen:
    now_ns: int
    prompt_tokens: int
    generation_tokens: int
    num_preemptions: int


class StatusLine:
    """Turns what the engine says of itself into a line, if anything ran since the last one."""

    def __init__(self, stats: EngineStats, now_ns: int) -> None:
        self._seen = _seen(stats, now_ns)

    def due(self, stats: EngineStats, now_ns: int) -> str | None:
        """Give the line for the time since the last call; None if nothing ran and nothing waits."""
        before, after = self._seen, _seen(stats, now_ns)
        self._seen = after
        seconds = (after.now_ns - before.now_ns) / NS_PER_S
        num_prompt = after.prompt_tokens - before.prompt_tokens
        num_output = after.generation_tokens - before.generation_tokens
        is_busy = stats.num_running or stats.num_waiting or num_prompt or num_output
        if not is_busy or seconds <= 0:
            return None
        return (
            f"running {stats.num_running}, waiting {stats.num_waiting}, "
            f"KV {stats.kv_cache_usage:.1%}, "
            f"prompt {num_prompt / seconds:.1f} tokens/s, "
            f"output {num_output / seconds:.1f} tokens/s, "
            f"preemptions {after.num_preemptions - before.num_preemptions}"
        )


async def print_status(
    stats: Callable[[], EngineStats],
    clock: Clock,
    interval_s: float,
    print_line: Callable[[str], None],
) -> None:
    """Print a line every `interval_s` seconds, until cancelled."""
    line = StatusLine(stats(), clock.now_ns())
    while True:
        await asyncio.sleep(interval_s)
        due = line.due(stats(), clock.now_ns())
        if due is not None:
            print_line(due)


def _seen(stats: EngineStats, now_ns: int) -> _Seen:
    return _Seen(now_ns, stats.prompt_tokens, stats.generation_tokens, stats.num_preemptions)
