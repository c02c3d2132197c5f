"""Flags of other engines: told with what takes their place."""

import re

import click
import pytest
from command_line import everbatch

from everbatch.cli import bench, generate, serve
from everbatch.cli.foreign_flags import BENCH_HINTS, COMMANDS, HINTS, SERVING_HINTS, SHORT_HINT

HINTS_OF = {"serve": HINTS | SERVING_HINTS, "generate": HINTS}


@pytest.mark.parametrize(
    ("command", "flag"),
    [(command, flag) for command, hints in HINTS_OF.items() for flag in sorted(hints)],
)
def test_a_flag_of_another_engine_is_told_with_what_to_do(command, flag):
    answer = everbatch(command, flag, "x")

    assert (answer.status, answer.out) == (2, "")
    told = HINTS_OF[command][flag].format(command=command)
    assert answer.err.startswith(f"everbatch: No such option: {flag}: {told}")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("command", [serve.command, generate.command])
def test_none_of_them_is_a_flag_of_ours_and_what_takes_their_place_is(command: click.Command):
    hints = HINTS_OF[command.name]
    ours = {flag for option in command.params for flag in option.opts}
    named = {word for told in hints.values() for word in re.findall(r"--[a-z-]+", told)}

    assert tuple(HINTS_OF) == COMMANDS
    assert "--threads" in named
    assert sorted(ours & set(hints)) == []
    assert sorted(named - ours) == []


@pytest.mark.parametrize("flags", [("-ngl", "99"), ("-c", "4096"), ("-np", "4")])
def test_short_flags_are_told_where_the_long_ones_are(flags):
    answer = everbatch("serve", *flags)

    assert answer.status == 2
    assert answer.err.startswith(f"everbatch: No such option: {flags[0][:2]}: {SHORT_HINT}")


def test_what_is_of_serving_alone_is_unknown_elsewhere():
    assert "--served-model-name" in everbatch("serve", "--alias", "x").err
    assert "--served-model-name" not in everbatch("generate", "--alias", "x").err


@pytest.mark.parametrize("flag", sorted(BENCH_HINTS))
def test_a_flag_of_another_benchmark_is_told_with_what_to_do(flag):
    answer = everbatch("bench", "serve", flag, "x")

    assert answer.status == 2
    assert answer.err.startswith(f"everbatch: No such option: {flag}: {BENCH_HINTS[flag]}")


def test_what_takes_the_place_of_a_benchmark_s_flag_is_a_flag_of_ours():
    ours = {flag for option in bench.serve.params for flag in option.opts}
    named = {word for told in BENCH_HINTS.values() for word in re.findall(r"--[a-z-]+", told)}

    assert sorted(ours & set(BENCH_HINTS)) == []
    assert sorted(named - ours) == []


def test_elsewhere_they_are_no_more_than_unknown():
    assert "is an argument" not in everbatch("explain", "--model", "x").err
