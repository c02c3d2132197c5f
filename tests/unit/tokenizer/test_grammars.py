"""Which tokens may come next under a form: forms that cannot be, ends, forms followed anew."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server.fakes import EOS, byte_tokenizer
from vocabularies import byte_level, sentence_piece

from everbatch.base.errors import InvalidRequest
from everbatch.engine.structured_outputs import StructuredOutputsParams
from everbatch.tokenizer import grammars as grammars_module
from everbatch.tokenizer.grammars import Constraint, Grammars
from everbatch.tokenizer.tokenizer import Tokenizer

VOCAB_SIZE = 300  # The network pads its vocabulary.
OTHER_END = 299


def grammars(*eos_token_ids: int) -> Grammars:
    return Grammars(byte_tokenizer(), VOCAB_SIZE, eos_token_ids or (EOS,))


def start(**form: Any) -> Constraint:
    return grammars().start(StructuredOutputsParams(**form))


def allowed(constraint: Constraint, text: str) -> set[int]:
    mask = constraint.allowed(list(text.encode()))
    return {
        one for one in range(VOCAB_SIZE) if one >> 3 < len(mask) and mask[one >> 3] >> (one & 7) & 1
    }


def accepts(text: str, **form: Any) -> bool:
    """Whether the answer may be this text, whole."""
    constraint = start(**form)
    for end in range(len(text.encode())):
        before = list(text.encode()[:end])
        mask = constraint.allowed(before)
        following = text.encode()[end]
        if not mask[following >> 3] >> (following & 7) & 1:
            return False
    return EOS in allowed(constraint, text)


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        ({"choice": ["yes", "no"]}, ["yes", "no"], ["ye", "maybe", "yesno", ""]),
        ({"choice": ['a "b"\n\\', "猫", "🙂"]}, ['a "b"\n\\', "猫", "🙂"], ["a", "犬"]),
        ({"regex": r"\d{2}-[a-z]+"}, ["12-ab"], ["1-ab", "12-", "12-A"]),
        ({"regex": "ж+|猫"}, ["жж", "猫"], ["ж猫"]),
        ({"grammar": 'root ::= "(" root ")" | "x"'}, ["x", "((x))"], ["(x", "()"]),
        ({"grammar": 'start: "(" start ")" | "x"'}, ["x", "((x))"], ["(x", "()"]),
        (
            {"json_object": True},
            ['{"a": [1, null]}', "{}", '{\n  "ж": "🙂"\n}'],
            ["[]", "1", '{"a"}'],
        ),
    ],
)
def test_form_lets_through_what_it_says(
    form: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    assert [text for text in right if not accepts(text, **form)] == []
    assert [text for text in wrong if accepts(text, **form)] == []


def test_json_schema_is_followed() -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 5},
            "age": {"type": "integer", "minimum": 0},
            "kind": {"enum": ["cat", "dog"]},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }

    assert accepts('{"name": "Mia", "age": 3}', json=schema)
    assert accepts('{"name":"Mia","age":3,"kind":"cat"}', json=json.dumps(schema))
    assert not accepts('{"name": "Mia"}', json=schema)
    assert not accepts('{"name": "Mia", "age": -3}', json=schema)
    assert not accepts('{"name": "Miaaaa", "age": 3}', json=schema)
    assert not accepts('{"name": "Mia", "age": 3, "more": 1}', json=schema)


def test_spaces_of_json_come_to_an_end() -> None:
    constraint = start(json_object=True)

    assert ord(" ") in allowed(constraint, "{" + " " * 23)
    assert ord(" ") not in allowed(constraint, "{" + " " * 24)


def test_padding_and_special_tokens_are_never_allowed_before_the_end() -> None:
    constraint = start(regex="(.|\n)*x")

    assert not allowed(constraint, "a") & set(range(256, VOCAB_SIZE))
    assert EOS in allowed(constraint, "ax")


def test_every_end_of_text_may_end_the_form() -> None:
    wanted = StructuredOutputsParams(choice=["a"])
    constraint = grammars(EOS, OTHER_END).start(wanted)

    assert allowed(constraint, "") == {ord("a")}
    assert allowed(constraint, "a") == {EOS, OTHER_END}


def test_follower_that_starts_anew_allows_what_the_first_allows() -> None:
    """As after a preemption; and followers of one form do not see each other."""
    compiled, wanted = grammars(), StructuredOutputsParams(json_object=True)
    text = '{"a": [1, {"b'
    first = compiled.start(wanted)
    step_by_step = [allowed(first, text[:end]) for end in range(len(text) + 1)]
    at_once = [allowed(compiled.start(wanted), text[:end]) for end in range(len(text) + 1)]

    assert step_by_step == at_once


def test_what_does_not_fit_allows_nothing_and_says_so() -> None:
    constraint = start(choice=["a"])

    assert constraint.error is None
    assert constraint.allowed(list(b"zz")) == b""
    assert constraint.error is not None


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"regex": "(["}, "the regular expression cannot be followed: .*unclosed"),
        ({"regex": "(?<=a)b"}, "look-around"),
        ({"json": {"type": "foo"}}, "the JSON schema cannot be followed: .*foo"),
        ({"json": {"not": {"type": "string"}}}, "the JSON schema cannot be followed"),
        ({"json": "nonsense"}, "the JSON schema cannot be followed"),
        ({"json": "[]"}, "the JSON schema cannot be followed"),
        ({"json": {"$ref": "#"}}, "the JSON schema cannot be followed"),
        ({"json": '{"items":' * 5_000}, "the JSON schema cannot be followed"),
        ({"grammar": "nonsense %%% ::"}, "the grammar cannot be followed"),
        ({"grammar": "root ::= unknown"}, "the grammar cannot be followed"),
    ],
)
def test_form_that_cannot_be_is_refused(form: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        grammars().check(StructuredOutputsParams(**form))

    assert refused.value.param == "structured_outputs"
    assert "\n" not in str(refused.value)


def test_ambiguous_form_that_is_too_much_work_ends_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One row's mask keeps all rows of its step waiting."""
    # With tokens of one byte there is less to look at than with a real vocabulary.
    monkeypatch.setattr(grammars_module, "MAX_STEP_ITEMS", 30)
    constraint = start(grammar="start: s\ns: s s s s | A |\nA: /[a-z]/")
    written = 0
    while constraint.allowed([ord("a")] * written):
        written += 1
        assert written < 50, "the work for a token grows without end"

    assert written > 1
    assert constraint.error is not None
    assert "Too many items (limit 30" in constraint.error


