"""Reads a model's configuration as transformers writes it: config.json, generation_config.json.

Belongs here: the keys of these files, what they mean when they are absent, and the refusal of what
everbatch does not do. Absent keys mean what transformers makes of them where its class has a
documented meaning for that (configuration_llama.py and its siblings); sizes must be there.
Not here: GGUF metadata (gguf_config.py). Called by weights.py.
"""

import math
from collections.abc import Mapping

from everbatch.models.config import (
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RopeConfig,
    RopeScaling,
    YarnScaling,
    check_consistency,
)
from everbatch.models.config_fields import Fields

_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_SUPPORTED = ", ".join(_ARCHITECTURES)
# What transformers assumes of Mistral where the file does not say.
_MISTRAL_SLIDING_WINDOW = 4096


def from_hf(
    config_json: Mapping[str, object],
    generation_config: Mapping[str, object] | None = None,
    *,
    source: str = "config.json",
    name: str = "",
) -> ModelConfig:
    """The ModelConfig that these two files describe; `source` is what errors call the first.
    ModelLoadError for a missing or impossible value, UnsupportedModel for what we do not have.
    End-of-text ids are those of generation_config where it has any, as in transformers."""
    fields = Fields(config_json, source)
    architecture = _architecture(fields)
    _refuse_unsupported(fields, architecture)
    num_heads = fields.integer("num_attention_heads")
    head_dim = fields.optional_integer("head_dim", minimum=2)
    hidden_size = fields.integer("hidden_size")
    if head_dim is None:
        head_dim = 128 if architecture == "qwen3" else _divided(fields, hidden_size, num_heads)
    max_positions = fields.integer("max_position_embeddings")
    bias = fields.flag_or("attention_bias", False) and architecture in ("llama", "qwen3")
    rope = _rope(fields, max_positions)
    generation = Fields(generation_config or {}, "generation_config.json")
    config = ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(fields, architecture, num_heads),
        head_dim=head_dim,
        rms_norm_eps=fields.number("rms_norm_eps"),
        max_model_len=_max_model_len(max_positions, rope),
        tie_word_embeddings=fields.flag_or("tie_word_embeddings", False),
        attention_bias=bias or architecture == "qwen2",
        attention_output_bias=bias,
        mlp_bias=fields.flag_or("mlp_bias", False) and architecture == "llama",
        qk_norm=architecture == "qwen3",
        rope=rope,
        eos_token_ids=generation.token_ids("eos_token_id") or fields.token_ids("eos_token_id"),
        name=name,
    )
    check_consistency(config, source)
    return config


def _architecture(fields: Fields) -> str:
    named = fields.peek("architectures")
    if named is None:
        model_type = fields.text("model_type")
        if model_type not in _ARCHITECTURES.values():
            fields.refuse(f"model_type {model_type!r} is not supported (supported: {_SUPPORTED})")
        return model_type
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        fields.fail(f"architectures is {named!r:.80}, expected a list of one name")
    if named[0] not in _ARCHITECTURES:
        fields.refuse(f"architecture {named[0]!r} is not supported (supported: {_SUPPORTED})")
    architecture = _ARCHITECTURES[named[0]]
    model_type = fields.text_or("model_type", architecture)
    if model_type != architecture:
        fields.fail(f"architecture {named[0]} contradicts model_type {model_type!r}")
    return architecture


