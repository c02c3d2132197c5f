from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import byte_level, sentence_piece

from everbatch.tokenizer.detokenizer import Detokenizer
from everbatch.tokenizer.tokenizer import Tokenizer

VOCABULARIES = {"byte level": byte_level, "sentence piece": sentence_piece}
each_vocabulary = pytest.mark.parametrize("vocabulary", VOCABULARIES.values(), ids=VOCABULARIES)

# Emoji with joiners, flags, skin tones; CJK; combining marks; right-to-left; plain text.
CHUNKS = st.sampled_from(
    [
        "👩‍👩‍👧‍👦",
        "🇯🇵",
        "👍🏽",
        "😀",
        "漢字かな",
        "한국어",
        "e\u0301\u0323",
        "नमस्ते",
        "שלום",
        "the quick",
        " ",
        "\n\n",
    ]
)
TEXT = st.lists(
    st.one_of(
        CHUNKS,
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<▁"), max_size=5),
    ),
    max_size=10,
).map("".join)


def random_ids(data: st.DataObject, tokenizer: Tokenizer) -> list[int]:
    """Any ids, more often single bytes, which are mostly not UTF-8; some unknown."""
    anything = st.integers(0, tokenizer.vocab_size + 2)
    return data.draw(st.lists(st.one_of(anything, single_bytes(tokenizer)), max_size=30))


@cache
def single_bytes(tokenizer: Tokenizer) -> st.SearchStrategy[int]:
    ids = range(tokenizer.vocab_size)
    return st.sampled_from([i for i in ids if len(tokenizer.token_bytes(i)) == 1])


@each_vocabulary
@given(text=TEXT)
def test_stream_of_valid_text_never_shows_half_a_character(vocabulary, text):
    tokenizer = vocabulary()
    detokenizer = Detokenizer(tokenizer, at_start=True)

    pieces = [detokenizer.push(i) for i in tokenizer.encode(text, add_special_tokens=False)]

    assert text == "".join(pieces) + detokenizer.finish()
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


@each_vocabulary
@settings(max_examples=300)
@given(data=st.data(), skip=st.booleans(), at_start=st.booleans())
def test_stream_of_any_ids_joins_to_their_decoded_text(vocabulary, data, skip, at_start):
    tokenizer = vocabulary()
    ids = random_ids(data, tokenizer)
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip, at_start=at_start)

    joined = "".join([detokenizer.push(i) for i in ids]) + detokenizer.finish()

    assert tokenizer.decode(ids, skip_special_tokens=skip, at_start=at_start) == joined


@each_vocabulary
@given(data=st.data())
def test_stream_holds_back_nothing_but_the_unfinished_character(vocabulary, data):
    tokenizer = vocabulary()
    ids = random_ids(data, tokenizer)
    detokenizer = Detokenizer(tokenizer)
    shown = ""

    for count, token_id in enumerate(ids, start=1):
        shown += detokenizer.push(token_id)
        so_far = tokenizer.decode(ids[:count], at_start=False)
        # One mark for the unfinished character; two for ED A0 to ED BF, half of an encoded
        # surrogate, which CPython's decoder judges only with the byte after it.
        assert so_far in (shown, shown + "\ufffd", shown + "\ufffd\ufffd")


def test_emoji_over_four_tokens_appears_with_the_last():
    tokenizer = sentence_piece()
    detokenizer = Detokenizer(tokenizer)

    pieces = [detokenizer.push(3 + byte) for byte in "🤖".encode()]

    assert pieces == ["", "", "", "🤖"]


def test_rest_of_a_character_that_the_prompt_began_is_marks_and_nothing_of_the_prompt():
    _, _, *rest = "🤖".encode()
    detokenizer = Detokenizer(sentence_piece())

    assert [detokenizer.push(3 + byte) for byte in rest] == ["\ufffd", "\ufffd"]
    assert detokenizer.push(3 + ord("A")) == "A"


def test_end_inside_a_character_gives_one_mark():
    detokenizer = Detokenizer(sentence_piece())

    assert detokenizer.push(3 + 0xF0) + detokenizer.push(3 + 0x9F) == ""
    assert detokenizer.finish() == "\ufffd"


def test_mark_appears_as_soon_as_bytes_cannot_become_a_character():
    detokenizer = Detokenizer(sentence_piece())

    assert detokenizer.push(3 + 0xF0) == ""
    assert detokenizer.push(3 + 0x41) == "\ufffdA"


def test_skipped_token_inside_a_character_does_not_break_it():
    tokenizer = sentence_piece()
    detokenizer = Detokenizer(tokenizer)
    first, *rest = (3 + byte for byte in "é".encode())

    assert "".join(detokenizer.push(i) for i in [first, tokenizer.eos_token_id, *rest]) == "é"


def test_leading_space_stays_when_the_tokens_continue_a_prompt():
    tokenizer = sentence_piece()
    ids = tokenizer.encode("the", add_special_tokens=False)

    assert "".join(map(Detokenizer(tokenizer).push, ids)) == " the"
    assert "".join(map(Detokenizer(tokenizer, at_start=True).push, ids)) == "the"


def test_only_the_first_space_goes_away_at_the_start():
    tokenizer = sentence_piece()
    ids = tokenizer.encode("  the", add_special_tokens=False)

    assert "".join(map(Detokenizer(tokenizer, at_start=True).push, ids)) == "  the"
