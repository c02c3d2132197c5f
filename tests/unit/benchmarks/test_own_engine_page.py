"""The page about fidelity says what was measured of our own engine."""

import json

import pytest
from fidelity import own_engine
from lesson_page import filled
from own_engine_page import NOT_YET, PAGE, PART, part, recorded
from test_own_engine import simulated_engine


@pytest.fixture
def record(tmp_path, monkeypatch):
    """What a run of an engine writes that obeys the model."""
    monkeypatch.setattr(own_engine, "run_engine", simulated_engine)
    monkeypatch.setattr(own_engine, "LOCK_PATH", tmp_path / "lock")
    path = tmp_path / "out.json"
    own_engine.main(["--seconds", "4", "--runs", "1", "--json", str(path)])
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_page_has_the_figures_of_the_record():
    page = PAGE.read_text(encoding="utf-8")

    assert filled(page, {PART: part(recorded())}) == page


def test_without_a_record_nothing_is_claimed():
    assert part(None) == NOT_YET


def test_a_missed_promise_is_named_and_stands_out(record):
    for one in record["compared"]:
        one["is_kept"] = None if one["promised"] is None else True
    kept = part(record)
    one = next(one for one in record["compared"] if one["figure"] == "itl_mean")
    one.update(is_kept=False, error=-0.123, differs=0.02, if_slower=0.015)
    missed = part(record)

    assert "; missed:" not in kept
    assert "; missed: mean ITL at 50%" in " ".join(missed.split())
    assert "| **-12.3%** (2.0%; +1.5%) |" in missed


def test_a_disturbed_run_is_told(record):
    record["runs"][-1]["slowdown"] = 0.1
    said = " ".join(part(record).split())

    assert "0 runs were made again" in said
    assert "2 of 3 were undisturbed" in said


@pytest.mark.parametrize(
    ("fit", "said"),
    [
        ({"narrow_tokens": 8, "tile_tokens": 12}, "found a bend at 8 tokens and tiles of 12;"),
        ({"narrow_tokens": 0, "tile_tokens": 12}, "found tiles of 12;"),
        ({"narrow_tokens": 0, "tile_tokens": 0}, "found neither bend nor tiles;"),
    ],
)
def test_the_shape_that_the_fit_found_is_told(record, fit, said):
    record["calibration"].update(fit)

    assert said in " ".join(part(record).split())


@pytest.mark.parametrize(("error", "is_acquitted"), [(-0.009, True), (-0.02, False)])
def test_the_scheduler_is_acquitted_by_its_own_error_alone(record, error, is_acquitted):
    record["own_step_times"] = {"0.5": {"ttft_mean": [error, 0.001]}}
    said = " ".join(part(record).split())

    assert f"are {abs(error):.1%} off at most" in said
    assert ("not the scheduler." in said) is is_acquitted
