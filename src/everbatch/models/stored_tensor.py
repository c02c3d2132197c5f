"""One tensor as a file stores it, and how it becomes float32.

Belongs here: the stored types and their conversion. Not here: file headers (safetensors_files.py,
base/gguf_header.py) and names (tensor_names.py). Called by both kinds of file and by weights.py.

Reading is by plain reads in chunks, not by mmap: a file that shrinks while it is mapped kills the
process with SIGBUS, a short read is an error that can be told. Beyond the result a conversion holds
one chunk and its float32 form.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO, TypeAlias

import gguf
import numpy as np
from numpy.typing import NDArray

from everbatch.base.errors import ModelLoadError
from everbatch.kernels.arrays import Floats

Bytes: TypeAlias = NDArray[np.uint8]

# 256 KiB of float32, which stays in a core's cache; a multiple of every block size below.
_CHUNK_VALUES = 1 << 16


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies. The bytes [offset, offset + num_bytes) are known to be in the file and
    to match shape and type. `name` is the Hugging Face name, `stored_name` the file's own."""

    name: str
    stored_name: str
    shape: tuple[int, ...]
    type: str
    path: Path
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class _Conversion:
    """`convert` takes uint8 [block_bytes * n] into float32 [block_size * n]."""

    block_size: int
    block_bytes: int
    convert: Callable[[Bytes, Floats], None]


def _from_f32(raw: Bytes, out: Floats) -> None:
    out[:] = raw.view("<f4")


def _from_f16(raw: Bytes, out: Floats) -> None:
    out[:] = raw.view("<f2")


def _from_bf16(raw: Bytes, out: Floats) -> None:
    # bfloat16 is the upper half of a float32.
    np.left_shift(raw.view("<u2"), 16, out=out.view(np.uint32), dtype=np.uint32)


# The two types of the default model, as llama.cpp stores them (ggml-common.h): the same bits as the
# package's, in two thirds of its time. Both are half of the start of a server.


def _from_q4_1(raw: Bytes, out: Floats) -> None:
    """Blocks of 32: scale and least value as float16, then 4 bits each, lower halves first."""
    blocks, values = raw.reshape(-1, 20), out.reshape(-1, 2, 16)
    factors = np.ascontiguousarray(blocks[:, :4]).view("<f2").astype(np.float32)
    values[:, 0] = blocks[:, 4:] & 15
    values[:, 1] = blocks[:, 4:] >> 4
    values *= factors[:, :1, None]
    values += factors[:, 1:, None]


def _from_q8_0(raw: Bytes, out: Floats) -> None:
    """Blocks of 32: scale as float16, then 8 bits each."""
    blocks, values = raw.reshape(-1, 34), out.reshape(-1, 32)
    values[:] = blocks[:, 2:].view(np.int8)
    values *= np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)


def _quantized(type_name: str) -> _Conversion:
    kind = gguf.GGMLQuantizationType[type_name]
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]

    def convert(raw: Bytes, out: Floats) -> None:
        # One long row: the package converts 16 rows at a time, so many short ones take 2.5 times
        # as long (SmolLM2-135M, Q4_1).
        out[:] = gguf.dequantize(raw.reshape(1, -1), kind).reshape(-1)

    return _Conversion(block_size, block_bytes, convert)


# Q5_0 and Q5_1 are what Q4_K and Q5_K files hold where a row is not a multiple of 256.
_QUANTIZED_TYPES = ("Q4_0", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
_CONVERSIONS = {
    "F32": _Conversion(1, 4, _from_f32),
    "F16": _Conversion(1, 2, _from_f16),
    "BF16": _Conversion(1, 2, _from_bf16),
    "Q4_1": _Conversion(32, 20, _from_q4_1),
    "Q8_0": _Conversion(32, 34, _from_q8_0),
    **{name: _quantized(name) for name in _QUANTIZED_TYPES},
}

PLAIN_TYPES = {"F32": 4, "F16": 2, "BF16": 2}  # bytes of one value
GGUF_TYPES = tuple(_CONVERSIONS)


def read_as_float32(file: BinaryIO, tensor: StoredTensor) -> Floats:
    """Read one tensor: a new C-contiguous float32 array of `tensor.shape`.
    ModelLoadError where the file ends early or cannot be read."""
    conversion = _CONVERSIONS[tensor.type]
    values = np.empty(prod(tensor.shape), np.float32)
    file.seek(tensor.offset)
    for start in range(0, values.size, _CHUNK_VALUES):
        stop = min(start + _CHUNK_VALUES, values.size)
        num_bytes = (stop - start) // conversion.block_size * conversion.block_bytes
        raw = file.read(num_bytes)
        if len(raw) != num_bytes:
            raise ModelLoadError(
                f"{tensor.path}: truncated: it ended inside tensor {tensor.stored_name!r}"
            )
        with np.errstate(all="ignore"):  # Weights that are no numbers show up in the logits.
            conversion.convert(np.frombuffer(raw, np.uint8), values[start:stop])
    return values.reshape(tensor.shape)
