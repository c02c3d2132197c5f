"""How deep JSON may be nested: a number, wherever it is read, and not what the stack just holds."""

import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from everbatch.server.errors import ApiError
from everbatch.server.fields import (
    MAX_DEPTH,
    Fields,
    NestedTooDeeply,
    decode_json,
    decode_object,
)
from everbatch.server.tool_fields import take_arguments

WORDS = "nested too deeply: at most 128 arrays and objects may stand in each other"


def arrays(depth: int) -> str:
    return "[" * depth + "]" * depth


def objects(depth: int) -> str:
    return '{"a":' * (depth - 1) + "{}" + "}" * (depth - 1)


def far_down(call: Callable[[], Any], num_calls: int) -> Any:
    """Call from so many calls further down."""
    return call() if num_calls == 0 else far_down(call, num_calls - 1)


@pytest.mark.parametrize("nested", [arrays, objects])
def test_json_is_read_up_to_a_depth_and_no_deeper(nested: Callable[[int], str]) -> None:
    for written in (nested(MAX_DEPTH), nested(MAX_DEPTH).encode()):
        assert decode_json(written) == msgspec.json.decode(written)
    for depth in (MAX_DEPTH + 1, 100_000):
        for written in (nested(depth), nested(depth).encode()):
            with pytest.raises(NestedTooDeeply, match=WORDS):
                decode_json(written)


def test_depth_does_not_depend_on_the_stack() -> None:
    def is_read(depth: int) -> bool:
        try:
            return decode_json(arrays(depth)) is not None
        except NestedTooDeeply:
            return False

    num_calls = sys.getrecursionlimit() // 2
    for depth in (1, MAX_DEPTH, MAX_DEPTH + 1, 400, 700, 2_000):
        assert is_read(depth) is (depth <= MAX_DEPTH)
        assert far_down(lambda depth=depth: is_read(depth), num_calls) is (depth <= MAX_DEPTH)


def test_many_side_by_side_are_not_deep() -> None:
    assert len(decode_json("[" + "[1]," * 5_000 + "{}]")) == 5_001
    assert decode_json('{"a": "' + "[" * 5_000 + '"}') == {"a": "[" * 5_000}


def test_a_body_and_the_arguments_of_a_call_are_refused_by_name() -> None:
    deep = f'{{"a": {arrays(MAX_DEPTH)}}}'
    with pytest.raises(ApiError, match=f"the body is {WORDS}"):
        decode_object(deep.encode())
    with pytest.raises(ApiError, match=f"arguments is {WORDS}"):
        take_arguments(Fields({"arguments": deep}))
    fits = f'{{"a": {arrays(MAX_DEPTH - 1)}}}'

    assert decode_object(fits.encode()) == take_arguments(Fields({"arguments": fits}))
