"""When the steps of an engine ended, and `everbatch serve` with these times in a file.

    python benchmarks/timed_steps.py FILE --port 0 …

All behind FILE is for `everbatch serve`; the file is written when it ends. Belongs here: noting
times. Not here: what is made of them (streams_workload.py).
"""

import json
import sys
import time
from pathlib import Path

from everbatch.cli.main import main as everbatch
from everbatch.engine.engine import AbortInbox, Engine, StepResult

StepEnd = tuple[int, int]
"""When a step had ended, by time.perf_counter_ns, and how many tokens it brought."""


def time_steps() -> list[StepEnd]:
    """Note from now on the steps of all engines of this process that bring tokens; gives the list
    that grows."""
    ends: list[StepEnd] = []
    untimed = Engine.step

    def step(engine: Engine, inbox: AbortInbox | None = None) -> StepResult:
        result = untimed(engine, inbox)
        if result.outputs:
            ends.append((time.perf_counter_ns(), len(result.outputs)))
        return result

    Engine.step = step  # type: ignore[method-assign]
    return ends


def main() -> None:
    path, *arguments = sys.argv[1:]
    ends = time_steps()
    sys.argv = ["everbatch", "serve", *arguments]
    try:
        everbatch()
    finally:
        Path(path).write_text(json.dumps(ends), encoding="ascii")


if __name__ == "__main__":
    main()
