"""Lists the tensors of a directory in safetensors format: one file, or shards with an index.

Belongs here: the header of a safetensors file and the index, with every check that makes the rest
safe to trust. Not here: the data (stored_tensor.py), the config. Called by weights.py.

    u64 header length | JSON {name: {dtype, shape, data_offsets: [begin, end]}} | data, where
    offsets count from. Source: safetensors, README, section Format.
"""

import struct
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import NoReturn, TypeGuard

from everbatch.base.errors import ModelLoadError, UnsupportedModel
from everbatch.base.spans import first_overlap
from everbatch.models.file_errors import reading
from everbatch.models.json_file import parse_object, read_json
from everbatch.models.stored_tensor import PLAIN_TYPES, StoredTensor

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# A shard's header has some 100 bytes a tensor; the format's own limit of 100 MB would let a hostile
# file make Python build gigabytes of objects.
MAX_HEADER_BYTES = 8 << 20
MAX_DIMS = 8

_OTHER_TYPES = ("F64", "F8_E4M3", "F8_E5M2", "I64", "I32", "I16", "I8", "U8", "BOOL")


def list_safetensors(directory: Path) -> list[StoredTensor]:
    """Every tensor of the directory's safetensors files, each file checked as a whole.
    ModelLoadError names the file and what is wrong with it."""
    if (directory / SINGLE_FILE).is_file():
        return _list_file(directory / SINGLE_FILE)
    if (directory / INDEX_FILE).is_file():
        return _list_shards(directory)
    raise ModelLoadError(
        f"{directory}: neither {SINGLE_FILE} nor {INDEX_FILE} is there{_other_weights(directory)}"
    )


def _other_weights(directory: Path) -> str:
    """What stands there instead, as a hint."""
    for pattern, hint in (
        ("*.bin", "convert it to safetensors (transformers: save_pretrained)"),
        ("*.pth", "convert it to safetensors (transformers: save_pretrained)"),
        ("*.safetensors", f"name it {SINGLE_FILE}, or give the shards their {INDEX_FILE}"),
    ):
        found = sorted(directory.glob(pattern))
        if found:
            return f"; it holds {found[0].name}: {hint}"
    return ""


def _list_shards(directory: Path) -> list[StoredTensor]:
    index = directory / INDEX_FILE
    promised = _weight_map(index)
    tensors: dict[str, StoredTensor] = {}
    for shard in dict.fromkeys(promised.values()):
        if not (directory / shard).is_file():
            raise ModelLoadError(f"{index}: it names the shard {shard!r}, which is missing")
        for tensor in _list_file(directory / shard):
            if tensor.name in tensors:
                other = tensors[tensor.name].path.name
                raise ModelLoadError(f"{tensor.path}: tensor {tensor.name!r} is in {other} as well")
            tensors[tensor.name] = tensor
    for name, shard in promised.items():
        if name not in tensors or tensors[name].path.name != shard:
            raise ModelLoadError(
                f"{directory / shard}: tensor {name!r} is missing, which {INDEX_FILE} promises"
            )
    return list(tensors.values())


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{index}: weight_map is missing or not an object of names")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or "\0" in shard:
            raise ModelLoadError(
                f"{index}: tensor {name!r:.80} is in {shard!r:.80}, expected a .safetensors file"
            )
        if Path(shard).name != shard:
            raise ModelLoadError(f"{index}: the shard {shard!r:.80} lies outside the directory")
    return weight_map


def _list_file(path: Path) -> list[StoredTensor]:
    with reading(path), path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        header_bytes = _header_length(path, size, file.read(8))
        raw = file.read(header_bytes)
    header = parse_object(raw, f"{path}: the header")
    header.pop("__metadata__", None)
    begin = 8 + header_bytes
    tensors = [_tensor(path, name, row, begin, size) for name, row in header.items()]
    _check_disjoint(path, tensors)
    return tensors


def _header_length(path: Path, size: int, raw: bytes) -> int:
    if size < 8 or len(raw) < 8:
        raise ModelLoadError(f"{path}: truncated: {size} bytes are too few for a safetensors file")
    (length,) = struct.unpack("<Q", raw)
    if length > size - 8:
        raise ModelLoadError(
            f"{path}: truncated, or not safetensors: the header has {length:,} bytes, the file "
            f"{size:,}"
        )
    if length > MAX_HEADER_BYTES:
        raise ModelLoadError(
            f"{path}: the header has {length:,} bytes, the limit is {MAX_HEADER_BYTES:,}"
        )
    return int(length)


def _tensor(path: Path, name: str, row: object, begin: int, size: int) -> StoredTensor:
    """One row of the header, checked against the file's size."""

    def fail(problem: str) -> NoReturn:
        raise ModelLoadError(f"{path}: tensor {name!r:.80} {problem}")

    if not isinstance(row, dict):
        fail("is not described by an object")
    kind, shape, offsets = (row.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(kind, str):
        fail(f"has the dtype {kind!r:.80}, expected a string")
    if kind not in PLAIN_TYPES:
        known = kind if kind in _OTHER_TYPES else repr(kind[:80])
        raise UnsupportedModel(
            f"{path}: tensor {name!r:.80} is stored as {known}, which is not supported (supported: "
            f"{', '.join(PLAIN_TYPES)})"
        )
    if not _are_sizes(shape) or len(shape) > MAX_DIMS:
        fail(f"has the shape {shape!r:.80}, expected at most {MAX_DIMS} sizes")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        fail(f"has the data_offsets {offsets!r:.80}, expected [begin, end]")
    first, last = offsets
    if begin + last > size:
        fail(
            f"ends at byte {begin + last:,}, the file has {size:,} bytes: truncated, download it "
            "again"
        )
    if last - first != prod(shape) * PLAIN_TYPES[kind]:
        fail(f"has {last - first:,} bytes, its shape {list(shape)} in {kind} needs other")
    return StoredTensor(name, name, tuple(shape), kind, path, begin + first, last - first)


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item < 2**63 for item in value
    )


def _check_disjoint(path: Path, tensors: Iterable[StoredTensor]) -> None:
    overlap = first_overlap((tensor.offset, tensor.num_bytes, tensor.name) for tensor in tensors)
    if overlap is not None:
        raise ModelLoadError(
            f"{path}: tensors {overlap[0]!r} and {overlap[1]!r} overlap: download it again"
        )
