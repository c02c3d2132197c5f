"""Hostile templates. Each would hang, fill the memory or escape without the meter and the sandbox;
pytest's own timeout is what fails a test whose template got through."""

import tracemalloc
from datetime import datetime
from inspect import isgenerator

import pytest
from jinja2 import Environment

from everbatch.base.errors import InvalidRequest
from everbatch.tokenizer import chat_template
from everbatch.tokenizer.chat_template import ChatTemplate
from everbatch.tokenizer.template_filters import FILTER_COSTS, TESTS_OF_CONTENT, TESTS_OF_TYPE
from everbatch.tokenizer.template_meter import MAX_STEPS, MAX_TEXT_CHARS, Meter
from everbatch.tokenizer.template_sandbox import TemplateEnvironment

pytestmark = pytest.mark.timeout(60)


def render(source: str, content: str = "hi") -> str:
    messages = [{"role": "user", "content": content}]
    return ChatTemplate(source).render(messages, now=datetime(2025, 1, 1))


def grow(step: str, start: str = "'aaaa'", end: str = "") -> str:
    """A template that applies `step` to n.x sixty times over: 2**60 if it doubles."""
    return (
        f"{{% set n = namespace(x={start}) %}}{{% for i in range(60) %}}{step}{{% endfor %}}{end}"
    )


TWENTY_LOOPS = "{% for a in range(20) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
LARGE_TUPLE = (
    "{% set n = namespace(x=(1,)) %}{% for i in range(20) %}{% set n.x = n.x + n.x %}{% endfor %}"
)

ENDLESS = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
    "{% endfor %}",
    "loops whose rounds are all filtered out": "{% for a in range(99999) %}"
    "{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}"
    "{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive loop": "{% for x in [1, 2] recursive %}{{ loop([1, 2]) if loop.depth < 60 }}"
    "{% endfor %}",
    "long sorts": "{% for i in range(9999) %}{% set x = range(99999)|sort %}{% endfor %}",
    "long chains of filters": "{% for i in range(9999) %}"
    "{% set x = range(99999)|map('string')|map('upper')|list %}{% endfor %}",
    "comparing long texts": "{% set s = 'a' * 3900000 %}{% set t = 'a' * 3900000 %}"
    "{% for i in range(99999) %}{{ 1 if s == t }}{% endfor %}",
    "searching long texts": "{% set s = 'a' * 3900000 %}"
    "{% for i in range(99999) %}{{ 1 if 'b' in s }}{% endfor %}",
    "stripping many characters": "{% set s = 'a' * 3900000 %}{% set t = 'b' * 3900000 ~ 'a' %}"
    "{{ s.strip(t) }}",
    "trimming many characters": "{% set s = 'a' * 3900000 %}{% set t = 'b' * 3900000 ~ 'a' %}"
    "{{ s|trim(t) }}",
    "splitting long texts": "{% set s = 'a ' * 1900000 %}"
    "{% for i in range(99999) %}{% set x = s.split() %}{% endfor %}",
    "constant text in a loop": "{% set n = namespace() %}{% for i in range(99999) %}{% set n.x %}"
    + "x" * 100_000
    + "{% endset %}{% endfor %}",
    "list shared by itself": grow("{% set n.x = [n.x, n.x] %}", "[1]", "{{ n.x }}"),
    "dict shared by itself": grow("{% set n.x = dict(a=n.x, b=n.x) %}", "{}", "{{ n.x|tojson }}"),
    "tuple hashed": grow("{% set n.x = (n.x, n.x) %}", "(1,)", "{{ {n.x: 1} }}"),
    "varargs shared": "{% macro k(n) %}{% set n.x = varargs %}{% endmacro %}"
    + grow("{{ k(n, n.x, n.x) }}", "(1,)", "{{ {}.get(n.x) }}"),
    "reason for an exception": grow(
        "{% set n.x = dict(a=n.x, b=n.x) %}", "{}", "{{ raise_exception(n.x) }}"
    ),
    "list times a number": "{{ ([0] * 10**9)|length }}",
    "steps given back": "{{ (-1000000000)|meter_tick }}" + TWENTY_LOOPS,
    "steps given back by map": "{{ [-1000000000]|map('meter_tick')|list }}" + TWENTY_LOOPS,
    "tests of each character": "{{ ('a' * 3000000)|select('in', range(99999)|list)|list }}",
    "tests of what a filter gives": "{{ (range(99999)|map('string'))"
    "|select('in', range(99999)|list)|list }}",
    "tests of attributes": "{{ (messages * 99999)"
    "|selectattr('role', 'in', range(99999)|map('string')|list)|list }}",
    "tuple hashed by a subscript": LARGE_TUPLE
    + "{% for i in range(9999) %}{{ {}[n.x] }}{% endfor %}",
    "tuple looked up among filters": LARGE_TUPLE
    + "{% for i in range(9999) %}{{ n.x is filter }}{% endfor %}",
    "case of a shared list": "{% set n = namespace(x=[1]) %}"
    "{% for i in range(17) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
    "{% for i in range(9999) %}{{ n.x is lower }}{% endfor %}",
    "titles of long texts": "{% set s = 'a ' * 1900000 %}"
    "{% for i in range(99999) %}{% set x = s|title %}{% endfor %}",
    "texts that are no numbers": "{% set s = 'a ' * 1900000 %}"
    "{% for i in range(99999) %}{% set x = s|int %}{% set y = s|float %}{% endfor %}",
    "characters sorted": "{% set s = 'a ' * 900000 %}"
    "{% for i in range(99999) %}{% set x = s|max ~ s|unique|list %}{% endfor %}",
    "characters in batches": "{% set s = 'a ' * 900000 %}"
    "{% for i in range(99999) %}{% set x = s|batch(1000)|list %}{% endfor %}",
    "attribute of many parts": "{{ range(99999)|map('string')|sort(attribute='"
    + "0." * 20_000
    + "0') }}",
}

