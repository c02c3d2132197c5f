"""Every flag (with its default), field, error code and metric of the code is in the documents."""

import ast
import inspect
import json
import re
from dataclasses import fields

import click
import pytest
from repository import ROOT, text_of, tree_of

from everbatch import LLM, CompletionOutput, RequestOutput, SamplingParams
from everbatch.cli.generate import answer_facts
from everbatch.cli.main import COMMANDS, cli
from everbatch.cli.prompts import OTHER_KEYS, PROMPT_KEYS, Task
from everbatch.engine.metrics import EngineStats
from everbatch.server import (
    chat_messages,
    openapi_bodies,
    protocol,
    responses_fields,
    responses_input,
    side_bodies,
    structured_fields,
    tool_fields,
)
from everbatch.server.metrics import ServerMetrics
from everbatch.server.settings import ServerSettings

README = text_of(ROOT / "README.md")
API = text_of(ROOT / "docs" / "api.md")
METRICS = text_of(ROOT / "docs" / "metrics.md")
COMMAND_LINE = text_of(ROOT / "docs" / "command-line.md")
PYTHON = text_of(ROOT / "docs" / "python.md")


def options_of(command: str) -> list[click.Option]:
    """Give the options of a command and of those below it."""
    found = cli.get_command(click.Context(cli), command)
    below = found.commands.values() if isinstance(found, click.Group) else ()
    params = [param for one in (found, *below) for param in one.params]
    return [param for param in params if isinstance(param, click.Option)]


def flag_rows(text: str = README) -> dict[str, str]:
    """Give a table of flags, by default the README's: flag to default."""
    return dict(re.findall(r"^\| `(--[a-z-]+)` \| (.*?) \|", text, re.MULTILINE))


def section_of(command: str) -> str:
    """Give what the command line's document says of a command."""
    _, _, rest = COMMAND_LINE.partition(f"\n## everbatch {command}\n")
    return rest.partition("\n## ")[0]


def all_said_of(command: str) -> str:
    """Give the section of a command, and the documents that it leads to."""
    section = section_of(command)
    links = re.findall(r"\]\(([\w./-]+\.md)[#)]", section)
    return section + "".join(text_of((ROOT / "docs" / link).resolve()) for link in links)


def told_default(option: click.Option) -> str | None:
    """Give how a document tells the default of an option; None if it has words of its own."""
    if isinstance(option.default, bool):
        return "on" if option.default else "off"
    return str(option.default) if isinstance(option.default, int | float | str) else None


def test_every_flag_of_serve_is_in_the_readme():
    spellings = [name for option in options_of("serve") for name in _spellings(option)]

    assert [name for name in spellings if f"`{name}`" not in README] == []


def test_every_flag_of_the_readme_s_table_exists():
    known = {option.opts[0] for option in options_of("serve")}

    assert sorted(set(flag_rows()) - known) == []


@pytest.mark.parametrize("option", options_of("serve"), ids=lambda option: option.opts[0])
def test_the_readme_tells_the_default(option):
    told = flag_rows()[option.opts[0]]

    assert told_default(option) in (None, told)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_of_a_command_is_in_its_section_or_where_that_leads(command):
    spellings = [name for option in options_of(command) for name in _spellings(option)]
    text = all_said_of(command)

    assert section_of(command) != ""
    assert [name for name in spellings if not re.search(rf"`{name}\b", text)] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_s_section_tells_flags_that_exist_and_their_defaults(command):
    options = {option.opts[0]: option for option in options_of(command)}
    rows = flag_rows(section_of(command))
    has_defaults = "| flag | default |" in section_of(command)

    assert sorted(set(rows) - set(options)) == []
    if has_defaults:
        defaults = {flag: told_default(options[flag]) for flag in rows}
        assert [flag for flag in rows if defaults[flag] not in (None, rows[flag])] == []


def test_lines_of_prompts_and_answers_are_documented():
    section = section_of("generate")
    params = SamplingParams(n=2)
    task = Task(1, "a", "x", None, params)
    answer = RequestOutput(
        "a", "x", [1], [CompletionOutput(0, error="why", logprobs=[]), CompletionOutput(1)]
    )
    facts = answer_facts(0, answer, answer.outputs[0], task)

    assert len(facts) == 11
    for name in (*PROMPT_KEYS, *OTHER_KEYS, *facts):
        assert f"`{name}`" in section, name


@pytest.mark.parametrize("record", [SamplingParams, RequestOutput, CompletionOutput])
def test_every_field_of_the_python_api_is_documented(record):
    section = PYTHON.partition(f"\n## {record.__name__}\n")[2].partition("\n## ")[0]

    assert [item.name for item in fields(record) if f"`{item.name}`" not in section] == []


