"""Structured output through the Python API on a tiny model, whatever the scheduler does."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tiny_model import EOS, write_model

from everbatch import LLM, SamplingParams, StructuredOutputsParams
from everbatch.base.errors import InvalidRequest

# What a model without any sense cannot make endless.
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 8, "maxLength": 12},
        "sizes": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 99},
            "minItems": 2,
            "maxItems": 4,
        },
    },
    "required": ["name", "sizes"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_pattern": " ?"},
}
PROMPTS = [f"{number}: a prompt that takes several chunks" for number in range(6)]
PRESSED = {"num_blocks": 22, "block_size": 8, "admission": "now", "max_num_batched_tokens": 16}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(model: Path) -> LLM:
    return LLM(model, num_blocks=256)


def params(**options: Any) -> SamplingParams:
    form = {"structured_outputs": {"json": SCHEMA}, "max_tokens": 90, "seed": 3}
    return SamplingParams(**{**form, **options})


def texts_of(llm: LLM, options: SamplingParams) -> list[str]:
    return [sample.text for answer in llm.generate(PROMPTS, options) for sample in answer.outputs]


def assert_fits(text: str) -> None:
    value = json.loads(text)
    assert list(value) == ["name", "sizes"]
    assert 8 <= len(value["name"]) <= 12
    assert 2 <= len(value["sizes"]) <= 4
    assert all(0 <= size <= 99 for size in value["sizes"])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_answer_fits_its_schema(llm: LLM, temperature: float) -> None:
    answers = llm.generate(PROMPTS, params(temperature=temperature, n=2))

    for answer in answers:
        for sample in answer.outputs:
            assert_fits(sample.text)
            assert (sample.finish_reason, sample.token_ids[-1]) == ("stop", EOS)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"preemption_extent": "tail"},
        {"preemption_mode": "swap", "num_host_blocks": 64},
        {"enable_prefix_caching": False},
    ],
    ids=lambda options: "-".join(map(str, options.values())) or "recompute",
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_preempted_answers_are_those_of_a_run_with_room(
    llm: LLM, model: Path, options: dict[str, Any], temperature: float
) -> None:
    pressed = LLM(model, **PRESSED, **options)
    texts = texts_of(pressed, params(temperature=temperature))

    assert pressed.real.engine.stats().num_preemptions > 0
    assert texts == texts_of(llm, params(temperature=temperature))


def test_answers_of_other_requests_do_not_change(llm: LLM) -> None:
    plain = SamplingParams(temperature=0, max_tokens=24)
    alone = llm.generate(PROMPTS[:3], plain)
    mixed = llm.generate(PROMPTS, [plain] * 3 + [params()] * 3)

    assert [one.outputs[0].text for one in alone] == [one.outputs[0].text for one in mixed[:3]]


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"choice": ["猫", "dog"]}, "猫|dog"),
        ({"regex": "[0-9]{3}-[xyz]{2}"}, "[0-9]{3}-[xyz]{2}"),
        ({"grammar": 'root ::= "(" [a-c] ")"'}, r"\([a-c]\)"),
    ],
)
def test_every_form_is_kept(llm: LLM, form: dict[str, Any], pattern: str) -> None:
    for wanted in (form, StructuredOutputsParams(**form)):
        texts = texts_of(llm, params(structured_outputs=wanted, temperature=1.5))

        assert [text for text in texts if not re.fullmatch(pattern, text)] == []


def test_max_tokens_and_stop_strings_end_an_answer_before_its_form_does(llm: LLM) -> None:
    [cut] = llm.generate("x", params(max_tokens=5))
    [stopped] = llm.generate("x", params(stop='"sizes"'))

    assert (cut.outputs[0].finish_reason, len(cut.outputs[0].text)) == ("length", 5)
    assert stopped.outputs[0].stop_reason == '"sizes"'
    assert_fits(stopped.outputs[0].text + '"sizes": [1, 2]}')


def test_logprobs_are_of_the_logits_before_the_form(llm: LLM) -> None:
    choice = params(structured_outputs={"choice": ["\x01"]}, logprobs=1, temperature=0)
    [answer] = llm.generate("x", choice)

    first = answer.outputs[0].logprobs
    assert first is not None
    # Never the likeliest of this model, and yet the only one that was allowed.
    assert first[0][1].rank > 1
    assert len(first[0]) == 2


def test_forms_work_with_penalties_and_biases(llm: LLM) -> None:
    options = {"repetition_penalty": 1.5, "frequency_penalty": 1.0, "logit_bias": {65: 50.0}}
    for text in texts_of(llm, params(temperature=0.8, **options)):
        assert_fits(text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"structured_outputs": {"regex": "(["}}, "the regular expression cannot be followed"),
        ({"structured_outputs": {"nonsense": 1}}, "unknown field 'nonsense'"),
        ({"structured_outputs": "json"}, "must be an object"),
        ({"ignore_eos": True}, "ignore_eos does not go with structured_outputs"),
        ({"min_tokens": 3}, "min_tokens does not go with structured_outputs"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    llm: LLM, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        llm.generate("x", params(**options))

    assert not llm.real.engine.has_work
