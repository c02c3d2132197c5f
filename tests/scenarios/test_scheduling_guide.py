"""docs/scheduling.md is true: every figure in it is what the command above it gives."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import everbatch

from everbatch.workload.builtin_scenarios import builtin_names
from everbatch.workload.engine_section import DEFAULTS, OPTIONS

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "scheduling.md").read_text(encoding="utf-8")
COMPARISON = re.compile(
    r"^    everbatch compare (.*)\n\n\| \| A \| B \|\n\|---\|--:\|--:\|\n((?:\|.*\|\n)+)",
    re.MULTILINE,
)
FACTS = {
    "first token": "first_token_step",
    "end": "finished_step",
    "preemptions": "num_preemptions",
    "outputs": "output_tokens",
}


def comparisons() -> list[tuple[str, list[list[str]]]]:
    """Give each command of the guide, and the rows (name, A, B) of its table."""
    return [
        (command, [re.split(r" ?\| ?", row)[1:4] for row in table.splitlines()])
        for command, table in COMPARISON.findall(GUIDE)
    ]


def summaries(command: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run what `everbatch compare COMMAND` compares."""
    words = [word for word in command.split() if word != "--anyway"]
    cut = words.index("--set") if "--set" in words else len(words)
    names, settings = words[:cut], words[cut:]
    a = everbatch("simulate", names[0], "--json")
    b = everbatch("simulate", names[-1], "--json", *settings)
    assert (a.status, b.status) == (0, 0), a.err + b.err
    return json.loads(a.out), json.loads(b.out)


def figure(summary: dict[str, Any], name: str) -> str:
    """Look up what a row of the guide names."""
    of_request = re.fullmatch(r"(first token|end|preemptions) of `(.*)`", name)
    of_all = re.fullmatch(r"(outputs) of all `(.*)`", name)
    if of_request:
        return shown(summary["requests"][of_request[2]][FACTS[of_request[1]]])
    if of_all:
        return shown(
            sum(
                facts[FACTS[of_all[1]]]
                for id, facts in summary["requests"].items()
                if id.startswith(of_all[2])
            )
        )
    group, _, key = name.partition(" ")
    return shown(summary[group].get(key, 0) if key else summary[group])


def shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


@pytest.mark.parametrize(("command", "rows"), comparisons(), ids=[c for c, _ in comparisons()])
def test_the_figures_are_those_of_the_runs(command, rows):
    a, b = summaries(command)

    assert rows == [[name, figure(a, name), figure(b, name)] for name, _, _ in rows]
    # A row in which nothing changes shows nothing.
    assert any(in_a != in_b for _, in_a, in_b in rows)


@pytest.mark.parametrize(("command", "rows"), comparisons(), ids=[c for c, _ in comparisons()])
def test_what_differs_is_in_the_comparison(command, rows):
    result = json.loads(everbatch("compare", *command.split(), "--json").out)
    told = {figure["name"] for figure in result["figures"]}
    told |= {fate["id"] for fate in (*result["paying"], *result["gaining"])}
    summed = "outputs of all "
    shown_names = [
        name.partition(" of `")[2].rstrip("`") or name
        for name, in_a, in_b in rows
        if in_a != in_b and not name.startswith(summed)
    ]

    assert [name for name in shown_names if name not in told] == []


@pytest.mark.parametrize("command", [c for c, _ in comparisons()])
def test_the_commands_compare(command):
    answer = everbatch("compare", *command.split())

    assert answer.status == 0, answer.err
    assert answer.out.startswith("NOT ALIKE" if "--anyway" in command else "A = ")


def test_every_option_is_shown_with_its_default():
    told = dict(re.findall(r"^\| `(\w+)` \| (\S+) \| \[", GUIDE, re.MULTILINE))
    defaults = {
        name: "–" if name not in DEFAULTS else json.dumps(DEFAULTS[name]).strip('"')
        for name in OPTIONS
    }

    assert {name: value.strip("`") for name, value in told.items()} == defaults


def test_every_option_has_a_run_in_which_it_differs():
    differing: set[str] = set()
    for command, _ in comparisons():
        a, b = (summary["config"] for summary in summaries(command))
        differing |= {name for name in OPTIONS if a[name] != b[name]}

    assert sorted(set(OPTIONS) - differing) == []


def test_every_built_in_scenario_is_described():
    guide = (DOCS / "simulate.md").read_text(encoding="utf-8")

    assert [name for name in builtin_names() if f"`{name}`" not in guide] == []
