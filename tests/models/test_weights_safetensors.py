"""Models in safetensors: one file, shards, every type, and files that are broken or hostile."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from models.weight_builders import (
    Tensors,
    bf16_bytes,
    config_json,
    random_tensors,
    round_to_bf16,
    safetensors_bytes,
    small_config_json,
    write_directory,
    write_index,
)

from everbatch.base.errors import ModelLoadError, UnsupportedModel
from everbatch.models.weights import load_model


def assert_same(loaded: Tensors, expected: Tensors) -> None:
    assert set(loaded) == set(expected)
    for name, values in expected.items():
        assert loaded[name].dtype == np.float32
        assert loaded[name].flags.c_contiguous
        assert np.array_equal(loaded[name], values), name


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
def test_float32_weights_are_read_as_they_are(tmp_path: Path, architecture: str) -> None:
    config = config_json(architecture)
    tensors = random_tensors(config)

    model = load_model(write_directory(tmp_path / "tiny", config, {"model.safetensors": tensors}))

    assert_same(model.tensors, tensors)
    assert model.config.name == "tiny"
    assert model.num_parameters == sum(values.size for values in tensors.values())


def test_float16_weights_are_widened(tmp_path: Path) -> None:
    config = config_json()
    tensors = {name: values.astype(np.float16) for name, values in random_tensors(config).items()}
    tensors["model.norm.weight"][:4] = [np.inf, -0.0, 6e-8, 65504]

    model = load_model(write_directory(tmp_path, config, {"model.safetensors": tensors}))

    assert_same(model.tensors, {name: values.astype("f4") for name, values in tensors.items()})


def write_bf16(directory: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        raw = bf16_bytes(values)
        header[name] = {
            "dtype": "BF16",
            "shape": list(values.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    (directory / "config.json").write_text(json.dumps(config))
    content = safetensors_bytes(header, data)
    num_listed = len(safetensors.deserialize(content))  # type: ignore[no-untyped-call]
    assert num_listed == len(tensors)
    (directory / "model.safetensors").write_bytes(content)
    return directory


def test_bfloat16_weights_are_widened(tmp_path: Path) -> None:
    config = config_json()
    tensors = {name: round_to_bf16(values) for name, values in random_tensors(config).items()}
    tensors["model.norm.weight"][:3] = [-0.0, np.inf, 2.0**-130]

    model = load_model(write_bf16(tmp_path, config, tensors))

    assert_same(model.tensors, tensors)


def test_shards_are_read_through_their_index(tmp_path: Path) -> None:
    config = config_json()
    tensors = random_tensors(config)
    names = list(tensors)
    shards = {
        f"model-{number}-of-3.safetensors": {name: tensors[name] for name in names[number - 1 :: 3]}
        for number in (1, 2, 3)
    }
    told: list[tuple[int, int]] = []

    model = load_model(
        write_directory(tmp_path, config, shards), lambda done, total: told.append((done, total))
    )

    assert_same(model.tensors, tensors)
    num_bytes = sum(values.nbytes for values in tensors.values())
    assert told[-1] == (num_bytes, num_bytes)
    assert [done for done, _ in told] == sorted({done for done, _ in told})


def test_a_tied_lm_head_is_not_read(tmp_path: Path) -> None:
    config = config_json(tie_word_embeddings=True)
    tensors = random_tensors(config)
    stored = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].copy()}

    model = load_model(write_directory(tmp_path, config, {"model.safetensors": stored}))

    assert_same(model.tensors, tensors)


def test_computed_buffers_of_old_files_are_not_read(tmp_path: Path) -> None:
    config = config_json()
    tensors = random_tensors(config)
    stored = {**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(32, np.float32)}

    model = load_model(write_directory(tmp_path, config, {"model.safetensors": stored}))

    assert_same(model.tensors, tensors)


def test_generation_config_is_read(tmp_path: Path) -> None:
    config = config_json()
    write_directory(tmp_path, config, {"model.safetensors": random_tensors(config)})
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')

    assert load_model(tmp_path).config.eos_token_ids == (5, 6)


def test_loading_holds_little_beyond_the_result(tmp_path: Path) -> None:
    config = config_json(vocab_size=10_000)
    tensors = {name: values.astype(np.float16) for name, values in random_tensors(config).items()}
    write_directory(tmp_path, config, {"model.safetensors": tensors})
    tracemalloc.start()

    model = load_model(tmp_path)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * model.num_parameters + (2 << 20)


def written(directory: Path) -> Path:
    config = small_config_json()
    return write_directory(directory, config, {"model.safetensors": random_tensors(config)})


def changed_tensors(change: Callable[[dict[str, np.ndarray]], object]) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        config = small_config_json()
        tensors: dict[str, np.ndarray] = dict(random_tensors(config))
        change(tensors)
        write_directory(directory, config, {"model.safetensors": tensors})

    return apply


NORM = "model.norm.weight"
FLOATS = np.zeros(32, np.float32)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop(NORM), f"tensor '{NORM}' is missing"),
        (lambda t: t.update(extra=FLOATS), r"model.safetensors: tensor 'extra' belongs to nothing"),
        (lambda t: t.update({NORM: FLOATS[:31]}), r"'model.norm.weight' has the shape \[31\].*32"),
        (lambda t: t.update({NORM: FLOATS.astype(np.float64)}), "stored as F64.*F32, F16, BF16"),
        (lambda t: t.update({NORM: FLOATS.astype(np.int8)}), "stored as I8"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    tmp_path: Path, change: Callable[[dict[str, np.ndarray]], object], named: str
) -> None:
    changed_tensors(change)(tmp_path)

    with pytest.raises(ModelLoadError, match=named):
        load_model(tmp_path)


def test_other_types_are_unsupported_rather_than_broken(tmp_path: Path) -> None:
    changed_tensors(lambda tensors: tensors.update({NORM: FLOATS.astype(np.uint8)}))(tmp_path)

    with pytest.raises(UnsupportedModel):
        load_model(tmp_path)


def row(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HOSTILE = [
    (b"", "truncated: 0 bytes"),
    (b"1234567", "truncated: 7 bytes"),
    (safetensors_bytes({}, b"", header_length=3), "the header has 3 bytes, the file 10"),
    (safetensors_bytes({}, b"", header_length=2**63), "truncated, or not safetensors"),
    (safetensors_bytes(b"\xff\xfe{}", b""), "the header is not JSON"),
    (safetensors_bytes(b"{'a': 1}", b""), "the header is not JSON"),
    (safetensors_bytes(b"[" * 100_000, b""), "the header is not JSON"),
    (safetensors_bytes([], b""), "the header is not a JSON object"),
    (safetensors_bytes(b'{"a": 1, "a": 1}', b""), "'a' appears twice"),
    (safetensors_bytes({"a": 7}, b""), "'a' is not described by an object"),
    (safetensors_bytes({"a": row(dtype=7)}, b"8" * 8), "the dtype 7"),
    (safetensors_bytes({"a": row(dtype="F8_E4M3")}, b"8" * 8), "stored as F8_E4M3"),
    (safetensors_bytes({"a": row(dtype="x" * 999)}, b"8" * 8), "stored as 'xxx"),
    (safetensors_bytes({"a": row(shape=None)}, b"8" * 8), "the shape None"),
    (safetensors_bytes({"a": row(shape=[-2])}, b"8" * 8), r"the shape \[-2\]"),
    (safetensors_bytes({"a": row(shape=[2.0])}, b"8" * 8), r"the shape \[2.0\]"),
    (safetensors_bytes({"a": row(shape=[True])}, b"8" * 8), "the shape"),
    (safetensors_bytes({"a": row(shape=[1] * 9)}, b"8" * 8), "at most 8 sizes"),
    (safetensors_bytes({"a": row(shape=[2**62, 2**62])}, b"8" * 8), "'a' has 8 bytes"),
    (safetensors_bytes({"a": row(offsets=[0])}, b"8" * 8), "data_offsets"),
    (safetensors_bytes({"a": row(offsets=[8, 0])}, b"8" * 8), "data_offsets"),
    (safetensors_bytes({"a": row(offsets=[-8, 0])}, b"8" * 8), "data_offsets"),
    (safetensors_bytes({"a": row(offsets=[0, 7])}, b"8" * 8), "'a' has 7 bytes"),
    (safetensors_bytes({"a": row(offsets=[8, 16])}, b"8" * 8), "truncated"),
    (safetensors_bytes({"a": row(offsets=[2**62, 2**62 + 8])}, b"8" * 8), "truncated"),
    (safetensors_bytes({"a": row(), "b": row(offsets=[4, 12])}, b"8" * 12), "overlap"),
]


@pytest.mark.parametrize(("content", "named"), HOSTILE, ids=[named for _, named in HOSTILE])
def test_a_broken_file_is_named_with_its_fault(tmp_path: Path, content: bytes, named: str) -> None:
    path = written(tmp_path) / "model.safetensors"
    path.write_bytes(content)
    tracemalloc.start()

    with pytest.raises(ModelLoadError, match=named) as caught:
        load_model(tmp_path)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 500
    assert peak < 4 << 20


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "config.json is not JSON"),
        (b"null", "config.json is not a JSON object"),
        (b'{"vocab_size": 1', "config.json is not JSON"),
        (b"\xff\xff", "config.json is not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "config.json is not JSON"),
        (b'{"a":' * 100_000, "config.json is not JSON"),
    ],
)
def test_a_broken_config_is_named(tmp_path: Path, content: bytes, named: str) -> None:
    (written(tmp_path) / "config.json").write_bytes(content)

    with pytest.raises(ModelLoadError, match=named):
        load_model(tmp_path)


def test_a_config_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    with (written(tmp_path) / "config.json").open("r+b") as file:
        file.truncate((8 << 20) + 1)

    with pytest.raises(ModelLoadError, match="the limit of 8,388,608 bytes"):
        load_model(tmp_path)


def sharded(directory: Path) -> Path:
    config = small_config_json()
    tensors = random_tensors(config)
    names = list(tensors)
    return write_directory(
        directory,
        config,
        {
            "a.safetensors": {name: tensors[name] for name in names[:4]},
            "b.safetensors": {name: tensors[name] for name in names[4:]},
        },
    )


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (sharded(tmp_path) / "b.safetensors").unlink()

    with pytest.raises(ModelLoadError, match=r"index.json: .* 'b.safetensors', which is missing"):
        load_model(tmp_path)


def test_a_tensor_that_the_index_promises_in_vain_is_named(tmp_path: Path) -> None:
    index = sharded(tmp_path) / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    write_index(tmp_path, {**weight_map, "ghost": "a.safetensors"})

    with pytest.raises(ModelLoadError, match=r"a.safetensors: tensor 'ghost' is missing"):
        load_model(tmp_path)


def test_a_tensor_in_another_shard_than_promised_is_named(tmp_path: Path) -> None:
    index = sharded(tmp_path) / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    moved = next(name for name, shard in weight_map.items() if shard == "a.safetensors")
    write_index(tmp_path, {**weight_map, moved: "b.safetensors"})

    with pytest.raises(ModelLoadError, match=f"b.safetensors: tensor '{moved}' is missing"):
        load_model(tmp_path)


def test_a_tensor_in_two_shards_is_named(tmp_path: Path) -> None:
    config = small_config_json()
    tensors = random_tensors(config)
    write_directory(tmp_path, config, {"a.safetensors": tensors, "b.safetensors": {NORM: FLOATS}})
    write_index(tmp_path, {**dict.fromkeys(tensors, "a.safetensors"), "x": "b.safetensors"})

    with pytest.raises(ModelLoadError, match=f"'{NORM}' is in a.safetensors as well"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    "weight_map",
    [
        None,
        [],
        {},
        {"a": 3},
        {"a": "b.bin"},
        {"a": "../a.safetensors"},
        {"a": "/tmp/a.safetensors"},
        {"a": "x\0.safetensors"},
    ],
)
def test_an_impossible_index_is_refused(tmp_path: Path, weight_map: object) -> None:
    write_index(sharded(tmp_path), weight_map)

    with pytest.raises(ModelLoadError, match=r"model.safetensors.index.json: "):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ([], "config.json is missing"),
        (["m.gguf"], "it holds m.gguf: give that file"),
        (["config.json"], "neither model.safetensors nor model.safetensors.index.json"),
        (["config.json", "pytorch_model.bin"], "pytorch_model.bin: convert it to safetensors"),
        (["config.json", "x.safetensors"], "x.safetensors: name it model.safetensors"),
    ],
)
def test_a_directory_without_the_files_says_what_is_missing(
    tmp_path: Path, files: list[str], named: str
) -> None:
    for name in files:
        (tmp_path / name).write_text(json.dumps(small_config_json()))

    with pytest.raises(ModelLoadError, match=named):
        load_model(tmp_path)


def test_a_path_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"")

    with pytest.raises(ModelLoadError, match="no such file or directory"):
        load_model(tmp_path / "absent")
    with pytest.raises(ModelLoadError, match=r"ends in \.gguf"):
        load_model(tmp_path / "model.bin")
    with pytest.raises(ModelLoadError, match="cannot be read: File name too long"):
        load_model(tmp_path / ("x" * 300))


def test_a_file_cut_anywhere_is_a_load_error(tmp_path: Path) -> None:
    path = written(tmp_path) / "model.safetensors"
    content = path.read_bytes()
    header_end = 8 + int.from_bytes(content[:8], "little")
    beyond = np.random.default_rng(0).integers(header_end, len(content), 100).tolist()
    for length in [*range(header_end + 1), *beyond, len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(ModelLoadError, match=r"model.safetensors"):
            load_model(tmp_path)


def test_a_changed_byte_of_the_header_is_a_load_error_or_harmless(tmp_path: Path) -> None:
    path = written(tmp_path) / "model.safetensors"
    content = path.read_bytes()
    header_end = 8 + int.from_bytes(content[:8], "little")
    draw = np.random.default_rng(1)
    num_errors = 0
    for position in range(header_end):
        broken = bytearray(content)
        broken[position] ^= int(draw.integers(1, 256))
        path.write_bytes(broken)
        try:
            load_model(tmp_path)
        except ModelLoadError:
            num_errors += 1

    assert num_errors > header_end // 2
