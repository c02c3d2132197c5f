import json
from datetime import datetime

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, processors
from vocabularies import byte_level_backend, write_directory

from everbatch.base.errors import ModelLoadError, UnsupportedModel
from everbatch.tokenizer.tokenizer import Tokenizer

NAMES = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}}


def copy_of(backend: Backend) -> Backend:
    return Backend.from_str(backend.to_str())


def test_names_come_from_the_configuration_before_the_map(tmp_path):
    write_directory(
        tmp_path,
        tokenizer_config=NAMES,
        special_tokens_map={"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
    )

    tokenizer = Tokenizer.from_path(tmp_path)

    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)


def test_names_come_from_the_map_where_the_configuration_has_none(tmp_path):
    write_directory(
        tmp_path, tokenizer_config={"bos_token": None}, special_tokens_map={"bos_token": "<think>"}
    )

    tokenizer = Tokenizer.from_path(tmp_path)

    assert tokenizer.encode("<think>") == [tokenizer.bos_token_id]
    assert tokenizer.bos_token_id in tokenizer.special_ids


@pytest.mark.parametrize(("ends", "expected"), [(0, (2, 0)), ([2, 1], (2, 1)), (None, (2,))])
def test_generation_config_adds_ends_of_an_answer(tmp_path, ends, expected):
    write_directory(tmp_path, tokenizer_config=NAMES, generation_config={"eos_token_id": ends})

    assert expected == Tokenizer.from_path(tmp_path).eos_token_ids


def test_named_token_outside_the_vocabulary_gets_no_id(tmp_path):
    plain = Tokenizer.from_path(write_directory(tmp_path))
    write_directory(tmp_path, tokenizer_config={"pad_token": "[PAD]"})

    tokenizer = Tokenizer.from_path(tmp_path)

    assert plain.vocab_size == tokenizer.vocab_size
    assert plain.encode("[PAD]") == tokenizer.encode("[PAD]")


def test_added_tokens_of_the_configuration_are_added(tmp_path):
    next_id = byte_level_backend().get_vocab_size()
    entry = {"content": "<tool>", "special": True}
    write_directory(tmp_path, tokenizer_config={"added_tokens_decoder": {str(next_id): entry}})

    tokenizer = Tokenizer.from_path(tmp_path)

    assert [next_id] == tokenizer.encode("<tool>")
    assert next_id in tokenizer.special_ids


def test_added_token_with_another_id_is_refused(tmp_path):
    entry = {"content": "<|im_end|>", "special": True}
    write_directory(tmp_path, tokenizer_config={"added_tokens_decoder": {"7": entry}})

    with pytest.raises(ModelLoadError, match=r"'<\|im_end\|>' the id 7, tokenizer.json 2"):
        Tokenizer.from_path(tmp_path)


def test_explicit_add_bos_token_wins_over_the_post_processor(tmp_path):
    backend = copy_of(byte_level_backend())
    backend.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    ids = backend.encode("fox", add_special_tokens=False).ids

    write_directory(tmp_path, backend, tokenizer_config=NAMES)
    assert [0, *ids] == Tokenizer.from_path(tmp_path).encode("fox")
    write_directory(tmp_path, backend, tokenizer_config={**NAMES, "add_bos_token": False})
    assert ids == Tokenizer.from_path(tmp_path).encode("fox")
    write_directory(
        tmp_path,
        backend,
        tokenizer_config={**NAMES, "add_bos_token": True, "add_eos_token": True},
    )
    assert [1, *ids, 2] == Tokenizer.from_path(tmp_path).encode("fox")


def test_truncation_and_padding_of_tokenizer_json_are_ignored(tmp_path):
    backend = copy_of(byte_level_backend())
    backend.enable_truncation(2)
    backend.enable_padding(length=64)
    text = "the quick brown fox jumps"

    ids = Tokenizer.from_path(write_directory(tmp_path, backend)).encode(text)

    assert byte_level_backend().encode(text).ids == ids


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"chat_template": "from jinja", "tokenizer_config": {"chat_template": "x"}}, "from jinja"),
        ({"tokenizer_config": {"chat_template": "from config"}}, "from config"),
        (
            {
                "tokenizer_config": {
                    "chat_template": [
                        {"name": "rag", "template": "from rag"},
                        {"name": "default", "template": "from default"},
                    ]
                }
            },
            "from default",
        ),
    ],
)
def test_chat_template_is_found(tmp_path, files, expected):
    tokenizer = Tokenizer.from_path(write_directory(tmp_path, **files))

    assert expected == tokenizer.chat_template.render([], now=datetime(2025, 1, 1))


def test_chat_template_json_wins_over_the_configuration(tmp_path):
    write_directory(tmp_path, tokenizer_config={"chat_template": "from config"})
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "from json"}))

    tokenizer = Tokenizer.from_path(tmp_path)

    assert tokenizer.chat_template.render([], now=datetime(2025, 1, 1)) == "from json"


def test_missing_tokenizer_json_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"has no tokenizer\.json"):
        Tokenizer.from_path(tmp_path)


def test_sentence_piece_model_without_json_says_how_to_convert(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a")

    with pytest.raises(UnsupportedModel, match="save_pretrained"):
        Tokenizer.from_path(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"{}", "not a tokenizer that can be read"),
        ("tokenizer.json", b"\xff", "not UTF-8"),
        ("tokenizer_config.json", b"{", "not JSON"),
        ("tokenizer_config.json", b"[]", "must hold an object"),
        ("tokenizer_config.json", b'{"chat_template": 3}', "must be a string"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"x": {}}}', "is broken"),
        ("generation_config.json", b'{"eos_token_id": "2"}', "expected token ids"),
    ],
)
def test_broken_file_is_named(tmp_path, name, content, message):
    write_directory(tmp_path)
    (tmp_path / name).write_bytes(content)

    with pytest.raises(ModelLoadError, match=message):
        Tokenizer.from_path(tmp_path)


@pytest.mark.parametrize(
    ("decoder", "name"),
    [(decoders.WordPiece(), "WordPiece"), (decoders.CTC(), "CTC"), (None, "no decoder")],
)
def test_other_decoders_are_refused_by_name(tmp_path, decoder, name):
    backend = Backend(models.WordLevel({"a": 0, "[UNK]": 1}, "[UNK]"))
    if decoder is not None:
        backend.decoder = decoder

    with pytest.raises(UnsupportedModel, match=name):
        Tokenizer.from_path(write_directory(tmp_path, backend))


def test_metaspace_decoder_is_read(tmp_path):
    backend = Backend(models.WordLevel({"▁a": 0, "▁b": 1, "[UNK]": 2}, "[UNK]"))
    backend.decoder = decoders.Metaspace()

    tokenizer = Tokenizer.from_path(write_directory(tmp_path, backend))

    assert tokenizer.decode([0, 1]) == "a b"
    assert tokenizer.decode([0, 1], at_start=False) == " a b"
