"""Which tensors a network has: their Hugging Face names, their shapes, their names in GGUF.

Belongs here: names and shapes only. Not here: how tensors are stored and read. Called by
gguf_file.py and weights.py. Sources: transformers' state dicts; gguf-py, constants.TENSOR_NAMES.
"""

import re
from collections.abc import Iterator

from everbatch.models.config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"

ROPE_FREQS = "rope_freqs.weight"

# Buffers that old files carry and that are computed from the config instead.
_COMPUTED = re.compile(r"^model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq$")

_GGUF_GLOBAL = {
    "token_embd.weight": EMBEDDING,
    "output_norm.weight": FINAL_NORM,
    "output.weight": LM_HEAD,
}
_GGUF_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_LAYER = re.compile(r"^blk\.(\d+)\.([a-z_]+)\.(weight|bias)$")


def expected_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor of the network and its shape, [out, in] for a projection, in network order.
    lm_head is absent where it is the embedding."""
    yield EMBEDDING, (config.vocab_size, config.hidden_size)
    for layer in range(config.num_layers):
        for name, shape in _layer_shapes(config):
            yield f"model.layers.{layer}.{name}", shape
    yield FINAL_NORM, (config.hidden_size,)
    if not config.tie_word_embeddings:
        yield LM_HEAD, (config.vocab_size, config.hidden_size)


def is_computed(name: str) -> bool:
    """Whether a tensor follows from the config, so that the file's copy is not read."""
    return _COMPUTED.match(name) is not None


def from_gguf_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor; None if this network has no such tensor."""
    if name in _GGUF_GLOBAL:
        return _GGUF_GLOBAL[name]
    match = _GGUF_LAYER.match(name)
    if match is None or match[2] not in _GGUF_IN_LAYER:
        return None
    return f"model.layers.{int(match[1])}.{_GGUF_IN_LAYER[match[2]]}.{match[3]}"


def _layer_shapes(config: ModelConfig) -> list[tuple[str, tuple[int, ...]]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim
    shapes: list[tuple[str, tuple[int, ...]]] = [("input_layernorm.weight", (hidden,))]
    for name, out_size in (("q_proj", q_size), ("k_proj", kv_size), ("v_proj", kv_size)):
        shapes += _linear(f"self_attn.{name}", out_size, hidden, bias=config.attention_bias)
    if config.qk_norm:
        shapes += [(f"self_attn.{name}.weight", (config.head_dim,)) for name in _QK_NORMS]
    shapes += _linear("self_attn.o_proj", hidden, q_size, bias=config.attention_output_bias)
    shapes.append(("post_attention_layernorm.weight", (hidden,)))
    for name, out_size, in_size in (
        ("gate_proj", inner, hidden),
        ("up_proj", inner, hidden),
        ("down_proj", hidden, inner),
    ):
        shapes += _linear(f"mlp.{name}", out_size, in_size, bias=config.mlp_bias)
    return shapes


_QK_NORMS = ("q_norm", "k_norm")


def _linear(
    name: str, out_size: int, in_size: int, *, bias: bool
) -> list[tuple[str, tuple[int, ...]]]:
    weight = (f"{name}.weight", (out_size, in_size))
    return [weight, (f"{name}.bias", (out_size,))] if bias else [weight]
