"""Small vocabularies in both spellings, as tokenizers and as files.

Trained on a few sentences, so that tokens split words, characters and emoji as real ones do.
"""

import json
from functools import cache
from pathlib import Path

import gguf
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from everbatch.tokenizer.tokenizer import Tokenizer

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, and the dog does not mind.",
    "the the the quick quick brown  brown   fox\n\n\tindented\r\n",
    "Größe, café, naïve; 漢字かな交じり文、漢字かな。你好，世界",
    "emoji 😀😃😄 👩‍👩‍👧‍👦 🇯🇵 👍🏽 😀😀😀",
    "I'm sure you'll see: 3.14159, 2024-12-31, 0x1F, 1,000,000",
]
MARKUP = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@cache
def byte_level_backend() -> Backend:
    """GPT-2's kind: 3 special tokens, 256 bytes, merges; 420 tokens."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=MARKUP,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(SENTENCES * 3, trainer)
    backend.add_tokens([AddedToken("<think>", normalized=False)])
    return backend


@cache
def sentence_piece_pieces() -> tuple[tuple[str, float], ...]:
    """Pieces and scores of a SentencePiece BPE model: <unk>, <s>, </s>, 256 bytes, pieces."""
    trained = Backend(models.BPE())
    trained.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    trained.train_from_iterator(
        SENTENCES * 3, trainers.BpeTrainer(vocab_size=260, show_progress=False)
    )
    by_rank = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    merged = [piece for piece, _ in by_rank if len(piece) > 1]
    single = [piece for piece, _ in by_rank if len(piece) == 1]
    bytes_ = [(f"<0x{byte:02X}>", 0.0) for byte in range(256)]
    scored = [(piece, -float(rank)) for rank, piece in enumerate(merged)]
    scored += [(piece, -1000.0 - rank) for rank, piece in enumerate(single)]
    return (("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *bytes_, *scored)


def byte_level_metadata(**changes: object) -> dict[str, object]:
    """GGUF metadata of the byte-level vocabulary; a change to None takes a key away."""
    backend = byte_level_backend()
    model = json.loads(backend.to_str())["model"]
    tokens = [backend.id_to_token(index) for index in range(backend.get_vocab_size())]
    kinds = [3 if token in MARKUP else 4 if token == "<think>" else 1 for token in tokens]
    return _with_changes(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.merges": [
                merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]
            ],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
        },
        changes,
    )


def sentence_piece_metadata(**changes: object) -> dict[str, object]:
    """GGUF metadata of the SentencePiece vocabulary; a change to None takes a key away."""
    pieces = sentence_piece_pieces()
    return _with_changes(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": [piece for piece, _ in pieces],
            "tokenizer.ggml.scores": [score for _, score in pieces],
            "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * (len(pieces) - 259)],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
        },
        changes,
    )


def _with_changes(metadata: dict[str, object], changes: dict[str, object]) -> dict[str, object]:
    for name, value in changes.items():
        key = name if name == "chat_template" else f"ggml.{name}"
        metadata[f"tokenizer.{key}"] = value
    return {key: value for key, value in metadata.items() if value is not None}


@cache
def byte_level() -> Tokenizer:
    return Tokenizer.from_gguf_metadata(byte_level_metadata())


@cache
def sentence_piece() -> Tokenizer:
    return Tokenizer.from_gguf_metadata(sentence_piece_metadata())


def write_directory(directory: Path, backend: Backend | None = None, **files: object) -> Path:
    """A model's directory. `files`: contents by name without suffix; a dict becomes .json."""
    (directory / "tokenizer.json").write_text((backend or byte_level_backend()).to_str())
    for name, content in files.items():
        if isinstance(content, str):
            (directory / f"{name}.jinja").write_text(content)
        else:
            (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def write_gguf(path: Path, metadata: dict[str, object]) -> Path:
    """A GGUF file with this metadata and no tensor, written by the gguf package."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            assert isinstance(value, list)
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
