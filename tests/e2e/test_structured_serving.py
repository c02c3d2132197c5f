"""Structured output on a real server: the ways of OpenAI and vLLM to ask for it."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from e2e.processes import WAIT_S, Server, serving
from pydantic import BaseModel, ConfigDict, Field
from tiny_model import write_model

TEMPLATE = (
    "{% if tools %}{{ tools | length }} tools, <tool_call> with arguments {% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
)
FLAGS = ("--num-blocks", "40", "--block-size", "8", "--admission", "now")


class Cat(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=3, max_length=9)
    age: int = Field(ge=0, le=30)
    colours: list[str] = Field(max_length=0)


# The tiny model has a taste for spaces, and a short context.
SCHEMA = {**Cat.model_json_schema(), "x-guidance": {"whitespace_pattern": " ?"}}
RESPONSE_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "cat", "strict": True, "schema": SCHEMA},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = write_model(tmp_path_factory.mktemp("model"), template=TEMPLATE)
    with serving(model, *FLAGS) as started:
        yield started
        assert started.stop() == 0
        assert "Traceback" not in started.told.text


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=WAIT_S
    ) as made:
        yield made


def model_of(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def test_client_parses_what_it_asked_for(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=model_of(client),
        messages=[{"role": "user", "content": "A cat, please."}],
        response_format=Cat,
        seed=1,
    )

    message = answer.choices[0].message
    assert isinstance(message.parsed, Cat)
    assert answer.choices[0].finish_reason == "stop"


def test_crowd_of_streams_joins_to_whole_answers_that_fit(
    client: openai.OpenAI, server: Server
) -> None:
    model = model_of(client)

    def ask(number: int) -> tuple[str, str]:
        options = {
            "model": model,
            "messages": [{"role": "user", "content": f"Cat number {number}, please."}],
            "response_format": RESPONSE_FORMAT,
            "seed": number,
        }
        whole = client.chat.completions.create(**options)
        stream = client.chat.completions.create(**options, stream=True)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        return whole.choices[0].message.content or "", streamed

    with ThreadPoolExecutor(8) as threads:
        texts = list(threads.map(ask, range(8)))

    for whole, streamed in texts:
        assert whole == streamed
        Cat.model_validate_json(whole)
    assert len(set(texts)) > 1
    server.wait_until_idle()


def test_json_object_is_an_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=model_of(client),
        messages=[{"role": "user", "content": "JSON"}],
        response_format={"type": "json_object"},
        seed=2,
        logit_bias={str(ord("}")): 20},
    )

    assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)


def test_certain_call_has_arguments_that_fit(client: openai.OpenAI) -> None:
    tool = openai.pydantic_function_tool(Cat, name="adopt")
    tool["function"]["parameters"] = SCHEMA
    choices: list[Any] = [
        "required",
        {"type": "function", "function": {"name": "adopt"}},
    ]
    for choice in choices:
        answer = client.chat.completions.create(
            model=model_of(client),
            messages=[{"role": "user", "content": "A cat, please."}],
            tools=[tool],
            tool_choice=choice,
            parallel_tool_calls=False,
            seed=4,
        )

        [call] = answer.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert call.function.name == "adopt"
        Cat.model_validate_json(call.function.arguments)
        assert answer.choices[0].finish_reason == "tool_calls"
        assert answer.choices[0].message.content is None


def test_crowd_that_begins_calls_of_a_strict_tool_ends_them_as_they_must_be(
    client: openai.OpenAI, server: Server
) -> None:
    model = model_of(client)
    tool = {"type": "function", "name": "adopt", "parameters": SCHEMA, "strict": True}

    def ask(number: int) -> list[Any]:
        stream = client.responses.create(
            model=model,
            input=f"Cat {number}.",
            tools=[tool],
            parallel_tool_calls=False,
            text={"format": {"type": "json_schema", "name": "x", "schema": {"const": 1}}},
            stream=True,
            # What a call begins with is likelier than the 1 with which an answer would.
            extra_body={"seed": number, "logit_bias": {str(ord("<")): 40}},
        )
        return list(stream)

    with ThreadPoolExecutor(8) as threads:
        crowd = list(threads.map(ask, range(8)))

    for events in crowd:
        [call] = events[-1].response.output
        assert (call.type, call.name, events[-1].type) == (
            "function_call",
            "adopt",
            "response.completed",
        )
        Cat.model_validate_json(call.arguments)
        deltas = [event.delta for event in events if event.type.endswith("arguments.delta")]
        assert "".join(deltas) == call.arguments
    server.wait_until_idle()
    assert server.metrics()["num_preemptions_total"] > 0


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"structured_outputs": {"regex": "[ab]{4}"}}, "[ab]{4}"),
        ({"structured_outputs": {"grammar": 'root ::= "<" [0-9] ">"'}}, "<[0-9]>"),
        ({"structured_outputs": {"json": {"enum": ["x", 1]}}}, '"x"|1'),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"guided_regex": "[ab]{4}"}, "[ab]{4}"),
        ({"guided_grammar": 'start: "<" /[0-9]/ ">"'}, "<[0-9]>"),
        ({"guided_json": {"const": 7}}, "7"),
    ],
)
def test_vllm_s_names_are_understood(
    client: openai.OpenAI, wanted: dict[str, object], pattern: str
) -> None:
    answer = client.completions.create(
        model=model_of(client), prompt="Answer: ", extra_body=wanted, n=2
    )

    for choice in answer.choices:
        assert re.fullmatch(pattern, choice.text)
        assert choice.finish_reason == "stop"


def test_form_that_cannot_be_is_the_client_s_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="the JSON schema cannot be followed"):
        client.chat.completions.create(
            model=model_of(client),
            messages=[{"role": "user", "content": "x"}],
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "nothing"}},
            },
        )


def test_two_forms_are_one_too_many(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="both ask for a form"):
        client.completions.create(
            model=model_of(client),
            prompt="x",
            extra_body={"guided_regex": "a", "response_format": {"type": "json_object"}},
        )
