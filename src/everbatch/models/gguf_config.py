"""Reads a model's configuration out of GGUF metadata.

Belongs here: the keys that describe the network (docs/gguf.md of ggml, `[llm].*`), and the ids that
end a text. Not here: tensor names and data (tensor_names.py, gguf_file.py), the vocabulary
(everbatch.tokenizer). Called by gguf_file.py.
"""

from collections.abc import Collection, Mapping

import numpy as np

from everbatch.models.config import (
    LinearScaling,
    ModelConfig,
    RopeConfig,
    RopeScaling,
    YarnScaling,
    check_consistency,
)
from everbatch.models.config_fields import Fields
from everbatch.models.hf_config import yarn_mscale

# Mistral files call themselves llama; the networks are the same.
_ARCHITECTURES = ("llama", "qwen2", "qwen3")


def from_gguf(
    metadata: Mapping[str, object],
    tensor_names: Collection[str],
    *,
    source: str = "the GGUF file",
    name: str = "",
) -> ModelConfig:
    """The ModelConfig that a GGUF file's metadata and the names of its tensors describe.
    GGUF has no key for tied embeddings and biases: a tensor that is there is used. Frequency
    factors are a tensor too and are not yet in the result. Errors as in `hf_config.from_hf`."""
    fields = Fields(metadata, source)
    _refuse_split(fields)
    architecture = fields.text("general.architecture")
    if architecture not in _ARCHITECTURES:
        fields.refuse(
            f"architecture {architecture!r} is not supported (supported: "
            f"{', '.join(_ARCHITECTURES)}; Mistral is llama)"
        )
    _refuse_unsupported(fields, architecture)
    num_heads = fields.integer(f"{architecture}.attention.head_count")
    hidden_size = fields.integer(f"{architecture}.embedding_length")
    config = ModelConfig(
        architecture=architecture,
        vocab_size=_vocab_size(fields, architecture),
        hidden_size=hidden_size,
        intermediate_size=fields.integer(f"{architecture}.feed_forward_length"),
        num_layers=fields.integer(f"{architecture}.block_count"),
        num_heads=num_heads,
        num_kv_heads=fields.integer_or(f"{architecture}.attention.head_count_kv", num_heads),
        head_dim=_head_dim(fields, architecture, hidden_size, num_heads),
        rms_norm_eps=_shortest(fields.number(f"{architecture}.attention.layer_norm_rms_epsilon")),
        max_model_len=fields.integer(f"{architecture}.context_length"),
        tie_word_embeddings="output.weight" not in tensor_names,
        attention_bias="blk.0.attn_q.bias" in tensor_names,
        attention_output_bias="blk.0.attn_output.bias" in tensor_names,
        mlp_bias="blk.0.ffn_gate.bias" in tensor_names,
        qk_norm=architecture == "qwen3",
        rope=_rope(fields, architecture),
        eos_token_ids=_eos_token_ids(fields),
        name=name or fields.text_or("general.name", ""),
    )
    check_consistency(config, source)
    return config


def _refuse_split(fields: Fields) -> None:
    # First of all: only the first part of a split file names its architecture.
    if fields.integer_or("split.count", 1, minimum=0) > 1:
        fields.refuse(
            "split GGUF is not supported: join the parts with `llama-gguf-split --merge` and give "
            "the one file"
        )


def _refuse_unsupported(fields: Fields, architecture: str) -> None:
    if fields.integer_or(f"{architecture}.expert_count", 0, minimum=0):
        fields.refuse(
            f"{architecture}.expert_count is set: mixture of experts is not supported, dense "
            "models are"
        )
    if fields.integer_or(f"{architecture}.attention.sliding_window", 0, minimum=0):
        fields.refuse(
            f"{architecture}.attention.sliding_window is set: sliding window attention is not "
            "supported"
        )
    for key in ("attn_logit_softcapping", "final_logit_softcapping", "logit_scale"):
        if fields.peek(f"{architecture}.{key}"):
            fields.refuse(f"{architecture}.{key} is not supported")


