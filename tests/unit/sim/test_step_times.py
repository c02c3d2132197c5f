"""Which model of step time a clock means, and what it lacks."""

import json

import pytest
from command_line import scenario_text

from everbatch.base.errors import ConfigError
from everbatch.costs.fitted import Prices, Region
from everbatch.costs.profile import Profile, profile_text
from everbatch.sim.run import simulate
from everbatch.workload.scenario import parse_scenario

HARDWARE = {"flops": 1e12, "memory_bandwidth": 1e12}
MODEL = {
    "num_params": 1e9,
    "bytes_per_value": 2,
    "num_layers": 10,
    "num_kv_heads": 2,
    "head_dim": 64,
    "hidden_size": 512,
}


def run(clock, folder=None, seed=0, **tables) -> dict:
    given = {"hardware": HARDWARE, "model": MODEL, **tables}
    text = json.loads(scenario_text()) | {"clock": clock, "run": {"seed": seed}}
    text |= {key: value for key, value in given.items() if value is not None}
    args = () if folder is None else (folder,)
    return simulate(parse_scenario(json.dumps(text), "given", "given", *args))


def test_the_nominal_clock_reads_weights_or_computes():
    # A prompt of 4 tokens at 2 GFLOP each, then two passes that read 2 GB.
    assert run({"kind": "nominal"})["duration_s"] == pytest.approx(0.008 + 2 * 0.002)


def test_the_full_clock_takes_its_options():
    slow, fast = (
        run({"kind": "roofline", "memory_efficiency": share, "host_s_per_step": 0})["duration_s"]
        for share in (0.5, 1.0)
    )

    # At half the bandwidth two passes read more than 1 GB for a millisecond a GB longer.
    assert slow > fast + 2 * 0.001


@pytest.mark.parametrize("kind", ["nominal", "roofline"])
@pytest.mark.parametrize("lacking", ["hardware", "model"])
def test_what_a_clock_needs_is_asked_for(kind, lacking):
    with pytest.raises(ConfigError, match=rf'kind "{kind}" needs \[{lacking}\]'):
        run({"kind": kind}, **{lacking: None})


@pytest.fixture
def profile(tmp_path):
    seen = Region({"num_decodes": (1, 8), "decode_context": (6, 9), "num_chunks": (1, 1)})
    fit = Profile(Prices(decode_step=1e6, prompt_step=5e6, prompt_token=1e5), seen)
    (tmp_path / "fit.json").write_text(profile_text(fit), encoding="utf-8")
    return tmp_path


def test_a_calibrated_clock_asks_its_profile(profile):
    summary = run({"kind": "calibrated", "file": "fit.json"}, profile, hardware=None, model=None)

    assert summary["duration_s"] == pytest.approx(0.005 + 4 * 0.0001 + 2 * 0.001)


def test_steps_outside_a_profile_are_counted_by_what_lies_outside(profile):
    summary = run({"kind": "calibrated", "file": "fit.json"}, profile)

    # Contexts of the decodes are 5 and 6; no prompt was ever seen by its tokens.
    assert summary["outside_profile"] == {
        "prefill_tokens": 1,
        "prefill_pairs": 1,
        "decode_context": 1,
    }
    assert run({"kind": "nominal"})["outside_profile"] is None


def test_noise_depends_on_the_seed_alone():
    noisy = {"kind": "nominal", "noise": 0.1}

    assert run(noisy, seed=1) == run(noisy, seed=1)
    assert run(noisy, seed=1)["duration_s"] != run(noisy, seed=2)["duration_s"]
    assert run(noisy)["duration_s"] == pytest.approx(0.012, rel=0.5)


@pytest.mark.parametrize(
    ("fault", "duration"),
    [
        # Passes of 8, 2 and 2 ms start at 0, 8 and 10 ms.
        ({}, 0.024),
        ({"end": 0.008}, 0.016 + 0.004),
        ({"start": 0.008}, 0.008 + 2 * 0.004),
        ({"start": 0.009}, 0.008 + 0.002 + 0.004),
        ({"start": 0.008, "end": 0.009}, 0.008 + 0.004 + 0.002),
        ({"start": 1}, 0.012),
    ],
)
def test_a_slowed_device_takes_longer_for_passes_that_start_then(fault, duration):
    faults = [{"kind": "slow", "factor": 2, **fault}]

    assert run({"kind": "nominal"}, faults=faults)["duration_s"] == pytest.approx(duration)


def test_slowdowns_at_once_multiply():
    faults = [{"kind": "slow", "factor": 2}, {"kind": "slow", "factor": 1.5}]

    assert run({"kind": "nominal"}, faults=faults)["duration_s"] == pytest.approx(0.036)


def test_slowdowns_beyond_all_floats_are_refused_by_what_they_make_of_a_request():
    faults = [{"kind": "slow", "factor": 1e6}] * 60

    with pytest.raises(ConfigError, match=r"a request takes .* at most"):
        run({"kind": "nominal"}, faults=faults)
