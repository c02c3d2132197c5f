"""Every flag (with its default), field, error code and metric of the code is in the documents."""

import ast
import re

import click
import pytest
from repository import ROOT, text_of, tree_of

from everbatch.cli.main import COMMANDS, cli
from everbatch.engine.metrics import EngineStats
from everbatch.server import chat_messages, openapi, protocol
from everbatch.server.metrics import ServerMetrics

README = text_of(ROOT / "README.md")
API = text_of(ROOT / "docs" / "api.md")


def options_of(command: str) -> list[click.Option]:
    found = cli.get_command(click.Context(cli), command)
    return [param for param in found.params if isinstance(param, click.Option)]


def flag_rows() -> dict[str, str]:
    """Give the README's table of flags: flag to default."""
    return dict(re.findall(r"^\| `(--[a-z-]+)` \| (.*?) \|", README, re.MULTILINE))


def test_every_flag_of_serve_is_in_the_readme():
    spellings = [name for option in options_of("serve") for name in _spellings(option)]

    assert [name for name in spellings if f"`{name}`" not in README] == []


def test_every_flag_of_the_readme_s_table_exists():
    known = {option.opts[0] for option in options_of("serve")}

    assert sorted(set(flag_rows()) - known) == []


@pytest.mark.parametrize("option", options_of("serve"), ids=lambda option: option.opts[0])
def test_the_readme_tells_the_default(option):
    told = flag_rows()[option.opts[0]]

    if isinstance(option.default, bool):
        assert told == ("on" if option.default else "off")
    elif isinstance(option.default, int | float | str):
        assert told == str(option.default)


def test_serve_s_own_flags_are_the_last_rows():
    shared = {option.opts[0] for option in options_of("generate")}
    own = [flag for flag in flag_rows() if flag not in shared]

    assert own == list(flag_rows())[-len(own) :]


def test_every_command_is_in_the_readme():
    assert [name for name in COMMANDS if f"everbatch {name}" not in README] == []


def test_every_field_of_a_body_is_documented():
    bodies = (openapi.COMPLETIONS, openapi.CHAT_COMPLETIONS)
    fields = {
        name
        for body in bodies
        for name in body["requestBody"]["content"]["application/json"]["schema"]["properties"]
    }
    refused = {
        *protocol.NOT_SUPPORTED_ANYWHERE,
        *protocol.NOT_SUPPORTED_IN_COMPLETIONS,
        *protocol.NOT_SUPPORTED_IN_CHAT,
        *chat_messages.NOT_SUPPORTED,
    }

    known = fields | refused | set(protocol.LABELS) | set(chat_messages.ROLES)
    assert sorted(name for name in known if f"`{name}`" not in API) == []


def test_every_error_code_is_documented():
    codes = {
        code
        for path in sorted((ROOT / "src" / "everbatch" / "server").glob("*.py"))
        for call in ast.walk(tree_of(path))
        if isinstance(call, ast.Call)
        for code in _codes(call)
    }

    assert len(codes) > 10
    assert sorted(code for code in codes if f"`{code}`" not in API) == []


def test_every_metric_is_documented():
    samples = ServerMetrics("model", EngineStats()).exposition().decode()
    names = re.findall(r"^# TYPE everbatch:(\w+) ", samples, re.MULTILINE)

    assert len(names) > 10
    assert [name for name in names if f"`{name}`" not in API] == []


def _spellings(option: click.Option) -> list[str]:
    return [*option.opts, *option.secondary_opts]


def _codes(call: ast.Call) -> list[str]:
    """Give the error code that a call names: `code=`, or the last argument of the short makers."""
    values = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
    match call:
        case ast.Call(func=ast.Name(id="unavailable"), args=[_, code]):
            values.append(code)
        case ast.Call(func=ast.Name(id="bad_request"), args=[_, _, code]):
            values.append(code)
    return [value.value for value in values if isinstance(value, ast.Constant) and value.value]
