"""Builders of tiny model files: configurations, random tensors, safetensors, GGUF.

The GGUF side renames and interleaves by its own rules, written out here, so that a test compares
two statements of the format and not one with itself.
"""

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from everbatch.models.hf_config import from_hf
from everbatch.models.llama import tensor_shapes

Tensors = dict[str, NDArray[np.float32]]

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def config_json(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    """Rows of 256, which every quantized type can hold."""
    return {
        "architectures": [CLASSES[architecture]],
        "model_type": architecture,
        "vocab_size": 300,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 128,
        "sliding_window": None,
        "eos_token_id": 2,
        **changes,
    }


def small_config_json(**changes: Any) -> dict[str, Any]:
    """For fuzzing: a file of some 30 kB."""
    sizes: dict[str, Any] = {
        "vocab_size": 8,
        "hidden_size": 32,
        "intermediate_size": 32,
        "head_dim": 16,
    }
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1}
    return config_json(**sizes, **heads, **changes)


def random_tensors(config: dict[str, Any], seed: int = 0) -> Tensors:
    draw = np.random.default_rng(seed)
    return {
        name: draw.standard_normal(shape).astype(np.float32)
        for name, shape in tensor_shapes(from_hf(config)).items()
    }


def write_directory(
    directory: Path, config: dict[str, Any], shards: dict[str, dict[str, np.ndarray]]
) -> Path:
    """Write config.json and one safetensors file a shard; with an index if there are several."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    for shard, tensors in shards.items():
        save_file(tensors, directory / shard)
    if list(shards) != ["model.safetensors"]:
        write_index(directory, {name: shard for shard in shards for name in shards[shard]})
    return directory


def write_index(directory: Path, weight_map: object) -> None:
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def safetensors_bytes(header: object, data: bytes, *, header_length: int | None = None) -> bytes:
    """A file with any header at all: what the package would refuse to write."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(raw) if header_length is None else header_length
    return struct.pack("<Q", length) + raw + data


def bf16_bytes(values: NDArray[np.float32]) -> bytes:
    """The upper halves of the values, which must be exact in bfloat16."""
    bits = values.view(np.uint32)
    assert not np.any(bits & 0xFFFF)
    return (bits >> 16).astype("<u2").tobytes()


def round_to_bf16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return (values.view(np.uint32) & 0xFFFF_0000).view(np.float32)


GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    if name in GGUF_NAMES:
        return GGUF_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    module, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[module]}.{kind}"


def interleaved(values: np.ndarray, num_heads: int) -> np.ndarray:
    """The rows of q or k as llama files hold them: row 2i of a head is its row i here, row 2i + 1
    its row i + head_dim / 2."""
    head_dim = values.shape[0] // num_heads
    order = [
        head * head_dim + half * (head_dim // 2) + pair
        for head in range(num_heads)
        for pair in range(head_dim // 2)
        for half in range(2)
    ]
    return values[order]


def write_gguf(
    path: Path,
    config: dict[str, Any],
    tensors: Tensors,
    *,
    kinds: dict[str, str] | None = None,
    blocks: dict[str, np.ndarray] | None = None,
    extra_tensors: dict[str, np.ndarray] | None = None,
    extra_metadata: dict[str, int] | None = None,
) -> Path:
    """Write a model. kinds: the type of a tensor that is not F32; blocks: raw blocks to write in
    its place, for the types that the package cannot produce."""
    architecture = "llama" if config["model_type"] == "mistral" else config["model_type"]
    writer = gguf.GGUFWriter(path, architecture)
    _add_metadata(writer, config)
    for key, value in (extra_metadata or {}).items():
        writer.add_uint32(key, value)
    for name, values in tensors.items():
        kind = gguf.GGMLQuantizationType[(kinds or {}).get(name, "F32")]
        if blocks and name in blocks:
            writer.add_tensor(gguf_name(name), blocks[name], raw_dtype=kind)
            continue
        if architecture == "llama" and name.endswith(("q_proj.weight", "q_proj.bias")):
            values = interleaved(values, config["num_attention_heads"])
        if architecture == "llama" and name.endswith(("k_proj.weight", "k_proj.bias")):
            values = interleaved(values, config["num_key_value_heads"])
        writer.add_tensor(gguf_name(name), gguf.quantize(values, kind), raw_dtype=kind)
    for name, values in (extra_tensors or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_metadata(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_name("tiny")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10_000.0)
    writer.add_token_list(["<a>", "b", "ç"])
    writer.add_token_scores([0.0, -1.5, 2.0])
    writer.add_eos_token_id(2)
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
