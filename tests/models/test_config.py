"""Configurations of transformers: what is read, and what is refused and how."""

import json
import math
from typing import Any

import pytest

from everbatch.base.errors import ModelLoadError, UnsupportedModel
from everbatch.models.config import (
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RopeConfig,
    YarnScaling,
)
from everbatch.models.hf_config import from_hf

SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
}
CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def hf(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    """A config.json; a change to `...` removes the key."""
    values = {"architectures": [CLASSES[architecture]], "model_type": architecture, **SIZES}
    if architecture == "mistral":
        values["sliding_window"] = None
    values.update(changes)
    return {key: value for key, value in values.items() if value is not ...}


def hf_with(key: str, value: Any) -> dict[str, Any]:
    changes: dict[str, Any] = {key: value}
    return hf(**changes)


def test_llama_reads_its_sizes_and_switches() -> None:
    config = from_hf(hf(eos_token_id=2, tie_word_embeddings=True), name="tiny")

    assert config == ModelConfig(
        architecture="llama",
        vocab_size=100,
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        rms_norm_eps=1e-6,
        max_model_len=2048,
        tie_word_embeddings=True,
        rope=RopeConfig(10_000.0),
        eos_token_ids=(2,),
        name="tiny",
    )


@pytest.mark.parametrize(
    ("architecture", "changes", "biases", "qk_norm", "head_dim"),
    [
        ("llama", {}, (False, False, False), False, 16),
        ("llama", {"attention_bias": True}, (True, True, False), False, 16),
        ("llama", {"mlp_bias": True, "head_dim": 32}, (False, False, True), False, 32),
        ("llama", {"head_dim": None}, (False, False, False), False, 16),
        ("mistral", {"head_dim": 24}, (False, False, False), False, 24),
        ("qwen2", {}, (True, False, False), False, 16),
        ("qwen3", {}, (False, False, False), True, 128),
        ("qwen3", {"attention_bias": True, "head_dim": 16}, (True, True, False), True, 16),
    ],
)
def test_architectures_differ_in_switches(
    architecture: str,
    changes: dict[str, Any],
    biases: tuple[bool, bool, bool],
    qk_norm: bool,
    head_dim: int,
) -> None:
    config = from_hf(hf(architecture, **changes))

    assert config.architecture == architecture
    assert (config.attention_bias, config.attention_output_bias, config.mlp_bias) == biases
    assert config.qk_norm is qk_norm
    assert config.head_dim == head_dim


def test_llama_without_kv_heads_has_as_many_as_heads() -> None:
    assert from_hf(hf(num_key_value_heads=...)).num_kv_heads == 4


def test_model_type_alone_names_the_architecture() -> None:
    assert from_hf(hf("qwen2", architectures=...)).architecture == "qwen2"


@pytest.mark.parametrize(
    ("own", "generation", "expected"),
    [
        (2, None, (2,)),
        ([2, 5], None, (2, 5)),
        (2, {"eos_token_id": [7, 2, 7]}, (7, 2)),
        (2, {"eos_token_id": 9}, (9,)),
        (2, {"temperature": 0.6}, (2,)),
        (None, {"eos_token_id": None}, ()),
    ],
)
def test_generation_config_names_the_eos_ids_first(
    own: object, generation: dict[str, object] | None, expected: tuple[int, ...]
) -> None:
    assert from_hf(hf(eos_token_id=own), generation).eos_token_ids == expected


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
MSCALE_4 = 0.1 * math.log(4) + 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope_theta": 5e5}, RopeConfig(5e5)),
        ({"rope_theta": 5e5, "rope_scaling": None}, RopeConfig(5e5)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, RopeConfig(1e6)),
        (
            {"rope_theta": 7.0, "rope_parameters": {"rope_type": "linear", "factor": 2}},
            RopeConfig(7.0, LinearScaling(2.0)),
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 4.0}},
            RopeConfig(10_000.0, LinearScaling(4.0)),
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            RopeConfig(5e5, Llama3Scaling(8.0, 1.0, 4.0, 512)),
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
            RopeConfig(5e5, Llama3Scaling(8.0, 1.0, 4.0, 512)),
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0}},
            RopeConfig(10_000.0, YarnScaling(4.0, 2048, MSCALE_4)),
        ),
        (
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 1e6,
                    "factor": 4.0,
                    "original_max_position_embeddings": 512,
                    "attention_factor": 0.75,
                    "beta_fast": 16,
                    "beta_slow": 2,
                    "truncate": False,
                }
            },
            RopeConfig(1e6, YarnScaling(4.0, 512, 0.75, 16.0, 2.0, False)),
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 2, "mscale_all_dim": 1}},
            RopeConfig(10_000.0, YarnScaling(4.0, 2048, (0.2 * math.log(4) + 1) / MSCALE_4)),
        ),
    ],
)
def test_both_spellings_of_rope_settings_are_read(
    changes: dict[str, Any], expected: RopeConfig
) -> None:
    assert from_hf(hf(**changes)).rope == expected


