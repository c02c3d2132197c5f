"""The lesson's incident: its symptoms, what each remedy does, and a cause that looks alike.

The burst comes at second 8; "calm" is the run up to there, or the same run without the burst.
"""

import json
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from command_line import Run, everbatch, simulate

from everbatch.cli.run_view import seconds

PAGE = Path(__file__).parents[2] / "docs" / "incident.md"
BURST, END_OF_SHOCK, END = 8, 12, 20
CHUNKED = ("--set", "max_num_batched_tokens=512", "--set", "enable_chunked_prefill=true")
RESERVED = ("--set", "admission=reserve")
ROWS = {
    "without the burst": ("incident-calm",),
    "the incident": ("incident",),
    "a token budget of 512": ("incident", *CHUNKED),
    "reservations": ("incident", *RESERVED),
    "cancellation": ("incident-disconnect",),
    "all three": ("incident-remedied",),
    "a slow device instead": ("incident-slow",),
}
"""The rows of the page's table, and the runs behind them."""


def page() -> str:
    return PAGE.read_text(encoding="utf-8")


@cache
def run(name: str, *options: str) -> Run:
    return simulate(name, *options)


def completed_per_s(summary: dict) -> float:
    """Output tokens a second of those who ended in the seconds after the burst."""
    ended = [
        request["output_tokens"]
        for request in summary["requests"].values()
        if request["finish_reason"] == "stop" and BURST < request["finished_s"] <= END_OF_SHOCK
    ]
    return sum(ended) / (END_OF_SHOCK - BURST)


def step_times(run: Run, start: float, stop: float) -> list[tuple[int, float]]:
    """(tokens, seconds) of the steps that began in [start, stop)."""
    lines = sorted(run.lines.values(), key=lambda line: line["t"])
    pairs = ((before["t"], line) for before, line in pairwise(lines))
    return [(line["tokens"], line["t"] - begun) for begun, line in pairs if start <= begun < stop]


def test_before_the_burst_it_is_a_calm_day():
    incident = run("incident")
    calm = incident.summary["horizons"][str(BURST)]
    last = max(step for step, line in incident.lines.items() if line["t"] < BURST)

    assert calm["num_preemptions"] == 0
    assert 0.010 < calm["itl"]["p50"] < 0.018
    assert 115 <= incident.lines[last]["running"] <= 140


def test_the_incident_shows_the_lesson_s_symptoms():
    summary, calm = run("incident").summary, run("incident-calm").summary

    assert summary["horizons"]["10"]["itl"]["p99"] >= 10 * calm["horizons"]["8"]["itl"]["p99"]
    assert summary["num_preemptions"] > 0
    assert summary["recomputed_token_ratio"] > 0.1
    assert completed_per_s(summary) <= 0.5 * completed_per_s(calm)


def test_the_long_steps_are_those_with_many_tokens():
    times = step_times(run("incident"), BURST - 1, BURST + 2)
    by_time = sorted(times, key=lambda one: one[1])
    by_tokens = sorted(times)

    assert by_time[-5:] == by_tokens[-5:]
    assert by_time[-1][1] > 10 * by_time[0][1]


@pytest.mark.parametrize(
    ("name", "options", "improves"),
    [
        ("incident", CHUNKED, "itl"),
        ("incident", RESERVED, "recomputed"),
        ("incident-disconnect", (), "ttft"),
    ],
)
def test_each_remedy_cures_its_own_cause(name, options, improves):
    before, after = run("incident").summary, run(name, *options).summary
    figures = {
        "ttft": lambda summary: summary["ttft"]["p99"],
        "itl": lambda summary: summary["itl"]["p99"],
        "recomputed": lambda summary: summary["recomputed_token_ratio"],
    }

    assert figures[improves](after) <= 0.5 * figures[improves](before)