def test_every_method_of_the_python_api_is_documented():
    methods = [
        name for name, _ in inspect.getmembers(LLM, inspect.isfunction) if not name.startswith("_")
    ]

    assert "generate" in methods
    assert [name for name in methods if f"`{name}(" not in PYTHON] == []
    for name in methods:
        [told] = re.findall(rf"^\| `{name}\((.*?)\)` \|", PYTHON, re.MULTILINE)
        named = [one.partition("=")[0].strip() for one in told.split(",") if one.strip() != "*"]
        wanted = [one for one in inspect.signature(getattr(LLM, name)).parameters if one != "self"]
        assert [one for one in named if one] == wanted


@pytest.mark.parametrize(
    "limit", ["max_body_bytes", "max_prompts", "max_choices", "max_pending_requests"]
)
def test_every_limit_of_the_server_is_documented(limit):
    value = getattr(ServerSettings("version"), limit)
    told = f"{value >> 20} MiB" if limit == "max_body_bytes" else f"{value:,}"

    assert told in API


def test_serve_s_own_flags_are_the_last_rows():
    shared = {option.opts[0] for option in options_of("generate")}
    own = [flag for flag in flag_rows() if flag not in shared]

    assert own == list(flag_rows())[-len(own) :]


def test_every_command_is_in_the_readme():
    assert [name for name in COMMANDS if f"everbatch {name}" not in README] == []


def test_every_field_of_a_body_is_documented():
    bodies = (
        openapi_bodies.COMPLETIONS,
        openapi_bodies.CHAT_COMPLETIONS,
        openapi_bodies.RESPONSES,
        *openapi_bodies.TOKENIZE["anyOf"],
        openapi_bodies.DETOKENIZE,
        *openapi_bodies.ABORT["anyOf"],
    )
    fields = {name for body in bodies for name in body["properties"]}
    refused = {
        *protocol.NOT_SUPPORTED_ANYWHERE,
        *protocol.NOT_SUPPORTED_IN_COMPLETIONS,
        *protocol.NOT_SUPPORTED_IN_CHAT,
        *chat_messages.NOT_SUPPORTED,
        *responses_fields.NOT_SUPPORTED,
        *responses_input.NOT_OF_CALLS,
        *responses_input.NOT_OF_MESSAGES,
        *tool_fields.NOT_SUPPORTED,
        *structured_fields.GUIDED,
        *structured_fields.NOT_SUPPORTED,
        *side_bodies.NOT_SUPPORTED,
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
    exposed = dict(re.findall(r"^# TYPE everbatch:(\w+) (\w+)$", samples, re.MULTILINE))
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (?:`(\w+)`)? ?\|", METRICS, re.MULTILINE)

    assert {name: kind for name, kind, _ in rows} == exposed
    for name, _, label in rows:
        labels = re.findall(rf"^everbatch:{name}(?:_bucket)?{{(.*?)}}", samples, re.MULTILINE)
        if label and labels:
            assert f"{label}=" in labels[0], name


def test_the_dashboard_shows_metrics_that_exist():
    samples = ServerMetrics("model", EngineStats()).exposition().decode()
    exposed = set(re.findall(r"^# TYPE everbatch:(\w+) ", samples, re.MULTILINE))
    board = json.loads(text_of(ROOT / "docs" / "grafana" / "everbatch.json"))
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    shown = [target["expr"] for panel in panels for target in panel["targets"]]
    named = {name for expr in shown for name in re.findall(r"\$\{prefix\}:(\w+)", expr)}
    known = exposed | {
        f"{name}{tail}" for name in exposed for tail in ("_bucket", "_sum", "_count")
    }

    assert sorted(named - known) == []
    assert [expr for expr in shown if "${prefix}:" not in expr] == []
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids) > 10
    assert {"prefix", "datasource"} <= {one["name"] for one in board["templating"]["list"]}


def _spellings(option: click.Option) -> list[str]:
    return [*option.opts, *option.secondary_opts]


def _codes(call: ast.Call) -> list[str]:
    """Give the error code that a call names: `code=`, or the last argument of the short makers."""
    values = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
    match call:
        case ast.Call(func=ast.Name(id="unavailable" | "too_many"), args=[_, code, *_]):
            values.append(code)
        case ast.Call(func=ast.Name(id="bad_request"), args=[_, _, code]):
            values.append(code)
    return [value.value for value in values if isinstance(value, ast.Constant) and value.value]
