"""Sampling options: what may be given, how it is kept, and what is refused by name."""

from dataclasses import replace
from typing import Any

import pytest

from everbatch.base.errors import InvalidRequest
from everbatch.engine.sampling_params import (
    MAX_LOGIT_BIAS,
    MAX_STOP_STRING_LENGTH,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    SamplingParams,
)


def make(**given: Any) -> SamplingParams:
    return SamplingParams(**given)


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("stop", "x", ("x",)),
        ("stop", ["a", "b"], ("a", "b")),
        ("stop", None, ()),
        ("stop_token_ids", [1, 2], (1, 2)),
        ("stop_token_ids", None, ()),
        ("logit_bias", {1: 2.0, 7: -3}, ((1, 2.0), (7, -3))),
        ("logit_bias", {"1": 2.0}, ((1, 2.0),)),
        ("logit_bias", [[1, 2.0]], ((1, 2.0),)),
        ("logit_bias", None, ()),
        ("top_k", -1, 0),
        ("temperature", 1, 1),
    ],
)
def test_ways_to_give_an_option_are_kept_in_one(name: str, given: object, kept: object) -> None:
    assert getattr(make(**{name: given}), name) == kept


def test_list_changed_afterwards_changes_nothing() -> None:
    stops = ["a"]
    params = make(stop=stops)

    stops.append("b")

    assert params.stop == ("a",)


def test_replacing_one_option_keeps_and_checks_the_others() -> None:
    params = make(logit_bias={1: 2.0}, stop="x")

    assert replace(params, seed=1) == make(logit_bias={1: 2.0}, stop="x", seed=1)
    params.top_p = 7.0
    with pytest.raises(InvalidRequest, match="top_p"):
        replace(params, seed=1)


LIMITS = [
    ("temperature", 0, 2),
    ("min_p", 0, 1),
    ("top_k", 0, 2**31 - 1),
    ("presence_penalty", -2, 2),
    ("frequency_penalty", -2, 2),
    ("seed", -(2**63), 2**64 - 1),
    ("max_tokens", 1, 2**31 - 1),
    ("min_tokens", 0, 2**31 - 1),
    ("logprobs", 0, 20),
]


@pytest.mark.parametrize(("name", "low", "high"), LIMITS)
def test_limits_are_allowed_and_one_step_beyond_is_not(name: str, low: int, high: int) -> None:
    # No max_tokens is below any min_tokens.
    others = {"max_tokens": None} | {name: low}
    for value in (low, high):
        assert getattr(make(**others | {name: value}), name) == value
    # One below top_k's least is another spelling of off.
    for value in (low - 2, high + 1):
        with pytest.raises(InvalidRequest, match=name) as caught:
            make(**{name: value})
        assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "range_"), [("top_p", r"\(0, 1\]"), ("repetition_penalty", r"\[0\.01, 2\]")]
)
def test_zero_is_outside_where_it_would_mean_nothing(name: str, range_: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"{name} must lie in {range_}"):
        make(**{name: 0})


NUMBERS = [name for name, _, _ in LIMITS] + ["top_p", "repetition_penalty"]
NO_NUMBERS = ["1", [1], {}, True, float("nan"), float("inf"), float("-inf"), 10**400, -(10**5000)]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: type(value).__name__)
def test_number_that_is_none_or_has_no_end_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=name) as caught:
        make(**{name: value})

    assert caught.value.param == name
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", 5),
        ("stop", ""),
        ("stop", [""]),
        ("stop", ["a", None]),
        ("stop", {"a": 1}),
        ("stop", ["a"] * (MAX_STOP_STRINGS + 1)),
        ("stop", "a" * (MAX_STOP_STRING_LENGTH + 1)),
        ("stop_token_ids", 5),
        ("stop_token_ids", "5"),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", [1.0]),
        ("stop_token_ids", [2**31]),
        ("stop_token_ids", [10**5000]),
        ("stop_token_ids", [1] * (MAX_STOP_TOKEN_IDS + 1)),
        ("logit_bias", 5),
        ("logit_bias", [5]),
        ("logit_bias", [(1, 2.0, 3)]),
        ("logit_bias", {"a": 1.0}),
        ("logit_bias", {"-1": 1.0}),
        ("logit_bias", {"9" * 5000: 1.0}),
        ("logit_bias", {True: 1.0}),
        ("logit_bias", {1: "2"}),
        ("logit_bias", {1: float("nan")}),
        ("logit_bias", {1: 100.5}),
        ("logit_bias", {1: 10**400}),
        ("logit_bias", {1: 1.0, "1": 2.0}),
        ("logit_bias", dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 1.0)),
        ("ignore_eos", "yes"),
        ("ignore_eos", 1),
        ("include_stop_str_in_output", None),
        ("skip_special_tokens", 0),
    ],
)
def test_list_or_flag_that_is_none_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make(**{name: value})

    assert caught.value.param == name
    assert len(str(caught.value)) < 200


def test_more_tokens_asked_for_than_allowed_is_refused() -> None:
    assert make(min_tokens=3, max_tokens=3).min_tokens == 3
    with pytest.raises(InvalidRequest, match="min_tokens 4 is above max_tokens 3"):
        make(min_tokens=4, max_tokens=3)
