"""A study in this process: what is printed, written and returned."""

import json

import alone
import pytest
from harness import BenchmarkError, machine_lock

from everbatch.base.errors import ConfigError


def status_of(tmp_path, study, failures=()):
    return alone.exit_status(
        study,
        lambda found: print(f"found {found['figure']}"),
        lambda found: failures,
        tmp_path / "f.json",
        lock_path=tmp_path / "lock",
    )


def test_figures_are_told_and_written_with_where_they_were_measured(tmp_path, capsys):
    assert status_of(tmp_path, lambda: {"figure": 7}) == 0

    told = capsys.readouterr().out
    assert "cores meanwhile\nfound 7\n" in told
    written = json.loads((tmp_path / "f.json").read_text())
    assert written["figure"] == 7
    assert {"date", "commit", "machine", "other_cores"} <= written.keys()


def test_a_missed_promise_is_told_last_and_its_figures_are_kept(tmp_path, capsys):
    assert status_of(tmp_path, lambda: {"figure": 7}, ["7 is below 8"]) == 1

    assert capsys.readouterr().out.endswith("found 7\n7 is below 8\n")
    assert (tmp_path / "f.json").exists()


@pytest.mark.parametrize("error", [BenchmarkError("no machine"), ConfigError("no model")])
def test_an_error_is_a_line_and_writes_nothing(tmp_path, capsys, error):
    def study():
        raise error

    assert status_of(tmp_path, study) == 2
    assert capsys.readouterr().err == f"error: {error}\n"
    assert not (tmp_path / "f.json").exists()


def test_two_do_not_measure_at_once(tmp_path, capsys):
    with machine_lock(tmp_path / "lock"):
        assert status_of(tmp_path, lambda: {"figure": 7}) == 2

    assert "another benchmark runs here" in capsys.readouterr().err
