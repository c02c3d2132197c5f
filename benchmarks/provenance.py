"""Where, when and on what a figure was measured, and who else used the machine meanwhile.

For benchmarks that run in one process and write a record of their own. The harness has its probes.
"""

import os
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import commit, machine_facts, versions

PROC_STAT = Path("/proc/stat")
NOT_BUSY = (3, 4)
"""Fields of the line "cpu" (proc(5), from 0): idle and iowait. Guests count as user already."""
NUM_FIELDS = 8
"""User to steal; what is stolen is used by another machine, so by others."""
QUIET_CORES = 0.1
"""Others that keep less than so many cores busy do not show in a measurement, nearly."""


def busy_seconds(stat: str) -> float:
    """Give the seconds that all cores together were busy since the machine started."""
    line = next(line for line in stat.splitlines() if line.startswith("cpu "))
    ticks = [int(field) for field in line.split()[1 : 1 + NUM_FIELDS]]
    busy = sum(count for place, count in enumerate(ticks) if place not in NOT_BUSY)
    return busy / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Watch:
    """From its making to `facts`: how many cores others kept busy, in the mean."""

    _wall_s: float = field(default_factory=time.monotonic)
    _own_s: float = field(default_factory=time.process_time)
    _busy_s: float = field(default_factory=lambda: busy_seconds(PROC_STAT.read_text("ascii")))

    def facts(self) -> dict[str, Any]:
        """Give what a record begins with."""
        wall_s = time.monotonic() - self._wall_s
        own_s = time.process_time() - self._own_s
        busy_s = busy_seconds(PROC_STAT.read_text("ascii")) - self._busy_s
        return {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "commit": commit(),
            "machine": machine_facts(),
            "versions": versions(),
            "wall_s": round(wall_s, 1),
            "other_cores": round(max(0.0, busy_s - own_s) / wall_s, 2),
        }


def clock_facts(*, cpu_time: bool) -> dict[str, Any]:
    """Give what a record says of its times."""
    return {"clock": "CPU time" if cpu_time else "wall"}


def where(told: dict[str, Any]) -> str:
    """Say it in a sentence or two for a document."""
    machine, others = told["machine"], told["other_cores"]
    used = f"others used {others:.2f} cores meanwhile"
    if told["clock"] != "wall":
        state = f"times are CPU time with one thread (`--cpu-time`), since {used}."
    elif others < QUIET_CORES:
        state = "nothing else ran."
    else:
        state = (
            f"**the machine was busy**: {used}, so such times say little until a quiet run "
            "replaces them."
        )
    # A tree with changes that were not committed is told as such.
    name, _, dirty = str(told["commit"]).partition("-")
    at = f"{name[:7]}{dirty and ' with changes'}"
    return (
        f"Measured on {told['date']} at {at}, {machine['cpu']}, "
        f"{machine['num_cores']} cores, kernels {told['model']['kernels']}; {state}"
    )
