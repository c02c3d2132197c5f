"""A whole model in a directory or a GGUF file, of some 100 kB: for tests of what is around it.

Its vocabulary is the 256 bytes, a merge of two that no text has, and an end of text: token ids are
the bytes of a text. Weights are random, but only printable ASCII is ever the likeliest: greedy
texts can be read and never end by themselves.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from models.weight_builders import Tensors, gguf_name, interleaved
from safetensors.numpy import save_file
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from everbatch.models.hf_config import from_hf
from everbatch.models.llama import tensor_shapes

EOS = 257
EOS_TOKEN = "<|eos|>"
VOCAB_SIZE = 258
MAX_MODEL_LEN = 256
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
)

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": MAX_MODEL_LEN,
    "tie_word_embeddings": False,
    "eos_token_id": EOS,
}


def write_model(
    directory: Path,
    *,
    num_shards: int = 1,
    template: str | None = TEMPLATE,
    without: tuple[str, ...] = (),
    **changes: Any,
) -> Path:
    """Write config.json, safetensors and tokenizer. `without` drops keys of config.json, `changes`
    sets some."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in CONFIG.items() if key not in without} | changes
    (directory / "config.json").write_text(json.dumps(config))
    _write_weights(directory, random_tensors(), num_shards)
    backend().save(str(directory / "tokenizer.json"))
    facts = {"eos_token": EOS_TOKEN} | ({} if template is None else {"chat_template": template})
    (directory / "tokenizer_config.json").write_text(json.dumps(facts))
    return directory


def write_gguf_model(path: Path) -> Path:
    """Write the same model as a GGUF file, in F32."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_vocab_size(VOCAB_SIZE)
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_context_length(MAX_MODEL_LEN)
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_key_length(CONFIG["head_dim"])
    writer.add_value_length(CONFIG["head_dim"])
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    merge = _merge()
    writer.add_token_list([*map(byte_character, range(256)), "".join(merge), EOS_TOKEN])
    writer.add_token_types([1] * 257 + [3])
    writer.add_token_merges([" ".join(merge)])
    writer.add_eos_token_id(EOS)
    writer.add_chat_template(TEMPLATE)
    for name, values in random_tensors().items():
        if name.endswith("q_proj.weight"):
            values = interleaved(values, CONFIG["num_attention_heads"])
        if name.endswith("k_proj.weight"):
            values = interleaved(values, CONFIG["num_key_value_heads"])
        writer.add_tensor(gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_tensors() -> Tensors:
    draw = np.random.default_rng(3)
    tensors = {}
    for name, shape in tensor_shapes(from_hf(CONFIG)).items():
        scale = 1.0 if len(shape) == 1 else 1.5 * shape[-1] ** -0.5
        tensors[name] = (scale * draw.standard_normal(shape)).astype(np.float32)
    # A logit of 0 is never the largest of 95 random ones.
    tensors["lm_head.weight"][[*range(32), *range(127, VOCAB_SIZE)]] = 0.0
    return tensors


def backend() -> Backend:
    vocabulary = {byte_character(byte): byte for byte in range(256)}
    vocabulary["".join(_merge())] = 256
    made = Backend(models.BPE(vocab=vocabulary, merges=[_merge()]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([EOS_TOKEN])
    return made


def byte_character(byte: int) -> str:
    """How GPT-2 writes a byte: printable ones as they are, the others from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in printable:
        return chr(byte)
    others = [one for one in range(256) if one not in printable]
    return chr(256 + others.index(byte))


def _merge() -> tuple[str, str]:
    """Of two bytes that UTF-8 never has; a GGUF file cannot hold an empty list of merges."""
    return byte_character(0xFE), byte_character(0xFF)


def _write_weights(directory: Path, tensors: Tensors, num_shards: int) -> None:
    if num_shards == 1:
        save_file(tensors, directory / "model.safetensors")
        return
    names = list(tensors)
    weight_map = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        part = names[shard::num_shards]
        save_file({name: tensors[name] for name in part}, directory / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
