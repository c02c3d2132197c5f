"""The page about the lesson says what was measured."""

import json
import os

import pytest
from lesson_page import JITTER, LESSON, PAGE, filled, parts
from provenance import Watch, busy_seconds


def records():
    return [json.loads(path.read_text(encoding="utf-8")) for path in (LESSON, JITTER)]


def test_the_page_has_the_figures_of_the_record():
    page = PAGE.read_text(encoding="utf-8")

    assert filled(page, parts(*records())) == page


def test_a_busy_machine_is_told_and_a_quiet_one_too():
    lesson, jitter = records()
    on_wall = {**lesson, "clock": "wall"}
    quiet, busy = ({**on_wall, "other_cores": cores} for cores in (0.09, 0.1))
    on_cpu = {**busy, "clock": "CPU time", "commit": "0123456789abcdef-dirty"}

    said = [" ".join(parts(told, jitter)["lesson"].split()) for told in (quiet, busy, on_cpu)]

    assert "nothing else ran" in said[0]
    assert "the machine was busy" in said[1]
    assert "times are CPU time" in said[2]
    assert "at 0123456 with changes," in said[2]


def test_parts_are_replaced_and_the_rest_stays():
    page = "a\n<!-- x -->\nold \\1\n<!-- end -->\nb\n<!-- y -->\n<!-- end -->\n"

    assert filled(page, {"y": "new \\2", "x": "1"}) == (
        "a\n<!-- x -->\n1\n<!-- end -->\nb\n<!-- y -->\nnew \\2\n<!-- end -->\n"
    )
    with pytest.raises(ValueError, match="no part between <!-- z -->"):
        filled(page, {"z": ""})


def test_busy_is_all_but_idle_time_and_waiting_for_disks():
    stat = "cpu  100 20 300 4000 500 6 70 8 9 1\ncpu0 1 1 1 1 1 1 1 1 0 0\n"

    assert busy_seconds(stat) * os.sysconf("SC_CLK_TCK") == 100 + 20 + 300 + 6 + 70 + 8


def test_a_record_tells_where_it_was_made():
    told = Watch().facts()

    assert told["other_cores"] >= 0
    assert told["machine"]["num_cores"] >= 1
