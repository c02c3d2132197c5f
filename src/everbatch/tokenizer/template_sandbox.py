"""A jinja2 sandbox in which no template runs forever or fills the memory.

Belongs here: what a template may do and how much of it. Not here: chat messages (chat_template.py).
Used by chat_template.py.

Templates come with models, so they are foreign programs. jinja2's sandbox keeps them from Python's
internals, but `for` in `for` over range(100000), a macro that calls itself twice, `'a' * 10**10` or
`x ~ x` in a loop would still stop the server. So every render has a `Meter`. Work is paid for where
it is done:

    loop rounds, calls, macros       instrumented in the syntax tree, so recursion pays too
    literals, comparisons, ~, slices by the size of the operands, walked to the leaves
    subscripts                       by what stands in them, unless it is a constant
    + - * ** // %                    sizes are checked before the operation
    filters                          allow-list; by size of the value, results again by theirs
    tests                            by size of the operands, if they look at more than the type
    output                           every piece, so {% set %} blocks pay as well

Covered: time (MAX_STEPS, 1 to 5 s at worst), size of any text (MAX_TEXT_CHARS), depth of nesting.
Not covered: a template in a language feature that jinja2 adds later; so filters and tests that are
not listed, include and import do not exist here.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jinja2 import Undefined, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from everbatch.tokenizer.template_filters import (
    FILTER_COSTS,
    LAZY_FILTERS,
    TESTS_OF_CONTENT,
    TESTS_OF_NUMBERS,
    TESTS_OF_TYPE,
    Cost,
    hf_tojson,
)
from everbatch.tokenizer.template_meter import (
    STEPS_PER_CALL,
    Meter,
    pay_binop,
    pay_filter,
    pay_test,
    pay_text_method,
)
from everbatch.tokenizer.template_syntax import GenerationBlocks, MeteredCodeGenerator

# Methods whose result grows with a number or a template of its own; and encode, which leaves str.
_REFUSED_TEXT_METHODS = frozenset(
    (
        *("center", "ljust", "rjust", "zfill", "expandtabs", "translate", "maketrans"),
        *("format", "format_map", "encode", "striptags", "unescape"),
    )
)
# Methods that compare with every item, down to the leaves.
_REFUSED_LIST_METHODS = frozenset(("count", "index"))


class MeteredContext(Context):
    """A template's variables, and the meter of this render."""

    meter: Meter

    def derived(self, locals: dict[str, Any] | None = None) -> "MeteredContext":
        context = super().derived(locals)
        assert isinstance(context, MeteredContext)
        context.meter = self.meter
        return context


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox with a meter, and the filters that chat templates expect."""

    code_generator_class = MeteredCodeGenerator
    context_class = MeteredContext
    intercepted_binops = frozenset(("+", "-", "*", "**", "%", "//"))

    def __init__(self) -> None:
        # Constants are not folded, for that runs filters before there is a meter.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[GenerationBlocks, loopcontrols],
            finalize=_pay_output,
        )
        library = {**self.filters, "tojson": hf_tojson}
        self.filters = {
            name: _metered(name, library[name], cost) for name, cost in FILTER_COSTS.items()
        }
        self.filters["meter_tick"] = _meter_tick
        self.filters["meter_deep"] = _meter_deep
        self.filters["meter_shallow"] = _meter_shallow
        tests: dict[str, Any] = dict(self.tests)
        self.tests = {name: tests[name] for name in TESTS_OF_TYPE}
        self.tests |= {name: _metered_test(name, tests[name]) for name in TESTS_OF_CONTENT}
        for name in ("lipsum", "cycler", "joiner"):
            del self.globals[name]

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            safe = attr not in _REFUSED_TEXT_METHODS
        elif isinstance(obj, list | tuple | range):
            safe = attr not in _REFUSED_LIST_METHODS
        else:
            safe = not isinstance(obj, int | float | complex | bytes)
        return safe and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Refuse str.format, for which jinja2's sandbox makes an exception: it has widths."""
        if super().wrap_str_format(value) is not None:
            raise SecurityError("it calls str.format; write % or ~ instead")
        return None

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        meter = _meter_of(__context)
        meter.spend(STEPS_PER_CALL)
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str):
            args = pay_text_method(meter, owner, name, args)
        # Arguments become a new container (varargs, dict), which could share one value many times.
        for value in (*args, *kwargs.values()):
            if not isinstance(value, Namespace):
                meter.spend_deep(value)
        result = super().call(__context, __obj, *args, **kwargs)
        meter.spend_shallow(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        pay_binop(_meter_of(context), operator, left, right)
        result = super().call_binop(context, operator, left, right)
        _meter_of(context).spend_shallow(result)
        return result


def _meter_of(context: Context) -> Meter:
    assert isinstance(context, MeteredContext)
    return context.meter


@pass_context
def _pay_output(context: Context, value: object) -> object:
    _meter_of(context).spend_deep(value)
    return value


@pass_context
def _meter_tick(context: Context, num_chars: int) -> str:
    # A template may name this filter, too, but not with less than nothing, which would be a gift.
    _meter_of(context).spend_text(max(0, num_chars))
    return ""


@pass_context
def _meter_deep(context: Context, value: object) -> object:
    _meter_of(context).spend_deep(value)
    return value


@pass_context
def _meter_shallow(context: Context, value: object) -> object:
    _meter_of(context).spend_shallow(value)
    return value


def _metered(name: str, function: Callable[..., Any], cost: Cost) -> Callable[..., Any]:
    """The filter `function` that pays before it runs and for what it gives."""
    wants = getattr(getattr(function, "jinja_pass_arg", None), "name", None)

    @pass_context
    def metered(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        meter = _meter_of(context)
        is_of_items = name == "join" and not isinstance(value, str | Undefined)
        if is_of_items or (cost is not Cost.CONSTANT and isinstance(value, _LAZY)):
            value = list(value)
        pay_filter(meter, name, cost, value, (*args, *kwargs.values()))
        passed = {
            "context": (context,),
            "eval_context": (context.eval_ctx,),
            "environment": (context.environment,),
        }.get(wants or "", ())
        result = function(*passed, value, *args, **kwargs)
        if name in LAZY_FILTERS and not isinstance(result, str):
            return _made_now(meter, result)
        meter.spend_shallow(result)
        return result

    return metered


_LAZY: type[Iterator[Any]] = type(iter([]))


def _made_now(meter: Meter, items: Iterable[Any]) -> Iterator[Any]:
    """Give the same items, all computed and paid. What waits to be computed could be stacked until
    Python has no stack left to compute it on, and would end the process."""
    made = []
    for item in items:
        meter.spend(1)
        made.append(item)
    # Still to be read once, and true even if empty: as templates know it.
    return iter(made)


def _metered_test(name: str, function: Callable[..., bool]) -> Callable[..., bool]:
    """The test `function`, one of content, that pays before it runs."""
    wants_environment = name in ("filter", "test")

    @pass_context
    def metered(context: Context, value: Any, *args: Any, **kwargs: Any) -> bool:
        operands = (value, *args, *kwargs.values())
        pay_test(_meter_of(context), operands, of_numbers=name in TESTS_OF_NUMBERS)
        passed = (context.environment,) if wants_environment else ()
        return function(*passed, value, *args, **kwargs)

    return metered
