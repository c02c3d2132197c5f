"""Flags of other engines: told with what takes their place."""

import re

import click
import pytest
from command_line import everbatch

from everbatch.cli import generate, serve
from everbatch.cli.foreign_flags import COMMANDS, HINTS


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", sorted(HINTS))
def test_a_flag_of_another_engine_is_told_with_what_to_do(command, flag):
    answer = everbatch(command, flag, "x")

    assert (answer.status, answer.out) == (2, "")
    told = HINTS[flag].format(command=command)
    assert answer.err.startswith(f"everbatch: No such option: {flag}: {told}")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("command", [serve.command, generate.command])
def test_none_of_them_is_a_flag_of_ours(command: click.Command):
    ours = {flag for option in command.params for flag in option.opts}

    assert sorted(ours & set(HINTS)) == []


@pytest.mark.parametrize("command", [serve.command, generate.command])
def test_what_takes_their_place_is_a_flag_of_ours(command: click.Command):
    ours = {flag for option in command.params for flag in option.opts}
    named = {word for told in HINTS.values() for word in re.findall(r"--[a-z-]+", told)}

    assert "--threads" in named
    assert sorted(named - ours) == []


def test_elsewhere_they_are_no_more_than_unknown():
    assert "is an argument" not in everbatch("explain", "--model", "x").err
