"""Configurations in GGUF metadata: what is read, and what is refused and how."""

import math
from typing import Any

import pytest

from everbatch.base.errors import ModelLoadError, UnsupportedModel
from everbatch.models.config import LinearScaling, ModelConfig, RopeConfig, YarnScaling
from everbatch.models.gguf_config import from_gguf

MSCALE_4 = 0.1 * math.log(4) + 1
GGUF_NAMES = ("token_embd.weight", "output.weight")


def gguf(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    """GGUF metadata. Changes: `x__y` stands for `<architecture>.x.y`, `...` removes the key."""
    values: dict[str, Any] = {
        "general.architecture": architecture,
        "general.name": "Tiny",
        f"{architecture}.vocab_size": 100,
        f"{architecture}.block_count": 2,
        f"{architecture}.context_length": 2048,
        f"{architecture}.embedding_length": 64,
        f"{architecture}.feed_forward_length": 96,
        f"{architecture}.attention.head_count": 4,
        f"{architecture}.attention.head_count_kv": 2,
        f"{architecture}.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
        f"{architecture}.rope.freq_base": 100_000.0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    for key, value in changes.items():
        full = key.replace("__", ".")
        values[full if "ggml" in key or "split" in key else f"{architecture}.{full}"] = value
    return {key: value for key, value in values.items() if value is not ...}


def test_gguf_metadata_gives_the_same_kind_of_config() -> None:
    assert from_gguf(gguf(), GGUF_NAMES) == ModelConfig(
        architecture="llama",
        vocab_size=100,
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        rms_norm_eps=1e-5,
        max_model_len=2048,
        rope=RopeConfig(100_000.0),
        eos_token_ids=(2,),
        name="Tiny",
    )


def test_gguf_switches_follow_the_tensors_that_are_there() -> None:
    names = ("token_embd.weight", "blk.0.attn_q.bias")

    config = from_gguf(gguf("qwen2"), names)

    assert config.tie_word_embeddings
    assert config.attention_bias
    assert not config.attention_output_bias
    assert from_gguf(gguf("qwen3", attention__key_length=32), names).head_dim == 32
    assert from_gguf(gguf("qwen3"), names).qk_norm


def test_gguf_counts_the_vocabulary_where_no_key_does() -> None:
    metadata = gguf(vocab_size=..., tokenizer__ggml__tokens=["a", "b", "c"])

    assert from_gguf(metadata, GGUF_NAMES).vocab_size == 3


def test_gguf_eos_ids_are_of_text_turn_and_message() -> None:
    metadata = gguf(tokenizer__ggml__eot_token_id=7, tokenizer__ggml__eom_token_id=2)

    assert from_gguf(metadata, GGUF_NAMES).eos_token_ids == (2, 7)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope__scaling__type": "none"}, None),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 2.0}, LinearScaling(2.0)),
        ({"rope__scale_linear": 4.0}, LinearScaling(4.0)),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 0.0}, None),
        (
            {
                "rope__scaling__type": "yarn",
                "rope__scaling__factor": 4.0,
                "rope__scaling__original_context_length": 512,
            },
            YarnScaling(4.0, 512, MSCALE_4),
        ),
    ],
)
def test_gguf_rope_scaling_is_read(changes: dict[str, Any], expected: object) -> None:
    assert from_gguf(gguf(**changes), GGUF_NAMES).rope.scaling == expected


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"block_count": ...}, "the key llama.block_count is missing"),
        ({"embedding_length": [64, 64]}, r"llama.embedding_length is \[64, 64\]"),
        ({"attention__head_count": 0}, "llama.attention.head_count is 0"),
        ({"embedding_length": 66}, "llama.attention.head_count"),
        ({"attention__head_count_kv": 3}, "not a multiple"),
        ({"vocab_size": ...}, "llama.vocab_size is missing"),
        ({"rope__freq_base": float("nan")}, "llama.rope.freq_base"),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": -1.0}, "scaling.factor"),
    ],
)
def test_gguf_errors_name_the_key(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=f"m.gguf: .*{named}"):
        from_gguf(gguf(**changes), GGUF_NAMES, source="m.gguf")


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        (gguf("gemma3"), "gemma3.*qwen3"),
        (gguf(split__count=3), "split GGUF"),
        ({"split.count": 3, "split.no": 1}, "split GGUF"),
        (gguf(expert_count=8), "llama.expert_count"),
        (gguf(attention__sliding_window=4096), "sliding_window"),
        (gguf(rope__dimension_count=8), "rope.dimension_count"),
        (gguf(attention__value_length=8), "attention.value_length"),
        (gguf(rope__scaling__type="longrope", rope__scaling__factor=2.0), "longrope"),
        (gguf(logit_scale=0.5), "logit_scale"),
    ],
)
def test_gguf_features_are_refused_by_name(metadata: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        from_gguf(metadata, GGUF_NAMES)