def test_with_all_remedies_who_is_being_answered_hardly_feels_the_burst():
    summary, calm = run("incident-remedied").summary, run("incident-calm").summary

    assert summary["itl"]["p99"] <= calm["itl"]["p99"]
    assert summary["num_preemptions"] == 0
    assert completed_per_s(summary) >= completed_per_s(calm)


def test_a_slow_device_looks_alike_and_differs_in_step_time_at_constant_tokens():
    incident, slow, calm = run("incident"), run("incident-slow"), run("incident-calm")

    assert slow.summary["itl"]["p99"] >= incident.summary["itl"]["p99"]
    assert completed_per_s(slow.summary) <= 0.5 * completed_per_s(calm.summary)
    assert f"{slowdown_at_constant_tokens(slow):.1f} times" in page()
    assert f"{slowdown_at_constant_tokens(incident):.1f} times" in page()
    assert slowdown_at_constant_tokens(slow) > 2 * slowdown_at_constant_tokens(incident)


def slowdown_at_constant_tokens(run: Run) -> float:
    """The median of step times after the burst over those of about as many tokens before it."""
    calm_s = {tokens // 20: seconds for tokens, seconds in step_times(run, 4, BURST)}
    later = step_times(run, BURST, END)
    return median(s / calm_s[tokens // 20] for tokens, s in later if tokens // 20 in calm_s)


def row(title: str) -> str:
    """Give a row of the page's table as the run of today gives it."""
    summary = run(*ROWS[title]).summary
    figures = (
        f"{summary['horizons']['10']['itl']['p99'] * 1e3:.0f} ms",
        f"{summary['ttft']['p99']:.1f} s",
        f"{summary['num_preemptions']}",
        f"{summary['recomputed_token_ratio']:.1%}",
        f"{completed_per_s(summary):,.0f} tokens/s",
    )
    return f"| {' | '.join((title, *figures))} |"


@pytest.mark.parametrize("title", ROWS)
def test_the_page_states_what_the_runs_give(title):
    assert row(title) in page()


def test_the_page_states_who_has_no_token_at_the_end():
    lacking = [
        sum(
            id.startswith("chat") and request["first_token_s"] is None
            for id, request in run(name).summary["requests"].items()
        )
        for name in ("incident", "incident-remedied")
    ]

    assert "{} chats of the incident have none, and {} with".format(*lacking) in page()


def test_the_page_states_step_times_by_tokens():
    runs = [run(name).summary for name in ("incident-calm", "incident", "incident-slow")]
    means = [
        {tuple(row["tokens"]): seconds(row["mean"]) for row in told["step_times"]} for told in runs
    ]

    for first in (128, 4096, 8192):
        cells = [times.get((first, 2 * first - 1), "–") for times in means]
        assert f"| {first:,} to {2 * first - 1:,} | {' | '.join(cells)} |" in page()


def commands() -> list[str]:
    return re.findall(r"^    everbatch (.+)$", page(), re.MULTILINE)


@pytest.mark.parametrize("command", commands())
def test_the_page_s_commands_run_as_they_stand(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = everbatch(*command.split())

    assert (answer.status, answer.err) == (0, "")
    assert answer.out


@pytest.mark.parametrize("name", ["incident-disconnect", "incident-remedied"])
def test_a_remedy_is_told_by_what_differs(name):
    result = json.loads(everbatch("compare", "incident", name, "--json").out)
    told = {fact["name"]: (fact["a"], fact["b"]) for fact in result["config"]}

    assert result["obstacles"] == []
    assert told["clients who leave"] == (None, "20 with abort_at, of 370")


def test_the_comparison_tells_the_slow_device_by_its_steps_and_names_it():
    result = json.loads(everbatch("compare", "incident-calm", "incident-slow", "--json").out)
    figures = {fact["name"]: fact for fact in result["figures"]}
    steps = figures["step of 128 to 255 tokens"]

    assert result["config"] == [{"name": "faults", "a": None, "b": "slow start 8 end 20 factor 3"}]
    assert steps["b"] > 3 * steps["a"]
