"""A directory's tokenizer: tokenizer.json and the files beside it."""

import json
from functools import cache

import tiny_model
from fuzz.target import SEPARATOR, Target, scratch_folder, write_parts

from everbatch.base.errors import InvalidRequest, ModelLoadError
from everbatch.tokenizer.tokenizer import Tokenizer

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.json",
)
TEXT = "Grüße, 世界 <|eos|> \x00 <think>"


@cache
def _folder():
    return scratch_folder()


def _read(data: bytes) -> None:
    write_parts(_folder(), FILES, data)
    tokenizer = Tokenizer.from_path(_folder())
    ids = tokenizer.encode(TEXT)
    tokenizer.decode(ids)
    for token_id in (*ids[:20], 0, 257, tokenizer.vocab_size):
        tokenizer.token_bytes(token_id)


def _seeds() -> list[bytes]:
    backend = tiny_model.backend()
    vocabulary = json.loads(backend.to_str())
    sentences = {
        **vocabulary,
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                {"type": "NFC"},
            ],
        },
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "\\s+|\\w+|."},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<|eos|>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<|eos|>": {"id": "<|eos|>", "ids": [257], "tokens": ["<|eos|>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
    }
    config = {
        "eos_token": {"content": "<|eos|>", "lstrip": False},
        "bos_token": "<s>",
        "add_bos_token": True,
        "added_tokens_decoder": {"257": {"content": "<|eos|>", "special": True}},
        "additional_special_tokens": ["<think>"],
        "chat_template": [{"name": "default", "template": "{{ messages }}"}],
    }
    others = ({"bos_token": "a"}, {"eos_token_id": [257, 3]}, {"chat_template": "{{ messages }}"})
    return [
        _joined(vocabulary, {"eos_token": "<|eos|>"}),
        _joined(sentences, config),
        _joined(vocabulary, config, *others),
    ]


def _joined(*files: object) -> bytes:
    # Short ones first: what is cut off the end of an input is most often a vocabulary.
    return SEPARATOR.join(json.dumps(file, ensure_ascii=False).encode() for file in files)


TARGET = Target(
    "tokenizer",
    _read,
    (ModelLoadError, InvalidRequest),
    _seeds,
    (
        *(b'"Unigram"', b'"WordPiece"', b'"BPE"', b'"ByteLevel"', b'"Metaspace"', b'"Regex"'),
        *(
            b'"added_tokens"',
            b'"merges"',
            b'"vocab"',
            b'"special"',
            b'"normalizer"',
            b'"unk_token"',
        ),
        *(
            b'"byte_fallback"',
            b'"ignore_merges"',
            b'"post_processor"',
            b'"truncation"',
            b'"padding"',
        ),
        *(b'"add_eos_token":true', b'"extra_special_tokens":', b'"added_tokens_decoder":'),
    ),
)
