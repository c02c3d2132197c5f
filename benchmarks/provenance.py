"""Where, when and on what a figure was measured, and who else used the machine meanwhile.

The harness takes the facts alone, as it has its probes; Watch is for benchmarks that run in one
process and write a record of their own.
"""

import os
import platform
import re
import subprocess
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
THREAD_VARIABLES = re.compile(r"^(OMP|OPENBLAS|MKL|GOMP|KMP|VLLM|LD_PRELOAD)")
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


def machine_facts() -> dict[str, Any]:
    """What a reader needs to know of the machine: CPU, cores, memory, system, thread settings."""
    return {
        "cpu": _first_match("/proc/cpuinfo", r"^model name\s*:\s*(.+)$") or platform.processor(),
        "num_cores": len(os.sched_getaffinity(0)),
        "memory_kib": int(_first_match("/proc/meminfo", r"^MemTotal:\s*(\d+) kB$") or 0),
        "system": platform.platform(),
        "environment": {k: v for k, v in sorted(os.environ.items()) if THREAD_VARIABLES.match(k)},
    }


def versions() -> dict[str, str]:
    """The harness's own Python and packages; a candidate prints those of its environment itself."""
    installed: dict[str, str] = {
        dist.name.lower(): dist.version for dist in metadata.distributions()
    }
    named: dict[str, str] = {
        name: installed[name] for name in ("everbatch", "numpy") if name in installed
    }
    return {"python": platform.python_version(), **named}


def commit() -> str | None:
    """The commit checked out, with "-dirty" behind it if tracked files differ; None without git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return process.stdout.strip()


def _first_match(path: str, pattern: str) -> str | None:
    try:
        match = re.search(pattern, Path(path).read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return match.group(1) if match else None
