import pytest
from hypothesis import given
from hypothesis import strategies as st
from vocabularies import byte_level, sentence_piece

from everbatch.engine.sampling_params import SamplingParams
from everbatch.tokenizer.text_stream import TextStream

TEXT = "The quick brown fox, 漢字 😀, jumps over"


def run(text: str, **params: object) -> tuple[str, str | None]:
    """All text that comes out for the tokens of `text`, and the stop string."""
    stream = TextStream(byte_level(), SamplingParams(**params))
    shown = ""
    for token_id in byte_level().encode(text):
        delta = stream.push(token_id)
        shown += delta.text
        if delta.stopped is not None:
            return shown + stream.finish().text, delta.stopped
    return shown + stream.finish().text, None


@given(begin=st.integers(0, len(TEXT) - 1), length=st.integers(1, 8))
def test_text_ends_before_any_stop_string(begin, length):
    stop = TEXT[begin : begin + length]

    assert (TEXT[: TEXT.index(stop)], stop) == run(TEXT, stop=(stop,))


def test_stop_string_is_kept_when_asked_for():
    assert run(TEXT, stop=("ck",), include_stop_str_in_output=True) == ("The quick", "ck")


def test_text_without_the_stop_string_is_whole():
    assert run(TEXT, stop=("over the moon",)) == (TEXT, None)


def test_a_stop_string_that_never_comes_changes_no_piece():
    """Without stop strings a text is not looked through."""
    plain = TextStream(byte_level(), SamplingParams())
    watched = TextStream(byte_level(), SamplingParams(stop=("\x00",)))
    token_ids = byte_level().encode(TEXT)

    assert [plain.push(one) for one in token_ids] == [watched.push(one) for one in token_ids]
    assert plain.finish() == watched.finish()


def test_stop_string_counts_only_after_min_tokens():
    tokens = byte_level().encode("fox fox")
    needed = len(byte_level().encode("fox"))

    assert run("fox fox", stop=("fox",), min_tokens=needed - 1) == ("", "fox")
    assert run("fox fox", stop=("fox",), min_tokens=needed) == ("fox ", "fox")
    assert run("fox fox", stop=("fox",), min_tokens=len(tokens)) == ("fox fox", None)


def test_token_that_ended_the_request_is_left_out():
    (comma,) = byte_level().encode(",")
    stream = TextStream(byte_level(), SamplingParams(stop_token_ids=(comma,)))

    assert stream.push(comma, ends_request=True).text == ""
    assert stream.finish().text == ""


def test_token_that_ended_the_request_is_kept_when_asked_for():
    (comma,) = byte_level().encode(",")
    params = SamplingParams(stop_token_ids=(comma,), include_stop_str_in_output=True)

    assert TextStream(byte_level(), params).push(comma, ends_request=True).text == ","


@pytest.mark.parametrize(("skip", "expected"), [(True, ""), (False, "<|im_end|>")])
def test_markup_is_text_only_when_asked_for(skip, expected):
    assert (expected, None) == run("<|im_end|>", skip_special_tokens=skip)


def test_markup_can_be_a_stop_string_when_it_is_text():
    stops = {"stop": ("<|im_end|>",)}

    assert run("fox<|im_end|>x", skip_special_tokens=False, **stops) == ("fox", "<|im_end|>")
    assert run("fox<|im_end|>x", **stops) == ("foxx", None)


def test_offsets_count_the_characters_before_each_token():
    stream = TextStream(byte_level(), SamplingParams(stop=("xyz",)))
    tokens = byte_level().encode(TEXT)

    offsets = [stream.push(token_id).offset for token_id in tokens]

    before = [
        len(byte_level().decode(tokens[:count]).rstrip("\ufffd")) for count in range(len(tokens))
    ]
    assert before == offsets


def test_unfinished_character_comes_out_at_the_end():
    stream = TextStream(sentence_piece(), SamplingParams())

    assert stream.push(3 + 0xF0).text == ""
    assert stream.finish().text == "\ufffd"


def test_output_continues_the_prompt_with_its_space():
    stream = TextStream(sentence_piece(), SamplingParams())
    tokens = sentence_piece().encode("the", add_special_tokens=False)

    assert "".join(stream.push(token_id).text for token_id in tokens) == " the"
