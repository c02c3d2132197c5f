"""The header of GGUF files: what is read, and every way in which one can lie."""

import io
import struct
import tracemalloc
from pathlib import Path

import gguf
import pytest

from everbatch.base.errors import ModelLoadError, UnsupportedModel
from everbatch.base.gguf_header import (
    MAX_ARRAY_LENGTH,
    MAX_METADATA_ENTRIES,
    MAX_NAME_BYTES,
    MAX_STRING_BYTES,
    MAX_TENSORS,
    GgufHeader,
    GgufTensorInfo,
    read_gguf_metadata,
    read_header,
)

U8, U32, F32, BOOL, STRING, ARRAY, U64, F64 = 0, 4, 6, 7, 8, 9, 10, 12


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def entry(key: bytes, type_id: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", type_id) + value


def array(item_type: int, length: int, items: bytes) -> bytes:
    return struct.pack("<IQ", item_type, length) + items


def tensor(name: bytes, dims: tuple[int, ...], type_id: int = 0, offset: int = 0) -> bytes:
    return (
        text(name)
        + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        + struct.pack("<IQ", type_id, offset)
    )


def header(
    *parts: bytes,
    num_tensors: int = 0,
    num_entries: int = 0,
    version: int = 3,
    magic: bytes = b"GGUF",
) -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_entries) + b"".join(parts)


def with_data(content: bytes, num_bytes: int, alignment: int = 32) -> bytes:
    return content + bytes(-len(content) % alignment + num_bytes)


def read(content: bytes) -> GgufHeader:
    return read_header(io.BytesIO(content), len(content), "m.gguf")


def test_every_type_of_value_is_read() -> None:
    content = header(
        entry(b"u8", U8, b"\xff"),
        entry(b"i8", 1, b"\xff"),
        entry(b"u16", 2, struct.pack("<H", 65535)),
        entry(b"i16", 3, struct.pack("<h", -2)),
        entry(b"u32", U32, struct.pack("<I", 2**32 - 1)),
        entry(b"i32", 5, struct.pack("<i", -3)),
        entry(b"f32", F32, struct.pack("<f", 0.5)),
        entry(b"yes", BOOL, b"\x01"),
        entry(b"no", BOOL, b"\x00"),
        entry(b"text", STRING, text("grün".encode())),
        entry(b"u64", U64, struct.pack("<Q", 2**64 - 1)),
        entry(b"i64", 11, struct.pack("<q", -4)),
        entry(b"f64", F64, struct.pack("<d", 0.1)),
        entry(b"texts", ARRAY, array(STRING, 2, text(b"a") + text(b""))),
        entry(b"numbers", ARRAY, array(U32, 3, struct.pack("<3I", 1, 2, 3))),
        entry(b"none", ARRAY, array(F32, 0, b"")),
        num_entries=16,
    )

    assert read(content).metadata == {
        "u8": 255,
        "i8": -1,
        "u16": 65535,
        "i16": -2,
        "u32": 2**32 - 1,
        "i32": -3,
        "f32": 0.5,
        "yes": True,
        "no": False,
        "text": "grün",
        "u64": 2**64 - 1,
        "i64": -4,
        "f64": 0.1,
        "texts": ["a", ""],
        "numbers": [1, 2, 3],
        "none": [],
    }


def test_tensors_have_numpy_shapes_and_offsets_in_the_file() -> None:
    content = with_data(
        header(
            tensor(b"a", (64, 3), type_id=8, offset=0),
            tensor(b"b", (5,), offset=224),
            num_tensors=2,
        ),
        244,
    )

    result = read(content)

    assert result.data_offset == len(content) - 244
    assert result.data_offset % 32 == 0
    assert result.tensors == [
        GgufTensorInfo("a", (3, 64), "Q8_0", result.data_offset, 204),
        GgufTensorInfo("b", (5,), "F32", result.data_offset + 224, 20),
    ]


@pytest.mark.parametrize("alignment", [1, 32, 4096])
def test_the_alignment_of_the_file_counts(alignment: int) -> None:
    entries = entry(b"general.alignment", U32, struct.pack("<I", alignment))
    content = with_data(
        header(entries, tensor(b"a", (1,)), num_tensors=1, num_entries=1), 4, alignment
    )

    assert read(content).data_offset == len(content) - 4


@pytest.mark.parametrize("version", [2, 3])
def test_versions_two_and_three_are_read(version: int) -> None:
    assert read(header(version=version)).metadata == {}


