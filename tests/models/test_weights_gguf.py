"""Models in GGUF: names, permutation, every type, frequency factors, files broken or hostile."""

import dataclasses
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from models.weight_builders import (
    config_json,
    gguf_name,
    interleaved,
    random_tensors,
    round_to_bf16,
    small_config_json,
    write_gguf,
)
from numpy.typing import NDArray

from everbatch.base.errors import ModelLoadError, UnsupportedModel
from everbatch.models.config import FrequencyFactors
from everbatch.models.hf_config import from_hf
from everbatch.models.weights import load_model

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_gguf_gives_what_the_hugging_face_directory_gives(
    tmp_path: Path, architecture: str
) -> None:
    config = config_json(architecture, num_hidden_layers=2)
    tensors = random_tensors(config)

    model = load_model(write_gguf(tmp_path / "m.gguf", config, tensors))

    assert set(model.tensors) == set(tensors)
    for name, values in tensors.items():
        assert model.tensors[name].flags.c_contiguous
        assert np.array_equal(model.tensors[name], values), name
    assert model.config == dataclasses.replace(from_hf(config), name="tiny")


def test_biases_of_llama_are_permuted_as_its_weights_are(tmp_path: Path) -> None:
    config = config_json(attention_bias=True, mlp_bias=True)
    tensors = random_tensors(config)

    model = load_model(write_gguf(tmp_path / "m.gguf", config, tensors))

    for name, values in tensors.items():
        assert np.array_equal(model.tensors[name], values), name


def test_mistral_files_are_llama_files(tmp_path: Path) -> None:
    config = config_json("mistral")
    tensors = random_tensors(config)

    model = load_model(write_gguf(tmp_path / "m.gguf", config, tensors))

    assert model.config.architecture == "llama"
    name = "model.layers.0.self_attn.k_proj.weight"
    assert np.array_equal(model.tensors[name], tensors[name])


def test_a_file_without_output_ties_the_embedding(tmp_path: Path) -> None:
    config = config_json(tie_word_embeddings=True)
    tensors = random_tensors(config)

    model = load_model(write_gguf(tmp_path / "m.gguf", config, tensors))

    assert model.config.tie_word_embeddings
    assert "lm_head.weight" not in model.tensors


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_a_type_is_dequantized_as_the_package_does(tmp_path: Path, kind: str) -> None:
    config = config_json()
    tensors = random_tensors(config)
    kinds = {name: kind for name, values in tensors.items() if values.ndim == 2}
    if kind == "BF16":
        tensors = {name: round_to_bf16(values) for name, values in tensors.items()}

    model = load_model(write_gguf(tmp_path / "m.gguf", config, tensors, kinds=kinds))

    quantization = gguf.GGMLQuantizationType[kind]
    for name in kinds:
        stored = gguf.quantize(tensors[name], quantization)
        expected = gguf.dequantize(stored, quantization)
        assert np.array_equal(model.tensors[name], expected), name
        assert np.abs(expected - tensors[name]).max() < 1.0


# Where the float16 scales of a block stand, in bytes.
K_SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def random_blocks(kind: str, shape: tuple[int, ...], seed: int) -> NDArray[np.uint8]:
    """Blocks of random bits with sane scales; the package cannot produce these types."""
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    draw = np.random.default_rng(seed)
    num_blocks = shape[0] * shape[1] // block_size
    blocks = draw.integers(0, 256, (num_blocks, block_bytes), np.uint8)
    for offset in K_SCALES[kind]:
        scales = draw.uniform(0.01, 0.02, (num_blocks, 1)).astype(np.float16)
        blocks[:, offset : offset + 2] = scales.view(np.uint8)
    return blocks.reshape(shape[0], -1)


@pytest.mark.parametrize("kind", list(K_SCALES))
def test_a_k_type_is_dequantized_as_the_package_does(tmp_path: Path, kind: str) -> None:
    config = config_json("qwen2")
    tensors = random_tensors(config)
    matrices = [name for name, values in tensors.items() if values.ndim == 2]
    blocks = {
        name: random_blocks(kind, tensors[name].shape, seed) for seed, name in enumerate(matrices)
    }
    kinds = dict.fromkeys(matrices, kind)

    path = write_gguf(tmp_path / "m.gguf", config, tensors, kinds=kinds, blocks=blocks)
    model = load_model(path)

    for name in matrices:
        expected = gguf.dequantize(blocks[name], gguf.GGMLQuantizationType[kind])
        assert np.isfinite(expected).all()
        assert np.array_equal(model.tensors[name], expected), name


@pytest.mark.parametrize("kind", ["I8", "F64", "I32"])
def test_another_type_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    config = config_json()
    types = {"I8": np.int8, "F64": np.float64, "I32": np.int32}
    blocks = {NORM: np.zeros(256, types[kind])}

    path = write_gguf(
        tmp_path / "m.gguf", config, random_tensors(config), kinds={NORM: kind}, blocks=blocks
    )

    with pytest.raises(UnsupportedModel, match=f"'output_norm.weight' has the type {kind}.*Q4_K"):
        load_model(path)


def test_frequency_factors_become_a_rope_scaling(tmp_path: Path) -> None:
    config = config_json()
    factors = np.linspace(1, 8, 32, dtype=np.float32)

    path = write_gguf(
        tmp_path / "m.gguf",
        config,
        random_tensors(config),
        extra_tensors={"rope_freqs.weight": factors},
    )

    scaling = load_model(path).config.rope.scaling

    assert scaling == FrequencyFactors(tuple(factors.tolist()))


