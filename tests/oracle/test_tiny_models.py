"""Tiny random models of transformers, in float32, against our network: every architecture and every
RoPE scaling, from config and state_dict through the same reader that files go through."""

from collections.abc import Mapping

import numpy as np
import pytest
from models.network_builders import Runner, random_prompt

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402

from everbatch.models.config import ModelConfig  # noqa: E402
from everbatch.models.hf_config import from_hf  # noqa: E402
from everbatch.models.rope import rotary_frequencies  # noqa: E402

pytestmark = pytest.mark.oracle

# As a share of the largest logit. What is seen is at most 6e-6.
TOLERANCE = 1e-4
LENGTH = 600

SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}

ARCHITECTURES = {
    "llama": ("Llama", {}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "llama without grouping": ("Llama", {"num_key_value_heads": 4}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3 with biases": ("Qwen3", {"attention_bias": True}),
}

ROPE: dict[str, dict[str, object]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
    "yarn with every option": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 256,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
        "truncate": False,
    },
    "yarn with attention factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 256,
        "attention_factor": 1.3,
    },
}


def tiny_model(family: str, changes: Mapping[str, object]) -> "torch.nn.Module":
    """A model in float32 whose every parameter, norms and biases too, is random."""
    config_class = getattr(transformers, f"{family}Config")
    config = config_class(**(SIZES | changes), attn_implementation="eager")
    config.architectures = [f"{family}ForCausalLM"]
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5, generator=generator)
            else:
                parameter.normal_(0, 0.2, generator=generator)
    return model


def our_config(model: "torch.nn.Module") -> ModelConfig:
    return from_hf(model.config.to_dict(), name="tiny")


def runner_of(model: "torch.nn.Module") -> Runner:
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return Runner(our_config(model), tensors, block_size=16)


def expected_logits(model: "torch.nn.Module", prompt: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([prompt])).logits[0].numpy()


def assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    assert abs(actual - expected).max() <= TOLERANCE * abs(expected).max()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_of_every_architecture_equal_transformers(architecture: str) -> None:
    model = tiny_model(*ARCHITECTURES[architecture])
    runner = runner_of(model)
    prompt = random_prompt(our_config(model), LENGTH)
    runner.add("a", prompt)

    assert_close(runner.step({"a": LENGTH})["a"], expected_logits(model, prompt))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_chunks_and_decodes_of_every_architecture_equal_transformers(architecture: str) -> None:
    model = tiny_model(*ARCHITECTURES[architecture])
    runner = runner_of(model)
    prompt = random_prompt(our_config(model), 60)
    runner.add("a", prompt)
    rows = [runner.step({"a": count})["a"] for count in (16, 33)]
    rows += [runner.step({}, ["a"])["a"] for _ in range(11)]

    assert_close(np.concatenate(rows), expected_logits(model, prompt))


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
@pytest.mark.parametrize("rope", ROPE)
def test_logits_of_every_rope_scaling_equal_transformers(family: str, rope: str) -> None:
    parameters = ROPE[rope] | {"rope_theta": 500_000.0}
    model = tiny_model(family, {"rope_parameters": parameters, "sliding_window": None})
    runner = runner_of(model)
    prompt = random_prompt(our_config(model), LENGTH)
    runner.add("a", prompt)

    assert_close(runner.step({"a": LENGTH})["a"], expected_logits(model, prompt))


@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("theta", [10_000.0, 500_000.0, 1_000_000.0])
@pytest.mark.parametrize("rope", [kind for kind in ROPE if kind != "default"])
def test_rotary_frequencies_equal_those_of_transformers(
    rope: str, theta: float, head_dim: int
) -> None:
    config = transformers.LlamaConfig(
        **(SIZES | {"head_dim": head_dim, "rope_parameters": ROPE[rope] | {"rope_theta": theta}})
    )
    config.architectures = ["LlamaForCausalLM"]
    expected, expected_scale = ROPE_INIT_FUNCTIONS[str(ROPE[rope]["rope_type"])](config)
    frequencies, scale = rotary_frequencies(from_hf(config.to_dict()))

    # A few last bits: the oracle rounds its powers less exactly.
    np.testing.assert_allclose(frequencies, expected.numpy(), rtol=5e-7)
    assert scale == pytest.approx(expected_scale)
