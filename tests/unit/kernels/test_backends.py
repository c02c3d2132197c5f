"""Choosing a backend: what the name and the installation say."""

import shutil
import sys
from collections.abc import Callable
from importlib import util
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path

import pytest

from everbatch import kernels
from everbatch.base.errors import ConfigError
from everbatch.kernels import backends
from everbatch.kernels.backends import choose_backend, native_problem
from everbatch.kernels.reference import ReferenceKernels

Prepare = Callable[[Path, pytest.MonkeyPatch], None]

EXTENSION = "everbatch.kernels._native"


def with_native_in(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the extension be sought in `directory` and nowhere else."""
    monkeypatch.setattr(sys, "meta_path", [PathFinder])
    monkeypatch.setattr(kernels, "__path__", [str(directory)])
    monkeypatch.delitem(sys.modules, EXTENSION, raising=False)


def with_damaged_native(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / f"_native{EXTENSION_SUFFIXES[0]}").write_bytes(b"no library")
    with_native_in(directory, monkeypatch)


@pytest.mark.skipif(shutil.which("c++") is None, reason="no compiler, so no extension is expected")
def test_extension_is_built_where_there_is_a_compiler() -> None:
    assert native_problem() is None


@pytest.mark.skipif(not util.find_spec(EXTENSION), reason="was not built")
@pytest.mark.parametrize("name", ["auto", "native"])
def test_native_is_chosen_where_it_is(name: backends.BackendName) -> None:
    backend = choose_backend(name, 3)

    assert backend.name.startswith("native, ")
    assert backend.name.endswith(", 3 threads")
    assert (backend.weight_dtype, backend.weight_bytes) == ("bfloat16", 2)


@pytest.mark.skipif(not util.find_spec(EXTENSION), reason="was not built")
def test_environment_names_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERBATCH_CPU_PATH", "portable")

    assert choose_backend("native", 1).name == "native, portable, 1 thread"


@pytest.mark.skipif(not util.find_spec(EXTENSION), reason="was not built")
def test_path_that_this_cpu_does_not_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERBATCH_CPU_PATH", "avx1024")

    with pytest.raises(ConfigError, match=r"EVERBATCH_CPU_PATH is 'avx1024', .*portable: name one"):
        choose_backend("native", 1)


@pytest.mark.skipif(not util.find_spec(EXTENSION), reason="was not built")
def test_environment_leaves_optimisations_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERBATCH_WITHOUT", "kv-ahead, huge-pages,")

    runtime = choose_backend("native", 1).build.keywords["runtime"]
    assert runtime.without == ["huge-pages", "kv-ahead"]


@pytest.mark.skipif(not util.find_spec(EXTENSION), reason="was not built")
def test_unknown_optimisation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERBATCH_WITHOUT", "kv-ahead,magic")

    with pytest.raises(ConfigError, match=r"EVERBATCH_WITHOUT holds 'magic', .*own-pieces: name"):
        choose_backend("native", 1)


def test_reference_is_chosen_by_name() -> None:
    backend = choose_backend("reference", 1)

    assert backend.name == "reference (numpy)"
    assert (backend.weight_dtype, backend.weight_bytes) == ("float32", 4)
    assert backend.build.func is ReferenceKernels
    assert backend.build.keywords == {"num_threads": 1}


def test_auto_falls_back_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_native_in(tmp_path, monkeypatch)

    name = choose_backend("auto", None).name
    assert name.startswith("reference (numpy), as the native ones were not built")


def test_auto_falls_back_from_a_damaged_extension_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_damaged_native(tmp_path, monkeypatch)

    name = choose_backend("auto", None).name
    assert name.startswith("reference (numpy), as the native ones cannot be loaded (")


@pytest.mark.parametrize("prepare", [with_native_in, with_damaged_native])
def test_native_that_does_not_run_is_refused_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Prepare
) -> None:
    prepare(tmp_path, monkeypatch)

    with pytest.raises(ConfigError, match=r"everbatch again .* or take --kernels reference"):
        choose_backend("native", None)