def test_types_are_those_of_the_package() -> None:
    for kind in gguf.GGMLQuantizationType:
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        content = with_data(
            header(tensor(b"a", (block_size, 2), type_id=kind.value), num_tensors=1),
            2 * block_bytes,
        )
        try:
            info = read(content).tensors[0]
        except UnsupportedModel as error:
            assert f"unknown type {kind.value}" in str(error)
            continue
        assert (info.type, info.num_bytes) == (kind.name, 2 * block_bytes)


def test_a_header_longer_than_a_chunk_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    tokens = [f"token {number}" for number in range(150_000)]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list(tokens)
    writer.add_chat_template("x" * (3 << 20))
    writer.add_token_types(list(range(150_000)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    metadata = read_gguf_metadata(path)

    assert metadata["tokenizer.ggml.tokens"] == tokens
    assert metadata["tokenizer.chat_template"] == "x" * (3 << 20)
    assert metadata["tokenizer.ggml.token_type"] == list(range(150_000))


@pytest.mark.parametrize("length", [0, 1, 1_000, (1 << 20) - 8, 1 << 20, 3 << 20])
def test_strings_are_read_wherever_a_chunk_ends(length: int) -> None:
    words = [f"ä{number}{'x' * length}" for number in range(7)] + ["", "ß"]
    strings = array(STRING, len(words), b"".join(text(word.encode()) for word in words))
    content = header(entry(b"a", ARRAY, strings), num_entries=1)

    assert read(content).metadata["a"] == words


@pytest.mark.parametrize("place", [0, 1, 4])
@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (text(b"\xff"), "'a' is not valid UTF-8"),
        (struct.pack("<Q", MAX_STRING_BYTES + 1) + b"x", "bytes long, the limit is"),
        (struct.pack("<Q", MAX_STRING_BYTES) + b"x", "truncated: the value of 'a' ends"),
    ],
)
def test_one_broken_string_among_many_is_named(wrong: bytes, named: str, place: int) -> None:
    words = [text(b"word")] * 4
    words.insert(place, wrong)
    content = header(entry(b"a", ARRAY, array(STRING, 5, b"".join(words))), num_entries=1)

    with pytest.raises(ModelLoadError, match=named):
        read(content)


