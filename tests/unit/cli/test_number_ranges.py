"""Flags with limits refuse what is neither inside nor outside of them."""

import click
import pytest

from everbatch.cli.main import COMMANDS, cli
from everbatch.cli.number_range import NumberRange


def commands_of(name: str) -> list[click.Command]:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return [found, *(found.commands.values() if isinstance(found, click.Group) else ())]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_with_limits_refuses_nan(name):
    params = [param for command in commands_of(name) for param in command.params]

    for param in params:
        if isinstance(param.type, click.FloatRange):
            with pytest.raises(click.BadParameter, match="nan is not in the range"):
                param.type.convert("nan", param, None)


@pytest.mark.parametrize(("given", "taken"), [("0.5", 0.5), ("1", 1.0)])
def test_numbers_inside_are_taken(given, taken):
    assert NumberRange(0, 1, min_open=True).convert(given, None, None) == taken


@pytest.mark.parametrize("given", ["0", "1.5", "inf", "-inf", "x"])
def test_numbers_outside_are_refused(given):
    with pytest.raises(click.BadParameter):
        NumberRange(0, 1, min_open=True).convert(given, None, None)
