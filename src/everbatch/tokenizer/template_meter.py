"""What a chat template's work costs.

Belongs here: the limits, the `Meter` of one render, and the prices of filters, methods and
operators, each paid before the work is done where the result may be larger than the operands. Not
here: where in a template the payments stand (template_syntax.py). Used by template_sandbox.py.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

from everbatch.tokenizer.template_filters import Cost

MAX_STEPS = 1_000_000
MAX_TEXT_CHARS = 4_000_000
MAX_DEPTH = 64
MAX_INTEGER_BITS = 4_096
MAX_WIDTH = 1_000
CHARS_PER_STEP = 64
ITEMS_PER_STEP = 8
STEPS_PER_CALL = 4
STRIPPED_PER_STEP = 1_024
TITLE_CHARS_PER_STEP = 16
"""It is the slowest filter, some 200 ns a character: each word is a match of its own."""
ARGUMENT_CHARS_PER_STEP = 32
"""Of what a filter looks up again for each item: "0.0.0" are three subscripts of 0.3 us."""

_FILTERS_OF_ITEMS = ("groupby", "max", "min", "sort", "sum", "unique")
_FILTERS_WITH_WIDTH = ("batch", "indent", "round", "slice", "tojson", "truncate")
MAX_FORMAT_CHARS = 1_000
"""What one conversion of a format may make beyond its value: its width or its precision."""
# A width or a precision of 1,000 or more, or one that an argument gives. It also takes a number
# after a space for one: exact rules need backtracking, which a hostile format makes quadratic.
_WIDE_FORMAT = re.compile(r"[%)#\- +.](\d{4}|\*)")
_WIDTH = re.compile(r"[%)#\- +.]\d")
# The views by their own types: an abstract class costs ten times as much to ask.
_VIEWS: tuple[type[Collection[Any]], ...] = (type({}.keys()), type({}.values()), type({}.items()))
_CONTAINERS: tuple[type[Collection[Any]], ...] = (dict, list, tuple, set, frozenset, *_VIEWS)
_SIZED: tuple[type[Collection[Any]], ...] = (*_CONTAINERS, range)
_OF_ITEMS: tuple[type[Collection[Any]], ...] = (*_SIZED, str)


@dataclass(slots=True)
class Size:
    """How large a value is to whoever walks through it. chars: of all texts, one for a leaf that is
    none; items: leaves and containers."""

    chars: int = 0
    items: int = 0


class OutOfSteps(SecurityError):
    """A render took more steps than it was given."""


class Meter:
    """What one render may still spend."""

    __slots__ = ("_left",)

    def __init__(self, steps: int) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Take `steps`; OutOfSteps when they are used up."""
        self._left -= steps
        if self._left < 0:
            raise OutOfSteps(f"it takes more than {MAX_STEPS:,} steps; does it loop forever?")

    def spend_text(self, num_chars: int) -> None:
        """Pay for a text, before or after it is made."""
        self.check_text(num_chars)
        self.spend(1 + num_chars // CHARS_PER_STEP)

    def check_text(self, num_chars: int) -> None:
        """Refuse a text that is too long."""
        if num_chars > MAX_TEXT_CHARS:
            raise SecurityError(
                f"it makes a text of {num_chars:,} characters, the limit is {MAX_TEXT_CHARS:,}"
            )

    def spend_shallow(self, value: Any) -> None:
        """Pay for one pass over a value that does not look into its items."""
        if isinstance(value, str | bytes):
            self.spend_text(len(value))
        elif isinstance(value, _SIZED):
            self.spend(1 + len(value) // ITEMS_PER_STEP)
        else:
            if isinstance(value, int):
                check_integer(value.bit_length())
            self.spend(1)

    def spend_deep(self, value: Any) -> "Size":
        """Pay for a value down to its leaves, and measure it. The same list held twice is paid
        twice, as whoever prints or compares it also sees it twice."""
        size = Size()
        pending = [(value, 0)]
        while pending:
            item, depth = pending.pop()
            length = 1
            if isinstance(item, str | bytes):
                length = len(item)
                self.check_text(length)
            elif isinstance(item, range):
                length = len(item)
                self.spend(length)
            elif isinstance(item, _CONTAINERS):
                if depth == MAX_DEPTH:
                    raise SecurityError(f"it nests values more than {MAX_DEPTH} deep")
                pending += [(inner, depth + 1) for inner in item]
                if isinstance(item, dict):
                    pending += [(inner, depth + 1) for inner in item.values()]
            elif isinstance(item, Namespace):
                # Its text shows its attributes, of which the meter knows nothing.
                raise SecurityError("it uses a namespace as a value")
            size.chars += length
            size.items += 1
            self.spend(1 + length // CHARS_PER_STEP)
        return size


def pay_filter(meter: Meter, name: str, cost: Cost, value: Any, args: tuple[Any, ...]) -> None:
    """Pay for a filter before it runs; `args` without `value`, keywords' values included."""
    meter.spend(STEPS_PER_CALL)
    extra = sum(meter.spend_deep(arg).chars for arg in args)
    if cost is Cost.DEEP:
        _pay_deep_filter(meter, name, value, args, extra)
    elif cost is Cost.SHALLOW:
        meter.spend_shallow(value)
        if isinstance(value, str):
            # Its characters are taken one by one.
            meter.spend(len(value) // ITEMS_PER_STEP)
    elif cost is Cost.PER_ITEM:
        count = len(value) if isinstance(value, _OF_ITEMS) else 1
        meter.spend(count * (1 + extra // ARGUMENT_CHARS_PER_STEP))
    if name in _FILTERS_WITH_WIDTH:
        _widest(name, args)


def _pay_deep_filter(
    meter: Meter, name: str, value: Any, args: tuple[Any, ...], extra: int
) -> None:
    size = meter.spend_deep(value)
    # A text is its characters to these filters.
    num_items = len(value) if isinstance(value, str) else size.items
    if name == "join":
        meter.spend_text(size.chars + (num_items + 1) * extra)
    elif name in _FILTERS_OF_ITEMS:
        meter.spend(num_items * (1 + extra // ARGUMENT_CHARS_PER_STEP))
    elif name == "replace":
        meter.spend_text(_replaced(str(value), args))
    elif name == "trim":
        _pay_strip(meter, str(value), args)
    elif name == "title":
        meter.spend(size.chars // TITLE_CHARS_PER_STEP)
    elif name == "indent":
        lines = 1 + str(value).count("\n")
        meter.spend_text(size.chars + lines * max(4, _widest(name, args)))
    elif name == "tojson":
        # Separators stand between items once, an indent once for each level.
        meter.spend_text(size.chars + size.items * (extra + _widest(name, args) * MAX_DEPTH))
    if name == "sum" and any(not isinstance(arg, int | float | str) for arg in args):
        # Lists would be copied once an item.
        raise SecurityError("it sums what is not a number")


def pay_test(meter: Meter, operands: tuple[Any, ...], *, of_numbers: bool) -> None:
    """Pay for a test that looks into what it is given."""
    if of_numbers and any(not isinstance(one, int | float) for one in operands):
        # A text would be taken for a format, and those have widths.
        raise SecurityError("it asks of a value that is no number what is asked of numbers")
    for one in operands:
        meter.spend_deep(one)


def _widest(name: str, args: tuple[Any, ...]) -> int:
    """The largest width among the arguments of a filter, given as a number or as a text."""
    width = max(
        [
            len(arg) if isinstance(arg, str) else abs(arg)
            for arg in args
            if isinstance(arg, int | str)
        ],
        default=0,
    )
    if width > MAX_WIDTH:
        raise SecurityError(f"it calls {name} with {width:,}, the limit is {MAX_WIDTH:,}")
    return width


def _replaced(text: str, args: tuple[Any, ...]) -> int:
    """The length of `text` after replace(old, new), or more where a count limits it."""
    if len(args) < 2:
        return len(text)
    old, new = str(args[0]), str(args[1])
    return len(text) + text.count(old) * len(new)


def _pay_strip(meter: Meter, text: str, args: tuple[Any, ...]) -> None:
    """Each character at the ends is looked up in the set of those to strip, one by one."""
    strips = sum(len(arg) for arg in args if isinstance(arg, str))
    meter.spend(len(text) * strips // STRIPPED_PER_STEP)


def pay_text_method(meter: Meter, text: str, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Pay for a method of a string; its arguments, as a list where they could be used up."""
    meter.spend_text(len(text))
    if name == "replace":
        meter.spend_text(_replaced(text, args))
    elif name == "join" and args:
        items = list(args[0])
        meter.spend_text(meter.spend_deep(items).chars + len(items) * len(text))
        return (items, *args[1:])
    elif name in ("strip", "lstrip", "rstrip"):
        _pay_strip(meter, text, args)
    elif name in ("split", "rsplit", "splitlines"):
        meter.spend(len(text) // ITEMS_PER_STEP)
    return args


def pay_binop(meter: Meter, operator: str, left: Any, right: Any) -> None:
    """Pay for an operation by the size of what it will give, before it is computed."""
    if operator == "%" and isinstance(left, str):
        if _WIDE_FORMAT.search(left):
            raise SecurityError("it formats with a width of 1,000 or more, or a variable one")
        num_values = left.count("%")
        each = meter.spend_deep(right).chars + (MAX_FORMAT_CHARS if _WIDTH.search(left) else 0)
        meter.spend_text(len(left) + num_values * each)
    elif isinstance(left, int) and isinstance(right, int):
        _check_integers(operator, left, right)
    elif operator == "*":
        sequence, times = (right, left) if isinstance(left, int) else (left, right)
        if isinstance(times, int) and isinstance(sequence, str | bytes):
            meter.spend_text(len(sequence) * max(times, 0))
        elif isinstance(times, int) and isinstance(sequence, list | tuple):
            meter.spend(len(sequence) * max(times, 0))
    elif operator == "+" and isinstance(left, str) and isinstance(right, str):
        meter.spend_text(len(left) + len(right))
    elif operator == "+" and isinstance(left, list | tuple) and isinstance(right, list | tuple):
        meter.spend((len(left) + len(right)) // ITEMS_PER_STEP)


def _check_integers(operator: str, left: int, right: int) -> None:
    bits = max(left.bit_length(), right.bit_length())
    if operator == "*":
        bits = left.bit_length() + right.bit_length()
    elif operator == "**":
        bits = left.bit_length() * max(right, 1)
    check_integer(bits)


def check_integer(num_bits: int) -> None:
    """Refuse an integer that is too long: arithmetic takes time by its length and more."""
    if num_bits > MAX_INTEGER_BITS:
        raise SecurityError(f"it computes an integer of more than {MAX_INTEGER_BITS:,} bits")
