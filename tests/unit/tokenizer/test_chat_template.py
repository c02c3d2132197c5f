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


# In the manner of Qwen 2.5 and 3: signatures in the system message, calls between tags.
QWEN_TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson + "\\n" }}
    {%- endfor %}
    {{- '{"name": <function-name>, "arguments": <args-json-object>} in <tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {%- if tool_call.arguments is string %}
                {{- tool_call.arguments }}
            {%- else %}
                {{- tool_call.arguments | tojson }}
            {%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
# In Llama 3.1's manner: signatures in the first message of the user, one bare call a message.
LLAMA_TOOLS = """{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if tools is not none %}
    {{- '{"name": function name, "parameters": dictionary of argument name and its value}\\n' }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) + "\\n" }}
    {%- endfor %}
    {{- messages[0]['content'] | trim + "<|eot_id|>" }}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- message['role'] + ': ' + message['content'] + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson + "}<|eot_id|>" }}
    {%- else %}
        {{- "ipython: " }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
"""
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": {"a": "ж"}}}


def test_tools_calls_and_results_in_qwen_s_manner():
    called = {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}
    results = [{"role": "tool", "content": text, "tool_call_id": "c"} for text in ("one", "two")]
    text = render(QWEN_TOOLS, message("Hi"), called, *results, tools=[TOOL])

    call = '\n<tool_call>\n{"name": "weather", "arguments": {"a": "ж"}}\n</tool_call>'
    assert text == (
        '<|im_start|>system\n# Tools\n{"type": "function", "function": {"name": "weather", '
        '"parameters": {"type": "object"}}}\n'
        '{"name": <function-name>, "arguments": <args-json-object>} in <tool_call><|im_end|>\n'
        f"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant{call}{call}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n"
        "</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_tools_calls_and_results_in_llama_s_manner():
    called = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    result = {"role": "tool", "content": "sunny", "tool_call_id": "c"}
    text = render(LLAMA_TOOLS, message(" Hi "), called, result, tools=[TOOL])

    head, rest = text.split("value}\n")
    assert head.startswith('{"name": function name')
    assert '    "type": "function",\n' in rest
    assert rest.endswith(
        'Hi<|eot_id|>{"name": "weather", "parameters": {"a": "ж"}}<|eot_id|>ipython: '
        '"sunny"<|eot_id|>'
    )
    twice = {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}
    with pytest.raises(InvalidRequest, match="single tool-calls"):
        render(LLAMA_TOOLS, message("Hi"), twice, tools=[TOOL])


def test_no_tools_are_none_to_a_template():
    assert render("{{ tools is none }}", tools=[]) == "True"
    assert render("{{ tools is none }}") == "True"


def test_templates_are_searched_for_words():
    template = ChatTemplate("{{ tools }}")

    assert template.mentions("tools")
    assert not template.mentions("functions")
    assert not ChatTemplate(None).mentions("")