def _refuse_unsupported(fields: Fields, architecture: str) -> None:
    """UnsupportedModel for a feature that would change the text if it were ignored."""
    quantization = fields.inner("quantization_config")
    if quantization is not None:
        method = quantization.text_or("quant_method", "unknown")
        fields.refuse(
            f"quantization_config (method {method!r}) is not supported: use the F32, F16 or BF16 "
            "weights, or a GGUF file"
        )
    activation = fields.text_or("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        fields.refuse(f"hidden_act {activation!r} is not supported (supported: silu)")
    for key in ("num_local_experts", "num_experts", "n_routed_experts"):
        if fields.peek(key):
            fields.refuse(f"{key} is set: mixture of experts is not supported, dense models are")
    if fields.peek("dual_chunk_attention_config"):
        fields.refuse("dual_chunk_attention_config is not supported: remove it for full attention")
    if fields.number_or("partial_rotary_factor", 1.0) != 1.0:
        fields.refuse("partial_rotary_factor other than 1 is not supported")
    _refuse_sliding_window(fields, architecture)


def _refuse_sliding_window(fields: Fields, architecture: str) -> None:
    layer_types = fields.peek("layer_types")
    if layer_types is not None and not isinstance(layer_types, list):
        fields.fail(f"layer_types is {layer_types!r:.80}, expected a list")
    for layer_type in layer_types or []:
        if layer_type != "full_attention":
            fields.refuse(
                f"layer_types has {layer_type!r:.80}, only full_attention is supported (no sliding "
                "window)"
            )
    if architecture in ("qwen2", "qwen3") and fields.flag_or("use_sliding_window", False):
        fields.refuse("use_sliding_window is true: sliding window attention is not supported")
    if architecture != "mistral":
        return
    window: int | None = _MISTRAL_SLIDING_WINDOW
    if fields.has("sliding_window"):
        window = fields.optional_integer("sliding_window", minimum=1)
    max_positions = fields.integer("max_position_embeddings")
    if window is not None and window < max_positions:
        fields.refuse(
            f"sliding_window {window:,} (what Mistral has where the key is absent: "
            f"{_MISTRAL_SLIDING_WINDOW:,}) is below max_position_embeddings {max_positions:,}: "
            "sliding window attention is not supported; lower max_position_embeddings to it"
        )


def _num_kv_heads(fields: Fields, architecture: str, num_heads: int) -> int:
    # Llama files older than grouped queries lack the key; a null means the same everywhere.
    if architecture == "llama" or fields.has("num_key_value_heads"):
        return fields.integer_or("num_key_value_heads", num_heads)
    return fields.integer("num_key_value_heads")


def _divided(fields: Fields, hidden_size: int, num_heads: int) -> int:
    if hidden_size % num_heads:
        fields.fail(
            f"hidden_size ({hidden_size}) is not a multiple of num_attention_heads ({num_heads}) "
            "and head_dim is not given"
        )
    return hidden_size // num_heads


def _max_model_len(max_positions: int, rope: RopeConfig) -> int:
    # YaRN is often switched on by adding rope_scaling alone; vLLM then extends the length as well.
    if isinstance(rope.scaling, YarnScaling):
        scaled = rope.scaling.original_max_position_embeddings * rope.scaling.factor
        return max(max_positions, int(scaled))
    return max_positions


def _rope(fields: Fields, max_positions: int) -> RopeConfig:
    """Both spellings: rope_theta beside rope_scaling, or rope_parameters with rope_theta inside.
    Source: transformers, modeling_rope_utils.py, convert_rope_params_to_dict."""
    top_theta = fields.number_or("rope_theta", 10_000.0)
    parameters = fields.inner("rope_scaling") or fields.inner("rope_parameters")
    if parameters is None:
        return RopeConfig(top_theta)
    if parameters.peek("full_attention") is not None:
        fields.refuse("rope parameters that differ by layer type are not supported")
    if parameters.number_or("partial_rotary_factor", 1.0) != 1.0:
        fields.refuse("partial_rotary_factor other than 1 is not supported")
    theta = parameters.number_or("rope_theta", top_theta)
    return RopeConfig(theta, _scaling(parameters, max_positions))


def _scaling(parameters: Fields, max_positions: int) -> RopeScaling | None:
    rope_type = parameters.text_or("rope_type", parameters.text_or("type", "default"))
    if rope_type == "default":
        return None
    if rope_type == "linear":
        return LinearScaling(parameters.number("factor"))
    original = parameters.integer_or("original_max_position_embeddings", max_positions)
    if rope_type == "llama3":
        return _llama3(parameters, original)
    if rope_type == "yarn":
        return _yarn(parameters, original)
    parameters.refuse(
        f"rope type {rope_type!r} is not supported (supported: default, linear, llama3, yarn)"
    )


def _llama3(parameters: Fields, original: int) -> Llama3Scaling:
    low, high = parameters.number("low_freq_factor"), parameters.number("high_freq_factor")
    if low >= high:
        parameters.fail(
            f"{parameters.name('low_freq_factor')} ({low:g}) is not below high_freq_factor "
            f"({high:g})"
        )
    return Llama3Scaling(parameters.number("factor"), low, high, original)


def _yarn(parameters: Fields, original: int) -> YarnScaling:
    factor = parameters.number("factor")
    attention_factor = parameters.optional_number("attention_factor")
    mscale = parameters.optional_number("mscale")
    mscale_all_dim = parameters.optional_number("mscale_all_dim")
    if attention_factor is None and mscale is not None and mscale_all_dim is not None:
        attention_factor = yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim)
    return YarnScaling(
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=yarn_mscale(factor) if attention_factor is None else attention_factor,
        beta_fast=parameters.number_or("beta_fast", 32.0),
        beta_slow=parameters.number_or("beta_slow", 1.0),
        truncate=parameters.flag_or("truncate", True),
    )


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """How much YaRN sharpens attention at this factor (arXiv 2309.00071, section 3.4)."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0
