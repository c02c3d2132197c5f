from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from vocabularies import (
    byte_level_metadata,
    sentence_piece,
    sentence_piece_metadata,
    sentence_piece_pieces,
)

from everbatch.base.errors import ModelLoadError, UnsupportedModel
from everbatch.tokenizer.pre_tokenizers import pre_tokenization
from everbatch.tokenizer.tokenizer import Tokenizer

TEXT = st.text(
    st.one_of(
        st.sampled_from("the quick 漢字 \n😀"),
        st.characters(exclude_categories=["Cs"], exclude_characters="<"),
    ),
    max_size=30,
)


def merge_by_score(text: str) -> list[str]:
    """SentencePiece's algorithm, naively: join the best-scoring neighbours until none is a piece.
    Pieces of one character that are not in the vocabulary become bytes."""
    scores = {piece: score for piece, score in sentence_piece_pieces()[259:]}
    parts = list(text)
    while True:
        joint = [
            (scores[left + right], -index)
            for index, (left, right) in enumerate(pairwise(parts))
            if left + right in scores and left in scores and right in scores
        ]
        if not joint:
            break
        index = -max(joint)[1]
        parts[index : index + 2] = [parts[index] + parts[index + 1]]
    spelt = [
        [part] if part in scores else [f"<0x{byte:02X}>" for byte in part.encode()]
        for part in parts
    ]
    return [piece for pieces in spelt for piece in pieces]


@given(text=TEXT)
def test_sentence_piece_merges_in_the_order_of_the_scores(text):
    ids = {piece: index for index, (piece, _) in enumerate(sentence_piece_pieces())}

    expected = [ids[piece] for piece in merge_by_score("▁" + text.replace(" ", "▁"))]

    assert (expected if text else []) == sentence_piece().encode(text, add_special_tokens=False)


def test_space_prefix_can_be_switched_off():
    tokenizer = Tokenizer.from_gguf_metadata(sentence_piece_metadata(add_space_prefix=False))

    ids = tokenizer.encode(" the", add_special_tokens=False)

    assert tokenizer.decode(ids) == " the"
    assert not tokenizer.strips_leading_space


@pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", "plamo2"])
def test_other_kinds_of_vocabulary_are_refused_by_name(kind):
    with pytest.raises(UnsupportedModel, match=kind):
        Tokenizer.from_gguf_metadata(byte_level_metadata(model=kind))


def test_unknown_pre_tokenizer_is_refused_by_name():
    with pytest.raises(UnsupportedModel, match="'frobnicate'"):
        Tokenizer.from_gguf_metadata(byte_level_metadata(pre="frobnicate"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "tokenizer.ggml.model must be a string"),
        ({"pre": None}, "tokenizer.ggml.pre must be a string"),
        ({"tokens": None}, "tokenizer.ggml.tokens must be a list"),
        ({"tokens": [1, 2]}, "tokenizer.ggml.tokens must be a list"),
        ({"tokens": ["a", "b", "a"]}, "tokens 0 and 2 are both 'a'"),
        ({"merges": None}, "tokenizer.ggml.merges must be a list"),
        ({"merges": ["ab"]}, "'ab': no pair"),
        ({"merges": ["a zzz"]}, "'zzz' is no token"),
        ({"token_type": [1, 2]}, "token_type has 2 entries"),
        ({"token_type": "no"}, "token_type must be a list of numbers"),
        ({"bos_token_id": 10**6}, "bos_token_id is 1000000"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"add_bos_token": 1}, "add_bos_token is not a boolean"),
        ({"chat_template": 5}, "chat_template is not a string"),
    ],
)
def test_broken_metadata_is_refused_with_its_key(changes, message):
    with pytest.raises(ModelLoadError, match=message):
        Tokenizer.from_gguf_metadata(byte_level_metadata(**changes))


def test_missing_scores_are_refused():
    with pytest.raises(ModelLoadError, match="scores is missing"):
        Tokenizer.from_gguf_metadata(sentence_piece_metadata(scores=None))


@pytest.mark.parametrize(("pre", "add_bos"), [("gpt-2", False), ("llama-bpe", True)])
def test_bos_default_depends_on_the_pre_tokenizer(pre, add_bos):
    tokenizer = Tokenizer.from_gguf_metadata(byte_level_metadata(pre=pre))

    assert add_bos == (tokenizer.encode("fox")[0] == tokenizer.bos_token_id)


def test_the_file_decides_about_bos_and_eos():
    tokenizer = Tokenizer.from_gguf_metadata(
        byte_level_metadata(pre="llama-bpe", add_bos_token=False, add_eos_token=True)
    )
    ids = tokenizer.encode("fox")

    assert [*tokenizer.encode("fox", add_special_tokens=False), 2] == ids


def test_end_of_turn_ends_an_answer_too():
    named = byte_level_metadata(eos_token_id=0, eot_token_id=1, eom_token_id=2)
    found_by_name = byte_level_metadata(eos_token_id=0)

    assert Tokenizer.from_gguf_metadata(named).eos_token_ids == (0, 1, 2)
    assert Tokenizer.from_gguf_metadata(found_by_name).eos_token_ids == (0, 2)


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-2", ["ab", " 123", " ", " c", "'ll", "\n\n", "\t", "x"]),
        ("smollm", ["ab", " ", "1", "2", "3", " ", " c", "'ll", "\n\n", "\t", "x"]),
        ("llama-bpe", ["ab", " ", "123", " ", " c", "'ll", "\n\n", "\tx"]),
        ("qwen2", ["ab", " ", "1", "2", "3", " ", " c", "'ll", "\n\n", "\tx"]),
        ("tekken", ["ab", " ", "1", "2", "3", " ", " c", "'ll", "\n\n", "\tx"]),
        ("gpt-4o", ["ab", " ", "123", " ", " c'll", "\n\n", "\tx"]),
    ],
)
def test_words_of_each_family(pre, words):
    splitter = pre_tokenization(pre).build()
    text = "ab 123  c'll\n\n\tx"

    spans = [span for _, span in splitter.pre_tokenize_str(text)]

    assert words == [text[begin:end] for begin, end in spans]


@given(text=TEXT)
def test_smollm_splits_digits_one_by_one_and_then_as_gpt2(text):
    # The library's own pre-tokenizers, in place of the expression that everbatch writes out.
    original = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )

    assert original.pre_tokenize_str(text) == pre_tokenization("smollm").build().pre_tokenize_str(
        text
    )


def test_qwen2_composes_characters_first():
    tokenizer = Tokenizer.from_gguf_metadata(byte_level_metadata(pre="qwen2"))

    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")


def test_llama3_takes_a_word_that_is_a_token_whole():
    whole = byte_level_metadata(pre="llama-bpe", add_bos_token=False)
    tokens = [*whole["tokenizer.ggml.tokens"], "zebra"]
    kinds = [*whole["tokenizer.ggml.token_type"], 1]
    whole |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}

    assert [len(tokens) - 1] == Tokenizer.from_gguf_metadata(whole).encode("zebra")
