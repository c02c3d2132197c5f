"""Published figures: DistServe's step times, the search for a capacity, and the rows."""

import json

import pytest
from fidelity import published
from fidelity.published import PhaseTimes, capacity, requests, rows, run, worst

from everbatch.base.units import NS_PER_MS
from everbatch.costs.work import StepWork

TIMES = PhaseTimes((20.0, 0.1, 1e-5), (10.0, 1e-3, 0.5), (5.0, 2e-3, 0.25), threshold=3)


def test_a_pass_over_prompts_takes_their_lengths_and_their_squares():
    work = StepWork()
    work.add_chunk(0, 100)
    work.add_chunk(0, 300)

    assert TIMES.duration_ns(work) == pytest.approx(
        (20 + 0.1 * 400 + 1e-5 * (100**2 + 300**2)) * NS_PER_MS
    )


def test_large_batches_have_prices_of_their_own():
    small = StepWork(num_decodes=2, decode_context=1_000)
    large = StepWork(num_decodes=3, decode_context=1_000)

    assert TIMES.duration_ns(small) == (10 + 1 + 1) * NS_PER_MS
    assert TIMES.duration_ns(large) == (5 + 2 + 0.75) * NS_PER_MS


def test_the_worst_point_keeps_its_sign():
    error, told = worst([(1, 10.0), (2, 10.0)], lambda x: 11.0 if x == 1 else 7.0)

    assert error == pytest.approx(-0.3)
    assert told == "+10% at 1, -30% at 2"


@pytest.mark.parametrize("limit", [0.3, 2.5, 13.0])
def test_a_capacity_is_found_below_and_above_where_the_search_begins(limit):
    found = capacity(lambda rate: rate <= limit, start=4.0)

    assert limit * 0.85 <= found <= limit


def test_a_load_that_is_always_sustained_ends_the_search():
    assert capacity(lambda rate: True, start=4.0) <= 4.0 * 2**published.MAX_DOUBLINGS


def test_requests_are_the_same_at_each_rate_but_for_their_arrivals():
    slow, fast = requests(1.0, [(5, 2), (7, 3)]), requests(2.0, [(5, 2), (7, 3)])

    assert [(one.prompt.num_tokens, one.max_tokens) for one in fast] == [(5, 2), (7, 3)]
    assert [one.arrival for one in slow] == pytest.approx([2 * one.arrival for one in fast], abs=2)


def test_a_request_alone_takes_its_prompt_and_its_decodes():
    [spec] = requests(1.0, [(100, 3)])
    told = run([spec], TIMES, max_num_batched_tokens=512, num_blocks=100)

    assert told["ttft"]["mean"] == pytest.approx(0.0301, abs=1e-6)
    assert told["tpot"]["mean"] == pytest.approx(0.0106, abs=1e-4)


def write_figures(folder, tpot: float) -> None:
    """Write figures of one point each, with DistServe's P90 of TPOT as given."""
    series = {
        ("DistServe OSDI24", "Fig. 1 top"): {
            "colocated (existing)": [[1.0, 0.1]],
            "prefill-only": [[1.0, 0.1]],
        },
        ("DistServe OSDI24", "Fig. 1 bottom"): {
            "colocated (existing)": [[1.0, tpot]],
            "decode-only": [[1.0, 0.01]],
        },
        ("vLLM SOSP23", "Fig. 12a-c"): {"vLLM": [[1.0, 0.02], [1.9, 0.2]]},
        ("Sarathi-Serve OSDI24", "Fig. 12"): {
            "SS-512": [[0.1, 2.0]],
            "SS-2048": [[0.1, 0.5]],
        },
    }
    figures = [
        {"paper": paper, "figure": figure, "series": lines}
        for (paper, figure), lines in series.items()
    ]
    (folder / published.FIGURES).write_text(json.dumps({"figures": figures}))
    (folder / "calibration").mkdir()
    profile = {
        "prefill": TIMES.prefill,
        "decoding_smallbs": TIMES.small_decode,
        "decoding_largebs": TIMES.large_decode,
        "decoding_large_small_bs_threshold": TIMES.threshold,
    }
    for name in ("vllm", "distserve"):
        path = folder / published.PROFILES.format(name)
        path.write_text(json.dumps({published.OPT_13B: {"1": profile}}))


def test_the_one_panel_that_can_be_judged_is_judged_and_the_others_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(published, "NUM_REQUESTS", 20)
    monkeypatch.setattr(published, "NUM_CAPACITY_REQUESTS", 5)
    monkeypatch.setattr(published, "MAX_DOUBLINGS", 1)
    monkeypatch.setattr(published, "NUM_HALVINGS", 1)
    write_figures(tmp_path, tpot=1.0)
    found = rows(tmp_path)

    assert [row.name for row in found if row.passed is False] == [found[0].name]
    assert all(row.passed is None and row.note for row in found[1:])


def test_panels_that_are_not_there_are_one_row_that_says_so(tmp_path):
    [row] = rows(tmp_path)

    assert row.passed is None
    assert published.FIGURES in row.note
