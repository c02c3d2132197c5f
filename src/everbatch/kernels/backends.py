"""Which backends there are, and what to do where the native one does not run.

Belongs here: choosing by name. Not here: any backend. Called by assemble.
"""

import importlib
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import DTypeLike

from everbatch.base.errors import ConfigError
from everbatch.base.units import counted
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


def choose_backend(
    name: BackendName, num_threads: int | None, *, pin_threads: bool = False
) -> Backend:
    """Give the backend of that name; auto: native if it is here. `num_threads` None: chosen by the
    backend. ConfigError if native is asked for and does not run here, and where threads are to be
    pinned that cannot be."""
    if name == "reference":
        _refuse_to_pin(pin_threads, "these are the reference kernels")
        return _reference(num_threads)
    problem = native_problem()
    if problem is None:
        return _native(num_threads, pin_threads)
    if name == "native":
        raise ConfigError(
            f"the native kernels {problem}: install everbatch again where there is a C++ compiler, "
            "or take --kernels reference"
        )
    _refuse_to_pin(pin_threads, f"those {problem}")
    return _reference(num_threads, f", as the native ones {problem}")


def native_problem() -> str | None:
    """Say why the native kernels do not run here; None where they do."""
    try:
        importlib.import_module(_EXTENSION)
    except ModuleNotFoundError:
        return "were not built (no C++ compiler at installation?)"
    except ImportError as error:  # Damaged, or made for another system or Python.
        return f"cannot be loaded ({error})"
    return None


def _refuse_to_pin(pin_threads: bool, reason: str) -> None:
    if pin_threads:
        raise ConfigError(
            f"only the native kernels pin their threads, and {reason}: leave --pin-threads out"
        )


def _native(num_threads: int | None, pin_threads: bool) -> Backend:
    from everbatch.kernels.native import KV_DTYPE, NativeKernels, make_runtime

    runtime = make_runtime(num_threads, pin=pin_threads)
    threads = counted(runtime.num_threads, "thread")
    pinned = f", pinned to CPU {', '.join(map(str, runtime.cpus))}" if runtime.cpus else ""
    return Backend(
        build=partial(NativeKernels, runtime=runtime),
        name=f"native, {runtime.path}, {threads}{pinned}",
        weight_dtype="bfloat16",
        weight_bytes=2,
        kv_dtype=KV_DTYPE,
    )


def _reference(num_threads: int | None, reason: str = "") -> Backend:
    from everbatch.kernels.reference import ReferenceKernels

    return Backend(
        build=partial(ReferenceKernels, num_threads=num_threads),
        name=f"reference (numpy){reason}",
        weight_dtype="float32",
        weight_bytes=4,
        kv_dtype=np.float32,
    )
