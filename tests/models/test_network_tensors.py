"""Which tensors a network takes: every missing, foreign or misshapen one is named."""

from dataclasses import replace

import numpy as np
import pytest
from models.network_builders import ARCHITECTURES, TINY, Runner, random_prompt, random_tensors

from everbatch.base.errors import ModelLoadError
from everbatch.kernels.reference import ReferenceKernels
from everbatch.models.config import ModelConfig
from everbatch.models.llama import LlamaForCausalLM

TIED = replace(TINY, tie_word_embeddings=True)


def load(config: ModelConfig, tensors: dict[str, np.ndarray]) -> LlamaForCausalLM:
    return LlamaForCausalLM(config, tensors, ReferenceKernels)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_tensor_can_be_missing(architecture: str) -> None:
    config = ARCHITECTURES[architecture]
    for name in random_tensors(config):
        tensors = random_tensors(config)
        del tensors[name]

        with pytest.raises(ModelLoadError, match=f"1 tensor is missing: {name}$"):
            load(config, tensors)


def test_left_over_tensor_is_named() -> None:
    tensors = random_tensors(TINY) | {"model.layers.2.self_attn.q_proj.weight": np.zeros((64, 64))}

    with pytest.raises(
        ModelLoadError, match=r"not part of this model: model\.layers\.2\.self_attn"
    ):
        load(TINY, tensors)


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_proj.bias", "model.layers.1.self_attn.k_norm.weight"]
)
def test_weight_that_the_switches_exclude_is_left_over(name: str) -> None:
    with pytest.raises(ModelLoadError, match=f"1 tensor is not part of this model: {name}"):
        load(TINY, random_tensors(TINY) | {name: np.zeros(64, np.float32)})


def test_wrong_shape_is_named_with_what_was_expected() -> None:
    tensors = random_tensors(TINY)
    tensors["model.layers.1.mlp.down_proj.weight"] = np.zeros((96, 64), np.float32)

    with pytest.raises(
        ModelLoadError, match=r"down_proj\.weight \[96, 64\] \(expected \[64, 96\]\)"
    ):
        load(TINY, tensors)


def test_all_kinds_of_problems_are_told_at_once() -> None:
    tensors = random_tensors(TINY)
    del tensors["model.norm.weight"]
    tensors["foreign"] = np.zeros(3, np.float32)
    tensors["lm_head.weight"] = np.zeros((3, 3), np.float32)

    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight; .*foreign; .*lm_head\.weight"):
        load(TINY, tensors)


@pytest.mark.parametrize(("count", "ending"), [(5, "foreign4$"), (6, "foreign4 and 1 more$")])
def test_at_most_five_names_are_listed(count: int, ending: str) -> None:
    foreign = {f"foreign{index}": np.zeros(1, np.float32) for index in range(count)}

    with pytest.raises(ModelLoadError, match=f"{count} tensors are not part.*{ending}"):
        load(TINY, random_tensors(TINY) | foreign)


def test_refused_tensors_are_left_with_the_caller() -> None:
    tensors = random_tensors(TINY) | {"foreign": np.zeros(1, np.float32)}
    with pytest.raises(ModelLoadError):
        load(TINY, tensors)

    assert len(tensors) == len(random_tensors(TINY)) + 1


def test_taken_tensors_are_dropped() -> None:
    tensors = random_tensors(TINY)
    load(TINY, tensors)

    assert tensors == {}


def test_saved_rotary_frequencies_are_no_weights() -> None:
    tensors = random_tensors(TINY)
    for layer in range(2):
        tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = np.zeros(8, np.float32)

    load(TINY, tensors)


def test_head_of_a_tied_model_is_its_embedding_whatever_the_file_says() -> None:
    prompt, tensors = random_prompt(TINY, 5), random_tensors(TIED)
    rows = []
    for extra in ({}, {"lm_head.weight": np.zeros((97, 64), np.float32)}):
        runner = Runner(TIED, tensors | extra)
        runner.add("a", prompt)
        rows.append(runner.step({"a": 5})["a"])

    np.testing.assert_array_equal(rows[0], rows[1])


def test_head_of_an_untied_model_is_required() -> None:
    with pytest.raises(ModelLoadError, match=r"missing: lm_head\.weight"):
        load(TINY, random_tensors(TIED))