HUGE = {
    "text times a number": "{{ 'a' * 10**10 }}",
    "doubling by +": grow("{% set n.x = n.x + n.x %}"),
    "doubling by ~": grow("{% set n.x = n.x ~ n.x %}"),
    "doubling by %": grow("{% set n.x = '%s%s' % (n.x, n.x) %}"),
    "doubling by a block": grow("{% set x %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = x %}"),
    "doubling by the filter join": grow("{% set n.x = [n.x, n.x]|join %}"),
    "doubling by the method join": grow("{% set n.x = ''.join([n.x, n.x]) %}"),
    "characters joined by long texts": "{{ ('a' * 3000000)|join('x' * 1000) }}",
    "squaring by the filter replace": grow("{% set n.x = n.x|replace('a', n.x) %}"),
    "squaring by the method replace": grow("{% set n.x = n.x.replace('a', n.x) %}"),
    "indent": "{{ ('a\n' * 100000)|indent(1000) }}",
    "tojson": "{{ range(99999)|list|tojson(indent=1000) }}",
    "tojson by its separators": "{% set s = 'x' * 1000000 %}"
    "{{ range(99999)|list|tojson(separators=(s, ':')) }}",
    "many conversions of some width": "{{ ('%(a)999d' * 400000) % {'a': 1} }}",
    "many conversions of some precision": "{{ ('%(a).999f' * 400000) % {'a': 1} }}",
    "output": "{% for i in range(99999) %}" + "x" * 10_000 + "{% endfor %}",
}

WIDE = {
    "width in a format": ("{{ '%1000000000d' % 1 }}", "width"),
    "width from an argument": ("{{ '%*d' % (10**9, 1) }}", "width"),
    "width after a name": ("{{ '%(a)1000000000d' % {'a': 1} }}", "width"),
    "precision": ("{{ '%.1000000000f' % 1.0 }}", "width"),
    "str.format": ("{{ '{:>1000000000}'.format(1) }}", "str.format"),
    "str.center": ("{{ 'a'.center(10**9) }}", "center"),
    "filter center": ("{{ 'a'|center(10**9) }}", "center"),
    "filter round": ("{{ 1|round(10**9, 'ceil') }}", "round"),
    "filter batch": ("{{ [1]|batch(10**9, 0)|list }}", "batch"),
    "filter slice": ("{{ [1]|slice(10**9)|list }}", "slice"),
    "int.to_bytes": ("{{ (1).to_bytes(10**9, 'big') }}", "to_bytes"),
    "integers squared": (grow("{% set n.x = n.x * n.x %}", "3"), "bits"),
    "integer from hexadecimal": ("{{ ('f' * 2000000)|int(0, 16) // 3 }}", "bits"),
    "format that makes a search quadratic": ("{{ ('%(' * 1000000) % 1 }}", "fails"),
    "powers": ("{{ 10 ** (10 ** 10) }}", "bits"),
    "sum of lists": ("{{ [[1]]|sum(start=[]) }}", "sums"),
    "odd format": ("{{ '%2000000000d' is odd }}", "no number"),
    "even formats": ("{{ ['%2000000000d']|select('even')|list }}", "no number"),
    "format that is divided": ("{{ '%2000000000d' is divisibleby(3) }}", "no number"),
    "format that is divided, by name": ("{{ '%2000000000d' is divisibleby(num=3) }}", "no number"),
    "range.count": ("{{ range(99999).count('a') }}", "count"),
    "lipsum": ("{{ lipsum(10**6) }}", "lipsum"),
    "range": ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
    "date format": ("{{ strftime_now('%999999999d') }}", "date format"),
}

