"""Opens a GGUF file as a model: its configuration, and its tensors under Hugging Face names.

Belongs here: what GGUF does otherwise than Hugging Face (names, permuted q and k, frequency
factors). Not here: the layout of the file (base/gguf_header.py). Called by weights.py.
"""

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from everbatch.base.errors import ModelLoadError, UnsupportedModel
from everbatch.base.gguf_header import GgufHeader, GgufTensorInfo, read_header
from everbatch.kernels.arrays import Floats
from everbatch.models.config import FrequencyFactors, ModelConfig, check_consistency
from everbatch.models.file_errors import reading
from everbatch.models.gguf_config import from_gguf
from everbatch.models.stored_tensor import GGUF_TYPES, StoredTensor, read_as_float32
from everbatch.models.tensor_names import ROPE_FREQS, from_gguf_name

_PERMUTED = re.compile(r"\.self_attn\.(q|k)_proj\.(weight|bias)$")


@dataclass(frozen=True, slots=True)
class GgufModel:
    """tensors: Hugging Face names, the file's order."""

    config: ModelConfig
    tensors: list[StoredTensor]


def open_gguf(path: Path) -> GgufModel:
    """Read everything of a GGUF model but its weights. ModelLoadError, UnsupportedModel."""
    with reading(path), path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        header = read_header(file, size, str(path))
        config = _config(file, header, path)
    tensors = [_stored(path, info) for info in header.tensors if info.name != ROPE_FREQS]
    return GgufModel(config, tensors)


def undo_permutation(config: ModelConfig, name: str, values: Floats) -> Floats:
    """Give q and k of the llama architecture the row order of Hugging Face; others as they are.
    llama.cpp rotates pairs (2i, 2i+1) there, so its converter interleaves the two halves of each
    head's rows (conversion/llama.py, permute); this network rotates (i, i + head_dim/2)."""
    match = _PERMUTED.search(name)
    if match is None or config.architecture != "llama":
        return values
    num_heads = config.num_heads if match[1] == "q" else config.num_kv_heads
    pairs = values.reshape(num_heads, config.head_dim // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _config(file: BinaryIO, header: GgufHeader, path: Path) -> ModelConfig:
    names = {info.name for info in header.tensors}
    config = from_gguf(header.metadata, names, source=str(path))
    factors = next((info for info in header.tensors if info.name == ROPE_FREQS), None)
    if factors is None:
        return config
    if config.rope.scaling is not None:
        raise UnsupportedModel(
            f"{path}: {ROPE_FREQS} together with {type(config.rope.scaling).__name__} is not "
            "supported"
        )
    if factors.shape != (config.head_dim // 2,):
        raise ModelLoadError(
            f"{path}: tensor {ROPE_FREQS!r} has the shape {list(factors.shape)}, expected "
            f"[{config.head_dim // 2}]"
        )
    values = read_as_float32(file, _as_stored(path, factors, ROPE_FREQS))
    if not np.all(np.isfinite(values)) or np.any(values <= 0):
        raise ModelLoadError(f"{path}: tensor {ROPE_FREQS!r} has values that are not above 0")
    scaling = FrequencyFactors(tuple(values.tolist()))
    scaled = dataclasses.replace(config, rope=dataclasses.replace(config.rope, scaling=scaling))
    check_consistency(scaled, str(path))
    return scaled


def _stored(path: Path, info: GgufTensorInfo) -> StoredTensor:
    name = from_gguf_name(info.name)
    if name is None:
        raise UnsupportedModel(
            f"{path}: tensor {info.name!r} is none of this architecture's: the model has a part "
            "that is not supported"
        )
    return _as_stored(path, info, name)


def _as_stored(path: Path, info: GgufTensorInfo, name: str) -> StoredTensor:
    if info.type not in GGUF_TYPES:
        raise UnsupportedModel(
            f"{path}: tensor {info.name!r} has the type {info.type}, which is not supported "
            f"(supported: {', '.join(GGUF_TYPES)})"
        )
    return StoredTensor(name, info.name, info.shape, info.type, path, info.offset, info.num_bytes)
