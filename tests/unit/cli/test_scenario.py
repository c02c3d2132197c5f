"""`everbatch scenario`: what it prints can be run."""

import json

import pytest
from command_line import everbatch

from everbatch.workload.builtin_scenarios import builtin_names


def test_the_new_scenario_runs_as_it_is(tmp_path):
    path = tmp_path / "new.toml"
    path.write_text(everbatch("scenario", "new").out, encoding="utf-8")

    summary = json.loads(everbatch("simulate", path, "--json").out)

    assert len(summary["requests"]) == 11
    assert {request["state"] for request in summary["requests"].values()} == {"FINISHED"}


@pytest.mark.parametrize("name", ["golden-stall", "exercise-2"])
def test_a_shown_scenario_runs_like_the_built_in_one(name, tmp_path):
    path = tmp_path / f"{name}.toml"
    path.write_text(everbatch("scenario", "show", name).out, encoding="utf-8")

    assert everbatch("simulate", path, "--json").out == everbatch("simulate", name, "--json").out


def test_an_unknown_name_is_an_error_that_lists_the_known_ones():
    answer = everbatch("scenario", "show", "golden")

    assert answer.status == 2
    assert all(name in answer.err for name in builtin_names())
