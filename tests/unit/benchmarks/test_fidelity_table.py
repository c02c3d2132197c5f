"""`make fidelity`: rows side by side, what is missing is told, a promise that is missed fails."""

import json
from pathlib import Path

import pytest
from fidelity import table, vllm_log
from fidelity.row import Row, skipped, within

from everbatch.workload.engine_presets import PRESETS

KEPT = within("a: mean", -0.004, 0.01, "remark")
MISSED = within("b: mean", 0.02, 0.01)
TOLD = Row("c", None, 1234, "req", None)


def test_a_promise_holds_up_to_its_edge_on_either_side():
    assert [within("", error, 0.01).passed for error in (0.01, -0.01, 0.0101, -0.0101)] == [
        True,
        True,
        False,
        False,
    ]


def test_rows_stand_in_columns_with_their_verdicts():
    lines = table.table([KEPT, MISSED, TOLD]).splitlines()

    assert lines[1].split() == ["a:", "mean", "1%", "-0.40%", "ok", "remark"]
    assert lines[2].split() == ["b:", "mean", "1%", "+2.00%", "MISSED"]
    assert lines[3].split() == ["c", "1,234", "req"]
    assert lines[-1] == "1 kept, 1 missed, 1 told"


def test_a_missed_promise_is_a_failure_and_a_skipped_one_is_not():
    assert table.status([KEPT, TOLD, skipped("d", "no data")]) == 0
    assert table.status([KEPT, MISSED]) == 1


def test_without_data_the_table_says_what_it_skips(tmp_path, capsys):
    status = table.main([str(tmp_path), "--json"])
    rows = json.loads(capsys.readouterr().out)

    assert status == 0
    assert all(row["passed"] is None for row in rows)
    assert any("no llmservingsim_vllm_logs/" in row["note"] for row in rows)


def test_the_settings_are_those_of_the_recorded_engine():
    assert vllm_log.SETTINGS["preset"] in PRESETS


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not table.TRACES.is_dir(), reason="no recorded data beside the repository")
def test_every_promise_holds_on_the_recorded_data():
    missed = [
        row for part in table.PARTS for row in part(Path(table.TRACES)) if row.passed is False
    ]

    assert missed == []
