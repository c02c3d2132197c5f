"""The memory that is left, read from a machine laid out in files."""

from pathlib import Path

import pytest

from everbatch.assemble.memory import available_bytes

GIB = 1 << 30


def machine(root: Path, available_gib: int = 32, groups: str = "0::/\n") -> Path:
    write(root, "proc/meminfo", f"MemTotal: 999 kB\nMemAvailable: {available_gib << 20} kB\n")
    write(root, "proc/self/cgroup", groups)
    return root


def write(root: Path, path: str, content: object) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{content}\n")


def test_machine_without_limits_gives_what_is_available(tmp_path: Path) -> None:
    root = machine(tmp_path)
    write(root, "sys/fs/cgroup/memory.max", "max")

    assert available_bytes(root) == 32 * GIB


def test_container_gives_what_its_limit_leaves(tmp_path: Path) -> None:
    root = machine(tmp_path)
    write(root, "sys/fs/cgroup/memory.max", 8 * GIB)
    write(root, "sys/fs/cgroup/memory.current", 3 * GIB)
    write(root, "sys/fs/cgroup/memory.stat", f"anon {2 * GIB}\ninactive_file {1 * GIB}")

    assert available_bytes(root) == 6 * GIB


def test_limit_above_what_the_machine_has_changes_nothing(tmp_path: Path) -> None:
    root = machine(tmp_path, available_gib=4)
    write(root, "sys/fs/cgroup/memory.max", 64 * GIB)
    write(root, "sys/fs/cgroup/memory.current", 1 * GIB)

    assert available_bytes(root) == 4 * GIB


def test_lowest_limit_of_all_groups_around_counts(tmp_path: Path) -> None:
    root = machine(tmp_path, groups="0::/user.slice/job\n")
    for group, limit, used in [("user.slice", 6, 5), ("user.slice/job", 4, 1)]:
        write(root, f"sys/fs/cgroup/{group}/memory.max", limit * GIB)
        write(root, f"sys/fs/cgroup/{group}/memory.current", used * GIB)

    assert available_bytes(root) == 1 * GIB


def test_version_one_is_read_where_it_is_mounted(tmp_path: Path) -> None:
    root = machine(tmp_path, groups="5:cpu,cpuacct:/x\n4:memory:/job\n0::/\n")
    write(root, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", 4 * GIB)
    write(root, "sys/fs/cgroup/memory/job/memory.usage_in_bytes", 3 * GIB)
    write(root, "sys/fs/cgroup/memory/job/memory.stat", f"total_inactive_file {2 * GIB}")
    # What version one writes for "no limit": the largest number of pages.
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", 0x7FFF_FFFF_FFFF_F000)

    assert available_bytes(root) == 3 * GIB


def test_path_of_the_host_falls_back_to_what_is_mounted(tmp_path: Path) -> None:
    root = machine(tmp_path, groups="4:memory:/docker/0123abcd\n")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", 2 * GIB)

    assert available_bytes(root) == 2 * GIB


def test_group_that_is_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    root = machine(tmp_path)
    write(root, "sys/fs/cgroup/memory.max", 2 * GIB)
    write(root, "sys/fs/cgroup/memory.current", 3 * GIB)

    assert available_bytes(root) == 0


@pytest.mark.parametrize("content", ["", "MemAvailable", "MemAvailable: lots", "\0"])
def test_kernel_that_does_not_tell_gives_all_memory(tmp_path: Path, content: str) -> None:
    write(tmp_path, "proc/meminfo", content)

    assert available_bytes(tmp_path) > 0


def test_without_a_root_this_machine_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def read(path: Path, **_: object) -> str:
        asked.append(path)
        return "MemAvailable: 7 kB\n" if path.name == "meminfo" else ""

    monkeypatch.setattr(Path, "read_text", read)

    assert available_bytes() == 7 * 1024
    assert Path("/proc/meminfo") in asked