def broken(**cases: tuple[bytes, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("content", "named"), list(cases.values()), ids=list(cases.keys())
    )


@broken(
    empty=(b"", "the file is empty"),
    short=(b"GG", "truncated: the magic number"),
    magic=(header(magic=b"GGML"), "not a GGUF file: it begins with b'GGML'"),
    tensors=(header(num_tensors=MAX_TENSORS + 1), "65,537 tensors, the limit is 65,536"),
    entries=(header(num_entries=MAX_METADATA_ENTRIES + 1), "65,537 metadata entries"),
    no_entry=(header(num_entries=1), "truncated: the length of a metadata key"),
    long_key=(
        header(struct.pack("<Q", MAX_NAME_BYTES + 1), num_entries=1),
        "a metadata key is 65,536 bytes long, the limit is 65,535",
    ),
    cut_key=(header(struct.pack("<Q", MAX_NAME_BYTES), num_entries=1), "truncated: a metadata key"),
    bad_key=(header(entry(b"\xff", U8, b"\0"), num_entries=1), "a metadata key is not valid UTF-8"),
    same_key=(header(entry(b"a", U8, b"\0") * 2, num_entries=2), "'a' appears twice"),
    type=(header(entry(b"a", 13, b"\0"), num_entries=1), "'a' has the unknown value type 13"),
    boolean=(header(entry(b"a", BOOL, b"\2"), num_entries=1), "'a' is a boolean that is neither"),
    bad_text=(header(entry(b"a", STRING, text(b"\xc3")), num_entries=1), "'a' is not valid UTF-8"),
    long_text=(
        header(entry(b"a", STRING, struct.pack("<Q", MAX_STRING_BYTES + 1)), num_entries=1),
        "'a' is 16,777,217 bytes long",
    ),
    cut_text=(
        header(entry(b"a", STRING, struct.pack("<Q", MAX_STRING_BYTES)), num_entries=1),
        "truncated: the value of 'a'",
    ),
    long_array=(
        header(entry(b"a", ARRAY, array(U8, MAX_ARRAY_LENGTH + 1, b"")), num_entries=1),
        "'a' has 4,194,305 items, the limit is 4,194,304",
    ),
    cut_array=(
        header(entry(b"a", ARRAY, array(U64, MAX_ARRAY_LENGTH, b"")), num_entries=1),
        "truncated: the value of 'a'",
    ),
    cut_texts=(
        header(entry(b"a", ARRAY, array(STRING, MAX_ARRAY_LENGTH, text(b"x"))), num_entries=1),
        "truncated: the length of the value of 'a'",
    ),
    arrays=(header(entry(b"a", ARRAY, array(ARRAY, 1, b"")), num_entries=1), "an array of arrays"),
    alignment=(
        header(entry(b"general.alignment", U32, struct.pack("<I", 48)), num_entries=1),
        "general.alignment is 48, expected a power of two",
    ),
    no_alignment=(
        header(entry(b"general.alignment", U32, struct.pack("<I", 0)), num_entries=1),
        "general.alignment is 0",
    ),
    alignment_type=(
        header(entry(b"general.alignment", BOOL, b"\1"), num_entries=1),
        "general.alignment is True",
    ),
)
def test_broken_metadata_is_named(content: bytes, named: str) -> None:
    with pytest.raises(ModelLoadError, match=f"^m.gguf: .*{named}"):
        read(content)


def tensor_file(*tensors: bytes, num_bytes: int = 256) -> bytes:
    return with_data(header(*tensors, num_tensors=len(tensors)), num_bytes)


@broken(
    none=(header(num_tensors=1), "truncated: the length of a tensor name"),
    dims=(tensor_file(tensor(b"a", ())), "'a' has 0 dimensions, expected 1 to 4"),
    many_dims=(tensor_file(tensor(b"a", (1,) * 5)), "'a' has 5 dimensions"),
    zero=(tensor_file(tensor(b"a", (4, 0))), "'a' has a dimension of 0"),
    block=(tensor_file(tensor(b"a", (33,), type_id=8)), "rows of 33 values, Q8_0 needs"),
    huge=(tensor_file(tensor(b"a", (2**63, 2**63))), "truncated: tensor 'a' ends at byte"),
    end=(tensor_file(tensor(b"a", (65,))), "truncated: tensor 'a' ends at byte"),
    last_byte=(tensor_file(tensor(b"a", (64,)), num_bytes=255), "truncated: tensor 'a' ends at"),
    offset=(tensor_file(tensor(b"a", (1,), offset=2**63)), "truncated: tensor 'a' ends"),
    misaligned=(tensor_file(tensor(b"a", (1,), offset=16)), "not a multiple of the alignment 32"),
    twice=(tensor_file(tensor(b"a", (1,)), tensor(b"a", (1,), offset=32)), "'a' appears twice"),
    overlap=(
        tensor_file(tensor(b"a", (9,)), tensor(b"b", (1,), offset=32)),
        "tensors 'a' and 'b' overlap",
    ),
    same_place=(tensor_file(tensor(b"a", (1,)), tensor(b"b", (1,))), "'a' and 'b' overlap"),
)
def test_a_broken_table_of_tensors_is_named(content: bytes, named: str) -> None:
    with pytest.raises(ModelLoadError, match=f"^m.gguf: .*{named}"):
        read(content)


@broken(
    old=(header(version=1), "version 1 is not supported"),
    new=(header(version=4), "version 4 is not supported"),
    big_endian=(header(version=3 << 24), "big-endian"),
    type=(tensor_file(tensor(b"a", (1,), type_id=99)), "unknown type 99"),
    removed_type=(tensor_file(tensor(b"a", (32,), type_id=4)), "unknown type 4"),
)
def test_what_is_not_read_is_refused_by_name(content: bytes, named: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"^m.gguf: .*{named}"):
        read(content)


def test_a_tensor_that_ends_with_the_file_is_inside_of_it() -> None:
    assert read(tensor_file(tensor(b"a", (64,)))).tensors[0].num_bytes == 256


def test_a_file_that_is_shorter_than_its_size_is_truncated() -> None:
    content = header(entry(b"a", STRING, text(b"x" * 100)), num_entries=1)

    with pytest.raises(ModelLoadError, match="truncated: it ended while"):
        read_header(io.BytesIO(content[:50]), len(content), "m.gguf")


def test_a_lie_about_lengths_allocates_nothing() -> None:
    content = header(entry(b"a", ARRAY, array(U64, MAX_ARRAY_LENGTH, b"")), num_entries=1)
    tracemalloc.start()

    with pytest.raises(ModelLoadError):
        read(content)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 << 20


def test_a_path_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"absent\.gguf: cannot be read"):
        read_gguf_metadata(tmp_path / "absent.gguf")
    with pytest.raises(ModelLoadError, match="cannot be read"):
        read_gguf_metadata(tmp_path)
