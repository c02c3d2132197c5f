"""GGUF files: header, configuration, vocabulary, tensors."""

from functools import cache

import tiny_model
from fuzz.target import Target, scratch_folder
from models.weight_builders import random_tensors, small_config_json, write_gguf

from everbatch.base.errors import ModelLoadError
from everbatch.models.weights import load_model
from everbatch.tokenizer.tokenizer import Tokenizer


@cache
def _folder():
    return scratch_folder()


def _read(data: bytes) -> None:
    path = _folder() / "model.gguf"
    path.write_bytes(data)
    failed: ModelLoadError | None = None
    try:
        load_model(path)
    except ModelLoadError as error:
        failed = error
    # Both read the file by themselves.
    tokenizer = Tokenizer.from_path(path)
    tokenizer.decode(tokenizer.encode("Grüße, 世界 <|eos|>"))
    if failed is not None:
        raise failed


def _seeds() -> list[bytes]:
    small = _folder() / "small.gguf"
    config = small_config_json()
    write_gguf(small, config, random_tensors(config))
    whole = tiny_model.write_gguf_model(_folder() / "whole.gguf")
    return [whole.read_bytes(), small.read_bytes()]


TARGET = Target(
    "gguf",
    _read,
    (ModelLoadError,),
    _seeds,
    (
        *(b"general.alignment", b"llama.block_count", b"tokenizer.ggml.tokens", b"general.name"),
        *(b"tokenizer.ggml.merges", b"tokenizer.ggml.scores", b"llama", b"gpt2", b"qwen3"),
        *(
            b"tokenizer.ggml.token_type",
            b"rope_freqs.weight",
            b"\x09\0\0\0\x09\0\0\0",
            b"split.count",
        ),
    ),
)
