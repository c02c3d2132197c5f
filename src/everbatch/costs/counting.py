"""Counts a model's parameters from the fields of its config.json.

Dense Llama-family models only, the ones that everbatch can run; what would make the count wrong is
refused by name. Called by model.py.
"""

from typing import TypedDict

from everbatch.base.errors import ConfigError
from everbatch.base.fields import Fields, shown

_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_KINDS = tuple(_ARCHITECTURES.values())
_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts")
_BYTES_PER_VALUE = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}
_DEFAULT_TYPE = "bfloat16"
_LARGEST = 2**31 - 1


class Counts(TypedDict):
    """Sizes as `costs.model.Model` has them."""

    num_params: float
    num_layers: float
    num_heads: float
    num_kv_heads: float
    head_dim: float
    hidden_size: float
    bytes_per_value: float
    head_params: float
    embedding_params: float


def count_config(config: object, where: str) -> Counts:
    """Give the sizes that a config.json implies; ConfigError, beginning with `where`, if it cannot.

    Without a dtype the values are taken to have 2 bytes, as models are served today.
    """
    fields = _given(config, where)
    kind = _kind(fields)
    hidden = fields.integer_or("hidden_size", 0, 1)
    layers = fields.integer_or("num_hidden_layers", 0, 1)
    heads = fields.integer_or("num_attention_heads", 0, 1)
    kv_heads = fields.integer_or("num_key_value_heads", heads, 1, _LARGEST)
    # Qwen3's class has 128 where the key is absent, whatever the hidden size.
    head_dim = fields.integer_or("head_dim", 128 if kind == "qwen3" else hidden // heads, 1)
    if "head_dim" not in fields and kind != "qwen3" and hidden % heads:
        raise fields.wrong(
            "hidden_size", f"a multiple of num_attention_heads ({heads}), or give head_dim"
        )
    matrix = fields.integer_or("vocab_size", 0, 1) * hidden
    is_tied = _flag(fields, "tie_word_embeddings")
    layer = _layer_params(fields, kind, hidden, heads * head_dim, kv_heads * head_dim)
    if kind == "qwen3":
        layer += 2 * head_dim  # the norms of queries and keys
    embedding = 0 if is_tied else matrix
    return Counts(
        num_params=float(layers * layer + hidden + matrix + embedding),
        num_layers=float(layers),
        num_heads=float(heads),
        num_kv_heads=float(kv_heads),
        head_dim=float(head_dim),
        hidden_size=float(hidden),
        bytes_per_value=_bytes_per_value(fields),
        head_params=float(matrix),
        embedding_params=float(embedding),
    )


def _given(config: object, where: str) -> Fields:
    """Give the fields of a config.json: all keys are known, null means absent."""
    if not isinstance(config, dict):
        raise ConfigError(f"{where}: config is {shown(config)}, it must be a table")
    given = {key: value for key, value in config.items() if value is not None}
    fields = Fields(given, where, tuple(given))
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    for key in (*sizes, "vocab_size"):
        fields.required(key, "the parameters are counted from it")
        fields.integer(key, None, 1, _LARGEST)
    for key in _EXPERT_KEYS:
        if given.get(key):
            raise ConfigError(
                f"{where} has {key}: mixtures of experts are not counted, give the model's sizes "
                "one by one (num_params and so on)"
            )
    if given.get("quantization_config"):
        raise ConfigError(
            f"{where} has a quantization_config: give the model's sizes one by one, "
            "bytes_per_value as the weights have it on average"
        )
    return fields


def _kind(fields: Fields) -> str:
    named = fields.get("architectures") if "architectures" in fields else None
    first = named[0] if isinstance(named, list) and named else None
    if isinstance(first, str) and first in _ARCHITECTURES:
        return _ARCHITECTURES[first]
    if first is None and "model_type" in fields:
        return fields.one_of("model_type", "", _KINDS)
    raise ConfigError(
        f"{fields.where} has the architecture {shown(first)}: counted are "
        f"{', '.join(_ARCHITECTURES)}; give another model's sizes one by one"
    )


def _layer_params(fields: Fields, kind: str, hidden: int, q_size: int, kv_size: int) -> int:
    """Count one layer: four attention matrices, three of the gated MLP, two norms, biases."""
    inner = fields.integer_or("intermediate_size", 0, 1)
    params = 2 * hidden * (q_size + kv_size) + 3 * hidden * inner + 2 * hidden
    has_bias = kind in ("llama", "qwen3") and _flag(fields, "attention_bias")
    if has_bias or kind == "qwen2":
        params += q_size + 2 * kv_size
    if has_bias:
        params += hidden
    if kind == "llama" and _flag(fields, "mlp_bias"):
        params += 2 * inner + hidden
    return params


def _flag(fields: Fields, key: str) -> bool:
    if key not in fields:
        return False
    value = fields.get(key)
    if not isinstance(value, bool):
        raise fields.wrong(key, "true or false")
    return value


def _bytes_per_value(fields: Fields) -> float:
    key = "dtype" if "dtype" in fields else "torch_dtype"
    return _BYTES_PER_VALUE[fields.one_of(key, _DEFAULT_TYPE, tuple(_BYTES_PER_VALUE))]
