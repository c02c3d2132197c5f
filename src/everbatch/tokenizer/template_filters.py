"""The filters of chat templates, what they cost, and the tests that cost something.

Belongs here: the allow-list that template_sandbox.py builds its environment from, and the filters
that Hugging Face templates expect to differ from jinja2's. A filter is here if published chat
templates use it; the others would only widen what a hostile template can do.
"""

import json
from enum import Enum
from typing import Any


class Cost(Enum):
    """What a filter looks at. CONSTANT: not its items. SHALLOW: each item once, not into it. DEEP:
    everything down to the leaves. PER_ITEM: its arguments again for each item."""

    CONSTANT = "constant"
    SHALLOW = "shallow"
    DEEP = "deep"
    PER_ITEM = "per item"


_CONSTANT = (
    "abs",
    "attr",
    "count",
    "d",
    "default",
    "first",
    "last",
    "length",
    "round",
)
_SHALLOW = ("batch", "float", "int", "items", "list", "reverse", "slice")
_PER_ITEM = ("map", "reject", "rejectattr", "select", "selectattr")
_DEEP = (
    *(
        "capitalize",
        "lower",
        "title",
        "trim",
        "truncate",
        "upper",
        "replace",
        "indent",
        "wordcount",
    ),
    *("dictsort", "groupby", "join", "max", "min", "sort", "sum", "unique"),
    *("e", "escape", "safe", "string", "tojson"),
)

FILTER_COSTS: dict[str, Cost] = {
    **dict.fromkeys(_CONSTANT, Cost.CONSTANT),
    **dict.fromkeys(_SHALLOW, Cost.SHALLOW),
    **dict.fromkeys(_PER_ITEM, Cost.PER_ITEM),
    **dict.fromkeys(_DEEP, Cost.DEEP),
}

LAZY_FILTERS = frozenset(
    (
        *("batch", "items", "map", "reject", "rejectattr", "reverse", "select", "selectattr"),
        *("slice", "unique"),
    )
)
"""Those that give what is computed later, one item after another."""

# Of a value's type, or whether it is there.
TESTS_OF_TYPE = (
    *("boolean", "callable", "defined", "escaped", "false", "float", "integer", "iterable"),
    *("mapping", "none", "number", "sameas", "sequence", "string", "true", "undefined"),
)
TESTS_OF_NUMBERS = frozenset(("divisibleby", "even", "odd"))
TESTS_OF_CONTENT = TESTS_OF_NUMBERS | frozenset(
    (
        *("in", "eq", "equalto", "==", "ne", "!=", "lower", "upper", "filter", "test"),
        *("lt", "lessthan", "<", "le", "<=", "gt", "greaterthan", ">", "ge", ">="),
    )
)


def hf_tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without jinja2's HTML escapes. Source: transformers, chat_template_utils.py."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
