"""Choosing a backend: what the name and the installation say."""

import shutil
from importlib import util

import pytest

from everbatch.base.errors import ConfigError
from everbatch.kernels import backends
from everbatch.kernels.backends import choose_backend, native_is_built
from everbatch.kernels.reference import ReferenceKernels


def without_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "native_is_built", lambda: False)


@pytest.mark.skipif(shutil.which("c++") is None, reason="no compiler, so no extension is expected")
def test_extension_is_built_where_there_is_a_compiler() -> None:
    assert native_is_built()


@pytest.mark.skipif(not util.find_spec("everbatch.kernels._native"), reason="was not built")
@pytest.mark.parametrize("name", ["auto", "native"])
def test_native_is_chosen_where_it_is(name: backends.BackendName) -> None:
    backend = choose_backend(name, 3)

    assert backend.name.startswith("native, ")
    assert backend.name.endswith(", 3 threads")
    assert (backend.weight_dtype, backend.weight_bytes) == ("bfloat16", 2)


def test_reference_is_chosen_by_name() -> None:
    backend = choose_backend("reference", 1)

    assert backend.name == "reference (numpy)"
    assert (backend.weight_dtype, backend.weight_bytes) == ("float32", 4)
    assert backend.build.func is ReferenceKernels
    assert backend.build.keywords == {"num_threads": 1}


def test_auto_falls_back_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    without_native(monkeypatch)

    assert choose_backend("auto", None).name.startswith("reference (numpy), as the native ones")


def test_native_that_was_not_built_is_refused_with_a_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_native(monkeypatch)

    with pytest.raises(ConfigError, match="take --kernels reference"):
        choose_backend("native", None)
