"""Vocabularies that are broken or made to hurt: each is told as what it is, within bounds."""

import json

import pytest
from vocabularies import byte_level_metadata, sentence_piece_metadata, write_directory

from everbatch.base.errors import InvalidRequest, ModelLoadError
from everbatch.tokenizer import gguf_vocab
from everbatch.tokenizer.files import MAX_CONFIG_BYTES
from everbatch.tokenizer.panics import panics_are
from everbatch.tokenizer.tokenizer import Tokenizer

pytestmark = pytest.mark.timeout(60)


class PanicException(BaseException):
    """As Rust's come: no Exception."""


BROKEN_CONFIGS = {
    "list of tokens that is none": ({"additional_special_tokens": 5}, "not a list"),
    "number of 5,000 digits": ('{"bos_token": ' + "9" * 5_000 + "}", "not JSON"),
    "nested without end": ("[" * 100_000, "not JSON"),
    "half a character": ('{"bos_token": "\\ud800"}', "half a character"),
    "half a character in a list": ('{"extra_special_tokens": ["\\ud800"]}', "half a character"),
    "id of 5,000 digits": (
        {"added_tokens_decoder": {"9" * 5_000: {"content": "x"}}},
        "added_tokens_decoder.*is broken",
    ),
    "template whose name is a list": (
        {"chat_template": [{"name": ["default"], "template": 5}, {"name": "default"}]},
        None,
    ),
}


@pytest.mark.parametrize(("config", "told"), BROKEN_CONFIGS.values(), ids=BROKEN_CONFIGS)
def test_broken_configuration_is_told(tmp_path, config, told):
    write_directory(tmp_path)
    text = config if isinstance(config, str) else json.dumps(config)
    (tmp_path / "tokenizer_config.json").write_text(text)

    if told is None:
        assert not Tokenizer.from_path(tmp_path).chat_template.exists
        return
    with pytest.raises(ModelLoadError, match=told):
        Tokenizer.from_path(tmp_path)


def test_configuration_above_its_limit_is_not_read(tmp_path):
    write_directory(tmp_path)
    config = '{"a": "' + "x" * (MAX_CONFIG_BYTES - 9) + '"}'
    (tmp_path / "tokenizer_config.json").write_text(config)
    Tokenizer.from_path(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(config + " ")

    with pytest.raises(ModelLoadError, match=r"has 8,388,609 bytes, the limit is 8,388,608"):
        Tokenizer.from_path(tmp_path)


def test_vocabulary_at_which_the_library_panics_is_told(tmp_path):
    write_directory(tmp_path)
    path = tmp_path / "tokenizer.json"
    facts = json.loads(path.read_text())
    facts["model"]["continuing_subword_prefix"] = "##"
    path.write_text(json.dumps(facts))

    with pytest.raises(ModelLoadError, match="tokenizer"):
        Tokenizer.from_path(tmp_path)


def test_text_at_which_the_library_panics_is_the_request_s_error(tmp_path, monkeypatch):
    def panic(*_args: object, **_options: object) -> None:
        raise PanicException("slice index starts at 2")

    tokenizer = Tokenizer.from_path(write_directory(tmp_path))
    monkeypatch.setattr(tokenizer, "_backend", type("Broken", (), {"encode_batch_fast": panic})())

    with pytest.raises(InvalidRequest, match="cannot encode this text: slice index"):
        tokenizer.encode("a")


def test_other_exceptions_pass_as_they_are():
    for error in (KeyboardInterrupt(), ValueError("x")):
        with pytest.raises(type(error)), panics_are(ModelLoadError):
            raise error


@pytest.mark.parametrize("kind", [float("nan"), float("inf"), 1.5])
def test_token_types_that_are_no_integers_are_told(kind):
    metadata = byte_level_metadata()
    kinds = [kind] * len(metadata["tokenizer.ggml.tokens"])

    with pytest.raises(ModelLoadError, match="token_type is no list of integers"):
        Tokenizer.from_gguf_metadata(byte_level_metadata(token_type=kinds))


def test_pieces_too_long_to_be_cut_are_refused():
    metadata = sentence_piece_metadata()
    tokens = [*metadata["tokenizer.ggml.tokens"][:-1], "a" * 2_000_000]

    with pytest.raises(ModelLoadError, match="the longest has 2,000,000 characters"):
        Tokenizer.from_gguf_metadata(sentence_piece_metadata(tokens=tokens))


def test_pieces_are_cut_up_to_the_limit(monkeypatch):
    metadata = sentence_piece_metadata()
    pieces = metadata["tokenizer.ggml.tokens"][259:]
    needed = sum(len(piece) ** 2 for piece in pieces)

    monkeypatch.setattr(gguf_vocab, "MAX_COPIED_CHARS", needed)
    Tokenizer.from_gguf_metadata(metadata)
    monkeypatch.setattr(gguf_vocab, "MAX_COPIED_CHARS", needed - 1)
    with pytest.raises(ModelLoadError, match="too long to find their merges"):
        Tokenizer.from_gguf_metadata(metadata)