def test_model_without_an_end_of_text_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no token that ends"):
        Grammars(byte_tokenizer(), VOCAB_SIZE, ()).check(StructuredOutputsParams(choice=["a"]))


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({}, "exactly one"),
        ({"regex": "a", "choice": ["a"]}, "regex and choice"),
        ({"json_object": False}, "none of them"),
        ({"choice": []}, "1 to 1,024"),
        ({"choice": [""]}, "1 to 1,024"),
        ({"choice": "yes"}, "1 to 1,024"),
        ({"choice": ["a"] * 1_025}, "1 to 1,024"),
        ({"regex": ""}, "regex must be a text"),
        ({"regex": 1}, "regex must be a text"),
        ({"json": 1}, "json must be a JSON schema"),
        ({"json_object": 1}, "json_object must be true or false"),
        ({"regex": "a" * 262_145}, "at most 262,144"),
    ],
)
def test_wish_out_of_range_is_refused(form: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        StructuredOutputsParams(**form)


def test_longest_wish_and_most_choices_go() -> None:
    StructuredOutputsParams(regex="a" * 262_144)
    StructuredOutputsParams(choice=["a"] * 1_024)


@pytest.mark.parametrize("tokenizer", [byte_level(), sentence_piece()], ids=["bytes", "pieces"])
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_walk_through_a_form_writes_a_text_of_it(
    tokenizer: Tokenizer, data: st.DataObject
) -> None:
    """Tokens of several bytes, halves of characters, pieces with a space before them."""
    eos = tokenizer.eos_token_id
    assert eos is not None
    wanted = StructuredOutputsParams(
        json={
            "type": "object",
            "properties": {"the": {"enum": ["quick", "Größe 漢字", "😀"]}, "n": {"maxLength": 3}},
            "required": ["the"],
            "additionalProperties": False,
            "x-guidance": {"whitespace_pattern": " ?"},
        }
    )
    constraint = Grammars(tokenizer, tokenizer.vocab_size, (eos,)).start(wanted)
    outputs: list[int] = []
    for _ in range(200):
        mask = constraint.allowed(outputs)
        ids = [one for one in range(tokenizer.vocab_size) if mask[one >> 3] >> (one & 7) & 1]
        assert ids, (constraint.error, tokenizer.decode(outputs, at_start=False))
        token_id = data.draw(st.sampled_from(ids))
        if token_id == eos:
            break
        outputs.append(token_id)
    else:
        return  # A number may have any number of digits.

    value = json.loads(tokenizer.decode(outputs, at_start=False))
    assert value["the"] in ("quick", "Größe 漢字", "😀")
    assert set(value) <= {"the", "n"}
