"""Every function of the extension, handed anything at random: refused, or something is done. A
crash ends the process, and with it the tests."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.kernels.test_native_binding_fuzz import CALLS, REFUSALS, Arguments

NUMBERS = st.sampled_from([0, 1, 2, 3, 19, 20, -1, 2**31 - 1, -(2**31), 2**63 - 1, 2**64 - 1])
FLOATS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-5, 3e38, np.inf, -np.inf, np.nan])


@st.composite
def changed(draw: st.DrawFn, value: Any, given_: Arguments) -> Any:
    """Something in place of a value: of its kind, most of the time."""
    if isinstance(value, bool | str) or value is None:
        return draw(st.sampled_from([True, False, None, "portable", "x", 7]))
    if isinstance(value, int):
        # Neither a thousand threads nor a machine's memory.
        return draw(NUMBERS | st.integers(0, 8))
    if isinstance(value, float):
        return draw(FLOATS)
    if isinstance(value, list):
        return draw(st.sampled_from([[], value * 2, value[:1], tuple(value), [None], 5]))
    if not isinstance(value, np.ndarray):
        return draw(st.sampled_from([value, None, *given_.values()]))
    return draw(changed_array(value, given_))


@st.composite
def changed_array(draw: st.DrawFn, value: np.ndarray, given_: Arguments) -> Any:
    """Other contents or shapes, or memory of another argument."""
    kind = draw(st.sampled_from(["content", "content", "shape", "other", "alias"]))
    if kind == "alias":
        arrays = [other for other in given_.values() if isinstance(other, np.ndarray)]
        other = draw(st.sampled_from(arrays)).reshape(-1).view(np.uint8)
        count = min(value.size, other.nbytes // value.itemsize)
        return other[: count * value.itemsize].view(value.dtype)
    if kind == "other":
        return draw(
            st.sampled_from([value.T, value[:0], value.tolist(), value.astype(np.complex128)])
        )
    if kind == "shape":
        shape = draw(st.lists(st.integers(0, 5), min_size=value.ndim, max_size=value.ndim))
        return np.resize(value, shape)
    result = value.copy()
    is_float = result.dtype.kind == "f"
    for place in draw(st.lists(st.integers(0, max(result.size - 1, 0)), min_size=1, max_size=3)):
        if result.size:
            number = draw(FLOATS if is_float else NUMBERS)
            result.reshape(-1)[place] = (
                number if is_float else np.int64(number % 2**63).astype(result.dtype)
            )
    return result


@settings(max_examples=600, deadline=None, derandomize=True)
@given(st.data())
def test_anything_is_refused_or_does_something(data: st.DataObject) -> None:
    call = data.draw(st.sampled_from(sorted(CALLS)))
    function, make = CALLS[call]
    given_ = make()
    names = data.draw(st.lists(st.sampled_from(sorted(given_)), min_size=1, max_size=3))
    for name in names:
        given_[name] = data.draw(changed(given_[name], given_))
    try:
        function(**given_)
    except REFUSALS:
        return
