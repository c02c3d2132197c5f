"""docs/migration.md is true on our side: what it says we have is there, what we lack is not."""

import json
import re
from collections.abc import Callable

import click
import pytest
from repository import ROOT, text_of

from everbatch.cli.foreign_flags import HINTS, SERVING_HINTS
from everbatch.cli.main import cli
from everbatch.engine.metrics import EngineStats
from everbatch.server import openapi
from everbatch.server.errors import ApiError
from everbatch.server.metrics import ServerMetrics
from everbatch.server.protocol import read_chat, read_completion

TEXT = text_of(ROOT / "docs" / "migration.md")
API = text_of(ROOT / "docs" / "api.md")
THE_SAME, NONE, REFUSED = "the same", "none", "refused"

# As they stand in a table: `--flag`, `field_or_metric`, `/path`.
FLAG = re.compile(r"`(--[a-z][a-z0-9-]*)")
NAME = re.compile(r"`(\w+)`")
PATH = re.compile(r"`(/[\w/]+)`")


def rows(title: str) -> list[tuple[str, str]]:
    """Give theirs and ours of each row of the tables under a heading."""
    section = TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", section, re.MULTILINE)
    kept = [row for row in found if row[1] != "here"]
    assert len(kept) > 8, title
    return kept


def untrue(title: str, ours: set[str], pattern: re.Pattern[str]) -> list[str]:
    """Give the names that are not, or are, among `ours` against what their row says."""
    wrong = []
    for theirs, here in rows(title):
        names = pattern.findall(theirs)
        if here == THE_SAME:
            wrong += [name for name in names if name not in ours]
        elif here == NONE:
            wrong += [name for name in names if name in ours]
        elif here != REFUSED:
            wrong += [name for name in pattern.findall(here) if name not in ours]
    return wrong


def flags_of_serve() -> set[str]:
    command = cli.get_command(click.Context(cli), "serve")
    assert command is not None
    return {name for param in command.params for name in (*param.opts, *param.secondary_opts)}


def is_refused(read: Callable[[bytes], object], body: dict[str, object], field: str) -> bool:
    """Whether a body is refused because of the field; 7 asks for something with every one."""
    try:
        read(json.dumps({**body, field: 7}).encode())
    except ApiError as error:
        return error.param == field
    return False


@pytest.mark.parametrize("engine", ["vllm serve", "llama-server"])
def test_flags_are_ours_or_not_as_it_is_said(engine):
    title = f"Flags of `{engine}`"
    renamed = [theirs for theirs, here in rows(title) if here not in (THE_SAME, NONE)]

    assert untrue(title, flags_of_serve(), FLAG) == []
    # Who writes a flag that we know, too, shall not be told another.
    assert [flag for row in renamed for flag in FLAG.findall(row) if flag in flags_of_serve()] == []


def test_every_flag_of_the_other_columns_exists():
    without_theirs = re.sub(r"^\| [^|]+ \|", "|", TEXT, flags=re.MULTILINE)
    named = set(FLAG.findall(without_theirs))

    assert "--kv-cache-memory" in named
    assert sorted(named - flags_of_serve()) == []


def test_every_flag_that_is_answered_with_a_hint_has_its_row():
    engines = ("vllm serve", "llama-server")
    named = {
        flag
        for engine in engines
        for theirs, _ in rows(f"Flags of `{engine}`")
        for flag in FLAG.findall(theirs)
    }

    assert sorted({*HINTS, *SERVING_HINTS} - named) == []


def test_fields_are_taken_or_refused_as_it_is_said():
    bodies = (openapi.COMPLETIONS, openapi.CHAT_COMPLETIONS)
    ours = {
        name
        for body in bodies
        for name in body["requestBody"]["content"]["application/json"]["schema"]["properties"]
    }
    refused = [row for row, here in rows("Request fields") if here == REFUSED]
    chat = {"messages": [{"role": "user", "content": "x"}]}

    assert untrue("Request fields", ours, NAME) == []
    for field in (name for row in refused for name in NAME.findall(row)):
        assert is_refused(lambda body: read_completion(body, 1), {"prompt": "x"}, field), field
        assert is_refused(read_chat, chat, field), field


def test_endpoints_are_ours_or_not_as_it_is_said():
    ours = set(re.findall(r"^\| `(?:GET|POST) (/[\w/]+)` \|", API, re.MULTILINE))

    assert "/v1/completions" in ours
    assert untrue("Endpoints", ours, PATH) == []


def test_metrics_are_ours_or_not_as_it_is_said():
    samples = ServerMetrics("model", EngineStats()).exposition().decode()
    ours = set(re.findall(r"^# TYPE everbatch:(\w+) ", samples, re.MULTILINE))

    assert untrue("Metrics", ours, NAME) == []
