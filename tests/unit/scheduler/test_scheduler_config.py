"""Options: impossible values are named."""

import pytest
from builders import make_config

from everbatch.base.errors import ConfigError


@pytest.mark.parametrize(
    ("option", "low", "high"),
    [
        ("max_num_seqs", 1, 65_536),
        ("max_num_batched_tokens", 1, 1 << 30),
        ("num_blocks", 1, 1 << 26),
        ("block_size", 1, 4096),
        ("max_model_len", 0, 1 << 30),
        ("long_prefill_token_threshold", 0, 1 << 30),
    ],
)
def test_each_number_has_a_range(option, low, high):
    for value in (low, high):
        assert getattr(make_config(**{option: value}), option) == value
    for value in (low - 1, high + 1):
        with pytest.raises(ConfigError, match=rf"{option} must lie in \[{low}, {high}\], got"):
            make_config(**{option: value})


@pytest.mark.parametrize("value", [True, 2.0, "4", None])
def test_numbers_must_be_integers(value):
    with pytest.raises(ConfigError, match="max_num_seqs must be an integer, not"):
        make_config(max_num_seqs=value)


def test_the_watermark_is_a_share_below_one():
    assert make_config(watermark=0.0).watermark_blocks == 0
    assert make_config(watermark=0.999, num_blocks=10).watermark_blocks == 9
    for value in (-0.1, 1.0, float("nan")):
        with pytest.raises(ConfigError, match=r"watermark must lie in \[0, 1\), got"):
            make_config(watermark=value)


@pytest.mark.parametrize("value", ["0.5", None, True])
def test_the_watermark_must_be_a_number(value):
    with pytest.raises(ConfigError, match="watermark must be a number, not"):
        make_config(watermark=value)


@pytest.mark.parametrize("option", ["enable_chunked_prefill", "enable_prefix_caching"])
def test_switches_are_true_or_false(option):
    assert getattr(make_config(**{option: True}), option) is True
    for value in (1, "no", None):
        with pytest.raises(ConfigError, match=f"{option} must be true or false, not"):
            make_config(**{option: value})


@pytest.mark.parametrize("option", ["admission", "preemption_trigger"])
def test_choices_are_named(option):
    with pytest.raises(ConfigError, match=f"{option} must be one of .*, got 'sometimes'"):
        make_config(**{option: "sometimes"})


def test_the_context_limit_is_the_pool_s_when_none_is_given():
    assert make_config(num_blocks=4, max_model_len=9).context_limit == 9
    # The last output needs no place.
    assert make_config(num_blocks=4, max_model_len=0).context_limit == 17
