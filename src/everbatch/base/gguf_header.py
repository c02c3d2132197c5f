"""Reads what stands before the tensor data of a GGUF file: metadata and the table of tensors.

Belongs here: the layout of the file and every check that makes the rest safe to trust (lengths,
counts, types, offsets, overlaps). Not here: what a key means (models/gguf_config.py, tokenizer),
and the tensor data (models/gguf_file.py). It stands in `base` because models and tokenizer both
read GGUF and may not import each other, so it needs nothing but the standard library.

    magic "GGUF" | u32 version | u64 num_tensors | u64 num_entries
    entries:  string key | u32 type | value          string: u64 length, bytes
    tensors:  string name | u32 num_dims | u64 dims, innermost first | u32 type | u64 offset
    padding to general.alignment | tensor data, offsets counted from here

Covered: versions 2 and 3, little endian. Not covered: version 1, big endian, arrays of arrays (ggml
reads none either); each is refused by name. Source: ggml, docs/gguf.md and src/gguf.cpp.
"""

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO, NoReturn

from everbatch.base.errors import ModelLoadError, UnsupportedModel
from everbatch.base.spans import first_overlap
from everbatch.base.units import div_ceil

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32

# Limits, each well above what real files hold: Llama 3 has 128,256 tokens and 280,147 merges, the
# largest dense models some 1,200 tensors, chat templates up to 30 kB.
MAX_METADATA_ENTRIES = 65_536
MAX_TENSORS = 65_536
MAX_NAME_BYTES = 65_535
MAX_STRING_BYTES = 16 << 20
MAX_ARRAY_LENGTH = 4 << 20
MAX_ITEMS = 8 << 20
"""In all arrays: each is an object of up to 60 bytes, whatever it is in the file."""
MAX_HEADER_BYTES = 256 << 20
MAX_ALIGNMENT = 65_536
MAX_DIMS = 4

_CHUNK_BYTES = 1 << 20
_DAMAGED = "; the file is damaged, or no model: download it again"

# ggml type id: name, values in a block, bytes of a block. Source: ggml.h, ggml_type and the structs
# of ggml-common.h.
_TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
}

_BOOL, _STRING, _ARRAY = 7, 8, 9
# GGUF value type id: struct's code for it. Booleans are one byte and are read by hand.
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    _BOOL: "B",
    10: "Q",
    11: "q",
    12: "d",
}


@dataclass(frozen=True, slots=True)
class GgufTensorInfo:
    """One row of the table of tensors, checked: its bytes lie inside the file and nobody else's.
    shape: outermost dimension first, as in numpy; offset: bytes from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata values are int, float, bool, str, or a list of one of these.
    tensors: in the file's order; data_offset: where tensor data begins."""

    metadata: dict[str, object]
    tensors: list[GgufTensorInfo]
    data_offset: int


