"""Random weights in the shape of Llama-3.2-1B: everbatch loads what is written."""

import json

import numpy as np
import pytest
import random_llama

from everbatch.models.weights import load_model

SMALL = {"HIDDEN": 32, "INTERMEDIATE": 48, "VOCAB": 200, "HEADS": 4, "KV_HEADS": 2, "HEAD_DIM": 8}


def tokenizer(folder, num_tokens):
    folder.mkdir()
    vocab = {f"t{number}": number for number in range(num_tokens - 1)}
    added = [{"id": num_tokens - 1, "content": "<end>"}]
    told = {"model": {"vocab": vocab}, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(told), encoding="utf-8")
    return folder


def test_a_written_directory_loads_as_what_was_drawn(tmp_path, monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setattr(random_llama, name, value)
    folder = tmp_path / "model"

    random_llama.write(folder, tokenizer(tmp_path / "tokenizer", 200), num_layers=2)

    loaded = load_model(folder)
    config = loaded.config
    assert (config.hidden_size, config.vocab_size, config.num_layers) == (32, 200, 2)
    assert config.rope.scaling.factor == 32.0
    weights = np.asarray(loaded.tensors["model.layers.1.mlp.gate_proj.weight"])
    assert weights.shape == (48, 32)
    assert weights.std() == pytest.approx(random_llama.STANDARD_DEVIATION, rel=0.1)
    assert np.all(loaded.tensors["model.norm.weight"] == 1.0)


def test_the_full_shape_has_the_parameters_of_llama_3_2_1b():
    assert sum(int(np.prod(shape)) for shape in random_llama.shapes().values()) == 1_235_814_400


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(random_llama, "VOCAB", 200)

    with pytest.raises(ValueError, match="has 201 tokens, the model 200: take a smaller tokenizer"):
        random_llama.write(tmp_path / "model", tokenizer(tmp_path / "tokenizer", 201))
    assert not (tmp_path / "model").exists()


def test_a_directory_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no tokenizer\.json"):
        random_llama.write(tmp_path / "model", tmp_path)


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"model": {"vocab": []}, "added_tokens": []}'])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)

    with pytest.raises(ValueError, match=r"tokenizer\.json has no vocabulary by id"):
        random_llama.write(tmp_path / "model", tmp_path)
