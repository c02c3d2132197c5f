"""Progress of long work: drawn where somebody looks, and only there."""

from contextlib import redirect_stderr
from io import StringIO

import pytest
from command_line import everbatch, scenario_text

from everbatch.cli.run_progress import reading_progress, run_progress
from everbatch.sim.recorded import read_log
from everbatch.workload.scenario import parse_scenario


class Terminal(StringIO):
    """Standard error of somebody who looks."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def log(tmp_path):
    scenario, path = tmp_path / "s.json", tmp_path / "[bold] events.jsonl"
    scenario.write_text(scenario_text(), encoding="utf-8")
    assert everbatch("simulate", scenario, "--json", "--events", path).status == 0
    return path


def test_how_much_of_a_log_was_read_is_told(log):
    told = []
    read_log(log, told.append)

    # A short log is in memory after the first read.
    assert told == [log.stat().st_size]


def test_a_log_is_named_while_it_is_read(log):
    with redirect_stderr(Terminal()) as screen, reading_progress(log) as tell:
        tell(10)

    # A name in brackets is a name, no style.
    assert "reading [bold] events.jsonl" in screen.getvalue()


def test_a_run_is_told_by_its_steps():
    scenario = parse_scenario(scenario_text(), "given", "given")
    with redirect_stderr(Terminal()) as screen, run_progress(scenario, "as recorded") as tell:
        tell(3, 1)

    assert "as recorded: 3 steps, 1 requests ended" in screen.getvalue()


def test_nothing_is_drawn_where_nobody_looks(log):
    scenario = parse_scenario(scenario_text(), "given", "given")
    quiet = redirect_stderr(StringIO())
    with quiet as file, reading_progress(log) as of_log, run_progress(scenario) as of_run:
        pass

    assert (of_log, of_run, file.getvalue()) == (None, None, "")
