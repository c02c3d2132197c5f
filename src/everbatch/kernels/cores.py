"""How many cores a process may compute on, and which CPUs.

Belongs here: reading what the system tells. Not here: threads. Used by both backends. The system's
files are read below `root`, so that a test can lay out a machine of its own.

Two threads of one core share its multipliers, so computing wants one for each physical core. A
container's limit of CPU time is one too: more threads than that would wait for each other's turn.

Sources: sched_getaffinity(2); the kernel's admin-guide, cputopology and cgroup-v2 (cpu.max).
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from everbatch.base.errors import ConfigError
from everbatch.base.units import div_ceil

CAN_PIN = sys.platform == "linux"

_TOPOLOGY = "sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
_QUOTA = "sys/fs/cgroup/cpu.max"


def num_physical_cores(root: Path = Path("/"), cpus: Iterable[int] | None = None) -> int:
    """Count the physical cores behind `cpus` (None: those we may use), within the CPU quota."""
    usable = usable_cpus() if cpus is None else list(cpus)
    cores = {_core_of(cpu, root) for cpu in usable}
    return max(1, min(len(cores), _quota(root) or len(cores)))


def cpus_to_pin(
    num_threads: int, root: Path = Path("/"), cpus: Iterable[int] | None = None
) -> list[int]:
    """Choose a CPU for each thread out of `cpus` (None: those we may use), one of each core first.

    ConfigError where there are too few, or where the system pins no threads.
    """
    if not CAN_PIN:
        raise ConfigError("threads can be pinned on Linux only: leave --pin-threads out")
    usable = usable_cpus() if cpus is None else sorted(cpus)
    if num_threads > len(usable):
        raise ConfigError(
            f"{num_threads:,} pinned threads need a CPU each, and this process may use "
            f"{len(usable):,} ({', '.join(map(str, usable))}): lower --threads, or leave "
            "--pin-threads out"
        )
    first_of_core: dict[str, int] = {}
    for cpu in usable:
        first_of_core.setdefault(_core_of(cpu, root), cpu)
    firsts = list(first_of_core.values())
    return (firsts + [cpu for cpu in usable if cpu not in firsts])[:num_threads]


def usable_cpus() -> list[int]:
    """Give the CPUs that this process may use; all where the system does not tell (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _core_of(cpu: int, root: Path) -> str:
    # Where the system does not tell, a CPU is a core.
    return _text(root / _TOPOLOGY.format(cpu=cpu)) or str(cpu)


def _quota(root: Path) -> int | None:
    """Give the limit of this container in whole CPUs, rounded up; None without one."""
    words = _text(root / _QUOTA).split()
    if len(words) != 2 or not all(word.isdecimal() for word in words) or words[1] == "0":
        return None
    return div_ceil(int(words[0]), int(words[1]))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
