"""Model files that are made to hurt: they are refused soon, and without much memory."""

import json
import struct
import tracemalloc
from pathlib import Path

import pytest
from models.test_gguf_header import ARRAY, U8, array, entry, header, read
from models.weight_builders import config_json, safetensors_bytes

from everbatch.base import gguf_header
from everbatch.base.errors import ModelLoadError
from everbatch.models.json_file import MAX_JSON_BYTES, parse_object
from everbatch.models.safetensors_files import MAX_HEADER_BYTES, list_safetensors
from everbatch.models.weights import load_model

pytestmark = pytest.mark.timeout(60)


def test_items_of_all_arrays_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [entry(name, ARRAY, array(U8, 6, b"abcdef")) for name in (b"a", b"b")]
    content = header(b"".join(arrays), num_entries=2)

    monkeypatch.setattr(gguf_header, "MAX_ITEMS", 12)
    assert len(read(content).metadata) == 2
    monkeypatch.setattr(gguf_header, "MAX_ITEMS", 11)
    with pytest.raises(ModelLoadError, match="12 items in all arrays, the limit is 11"):
        read(content)


def test_name_that_comes_twice_among_many_is_found_at_once() -> None:
    names = [f'"tensor{number}":0' for number in range(300_000)]
    raw = "{" + ",".join([*names, names[-1]]) + "}"

    with pytest.raises(ModelLoadError, match="the key 'tensor299999' appears twice"):
        parse_object(raw.encode(), "the header")


@pytest.mark.parametrize("length", [MAX_HEADER_BYTES + 1, 2**63, 2**64 - 1])
def test_long_header_is_refused_before_it_is_read(tmp_path: Path, length: int) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", length))
        # A hole: the file is long, but not on the disk.
        file.truncate(8 + MAX_HEADER_BYTES + 1)
    tracemalloc.start()
    try:
        with pytest.raises(ModelLoadError, match="the header has"):
            list_safetensors(tmp_path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < 1 << 20


def test_long_configuration_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(MAX_JSON_BYTES + 1)
    tracemalloc.start()
    try:
        with pytest.raises(ModelLoadError, match="longer than the limit"):
            load_model(tmp_path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < 1 << 20


@pytest.mark.parametrize(
    "row",
    [
        {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2**40, 0, 2**40], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [2**62, 2**62 + 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]},
        {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]},
        {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1] * 9, "data_offsets": [0, 4]},
        {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F" * 100_000, "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1]},
        [],
        None,
    ],
)
def test_hostile_row_is_refused_by_the_tensor_s_name(tmp_path: Path, row: object) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({"some.weight": row}, b"\0" * 4))

    with pytest.raises(ModelLoadError, match=r"tensor 'some\.weight'") as caught:
        list_safetensors(tmp_path)

    assert len(str(caught.value)) < 1_000


def test_tensors_that_share_a_byte_are_refused(tmp_path: Path) -> None:
    row = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    rows = {"a": row, "b": {**row, "data_offsets": [4, 12]}}
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(rows, b"\0" * 12))

    with pytest.raises(ModelLoadError, match="'a' and 'b' overlap"):
        list_safetensors(tmp_path)


@pytest.mark.parametrize(
    "shard",
    ["../x.safetensors", "/x.safetensors", "a/../b.safetensors", "x" * 300 + ".safetensors"],
)
def test_shard_outside_of_the_folder_is_never_opened(tmp_path: Path, shard: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "x.safetensors").write_bytes(safetensors_bytes({}, b""))
    (folder / "config.json").write_text(json.dumps(config_json()))
    index = {"weight_map": {"a": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    with pytest.raises(ModelLoadError, match=r"lies outside|missing|cannot be read"):
        load_model(folder)