ESCAPES = {
    "class of a text": "{{ ''.__class__.__mro__ }}",
    "class by a filter": "{{ (''|attr('__class__')).__mro__ }}",
    "class by a subscript": "{{ ''['__class__']['__mro__'] }}",
    "globals of a function": "{{ raise_exception.__globals__['x'] }}",
    "constructor": "{{ namespace.__init__.__globals__ }}",
    "class of what a filter gives": "{{ (messages|map('upper')).__class__.__mro__ }}",
    "changing the messages": "{{ messages.append(1) }}",
    "changing a message": "{{ messages[0].update({'role': 'system'}) }}",
    "format of a class": "{{ '{0.__class__}'.format('') }}",
    "namespace in itself": "{% set n = namespace() %}{% set n.n = n %}{{ n }}",
}

DEEP = {
    "macro without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "loop without end": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "block without end": "{% block a %}{{ self.a() }}{% endblock %}",
}

# What each gives may be given to it again.
LAZY = ("batch(1)", "map('list')", "reject('none')", "reverse", "select", "slice(1)", "unique")

TOO_DEEP_TO_READ = {
    "parentheses": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "ifs": "{% if 1 %}" * 500 + "{% endif %}" * 500,
    "branches": "{% if a %}" + "{% elif a %}" * 7000 + "{% endif %}",
    "attributes": "{{ a" + ".b" * 3000 + " }}",
}

BROKEN_NUMBERS = {
    "float that is none": "{{ 1e999 }}",
    "float that is none, negated": "{{ -1e999 if messages else 1 }}",
    "decimal of 5,000 digits": "{{ " + "9" * 5000 + " }}",
    "hexadecimal of 50,000 digits": "{{ 0x" + "f" * 50_000 + " }}",
    "integer of one bit too many": f"{{{{ 0x{1 << 4096:x} }}}}",
}


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
def test_endless_template_is_stopped(source):
    with pytest.raises(InvalidRequest, match=f"more than {MAX_STEPS:,} steps"):
        render(source)


@pytest.mark.parametrize("source", HUGE.values(), ids=HUGE)
def test_huge_text_is_refused_before_it_is_made(source):
    with pytest.raises(InvalidRequest, match=f"the limit is {MAX_TEXT_CHARS:,}"):
        render(source)


@pytest.mark.parametrize(("source", "text"), WIDE.values(), ids=WIDE)
def test_small_call_for_a_large_result_is_refused(source, text):
    with pytest.raises(InvalidRequest, match=text):
        render(source)


@pytest.mark.parametrize("source", ESCAPES.values(), ids=ESCAPES)
def test_way_out_of_the_sandbox_is_closed(source):
    with pytest.raises(InvalidRequest, match="does not allow"):
        render(source)


@pytest.mark.parametrize("source", DEEP.values(), ids=DEEP)
def test_endless_depth_is_refused(source):
    with pytest.raises(InvalidRequest, match="calls itself without a limit"):
        render(source)


@pytest.mark.parametrize("call", LAZY)
def test_filters_in_a_long_row_need_no_stack(call):
    source = (
        "{% set n = namespace(x=['a']) %}"
        f"{{% for i in range(20000) %}}{{% set n.x = n.x|{call} %}}{{% endfor %}}"
        "{{ (n.x|list)|length }}"
    )

    assert render(source) == "1"


