"""Models known by name, counted from a config.json, or described by a user."""

import json
from math import prod

import pytest
from models.weight_builders import config_json

from everbatch.base.errors import ConfigError
from everbatch.costs.model import find_model, known_models, read_model
from everbatch.models.hf_config import from_hf
from everbatch.models.llama import tensor_shapes

# The totals of the safetensors files, as model cards and many programs repeat them.
PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "smollm2-135m": 134_515_008,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_counted_parameters_are_the_published_ones(name):
    assert find_model(name).num_params == PUBLISHED[name]


def test_every_known_model_is_whole_and_has_its_source():
    models = known_models()

    assert [model.name for model in models] == ["nominal-8b", *PUBLISHED]
    assert [model.name for model in models if not model.source] == []
    assert [model.name for model in models if not model.kv_bytes_per_token] == []
    assert [model.name for model in models if not model.weight_bytes] == []


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"num_hidden_layers": 3, "num_key_value_heads": 4, "head_dim": 32},
    ],
    ids=str,
)
def test_what_is_counted_is_what_the_network_loads(architecture, changes):
    config = config_json(architecture, **changes)
    loaded = tensor_shapes(from_hf(config)).values()

    assert read_model({"config": config}, "m", "m").num_params == sum(map(prod, loaded))


def test_absent_heads_mean_what_transformers_makes_of_them():
    config = config_json("llama", num_attention_heads=4)
    del config["num_key_value_heads"], config["head_dim"]

    model = read_model({"config": config}, "m", "m")

    assert (model.num_kv_heads, model.head_dim) == (4, 64)


def test_a_config_json_is_found_by_file_or_folder(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_json()))

    models = [find_model(name, tmp_path) for name in ("tiny", "tiny/config.json", str(folder))]

    assert [model.name for model in models] == ["tiny", "tiny", "tiny"]
    assert len({model.num_params for model in models}) == 1


def test_a_model_of_one_s_own_is_a_toml_file(tmp_path):
    (tmp_path / "mine.toml").write_text('num_params = 1e9\nbytes_per_value = 1\nsource = "me"')

    model = find_model("mine.toml", tmp_path)

    assert (model.name, model.source, model.weight_bytes) == ("mine", "me", 1e9)
    assert model.kv_bytes_per_token is None


def test_another_sum_of_parameters_is_all_layers():
    model = find_model("llama-3.1-8b").with_sizes({"num_params": 1e9})

    assert (model.num_params, model.head_params, model.embedding_params) == (1e9, 0, 0)
    assert model.num_layers == 32


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"architectures": ["GemmaForCausalLM"]},
            'the architecture "GemmaForCausalLM": counted are',
        ),
        ({"num_experts": 8}, "has num_experts: mixtures of experts are not counted"),
        ({"quantization_config": {"bits": 4}}, "has a quantization_config"),
        ({"hidden_size": 0}, "hidden_size is 0, it must be an integer from 1"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"head_dim": None, "hidden_size": 255}, "hidden_size is 255, it must be a multiple of"),
        ({"tie_word_embeddings": "yes"}, 'tie_word_embeddings is "yes", it must be true or false'),
        ({"dtype": "int4"}, 'dtype is "int4", it must be one of float32'),
    ],
    ids=str,
)
def test_what_cannot_be_counted_is_refused_by_name(changes, told, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_json(**changes)))

    with pytest.raises(ConfigError) as error:
        find_model(str(path))

    assert told in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("lama-3.1-8b", None, 'no model "lama-3.1-8b" (did you mean "llama-3.1-8b"?); known are'),
        ("gone.toml", None, "cannot read the model"),
        ("bad.toml", "num_params = ", "is not TOML"),
        ("bad.json", "[1]", "it must hold an object"),
        ("bad.json", "{", "is not JSON"),
        ("bad.toml", "num_params = -1", "num_params is -1, it must be a number above 0"),
        ("bad.toml", "num_parms = 1", 'has no key "num_parms" (did you mean "num_params"?)'),
        ("bad.toml", "num_params = 1\n[config]", "has a config and num_params: give one of both"),
    ],
)
def test_a_model_that_is_none_says_what_there_is(name, text, told, tmp_path):
    if text is not None:
        (tmp_path / name).write_text(text)

    with pytest.raises(ConfigError) as error:
        find_model(name, tmp_path)

    assert told in str(error.value)
