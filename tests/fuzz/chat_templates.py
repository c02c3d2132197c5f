"""Chat templates, rendered with a conversation and a tool: at most 20,000 steps each."""

from datetime import datetime

from fuzz.target import Target

from everbatch.base.errors import InvalidRequest
from everbatch.tokenizer.chat_template import ChatTemplate, TakesLong

MAX_STEPS = 20_000
NOW = datetime(2025, 1, 1)
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi\n"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
    },
    {"role": "tool", "content": "1", "tool_call_id": "a"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]

_SEEDS = (
    b"{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    b"{{ '<|im_start|>system\n' }}{% endif %}{{ '<|im_start|>' + message['role'] + '\n' +"
    b" message['content'] + '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}x{% endif %}",
    b"{%- set ns = namespace(found=false, n=0) -%}{%- for m in messages | selectattr('role', 'in', "
    b"['user', 'tool']) -%}{%- set ns.n = ns.n + 1 -%}{{ m.content | trim | upper }}{%- endfor -%}"
    b"{{ ns.n * 3 // 2 % 5 }}{{ raise_exception('no') if ns.n > 9 else '' }}",
    b"{% macro show(x, depth=0) %}{{ x | tojson(indent=2) }}{% if depth %}{{ show(x, depth - 1) }}"
    b"{% endif %}{% endmacro %}{{ show(tools, 2) }}{{ strftime_now('%d %b %Y') }}"
    b"{{ '%05d|%s' % (3, 4) }}",
    b"{% set x %}{% for i in range(9) %}{{ i }}{% if i is divisibleby 2 %}{% continue %}{% endif %}"
    b"{% endfor %}{% endset %}{{ x[::-1] ~ x[1:3] }}{% generation %}{{ x.split('3')[0].strip() }}"
    b"{% endgeneration %}{{ messages | map(attribute='role') | join(', ') }}"
    b"{{ dict(a=1).items() | list }}",
    b"{% for k, v in {'a': [1, 2]}.items() recursive %}{{ loop.index0 }}{{ k }}{{ v }}{% else %}"
    b"{% endfor %}"
    b"{% filter upper %}{{ bos_token }}a{% endfilter %}{% with a = 1 %}{{ a }}{% endwith %}"
    b"{{ (messages | length > 2) and not none is defined }}{{ 1 if 'a' in 'abc' else 0x1F + 1_0 }}",
)


def _read(data: bytes) -> None:
    template = ChatTemplate(data.decode("utf-8", errors="surrogateescape"))
    template.render(MESSAGES, now=NOW, tools=TOOLS, max_steps=MAX_STEPS)


TARGET = Target(
    "template",
    _read,
    (InvalidRequest, TakesLong),
    lambda: list(_SEEDS),
    (
        *(
            b"{% for i in range(9) %}",
            b"{% endfor %}",
            b"{% if ",
            b" %}",
            b"{{ ",
            b" }}",
            b"{% set ",
        ),
        *(
            b"{% macro f() %}",
            b"{% endmacro %}",
            b"{{ f() }}",
            b"{% call f() %}{% endcall %}",
            b"caller()",
        ),
        *(
            b"|tojson",
            b"|list",
            b"|first",
            b"|last",
            b"|map('upper')",
            b"|sort",
            b"|groupby('role')",
        ),
        *(b"|batch(2)", b"|slice(2)", b"|sum", b"|max", b"|round(2)", b"|int", b"|float", b"|abs"),
        *(
            b"|default(1)",
            b"|unique",
            b"|reverse",
            b"|string",
            b"|dictsort",
            b"|attr('x')",
            b"|indent(2)",
        ),
        *(
            b"|replace('a','b')",
            b"|wordcount",
            b"|truncate(3)",
            b"|items",
            b"|escape",
            b"|safe",
            b" ** 9",
        ),
        *(
            b"loop.previtem",
            b"loop.cycle(1, 2)",
            b"loop.changed(i)",
            b"self.x()",
            b"super()",
            b"namespace(a=1)",
        ),
        *(
            b"{% block x %}{% endblock %}",
            b"{% extends 'x' %}",
            b"{% include 'x' %}",
            b"{% break %}",
        ),
        *(
            b"{% raw %}",
            b"{% endraw %}",
            b"{# ",
            b" #}",
            b"varargs",
            b"kwargs",
            b"cycler(1)",
            b"joiner()",
        ),
        *(
            b"is sameas none",
            b"is string",
            b"is filter('x')",
            b"not ",
            b"~ ",
            b"// 0",
            b"% 0",
            b"[1:2:0]",
            b"1e400",
        ),
    ),
)