def test_no_filter_puts_its_work_off():
    environment = TemplateEnvironment()
    context = environment.from_string("").new_context()
    context.meter = Meter(MAX_STEPS)
    args = {"attr": ["x"], "batch": [1], "groupby": [0], "map": ["upper"], "slice": [1]}
    args |= {"replace": ["a", "b"], "selectattr": ["x"], "rejectattr": ["x"]}
    given = {"items": {1: 2}, "dictsort": {1: 2}, "abs": 1, "round": 1, "sum": [1]}
    results = [
        environment.call_filter(name, given.get(name, "a"), args.get(name), context=context)
        for name in FILTER_COSTS
    ]

    assert not any(map(isgenerator, results))


def test_every_test_of_jinja_is_free_by_its_type_or_paid():
    known = {*TESTS_OF_TYPE, *TESTS_OF_CONTENT}

    assert set(TemplateEnvironment().tests) == known
    assert set(Environment().tests) - known == set()


def test_what_filters_give_is_true_and_read_once_as_it_is_to_jinja():
    source = (
        "{{ 1 if []|select else 0 }}{% set x = [1, 2, 3]|select %}{{ x|first }}{{ x|list }}"
        "{% set y = 'abc'|reverse %}{{ y }}{{ {'a': 1}|items|list }}{{ 4 is divisibleby(num=2) }}"
    )

    assert render(source) == "11[2, 3]cba[('a', 1)]True"
    assert render(source) == Environment().from_string(source).render()


@pytest.mark.parametrize("source", TOO_DEEP_TO_READ.values(), ids=TOO_DEEP_TO_READ)
def test_source_that_is_nested_too_deeply_is_refused(source):
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        render(source)


@pytest.mark.parametrize("source", BROKEN_NUMBERS.values(), ids=BROKEN_NUMBERS)
def test_number_that_python_cannot_write_is_refused(source):
    with pytest.raises(InvalidRequest, match="template is broken"):
        render(source)


def test_longest_integer_is_read():
    assert render(f"{{{{ 0x{(1 << 4096) - 1:x} % 7 }}}}") == str(((1 << 4096) - 1) % 7)


def test_variable_that_a_branch_did_not_set_is_the_template_s_mistake():
    source = "{% if 0 %}{% set f = namespace() %}{% endif %}{% set f.x = 1 %}"

    with pytest.raises(InvalidRequest, match="chat template"):
        render(source)


def test_broken_source_is_compiled_once(monkeypatch):
    num_compiled = []
    template = ChatTemplate("{% if %}")
    monkeypatch.setattr(
        chat_template, "TemplateEnvironment", lambda: num_compiled.append(1) or Environment()
    )

    for _ in range(3):
        with pytest.raises(InvalidRequest, match="template is broken: line 1"):
            template.render([{"role": "user", "content": "hi"}], now=datetime(2025, 1, 1))

    assert num_compiled == [1]


@pytest.mark.parametrize(
    "source",
    ["{{ range(99999)|list|tojson(separators=('x' * 1000000, ':')) }}",
     "{{ ('😀' ~ '%(a)999d' * 400000) % {'a': 1} }}"],
)  # fmt: skip
def test_refused_text_takes_no_memory(source):
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="the limit is"):
            render(source)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < 64 << 20


def test_text_at_the_limit_is_rendered_and_one_more_refused():
    source = "{{ messages[0].content }}"

    assert len(render(source, "x" * MAX_TEXT_CHARS)) == MAX_TEXT_CHARS
    with pytest.raises(InvalidRequest, match="4,000,001 characters"):
        render(source, "x" * (MAX_TEXT_CHARS + 1))


def test_long_conversation_is_within_the_steps():
    source = (
        "{% for m in messages %}{% if m.role == 'user' and loop.index0 % 2 == 0 %}"
        "{{ '<|user|>' + m.content | trim + '\n' }}{% elif m['role'] in ['assistant'] %}"
        "{{ '<|assistant|>' ~ m.content.split('</think>')[-1].strip() ~ '\n' }}{% endif %}"
        "{% if messages|length > 1 and not loop.last %}{{ '' }}{% endif %}{% endfor %}"
    )
    messages = [
        {"role": ("user", "assistant")[i % 2], "content": f" text {i} " * 20} for i in range(5000)
    ]

    text = ChatTemplate(source).render(messages, now=datetime(2025, 1, 1))

    assert text.count("\n") == 5000
