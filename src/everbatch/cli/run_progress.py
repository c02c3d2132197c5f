"""Shows people how far long work is: a run (time, or requests that have ended), a log, rounds.

Nothing is drawn unless standard error is a terminal, and rich is imported only then.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from everbatch.workload.scenario import Scenario

if TYPE_CHECKING:
    from rich.progress import Progress


@contextmanager
def run_progress(
    scenario: Scenario, verb: str = "simulating"
) -> Iterator[Callable[[int, int], None] | None]:
    """Give what a run tells its time and number of ended requests to; None where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    unit, horizon = scenario.clock.unit, scenario.run.horizon
    with _bars() as bars:
        task = bars.add_task(verb, total=horizon or scenario.source().num_requests)

        def tell(now: int, num_ended: int) -> None:
            time = f"{now:,} steps" if unit.is_steps else f"{unit.written(now):,.1f} s"
            bars.update(
                task,
                completed=num_ended if horizon is None else now,
                description=f"{verb}: {time}, {num_ended:,} requests ended",
            )

        yield tell


@contextmanager
def reading_progress(path: Path) -> Iterator[Callable[[int], None] | None]:
    """Give what a reader of a file tells its bytes to; None where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    with _bars() as bars:
        task = bars.add_task(f"reading {path.name}", total=path.stat().st_size)
        yield lambda num_bytes: bars.update(task, completed=num_bytes)


@contextmanager
def rounds_progress(verb: str, most: int) -> Iterator[Callable[[int], None] | None]:
    """Give what work of up to `most` rounds tells how many are done; None where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    with _bars() as bars:
        task = bars.add_task(verb, total=most)
        yield lambda num_done: bars.update(task, completed=num_done)


def _bars() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
