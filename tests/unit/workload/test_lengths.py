"""Lengths of synthetic requests: their ranges, their means, and pairs out of traces."""

import json

import pytest
from trace_rows import FILES, lengths, requests_of

from everbatch.base.fields import Fields
from everbatch.workload.lengths import read_lengths

VIDUR = {"lengths": "empirical", "file": "vidur.csv"}
MOONCAKE = {"lengths": "empirical", "file": "mooncake.jsonl", "format": "mooncake"}


def draws(prompt, output=1, count: int = 2000, seed: int = 1, folder=FILES):
    section = Fields({"prompt": prompt, "output": output}, "[workload]", ("prompt", "output"))
    draw = read_lengths(section, folder).drawer(seed)
    return [draw() for _ in range(count)]


def test_a_number_and_fixed_are_the_same():
    fixed = {"lengths": "fixed", "tokens": 7}

    assert set(draws(7, fixed)) == {(7, 7)}


def test_uniform_lengths_reach_both_ends():
    found = {prompt for prompt, _ in draws({"lengths": "uniform", "min": 3, "max": 6})}

    assert found == {3, 4, 5, 6}


def test_lognormal_lengths_have_their_mean_and_variation():
    found = [prompt for prompt, _ in draws({"lengths": "lognormal", "mean": 500, "cv": 0.5})]
    mean = sum(found) / len(found)
    variance = sum((length - mean) ** 2 for length in found) / len(found)

    assert mean == pytest.approx(500, rel=0.05)
    assert variance**0.5 / mean == pytest.approx(0.5, rel=0.08)


def test_lognormal_lengths_are_cut_at_their_bounds():
    cut = {"lengths": "lognormal", "mean": 50, "cv": 2, "min": 20, "max": 90}
    found = [prompt for prompt, _ in draws(cut)]

    assert (min(found), max(found)) == (20, 90)


def test_lognormal_lengths_without_variation_are_the_mean():
    assert set(draws({"lengths": "lognormal", "mean": 50, "cv": 0})) == {(50, 1)}


def test_prompts_and_outputs_of_one_file_are_drawn_together():
    pairs = set(draws(VIDUR, VIDUR))
    first, *_ = (FILES / "vidur.csv").read_text(encoding="utf-8").splitlines()[1:]

    assert tuple(map(int, first.split(",")[:2])) in pairs
    assert len(pairs) == 23


def test_prompts_of_one_file_and_outputs_of_another_are_not():
    found = draws(VIDUR, MOONCAKE)
    of_mooncake = {output for _, output in lengths(requests_of(FILES / "mooncake.jsonl"))}

    assert {output for _, output in found} == of_mooncake
    assert len(set(found)) > 23


def test_prompts_do_not_change_with_what_outputs_are():
    uniform = {"lengths": "uniform", "min": 1, "max": 99}

    assert [p for p, _ in draws(uniform, 5)] == [p for p, _ in draws(uniform, uniform)]


def test_rows_without_tokens_are_not_drawn_and_counted(tmp_path):
    rows = [{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": count} for count in (0, 3, 0)]
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (tmp_path / "rows.jsonl").write_text(text, encoding="utf-8")
    part = {"lengths": "empirical", "file": "rows.jsonl"}
    section = Fields({"prompt": part, "output": 1}, "[workload]", ("prompt", "output"))

    assert set(draws(part, folder=tmp_path)) == {(5, 1)}
    assert read_lengths(section, tmp_path).notes() == [
        "read lengths of rows.jsonl, format jsonl (detected)",
        "rows.jsonl: 2 rows without prompt or output are not drawn",
    ]