def _vocab_size(fields: Fields, architecture: str) -> int:
    key = "tokenizer.ggml.tokens"
    tokens = fields.peek(key)
    if fields.peek(f"{architecture}.vocab_size") is None and isinstance(tokens, list) and tokens:
        return len(tokens)
    return fields.integer(f"{architecture}.vocab_size")


def _head_dim(fields: Fields, architecture: str, hidden_size: int, num_heads: int) -> int:
    key = f"{architecture}.attention.key_length"
    if fields.peek(key) is None and hidden_size % num_heads:
        fields.fail(
            f"{architecture}.embedding_length ({hidden_size}) is not a multiple of "
            f"{architecture}.attention.head_count ({num_heads}) and {key} is not given"
        )
    head_dim = fields.integer_or(key, hidden_size // num_heads, minimum=2)
    for other in ("attention.value_length", "rope.dimension_count"):
        size = fields.integer_or(f"{architecture}.{other}", head_dim)
        if size != head_dim:
            fields.refuse(
                f"{architecture}.{other} is {size}, other than the head's {head_dim}: not supported"
            )
    return head_dim


def _rope(fields: Fields, architecture: str) -> RopeConfig:
    theta = _shortest(fields.number_or(f"{architecture}.rope.freq_base", 10_000.0))
    return RopeConfig(theta, _scaling(fields, f"{architecture}.rope"))


def _scaling(fields: Fields, rope: str) -> RopeScaling | None:
    old_linear = fields.optional_number(f"{rope}.scale_linear")
    default = "none" if old_linear is None else "linear"
    kind = fields.text_or(f"{rope}.scaling.type", default)
    if kind == "none":
        return None
    # llama.cpp reads factor 0 as "not scaled", so old writers leave it so.
    if fields.peek(f"{rope}.scaling.factor") in (0, None) and old_linear is None:
        return None
    factor = _shortest(fields.number_or(f"{rope}.scaling.factor", old_linear or 1.0))
    if kind == "linear":
        return LinearScaling(factor)
    if kind == "yarn":
        return _yarn(fields, rope, factor)
    fields.refuse(f"{rope}.scaling.type {kind!r} is not supported (supported: none, linear, yarn)")


def _yarn(fields: Fields, rope: str, factor: float) -> YarnScaling:
    scaling = f"{rope}.scaling"
    extrapolation = fields.number_or(f"{scaling}.yarn_ext_factor", 1.0)
    if extrapolation != 1.0:
        fields.refuse(f"{scaling}.yarn_ext_factor other than 1 is not supported")
    # ggml multiplies the paper's factor by this one (ggml.c, rope_yarn).
    extra = fields.number_or(
        f"{scaling}.yarn_attn_factor", fields.number_or(f"{scaling}.attn_factor", 1.0)
    )
    return YarnScaling(
        factor=factor,
        original_max_position_embeddings=fields.integer(f"{scaling}.original_context_length"),
        attention_factor=yarn_mscale(factor) * extra,
        beta_fast=fields.number_or(f"{scaling}.yarn_beta_fast", 32.0),
        beta_slow=fields.number_or(f"{scaling}.yarn_beta_slow", 1.0),
    )


def _eos_token_ids(fields: Fields) -> tuple[int, ...]:
    """The ids that end a text: of text, of turn and of message, as llama.cpp treats them."""
    ids: list[int] = []
    for key in ("eos_token_id", "eot_token_id", "eom_token_id"):
        ids.extend(fields.token_ids(f"tokenizer.ggml.{key}"))
    return tuple(dict.fromkeys(ids))


def _shortest(value: float) -> float:
    """1e-05 for the 9.999999747378752e-06 that a float32 makes of it: what the author wrote."""
    return float(str(np.float32(value)))
