"""Shows people how far a long run is: simulated time, or requests that have ended.

Nothing is drawn unless standard error is a terminal, and rich is imported only then.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from everbatch.workload.scenario import Scenario


@contextmanager
def run_progress(scenario: Scenario) -> Iterator[Callable[[int, int], None] | None]:
    """Give what a run tells its time and number of ended requests to; None where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    unit, horizon = scenario.clock.unit, scenario.run.horizon
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("simulating", total=horizon or scenario.source().num_requests)

        def tell(now: int, num_ended: int) -> None:
            time = f"{now:,} steps" if unit.is_steps else f"{unit.written(now):,.1f} s"
            bars.update(
                task,
                completed=num_ended if horizon is None else now,
                description=f"{time}, {num_ended:,} requests ended",
            )

        yield tell
