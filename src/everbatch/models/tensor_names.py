"""What files call the tensors of a network.

Belongs here: names only. Not here: which tensors a network has (llama.py), how they are stored and
read. Called by gguf_file.py and llama.py. Source: gguf-py, constants.TENSOR_NAMES.
"""

import re

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"

ROPE_FREQS = "rope_freqs.weight"

# Frequencies follow from the configuration; transformers saved them as a buffer before 4.32.
_COMPUTED = re.compile(r"([\w.]+\.)?rotary_emb\.inv_freq")

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
_GGUF_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,4})\.([a-z_]+)\.(weight|bias)")


def is_computed(name: str) -> bool:
    """Whether a tensor follows from the config, so that the file's copy is not read."""
    return _COMPUTED.fullmatch(name) is not None


def from_gguf_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor; None if this network has no such tensor."""
    if name in _GGUF_GLOBAL:
        return _GGUF_GLOBAL[name]
    match = _GGUF_LAYER.fullmatch(name)
    if match is None or match[2] not in _GGUF_IN_LAYER:
        return None
    return f"model.layers.{match[1]}.{_GGUF_IN_LAYER[match[2]]}.{match[3]}"
