"""Recorded runs of the VTC artifact: reading, the fit of two prices, and the rows of the table."""

import json
from dataclasses import replace

import pytest
from fidelity.lightllm import TwoPasses
from fidelity.vtc_fit import Decode, fit_prices
from fidelity.vtc_runs import (
    CONTEXT_TOKEN_NS,
    FILES,
    FOLDER,
    PROMISED,
    Served,
    figures,
    read_run,
    rows,
    shares,
    simulate,
)

TRUE = TwoPasses(prompt_token=250e3, decode_step=30e6, context_token=CONTEXT_TOKEN_NS)


def made_up(num_requests: int = 60) -> list[Served]:
    """Requests of two clients, more than can be served at once."""
    return [
        Served(f"client-{n % 2}", 100 + 37 * n % 400, 50 + 53 * n % 300, 0.3 * n, None, None)
        for n in range(num_requests)
    ]


def write_run(path, run: list[Served]) -> None:
    responses = [
        {
            "adapter_dir": one.tenant,
            "prompt_len": one.num_prompt_tokens,
            "output_len": one.num_output_tokens,
            "req_time": one.arrival_s,
            "first_token_latency": -1 if one.ttft_s is None else one.ttft_s,
            "request_latency": -1 if one.e2e_s is None else one.e2e_s,
        }
        for one in run
    ]
    path.write_text(json.dumps({"config": {}, "result": {"responses": responses}}) + "\n")


def test_prices_are_found_again_from_the_times_of_requests():
    run = simulate(made_up(), TRUE)
    decodes = [
        Decode(
            one.arrival_s + one.ttft_s,
            one.arrival_s + one.e2e_s,
            one.num_prompt_tokens,
            one.num_output_tokens,
        )
        for one in run
    ]
    prices, spread = fit_prices(decodes, CONTEXT_TOKEN_NS)

    assert prices.decode_step == pytest.approx(TRUE.decode_step, rel=0.02)
    assert prices.prompt_token == pytest.approx(TRUE.prompt_token, rel=0.1)
    assert spread < 0.2


def test_a_refused_request_has_no_times_and_is_not_served(tmp_path):
    run = [
        Served("a", 10, 5, 1.0, 0.5, 1.5),
        Served("b", 10, 5, 0.0, None, None),
    ]
    write_run(tmp_path / "run.jsonl", run)
    read = read_run(tmp_path / "run.jsonl")

    assert read == [run[1], run[0]]
    assert figures(read).num_served == 1
    assert figures(read).requests_per_s == pytest.approx(1 / 2.5)


def test_shares_count_prompts_once_and_outputs_twice_of_who_ended_in_time():
    run = [
        Served("a", 100, 50, 0.0, 1.0, 300.0),
        Served("b", 50, 25, 10.0, 1.0, 290.0),
        Served("b", 50, 25, 10.0, 1.0, 290.1),
    ]

    assert shares(run) == {"a": pytest.approx(2 / 3), "b": pytest.approx(1 / 3)}


def test_data_that_is_not_there_is_one_row_that_says_so(tmp_path):
    [row] = rows(tmp_path)

    assert row.passed is None
    assert FILES[0] in row.note


def write_all(folder, slower: float) -> None:
    """Write runs as our own simulator makes them; those predicted last `slower` times as long."""
    folder.mkdir()
    for file in FILES:
        name = file.removesuffix(".jsonl")
        run = simulate(
            made_up(),
            TRUE,
            policy="vtc" if name.startswith("VTC") else "fcfs",
            knows_lengths="oracle" in name,
            requests_per_minute=5 if "rpm5" in name else 0,
        )
        if name in PROMISED:
            run = [
                replace(one, ttft_s=slower * one.ttft_s, e2e_s=slower * one.e2e_s) for one in run
            ]
        write_run(folder / file, run)


@pytest.mark.parametrize(("slower", "is_kept"), [(1.0, True), (1.2, False)])
def test_a_run_of_our_own_is_predicted_and_a_slower_one_is_missed(tmp_path, slower, is_kept):
    write_all(tmp_path / FOLDER, slower)
    of_vtc = [row for row in rows(tmp_path) if row.name.startswith("VTC, real: mean TTFT")]

    assert [row.passed for row in of_vtc if row.promised is not None] == [is_kept]
