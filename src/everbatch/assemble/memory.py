"""How much memory a process may still take, by the machine and by the cgroup it runs in.

Belongs here: reading the kernel's files. Not here: what is done with it (options.py). Called by
real.py. Everything is read below `root`, so that a test can lay out a machine of its own.

Sources: proc_meminfo(5); the kernel's admin-guide, cgroup-v2 (memory.max, memory.current,
memory.stat) and cgroup-v1/memory (memory.limit_in_bytes, memory.usage_in_bytes).
"""

from os import sysconf
from pathlib import Path

_GROUPS_FILE = Path("proc/self/cgroup")
_CGROUP_DIRECTORY = Path("sys/fs/cgroup")


def available_bytes(root: Path = Path("/")) -> int:
    """Give the memory that can be had without swapping and without meeting a cgroup's limit."""
    return min([_machine_bytes(root), *_group_bytes(root)])


def _machine_bytes(root: Path) -> int:
    """Give MemAvailable; where the kernel does not tell, all memory of the machine."""
    facts = _facts(root / "proc/meminfo", separator=":")
    if "MemAvailable" in facts:
        return facts["MemAvailable"] * 1024
    return sysconf("SC_PHYS_PAGES") * sysconf("SC_PAGE_SIZE")


def _group_bytes(root: Path) -> list[int]:
    """Give what each limit above this process leaves; groups without one are left out."""
    found = []
    for directory in _group_directories(root):
        limit = _number(directory / "memory.max") or _number(directory / "memory.limit_in_bytes")
        used = _number(directory / "memory.current") or _number(directory / "memory.usage_in_bytes")
        if limit is not None:
            # Pages of files that nobody used lately are given up before anybody is killed.
            stat = _facts(directory / "memory.stat")
            idle_pages = stat.get("total_inactive_file", stat.get("inactive_file", 0))
            found.append(max(0, limit - max(0, (used or 0) - idle_pages)))
    return found


def _group_directories(root: Path) -> list[Path]:
    """Give the directories of this process's memory group and of all groups around it.

    In a container the path may be the host's, which is not there: then what is mounted at the top
    is the container's own group.
    """
    directories = []
    for line in _lines(root / _GROUPS_FILE):
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            top = root / _CGROUP_DIRECTORY
        elif "memory" in controllers.split(","):
            top = root / _CGROUP_DIRECTORY / "memory"
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        directories += [top.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return directories


def _facts(path: Path, separator: str | None = None) -> dict[str, int]:
    """Read lines of a name and a number; what does not look so is passed over."""
    facts = {}
    for line in _lines(path):
        name, *rest = line.split(separator, 1)
        words = rest[0].split() if rest else []
        if words and words[0].isdecimal():
            facts[name] = int(words[0])
    return facts


def _number(path: Path) -> int | None:
    """Read a file of one number; None if it is not there or says "max"."""
    words = " ".join(_lines(path)).split()
    return int(words[0]) if len(words) == 1 and words[0].isdecimal() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