@pytest.mark.parametrize(
    ("factors", "named"),
    [
        (np.ones(31, np.float32), r"shape \[31\], expected \[32\]"),
        (np.zeros(32, np.float32), "not above 0"),
        (np.full(32, np.nan, np.float32), "not above 0"),
    ],
)
def test_impossible_frequency_factors_are_refused(
    tmp_path: Path, factors: NDArray[np.float32], named: str
) -> None:
    config = config_json()
    extra = {"rope_freqs.weight": factors}
    path = write_gguf(tmp_path / "m.gguf", config, random_tensors(config), extra_tensors=extra)

    with pytest.raises(ModelLoadError, match=named):
        load_model(path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    config = config_json()
    tensors = random_tensors(config)
    del tensors[NORM]
    path = write_gguf(tmp_path / "m.gguf", config, tensors)

    with pytest.raises(ModelLoadError, match=f"m.gguf: tensor '{NORM}' is missing"):
        load_model(path)


@pytest.mark.parametrize(
    "name",
    ["blk.0.ffn_gate_inp.weight", "blk.00.attn_q.weight", "blk.7.attn_norm.weight", "x"],
)
def test_a_tensor_that_is_not_the_networks_is_named(tmp_path: Path, name: str) -> None:
    config = config_json()
    extra = {name: np.zeros(256, np.float32)}
    path = write_gguf(tmp_path / "m.gguf", config, random_tensors(config), extra_tensors=extra)

    with pytest.raises(ModelLoadError, match=f"m.gguf: tensor '{name}'"):
        load_model(path)


def test_a_wrong_shape_is_named_as_the_file_names_the_tensor(tmp_path: Path) -> None:
    config = config_json()
    tensors = random_tensors(config)
    tensors[EMBEDDING] = tensors[EMBEDDING][:299]
    path = write_gguf(tmp_path / "m.gguf", config, tensors)

    with pytest.raises(ModelLoadError, match=r"'token_embd.weight' has the shape \[299, 256\]"):
        load_model(path)


def test_a_split_file_is_refused_by_name(tmp_path: Path) -> None:
    config = config_json()
    path = write_gguf(
        tmp_path / "m.gguf", config, random_tensors(config), extra_metadata={"split.count": 2}
    )

    with pytest.raises(UnsupportedModel, match="split GGUF is not supported"):
        load_model(path)


def test_progress_counts_the_bytes_of_the_file(tmp_path: Path) -> None:
    config = config_json()
    tensors = random_tensors(config)
    path = write_gguf(tmp_path / "m.gguf", config, tensors, kinds={EMBEDDING: "Q8_0"})
    told: list[tuple[int, int]] = []

    load_model(path, lambda done, total: told.append((done, total)))

    total = sum(values.nbytes for name, values in tensors.items() if name != EMBEDDING)
    total += tensors[EMBEDDING].size // 32 * 34
    assert told[-1] == (total, total)
    assert len(told) == len(tensors)


def test_loading_holds_little_beyond_the_result(tmp_path: Path) -> None:
    config = config_json(vocab_size=10_000)
    tensors = random_tensors(config)
    kinds = {name: "Q4_1" for name, values in tensors.items() if values.ndim == 2}
    path = write_gguf(tmp_path / "m.gguf", config, tensors, kinds=kinds)
    tracemalloc.start()

    model = load_model(path)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * model.num_parameters + (4 << 20)


def test_interleaving_is_what_pairs_of_neighbours_need() -> None:
    rows = np.arange(8)[:, None]

    assert interleaved(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert gguf_name("model.layers.3.mlp.up_proj.weight") == "blk.3.ffn_up.weight"


def small_file(directory: Path) -> Path:
    config = small_config_json()
    return write_gguf(
        directory / "m.gguf", config, random_tensors(config), kinds={EMBEDDING: "Q8_0"}
    )


def last_tensor_row(content: bytes | bytearray) -> int:
    """Where the last row of the table of tensors begins, shortly before the data."""
    return content.rindex(b"blk.0.ffn_down.weight")


def test_a_file_cut_anywhere_is_a_load_error(tmp_path: Path) -> None:
    path = small_file(tmp_path)
    content = path.read_bytes()
    beyond = np.random.default_rng(0).integers(last_tensor_row(content), len(content) - 64, 100)
    for length in [*range(last_tensor_row(content)), *beyond.tolist()]:
        path.write_bytes(content[:length])
        with pytest.raises(ModelLoadError, match=r"m\.gguf: "):
            load_model(path)


def test_a_changed_byte_of_the_header_is_a_load_error_or_harmless(tmp_path: Path) -> None:
    path = small_file(tmp_path)
    content = path.read_bytes()
    draw = np.random.default_rng(1)
    num_errors = 0
    for position in range(last_tensor_row(content) + 64):
        broken = bytearray(content)
        broken[position] ^= int(draw.integers(1, 256))
        path.write_bytes(broken)
        try:
            load_model(path)
        except ModelLoadError:
            num_errors += 1

    assert num_errors > last_tensor_row(content) // 2


def test_random_data_loads_without_a_warning(tmp_path: Path) -> None:
    path = small_file(tmp_path)
    content = bytearray(path.read_bytes())
    start = last_tensor_row(content) + 256
    content[start:] = np.random.default_rng(2).bytes(len(content) - start)
    path.write_bytes(content)

    assert load_model(path).tensors[EMBEDDING].shape == (8, 32)


def test_a_claim_of_huge_counts_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 65_536, 65_536) + b"\xff" * 64)
    tracemalloc.start()

    with pytest.raises(ModelLoadError):
        load_model(path)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20
