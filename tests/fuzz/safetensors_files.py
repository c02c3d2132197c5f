"""A directory's weights: config.json, the header of model.safetensors, the index of shards."""

import json
from functools import cache

from fuzz.target import SEPARATOR, Target, scratch_folder, write_parts
from models.weight_builders import random_tensors, small_config_json
from safetensors.numpy import save

from everbatch.base.errors import ModelLoadError
from everbatch.models.weights import load_model

FILES = (
    "model.safetensors",
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
)


@cache
def _folder():
    return scratch_folder()


def _read(data: bytes) -> None:
    write_parts(_folder(), FILES, data)
    weights = _folder() / FILES[0]
    if not weights.stat().st_size:
        weights.unlink()
    load_model(_folder())


def _seeds() -> list[bytes]:
    config = small_config_json()
    weights = save(random_tensors(config))
    ends = json.dumps({"eos_token_id": [2, 3]}).encode()
    index = {"metadata": {}, "weight_map": {"model.norm.weight": "shard.safetensors"}}
    scaled = small_config_json(
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        tie_word_embeddings=False,
    )
    return [
        SEPARATOR.join((weights, json.dumps(config).encode(), ends)),
        SEPARATOR.join((weights, json.dumps(scaled).encode())),
        SEPARATOR.join((b"", json.dumps(config).encode(), ends, json.dumps(index).encode())),
    ]


TARGET = Target(
    "safetensors",
    _read,
    (ModelLoadError,),
    _seeds,
    (
        *(b'"__metadata__":{}', b'"dtype"', b'"shape"', b'"data_offsets"', b"F64", b"BF16", b"I8"),
        *(b'"rope_scaling"', b'"yarn"', b'"rope_theta"', b'"sliding_window"', b'"architectures"'),
        *(b'"quantization_config"', b'"weight_map"', b"../x.safetensors", b'"eos_token_id"'),
    ),
)
