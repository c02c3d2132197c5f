from datetime import datetime

import pytest
from vocabularies import byte_level_metadata

from everbatch.base.errors import InvalidRequest
from everbatch.tokenizer.chat_template import ChatTemplate
from everbatch.tokenizer.tokenizer import Tokenizer

NOW = datetime(2025, 3, 1, 12, 0)

# Out of SmolLM2-135M-Instruct.Q4_1.gguf, tokenizer.chat_template.
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# In Llama 3's manner: bos first, trimmed content, a date, roles that must alternate.
LLAMA3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + strftime_now("%d %b %Y") + "\\n\\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant') }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""


def message(content: object, role: str = "user") -> dict[str, object]:
    return {"role": role, "content": content}


def render(source: str, *messages: dict[str, object], **options: object) -> str:
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    return template.render(messages or [message("hi")], now=NOW, **options)


def test_smollm2_conversation():
    text = render(SMOLLM2, message("Hi"), message("Hello!", "assistant"), message("Bye"))

    expected = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )
    assert expected == text


def test_system_message_replaces_the_default_one():
    text = render(SMOLLM2, message("Be brief.", "system"), add_generation_prompt=False)

    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n"


def test_llama3_conversation():
    text = render(LLAMA3, message(" Be brief. ", "system"), message(" Hi "))

    expected = (
        "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 01 Mar 2025\n\nBe brief."
        "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert expected == text


def test_lines_that_hold_only_blocks_leave_no_trace():
    source = (
        "{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}"
    )

    assert render(source) == "hi\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages|tojson }}", '[{"role": "user", "content": "hi"}]'),
        ("{{ {'b': '<é>', 'a': 1}|tojson }}", '{"b": "<é>", "a": 1}'),
        ("{{ {'a': [1]}|tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
        ("{{ '<b>' }}", "<b>"),
        ("{% generation %}a{{ messages[0].content }}{% endgeneration %}b", "ahib"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        (
            "{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
            "02",
        ),
        ("{{ tools is none }} {{ bos_token }} {{ eos_token }}", "True <s> </s>"),
        ("{{ messages[0].get('name', 'nobody') }}", "nobody"),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
            "{% endfor %}{{ ns.n }}",
            "1",
        ),
        ("{% macro say(x) %}[{{ x }}]{% endmacro %}{{ say(messages[0].content) }}", "[hi]"),
        ("{{ 'a,b'.split(',')|join('-')|upper }} {{ ' x '.strip() }}", "A-B x"),
        ("{{ '%s %02d' % ('a', 7) }}", "a 07"),
        ("{{ messages|selectattr('role', 'equalto', 'user')|list|length }}", "1"),
        ("{% for k, v in {'a': 1}.items() %}{{ k ~ v }}{% endfor %}", "a1"),
        ("{{ (messages|map(attribute='content')|list)[::-1]|first }}", "hi"),
        ("{% if messages[0].role in ['user', 'tool'] %}yes{% endif %}", "yes"),
    ],
)
def test_what_published_templates_use_works(source, expected):
    assert expected == render(source)


def test_variables_reach_the_template_but_do_not_hide_its_own():
    source = "{{ enable_thinking }} {{ messages|length }}"

    assert render(source, variables={"enable_thinking": False, "messages": []}) == "False 1"


def test_parts_of_text_are_joined_by_newlines():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]

    assert render("{{ messages[0].content }}", message(parts)) == "one\ntwo"


def test_assistant_message_without_content_is_empty():
    assert render("[{{ messages[0].content }}]", message(None, "assistant")) == "[]"


@pytest.mark.parametrize(
    ("broken", "param", "text"),
    [
        ({"content": "x"}, "messages[0].role", "non-empty string"),
        ({"role": "", "content": "x"}, "messages[0].role", "non-empty string"),
        ({"role": "user"}, "messages[0].content", "string or a list of text parts"),
        ({"role": "user", "content": 5}, "messages[0].content", "string or a list of text parts"),
        (
            message([{"type": "image_url", "image_url": {}}]),
            "messages[0].content[0]",
            "'image_url'",
        ),
        (message([{"type": "input_audio"}]), "messages[0].content[0]", "'input_audio'"),
        (message([{"text": "x"}]), "messages[0].content[0]", "type None"),
        (message([5]), "messages[0].content[0]", "only parts of type 'text'"),
        (message([{"type": "text", "text": 5}]), "messages[0].content[0].text", "must be a string"),
    ],
)
def test_broken_message_is_refused_with_its_place(broken, param, text):
    with pytest.raises(InvalidRequest, match=text) as caught:
        render(SMOLLM2, broken)

    assert param == caught.value.param


def test_message_that_is_no_object_is_refused():
    with pytest.raises(InvalidRequest, match="must be an object"):
        render(SMOLLM2, "hi")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (LLAMA3, "refuses these messages: roles must alternate"),
        ("{% for %}", "is broken: line 1"),
        ("{{ messages[0].a.b }}", "has no attribute 'a'"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ no_such_function() }}", "'no_such_function' is undefined"),
        ("{{ 'a'|no_such_filter }}", "No filter named 'no_such_filter'"),
        ("{% include 'x' %}", "no loader"),
        ("{" * 300_000, "limit is 200,000"),
    ],
)
def test_whatever_goes_wrong_in_a_template_is_told(source, text):
    with pytest.raises(InvalidRequest, match=text):
        render(source, message("a", "assistant"))


def test_model_without_template_points_to_completions():
    tokenizer = Tokenizer.from_gguf_metadata(byte_level_metadata())

    assert not tokenizer.chat_template.exists
    with pytest.raises(InvalidRequest, match=r"no chat template.*/v1/completions"):
        tokenizer.chat_template.render([message("hi")], now=NOW)


def test_template_of_a_gguf_file_gets_the_names_of_its_tokens():
    tokenizer = Tokenizer.from_gguf_metadata(
        byte_level_metadata(chat_template="{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
    )

    text = tokenizer.chat_template.render([message("hi")], now=NOW)

    assert text == "<|im_start|>hi<|im_end|>"
    assert tokenizer.encode(text)[0] == 1