def read_gguf_metadata(path: Path) -> dict[str, object]:
    """Read the key/value pairs of a GGUF file without touching its tensor data.
    ModelLoadError names the file and what is wrong with it."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            return read_header(file, size, str(path)).metadata
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_header(file: BinaryIO, size: int, name: str) -> GgufHeader:
    """Read and check everything before the tensor data of `file`, which has `size` bytes.
    `file` stands at its start; `name` is what errors call it. Raises ModelLoadError. Reads in
    chunks of 1 MiB, and allocates nothing that the file does not hold."""
    reader = _Reader(file, size, name)
    num_tensors, num_entries = _read_preamble(reader)
    metadata: dict[str, object] = {}
    for _ in range(num_entries):
        key = reader.read_string("a metadata key", MAX_NAME_BYTES)
        if key in metadata:
            reader.fail(f"metadata key {key!r} appears twice")
        metadata[key] = _read_value(reader, key)
    alignment = _alignment(reader, metadata)
    rows = [_read_tensor_row(reader) for _ in range(num_tensors)]
    data_offset = div_ceil(reader.position, alignment) * alignment
    tensors = [_place(reader, row, data_offset, alignment) for row in rows]
    _check_disjoint(reader, tensors)
    return GgufHeader(metadata, tensors, data_offset)


class _Reader:
    """A window that slides over the file. `position` is the offset of the next byte to read."""

    def __init__(self, file: BinaryIO, size: int, name: str) -> None:
        self.size = size
        self._file = file
        self._name = name
        self._window = b""
        self._start = 0  # offset of the window's first byte
        self._next = 0  # index into the window
        self.num_items = 0  # of all arrays so far

    @property
    def position(self) -> int:
        return self._start + self._next

    def fail(self, problem: str) -> NoReturn:
        raise ModelLoadError(f"{self._name}: {problem}")

    def refuse(self, problem: str) -> NoReturn:
        raise UnsupportedModel(f"{self._name}: {problem}")

    def read_struct(self, layout: struct.Struct, what: str) -> tuple[int, ...]:
        self.require(layout.size, what)
        values = layout.unpack_from(self._window, self._next)
        self._next += layout.size
        return values

    def read_numbers(self, code: str, count: int, what: str) -> list[int | float]:
        return list(self.read_struct(struct.Struct(f"<{count}{code}"), what))

    def read_string(self, what: str, max_bytes: int = MAX_STRING_BYTES) -> str:
        (length,) = self.read_struct(_U64, f"the length of {what}")
        if length > max_bytes:
            self.fail(f"{what} is {length:,} bytes long, the limit is {max_bytes:,}")
        self.require(length, what)
        raw = self._window[self._next : self._next + length]
        self._next += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self.fail(f"{what} is not valid UTF-8: {error}")

    def read_strings(self, count: int, what: str) -> list[str]:
        """The same `count` times. A vocabulary and its merges are 100,000 strings, so those that
        lie in the window, as nearly all do, are taken in one loop: a quarter of the time."""
        strings: list[str] = []
        length_of = _U64.unpack_from
        while len(strings) < count:
            window, place, end = self._window, self._next, len(self._window)
            for _ in range(count - len(strings)):
                if place + 8 > end:
                    break
                stop = place + 8 + length_of(window, place)[0]
                if stop > end or stop - place - 8 > MAX_STRING_BYTES:
                    break
                try:
                    strings.append(window[place + 8 : stop].decode("utf-8"))
                except UnicodeDecodeError:
                    break
                place = stop
            self._next = place
            if len(strings) < count:  # The one that did not fit, or is refused.
                strings.append(self.read_string(what))
        return strings

    def require(self, num_bytes: int, what: str) -> None:
        """Have the next `num_bytes` in the window, or fail because the file ends before."""
        if self._next + num_bytes <= len(self._window):
            return
        end = self.position + num_bytes
        if end > self.size:
            self.fail(
                f"truncated: {what} ends at byte {end:,}, the file has {self.size:,} bytes; "
                "download it again"
            )
        if end > MAX_HEADER_BYTES:
            self.fail(
                f"{what} ends at byte {end:,}, the header may have {MAX_HEADER_BYTES:,}{_DAMAGED}"
            )
        rest = self._window[self._next :]
        self._start, self._next = self.position, 0
        self._window = rest + self._file.read(max(num_bytes - len(rest), _CHUNK_BYTES))
        if len(self._window) < num_bytes:
            self.fail(f"truncated: it ended while {what} was read")


_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_TWO_U64 = struct.Struct("<QQ")
_TYPE_AND_OFFSET = struct.Struct("<IQ")


def _read_preamble(reader: _Reader) -> tuple[int, int]:
    """Check magic and version; the number of tensors and of metadata entries."""
    if reader.size == 0:
        reader.fail("the file is empty")
    (magic,) = reader.read_struct(_U32, "the magic number")
    if magic.to_bytes(4, "little") != MAGIC:
        reader.fail(f"not a GGUF file: it begins with {magic.to_bytes(4, 'little')!r}")
    (version,) = reader.read_struct(_U32, "the version")
    if version & 0xFFFF == 0 and version != 0:
        reader.refuse("big-endian GGUF is not supported; convert it to little endian")
    if version not in (2, 3):
        reader.refuse(f"GGUF version {version} is not supported (2 and 3 are)")
    num_tensors, num_entries = reader.read_struct(_TWO_U64, "the preamble")
    if num_tensors > MAX_TENSORS:
        reader.fail(f"it claims {num_tensors:,} tensors, the limit is {MAX_TENSORS:,}{_DAMAGED}")
    if num_entries > MAX_METADATA_ENTRIES:
        reader.fail(
            f"it claims {num_entries:,} metadata entries, the limit is {MAX_METADATA_ENTRIES:,}"
            f"{_DAMAGED}"
        )
    return num_tensors, num_entries


def _read_value(reader: _Reader, key: str) -> object:
    what = f"the value of {key!r}"
    (type_id,) = reader.read_struct(_U32, f"the type of {key!r}")
    if type_id != _ARRAY:
        return _read_items(reader, type_id, 1, what)[0]
    (item_type,) = reader.read_struct(_U32, f"the item type of {key!r}")
    (length,) = reader.read_struct(_U64, f"the length of {key!r}")
    if length > MAX_ARRAY_LENGTH:
        reader.fail(f"{what} has {length:,} items, the limit is {MAX_ARRAY_LENGTH:,}")
    reader.num_items += length
    if reader.num_items > MAX_ITEMS:
        reader.fail(
            f"{what} makes {reader.num_items:,} items in all arrays, the limit is {MAX_ITEMS:,}"
            f"{_DAMAGED}"
        )
    if item_type == _ARRAY:
        reader.fail(f"{what} is an array of arrays, which is not supported")
    return _read_items(reader, item_type, length, what)


def _read_items(reader: _Reader, type_id: int, count: int, what: str) -> list[object]:
    if type_id == _STRING:
        return list(reader.read_strings(count, what))
    if type_id not in _SCALARS:
        reader.fail(f"{what} has the unknown value type {type_id}")
    numbers = reader.read_numbers(_SCALARS[type_id], count, what)
    if type_id == _BOOL:
        if any(number > 1 for number in numbers):
            reader.fail(f"{what} is a boolean that is neither 0 nor 1")
        return [number == 1 for number in numbers]
    return list(numbers)


def _alignment(reader: _Reader, metadata: dict[str, object]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if (
        not isinstance(alignment, int)
        or isinstance(alignment, bool)
        or not 1 <= alignment <= MAX_ALIGNMENT
        or alignment & (alignment - 1)
    ):
        reader.fail(
            f"general.alignment is {alignment!r}, expected a power of two up to {MAX_ALIGNMENT:,}"
        )
    return alignment


def _read_tensor_row(reader: _Reader) -> GgufTensorInfo:
    """One row as it stands: its offset is still relative to the tensor data."""
    name = reader.read_string("a tensor name", MAX_NAME_BYTES)
    what = f"tensor {name!r}"
    (num_dims,) = reader.read_struct(_U32, what)
    if not 1 <= num_dims <= MAX_DIMS:
        reader.fail(f"{what} has {num_dims:,} dimensions, expected 1 to {MAX_DIMS}")
    dims = reader.read_struct(struct.Struct(f"<{num_dims}Q"), what)
    type_id, offset = reader.read_struct(_TYPE_AND_OFFSET, what)
    if type_id not in _TENSOR_TYPES:
        reader.refuse(f"{what} has the unknown type {type_id}")
    type_name, block_size, block_bytes = _TENSOR_TYPES[type_id]
    if 0 in dims:
        reader.fail(f"{what} has a dimension of 0")
    if dims[0] % block_size:
        reader.fail(
            f"{what} has rows of {dims[0]:,} values, {type_name} needs a multiple of {block_size}"
        )
    num_bytes = prod(dims) // block_size * block_bytes
    return GgufTensorInfo(name, tuple(reversed(dims)), type_name, offset, num_bytes)


def _place(
    reader: _Reader, row: GgufTensorInfo, data_offset: int, alignment: int
) -> GgufTensorInfo:
    """The row with its offset counted from the start of the file, known to lie inside of it."""
    if row.offset % alignment:
        reader.fail(
            f"tensor {row.name!r} begins at {row.offset:,}, which is not a multiple of the "
            f"alignment {alignment}"
        )
    offset = data_offset + row.offset
    end = offset + row.num_bytes
    if end > reader.size:
        reader.fail(
            f"truncated: tensor {row.name!r} ends at byte {end:,}, the file has "
            f"{reader.size:,} bytes; download it again"
        )
    return GgufTensorInfo(row.name, row.shape, row.type, offset, row.num_bytes)


def _check_disjoint(reader: _Reader, tensors: list[GgufTensorInfo]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            reader.fail(f"tensor {tensor.name!r} appears twice")
        seen.add(tensor.name)
    overlap = first_overlap((tensor.offset, tensor.num_bytes, tensor.name) for tensor in tensors)
    if overlap is not None:
        reader.fail(f"tensors {overlap[0]!r} and {overlap[1]!r} overlap: download it again")
