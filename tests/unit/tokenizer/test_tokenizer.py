from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from vocabularies import (
    byte_level,
    byte_level_backend,
    byte_level_metadata,
    sentence_piece,
    sentence_piece_metadata,
    write_directory,
    write_gguf,
)

from everbatch.base.errors import InvalidRequest
from everbatch.tokenizer.gguf_vocab import parts_from_gguf
from everbatch.tokenizer.tokenizer import Tokenizer

# Without "<", so that no special token is written out, and "▁", which comes back as a space.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<▁"), max_size=40)
VOCABULARIES = {"byte level": byte_level, "sentence piece": sentence_piece}
each_vocabulary = pytest.mark.parametrize("vocabulary", VOCABULARIES.values(), ids=VOCABULARIES)


@each_vocabulary
@given(text=TEXT)
def test_decode_gives_back_any_text(vocabulary, text):
    tokenizer = vocabulary()

    ids = tokenizer.encode(text, add_special_tokens=False)

    assert text == tokenizer.decode(ids)


@given(text=TEXT)
def test_valid_text_decodes_as_the_tokenizers_library_does(text):
    ids = byte_level_backend().encode(text).ids

    assert byte_level_backend().decode(ids) == byte_level().decode(ids)
    ids = sentence_piece().encode(text)
    assert sentence_piece_backend().decode(ids) == sentence_piece().decode(ids)


@cache
def sentence_piece_backend() -> Backend:
    return parts_from_gguf(sentence_piece_metadata()).backend


@each_vocabulary
@given(data=st.data())
def test_bytes_of_a_text_are_the_bytes_of_its_tokens(vocabulary, data):
    tokenizer = vocabulary()
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1)))

    joined = b"".join(tokenizer.token_bytes(token_id) for token_id in ids)

    whole = tokenizer.decode(ids, skip_special_tokens=False, at_start=False)
    assert joined.decode("utf-8", errors="replace") == whole


@pytest.mark.parametrize("text", ["a\ud800", "\udfff", "ok \udc80 ok"])
def test_lone_surrogate_is_refused_by_name(text):
    with pytest.raises(InvalidRequest, match=r"lone surrogate U\+D[8-F]"):
        byte_level().encode(text)


def test_special_tokens_written_in_a_text_are_read_as_such():
    assert byte_level().encode("<|im_start|>") == [1]


def test_special_tokens_are_left_out_of_text_unless_asked_for():
    tokenizer = byte_level()
    ids = tokenizer.encode("<|im_start|>fox<|im_end|>")

    assert tokenizer.decode(ids) == "fox"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>fox<|im_end|>"


def test_added_token_that_is_not_special_stays_in_the_text():
    tokenizer = byte_level()
    ids = tokenizer.encode("<think>fox")

    assert tokenizer.decode(ids) == "<think>fox"
    assert tokenizer.token_bytes(ids[0]) == b"<think>"


@each_vocabulary
@pytest.mark.parametrize("offset", [0, 1, 10**12])
def test_id_outside_the_vocabulary_has_no_text(vocabulary, offset):
    tokenizer = vocabulary()
    unknown = tokenizer.vocab_size + offset

    assert tokenizer.token_bytes(unknown) == b""
    assert tokenizer.decode([unknown]) == ""


def test_last_id_of_the_vocabulary_has_text():
    tokenizer = byte_level()

    assert tokenizer.token_bytes(tokenizer.vocab_size - 1) != b""


def test_byte_tokens_are_single_bytes():
    tokenizer = sentence_piece()

    assert tokenizer.token_bytes(3 + 0x0A) == b"\n"
    assert tokenizer.token_bytes(3 + 0xFF) == b"\xff"


def test_broken_utf8_becomes_one_mark_for_each_broken_part():
    tokenizer = sentence_piece()
    e2, a3 = 3 + 0xE2, 3 + 0xA3

    assert tokenizer.decode([e2]) == "\ufffd"
    assert tokenizer.decode([a3, a3]) == "\ufffd\ufffd"
    assert tokenizer.decode([e2, a3]) == "\ufffd"


def test_text_that_continues_keeps_its_leading_space():
    tokenizer = sentence_piece()
    ids = tokenizer.encode("the dog", add_special_tokens=False)

    assert tokenizer.decode(ids) == "the dog"
    assert tokenizer.decode(ids, at_start=False) == " the dog"


def test_bos_comes_first_only_when_asked_for():
    tokenizer = sentence_piece()

    assert tokenizer.encode("the")[0] == 1
    assert 1 not in tokenizer.encode("the", add_special_tokens=False)


def test_threads_share_a_tokenizer():
    tokenizer = Tokenizer.from_gguf_metadata(byte_level_metadata())
    texts = [f"the quick {index} 漢字 😀" for index in range(200)]

    with ThreadPoolExecutor(8) as pool:
        decoded = list(pool.map(lambda text: tokenizer.decode(tokenizer.encode(text)), texts))

    assert texts == decoded


def test_directory_and_gguf_file_of_one_vocabulary_agree(tmp_path: Path):
    directory = Tokenizer.from_path(write_directory(tmp_path))
    file = Tokenizer.from_path(write_gguf(tmp_path / "model.gguf", byte_level_metadata()))

    text = "The quick brown  fox\n\n 123 <|im_end|>'ll 漢字 <think>😀"
    assert directory.encode(text) == file.encode(text)
    assert directory.special_ids == file.special_ids == {0, 1, 2}
