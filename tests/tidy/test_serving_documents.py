"""What the guides to serving name of ours is there: flags, variables, fields, metrics, files."""

import re

import click
import pytest
from repository import ROOT, text_of

from everbatch.cli.main import COMMANDS, cli
from everbatch.engine.metrics import EngineStats
from everbatch.server.metrics import ServerMetrics

GUIDES = ("docs/serving.md", "deploy/README.md")
CODE = re.compile(r"^```[^`]*^```|^    .*$", re.MULTILINE)
# In code, lines that begin so are commands of ours; the unit's OPTIONS are those of serve.
OURS = re.compile(r"^ *(?:\w+=\S* )*(?:everbatch (\w+)|OPTIONS=)(.*)$", re.MULTILINE)
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")

OF_OTHERS = {
    "docs/serving.md": set(),
    # docker's.
    "deploy/README.md": {"--read-only", "--tmpfs", "--cap-drop", "--cpus", "--memory"},
}


def flags_of(command: str) -> set[str]:
    """Give the flags of a command and of those below it."""
    found = cli.get_command(click.Context(cli), command)
    below = found.commands.values() if isinstance(found, click.Group) else ()
    params = [param for one in (found, *below) for param in one.params]
    return {name for param in params for name in (*param.opts, *param.secondary_opts)}


@pytest.mark.parametrize("name", GUIDES)
def test_flags_in_sentences_are_ours(name):
    known = set().union(*map(flags_of, COMMANDS))
    sentences = CODE.sub("", text_of(ROOT / name))
    told = {flag for code in re.findall(r"`(-[^`]+)`", sentences) for flag in FLAG.findall(code)}

    assert len(told) > 5
    assert sorted(told - known - OF_OTHERS[name]) == []


@pytest.mark.parametrize("name", GUIDES)
def test_commands_in_code_have_flags_of_theirs(name):
    text = text_of(ROOT / name).replace("\\\n", " ")
    commands = OURS.findall(text)
    wrong = [
        (command, flag)
        for command, rest in commands
        for flag in FLAG.findall(rest.partition("#")[0])
        if flag not in flags_of(command or "serve")
    ]

    assert commands != []
    assert wrong == []


@pytest.mark.parametrize("name", GUIDES)
def test_metrics_that_are_named_exist(name):
    samples = ServerMetrics("model", EngineStats()).exposition().decode()
    ours = set(re.findall(r"^# TYPE everbatch:(\w+) ", samples, re.MULTILINE))
    known = ours | {f"{one}{tail}" for one in ours for tail in ("_bucket", "_sum", "_count")}
    named = re.findall(r"everbatch:(\w+)", text_of(ROOT / name))

    assert sorted(set(named) - known) == []
