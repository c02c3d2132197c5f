"""Counting and choosing cores on machines that are laid out in a directory."""

from pathlib import Path

import pytest

from everbatch.base.errors import ConfigError
from everbatch.kernels import cores
from everbatch.kernels.cores import cpus_to_pin, num_physical_cores


def lay_out(root: Path, siblings: dict[int, str], quota: str | None = None) -> Path:
    for cpu, text in siblings.items():
        directory = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        directory.mkdir(parents=True)
        (directory / "thread_siblings_list").write_text(text + "\n")
    if quota is not None:
        (root / "sys/fs/cgroup").mkdir(parents=True)
        (root / "sys/fs/cgroup/cpu.max").write_text(quota + "\n")
    return root


def test_threads_of_one_core_count_once(tmp_path: Path) -> None:
    root = lay_out(tmp_path, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})

    assert num_physical_cores(root, range(4)) == 2
    assert num_physical_cores(root, [0, 2]) == 1
    assert num_physical_cores(root, [0, 1]) == 2


def test_where_the_system_does_not_tell_each_cpu_is_a_core(tmp_path: Path) -> None:
    assert num_physical_cores(tmp_path, range(3)) == 3
    assert num_physical_cores(tmp_path, []) == 1


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("50000 100000", 1),
        ("max 100000", 4),
        ("1 0", 4),
    ],
)
def test_limit_of_a_container_bounds_them(tmp_path: Path, quota: str, cores: int) -> None:
    assert num_physical_cores(lay_out(tmp_path, {}, quota), range(4)) == cores


def test_this_machine_has_one_core_at_least() -> None:
    assert num_physical_cores() >= 1


@pytest.mark.parametrize(
    ("num_threads", "cpus", "chosen"),
    [
        (1, range(4), [0]),
        (2, range(4), [0, 1]),
        (3, range(4), [0, 1, 2]),
        (4, range(4), [0, 1, 2, 3]),
        # 1 and 3 are one core, so 2 comes before 3.
        (2, [3, 2, 1], [1, 2]),
        (3, [3, 2, 1], [1, 2, 3]),
    ],
)
def test_threads_are_pinned_to_cores_of_their_own_first(
    tmp_path: Path, num_threads: int, cpus: list[int], chosen: list[int]
) -> None:
    root = lay_out(tmp_path, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"} | {2: "2"})

    assert cpus_to_pin(num_threads, root, cpus) == chosen


def test_more_pinned_threads_than_cpus_are_refused(tmp_path: Path) -> None:
    words = r"3 pinned threads need a CPU each, .* may use 2 \(0, 5\): lower --threads"
    with pytest.raises(ConfigError, match=words):
        cpus_to_pin(3, tmp_path, [5, 0])


def test_pinning_is_refused_on_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "CAN_PIN", False)

    with pytest.raises(ConfigError, match="on Linux only: leave --pin-threads out"):
        cpus_to_pin(1)
