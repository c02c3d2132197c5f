"""Prices out of requests' stamps alone: found again, used on what was not seen; refusals."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from command_line import everbatch

from everbatch.base.errors import ConfigError
from everbatch.calibration.data_sheet import sheet_prices
from everbatch.calibration.request_log import RecordedRequest, RequestLog
from everbatch.calibration.request_rounds import MAX_ROUNDS
from everbatch.calibration.request_runs import run_requests
from everbatch.calibration.requests import calibrate_requests
from everbatch.costs.device import Device
from everbatch.costs.fitted import FittedStepTime, Prices, Region
from everbatch.costs.model import Model
from everbatch.workload.scenario import Scenario, parse_scenario

TRUE = Prices(8e6, 11e6, 4e4, 120, 6e4, 40)
SCENARIO = """
[engine]
max_num_seqs = 16
max_num_batched_tokens = 256
num_blocks = {blocks}
[clock]
kind = "nominal"
[workload]
arrivals = "poisson"
rate = {rate}
num_requests = {requests}
prompt = {{ lengths = "lognormal", mean = 150, cv = 0.8, max = 1000 }}
output = {{ lengths = "lognormal", mean = 30, cv = 0.8, max = 150 }}
"""


def scenario(requests: int = 70, rate: float = 40, blocks: int = 170) -> Scenario:
    text = SCENARIO.format(requests=requests, rate=rate, blocks=blocks)
    return parse_scenario(text, "given", "given")


def recorded(engine: Scenario, *, has_queued: bool = True) -> RequestLog:
    """The log of a run with known prices."""
    source, specs = engine.source(), []
    while source.peek() is not None:
        specs.append(source.pop())
    zero = specs[0].arrival
    plain = [
        RecordedRequest(replace(spec, id=str(n), arrival=spec.arrival - zero), None, 0, 0)
        for n, spec in enumerate(specs)
    ]
    run = run_requests(engine, plain, FittedStepTime(TRUE, Region()), has_queued=has_queued)
    requests = [
        replace(
            one,
            queued_ns=stamp.queued_ns if has_queued else None,
            first_ns=stamp.first_ns,
            last_ns=stamp.last_ns,
        )
        for one, stamp in zip(plain, run.stamps, strict=True)
    ]
    return RequestLog("log", "2026-01-02", requests, has_queued)


CROWDED = scenario()
LOG = recorded(CROWDED)


@pytest.fixture(scope="module")
def made():
    return calibrate_requests(LOG, CROWDED, "1.2.3")


def test_what_was_not_seen_is_predicted_from_stamps_alone(made):
    errors = made.errors["held out"]

    assert made.num_preemptions > 0
    assert 24 <= made.num_fitted <= 26
    assert made.num_held_out == 70 - made.num_fitted
    assert max(abs(of["mean"]) for of in errors.values()) < 0.01
    assert max(abs(of["p99"]) for of in errors.values()) < 0.02


def test_prices_are_those_of_the_run(made):
    found, prompt = made.prices, 256

    decode_step = found.decode_step + 14 * found.decode + 14 * 200 * found.decode_context
    assert decode_step == pytest.approx(8e6 + 14 * 4e4 + 14 * 200 * 120, rel=0.02)
    prompt_step = found.prompt_step + prompt * found.prompt_token
    assert prompt_step == pytest.approx(11e6 + prompt * 6e4, rel=0.05)


def test_a_light_load_without_queue_stamps_is_predicted_too():
    light = scenario(rate=4, requests=60)

    made = calibrate_requests(recorded(light, has_queued=False), light, "1.2.3", share=0.5)

    assert max(abs(of["mean"]) for of in made.errors["held out"].values()) < 0.01
    assert any("waits count from arrival" in note for note in made.notes)


def test_rounds_are_told_and_bounded():
    told: list[int] = []

    made = calibrate_requests(LOG, CROWDED, "1.2.3", tell=told.append)

    assert told == list(range(made.num_rounds))
    assert made.num_rounds <= MAX_ROUNDS


def test_requests_that_are_not_in_the_log_are_named():
    log = replace(LOG, left_out=Counter({"they have no outputs": 2}))

    notes = calibrate_requests(log, CROWDED, "1.2.3").notes

    assert notes[0] == ("2 requests left out, though the engine served them: they have no outputs")


def test_the_profile_tells_its_region_its_errors_and_where_it_comes_from(made):
    profile = made.profile

    assert profile.region.ranges["num_decodes"][1] <= 16
    assert profile.errors["tpot_mean"] == pytest.approx(
        made.errors["held out"]["tpot"]["mean"], abs=1e-6
    )
    assert profile.origin["share"] == 0.35
    [log] = profile.origin["logs"]
    assert (log["file"], log["date"], log["config"]["num_blocks"]) == ("log", "2026-01-02", 170)


def test_steps_of_the_log_outside_of_what_was_fitted_are_counted(made):
    assert set(made.num_outside) <= set(made.profile.region.ranges)
    assert all(0 < count <= made.num_steps for count in made.num_outside.values())


# 80 % of the rates: 8 ms for the weights, 40 us a token, 120 ns a token of context, 40 ns a pair.
DEVICE = Device(flops=1.25e12, memory_bandwidth=1.25e12)
MODEL = Model(
    num_params=2e7, bytes_per_value=400, num_layers=10, num_heads=200, num_kv_heads=3, head_dim=5
)


def test_a_data_sheet_says_about_how_large_each_price_is():
    assert sheet_prices(DEVICE, MODEL) == Prices(*map(pytest.approx, (8e6, 8e6, 4e4, 120, 4e4, 40)))


@pytest.mark.parametrize("rates", [0.6, 1.0, 1.5])
def test_a_data_sheet_that_is_off_costs_little(rates):
    device = Device(flops=rates * 1.25e12, memory_bandwidth=rates * 1.25e12)

    leaning = calibrate_requests(LOG, replace(CROWDED, hardware=device, model=MODEL), "1.2.3")

    assert leaning.sheet is not None
    assert max(abs(of["mean"]) for of in leaning.errors["held out"].values()) < 0.03


def test_prices_far_off_do_not_swing_from_too_cheap_to_too_dear():
    """Cheap steps hold few requests, dear ones many: without damping each fit goes too far."""
    busy = scenario(rate=20, requests=60)
    device = Device(flops=3 * 1.25e12, memory_bandwidth=3 * 1.25e12)

    made = calibrate_requests(
        recorded(busy), replace(busy, hardware=device, model=MODEL), "1.2.3", share=0.4
    )

    assert max(abs(of["mean"]) for of in made.errors["held out"].values()) < 0.05


@pytest.mark.parametrize("lacking", ["flops", "memory_bandwidth"])
def test_a_data_sheet_that_lacks_a_rate_is_not_leaned_on(lacking):
    assert sheet_prices(replace(DEVICE, **{lacking: None}), MODEL) is None
    assert sheet_prices(DEVICE, replace(MODEL, num_heads=None)) is None
    assert sheet_prices(None, MODEL) is None


def test_too_few_requests_are_refused_with_what_there_is():
    with pytest.raises(
        ConfigError, match=r"log has 70 requests, of which 20% are 14: a fit needs 20"
    ):
        calibrate_requests(LOG, CROWDED, "1.2.3", share=0.2)


def test_a_request_that_the_engine_would_refuse_is_named():
    small = CROWDED.with_settings(["max_model_len=100"])

    with pytest.raises(ConfigError, match=r"request \d+ of the log, .* is refused by the engine"):
        calibrate_requests(LOG, small, "1.2.3")


# The command


def rows(log: RequestLog) -> list[dict]:
    return [
        {
            "arrival_s": one.spec.arrival / 1e9,
            "prompt_tokens": one.spec.prompt.num_tokens,
            "output_tokens": one.spec.output_tokens,
            "queued_s": one.queued_ns / 1e9,
            "first_token_s": one.first_ns / 1e9,
            "last_token_s": one.last_ns / 1e9,
        }
        for one in log.requests
    ]


@pytest.fixture
def files(tmp_path):
    log, engine = tmp_path / "requests.jsonl", tmp_path / "engine.toml"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows(LOG)), encoding="utf-8")
    text = SCENARIO.format(requests=70, rate=40, blocks=170)
    engine.write_text(text.replace('"nominal"', '"calibrated"\nfile = "profile.json"'))
    return log, engine, tmp_path / "profile.json"


def test_the_command_prints_the_fit_and_its_profile_runs(files):
    log, engine, profile = files

    answer = everbatch("calibrate", log, "--scenario", engine, "-o", profile)

    assert answer.status == 0, answer.err
    assert answer.out.startswith("requests.jsonl: 2")
    assert " requests fitted, 4" in answer.out
    assert "steps of the log outside" in answer.out
    assert "leans on no data sheet" in " ".join(answer.out.split())
    assert everbatch("simulate", engine, "--json").status == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "is a log of requests, which does not tell how its engine decides: give --scenario"),
        (["--scenario", "none.toml"], "there is no scenario file"),
        (["--scenario", "{engine}", "{engine}"], "is a log of requests: give it alone"),
        (["--scenario", "{engine}", "--share", "1.5"], "--share"),
    ],
)
def test_what_the_command_lacks_is_named(files, arguments, told):
    log, engine, profile = files
    given = [argument.format(engine=engine) for argument in arguments]

    answer = everbatch("calibrate", log, "-o", profile, *given)

    assert answer.status == 2
    assert told in answer.err
    assert not profile.exists()


def test_event_logs_take_no_scenario(files, tmp_path):
    _, engine, profile = files
    events = tmp_path / "events.jsonl"
    events.write_text('{"event": "header", "version": 1}\n', encoding="utf-8")

    answer = everbatch("calibrate", events, "-o", profile, "--scenario", engine)

    assert answer.status == 2
    assert "--scenario is for logs of requests" in answer.err