def test_yarn_extends_the_length_that_a_model_takes() -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}

    assert from_hf(hf(rope_scaling=yarn)).max_model_len == 8192


HUGE = pytest.param(10**5000, id="5001 digits")
REQUIRED = [key for key in SIZES if key not in ("hidden_act", "num_key_value_heads")]


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_named_with_its_file(key: str) -> None:
    with pytest.raises(ModelLoadError, match=rf"^m/config\.json: the key {key} is missing$"):
        from_hf(hf_with(key, ...), source="m/config.json")


@pytest.mark.parametrize(
    "value", [0, -1, "64", 64.0, True, [], {}, float("nan"), 2**31, HUGE, 1e400]
)
@pytest.mark.parametrize("key", [key for key in REQUIRED if key != "rms_norm_eps"])
def test_an_impossible_size_is_named(key: str, value: object) -> None:
    with pytest.raises(ModelLoadError, match=f"config.json: {key} is "):
        from_hf(hf_with(key, value))


@pytest.mark.parametrize(
    "value", [0, -1e-6, "1e-6", True, float("nan"), float("inf"), HUGE, [1e-6]]
)
@pytest.mark.parametrize("key", ["rms_norm_eps", "rope_theta"])
def test_an_impossible_number_is_named(key: str, value: object) -> None:
    with pytest.raises(ModelLoadError, match=f"config.json: {key} is "):
        from_hf(hf_with(key, value))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"hidden_size": 66}, "num_attention_heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"num_hidden_layers": 4097}, "num_hidden_layers"),
        ({"head_dim": 0}, "head_dim"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"attention_bias": 1}, "attention_bias"),
        ({"eos_token_id": -1}, "eos_token_id"),
        ({"eos_token_id": ["2"]}, "eos_token_id"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling.factor"),
        ({"rope_scaling": {"type": 3}}, "rope_scaling.type"),
        (
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}},
            "rope_scaling.low_freq_factor",
        ),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"architectures": []}, "architectures"),
        ({"architectures": ..., "model_type": ...}, "model_type"),
        ({"model_type": "mistral"}, "model_type"),
        ({"hidden_act": 3}, "hidden_act"),
        ({"layer_types": "full"}, "layer_types"),
    ],
)
def test_contradictions_and_wrong_types_are_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        from_hf(hf(**changes))


@pytest.mark.parametrize(
    ("architecture", "changes", "named"),
    [
        (
            "llama",
            {"architectures": ["MixtralForCausalLM"]},
            "MixtralForCausalLM.*Qwen3ForCausalLM",
        ),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequence"),
        ("llama", {"architectures": ..., "model_type": "gemma3"}, "gemma3"),
        ("mistral", {"sliding_window": 1024}, "sliding_window 1,024"),
        ("mistral", {"sliding_window": ..., "max_position_embeddings": 32768}, "sliding_window"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window"),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ("llama", {"num_local_experts": 8}, "num_local_experts.*mixture of experts"),
        ("qwen2", {"num_experts": 60}, "num_experts"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic.*yarn"),
        ("llama", {"rope_parameters": {"rope_type": "longrope"}}, "longrope"),
        ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "layer type"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ("llama", {"hidden_act": "gelu"}, "gelu.*silu"),
        ("llama", {"quantization_config": {"quant_method": "awq"}}, "awq.*BF16"),
        ("qwen2", {"dual_chunk_attention_config": {"a": 1}}, "dual_chunk_attention_config"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    architecture: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        from_hf(hf(architecture, **changes))


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("mistral", {"sliding_window": 2048}),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 4, "max_window_layers": 1}),
        ("qwen3", {"layer_types": ["full_attention", "full_attention"]}),
        ("llama", {"quantization_config": None, "num_experts": 0}),
        ("llama", {"pretraining_tp": 2, "use_cache": True, "torch_dtype": "bfloat16"}),
    ],
)
def test_a_feature_that_is_off_is_no_reason_to_refuse(
    architecture: str, changes: dict[str, Any]
) -> None:
    assert from_hf(hf(architecture, **changes)).architecture == architecture


def test_long_values_are_cut_in_errors() -> None:
    with pytest.raises(ModelLoadError) as caught:
        from_hf(hf(vocab_size="x" * 100_000))

    assert len(str(caught.value)) < 200


def test_a_config_survives_json() -> None:
    written = json.loads(json.dumps(hf(rope_scaling={"type": "linear", "factor": 2.0})))

    assert from_hf(written) == from_hf(hf(rope_scaling={"type": "linear", "factor": 2.0}))
