"""Which backends there are, and what to do where the native one was not built.

Belongs here: choosing by name. Not here: any backend. Called by assemble.
"""

import importlib.util
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import DTypeLike

from everbatch.base.errors import ConfigError
from everbatch.kernels.options import BackendName
from everbatch.kernels.protocol import KernelsBackend

_EXTENSION = "everbatch.kernels._native"


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend to build a network with, and what people should know of it."""

    build: KernelsBackend
    name: str
    """As shown at start, with the reason where it is not the one that most would want."""
    weight_dtype: str
    weight_bytes: int
    """Of one weight."""
    kv_dtype: DTypeLike


def choose_backend(name: BackendName, num_threads: int | None) -> Backend:
    """Give the backend of that name; auto: native if it is here. `num_threads` None: chosen by the
    backend. ConfigError if native is asked for and is not here."""
    if name == "native" and not native_is_built():
        raise ConfigError(
            "kernels native are not in this installation, as there was no C++ compiler or the "
            "build failed: install one and install everbatch again, or take --kernels reference"
        )
    if name != "reference" and native_is_built():
        return _native(num_threads)
    return _reference(num_threads, is_second_choice=name == "auto")


def native_is_built() -> bool:
    """Whether this installation has the extension."""
    return importlib.util.find_spec(_EXTENSION) is not None


def _native(num_threads: int | None) -> Backend:
    from everbatch.kernels.native import KV_DTYPE, NativeKernels, make_runtime

    runtime = make_runtime(num_threads)
    threads = "1 thread" if runtime.num_threads == 1 else f"{runtime.num_threads} threads"
    return Backend(
        build=partial(NativeKernels, runtime=runtime),
        name=f"native, {runtime.path}, {threads}",
        weight_dtype="bfloat16",
        weight_bytes=2,
        kv_dtype=KV_DTYPE,
    )


def _reference(num_threads: int | None, *, is_second_choice: bool) -> Backend:
    from everbatch.kernels.reference import ReferenceKernels

    reason = ", as the native ones were not built: no C++ compiler at installation?"
    return Backend(
        build=partial(ReferenceKernels, num_threads=num_threads),
        name="reference (numpy)" + (reason if is_second_choice else ""),
        weight_dtype="float32",
        weight_bytes=4,
        kv_dtype=np.float32,
    )
