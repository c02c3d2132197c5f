"""Presets of [engine]: another engine's rules as defaults, its blocks counted as it counts them."""

import json

import pytest
from command_line import everbatch, scenario_text

from everbatch.base.errors import ConfigError
from everbatch.scheduler.config import SchedulerConfig
from everbatch.workload.engine_presets import PRESETS
from everbatch.workload.engine_section import DEFAULTS, OPTIONS
from everbatch.workload.scenario import Scenario, parse_scenario


def scenario(**engine) -> Scenario:
    return parse_scenario(scenario_text(**engine), "given", "given")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_configuration_that_the_scheduler_takes(name):
    preset = PRESETS[name]
    kinds = {option: type(value) for option, value in preset.options.items()}

    assert isinstance(scenario(preset=name).engine, SchedulerConfig)
    assert [option for option in preset.options if option not in OPTIONS] == []
    assert kinds == {option: type(DEFAULTS[option]) for option in preset.options}


def test_vllm_s_rules_are_set_and_one_of_its_blocks_holds_nothing():
    engine = scenario(preset="vllm-v1", num_blocks=2588).engine

    assert engine.num_blocks == 2587
    assert engine.enable_prefix_caching
    assert (engine.policy, engine.admission, engine.backfill) == ("fcfs", "prompt", "none")
    assert (engine.preemption_victim, engine.preemption_mode) == ("newest", "recompute")


def test_lightllm_counts_tokens_and_its_peak_stays_below_the_pool():
    engine = scenario(preset="lightllm", num_blocks=10_000, policy="vtc").engine

    assert engine.num_blocks == 9_999
    assert PRESETS["lightllm"].options["block_size"] == 1
    assert (engine.policy, engine.admission, engine.backfill) == ("vtc", "peak", "none")
    assert not engine.enable_chunked_prefill


def test_what_the_section_gives_goes_before_the_preset():
    engine = scenario(preset="vllm-v1", enable_prefix_caching=False, watermark=0.01).engine

    assert not engine.enable_prefix_caching
    assert engine.watermark == 0.01


def test_blocks_set_beside_a_scenario_count_as_its_engine_counts_them():
    vllm, own = scenario(preset="vllm-v1"), scenario()

    assert vllm.with_settings(["num_blocks=100"]).engine.num_blocks == 99
    assert own.with_settings(["num_blocks=100"]).engine.num_blocks == 100
    assert vllm.with_settings(["watermark=0.5"]).engine.num_blocks == vllm.engine.num_blocks


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ({"preset": "vllm"}, '[engine] preset is "vllm", it must be one of vllm-v1'),
        ({"preset": 1}, "[engine] preset is 1, it must be one of vllm-v1"),
        (
            {"preset": "vllm-v1", "num_blocks": 1},
            '[engine] num_blocks is 1, of which preset "vllm-v1" leaves 1 empty: give at least 2',
        ),
        ({"preset": "vllm-v1", "num_blocks": 0}, "num_blocks is 0, of which preset"),
    ],
)
def test_a_preset_that_cannot_be_is_refused_with_what_can(engine, told):
    with pytest.raises(ConfigError) as error:
        scenario(**engine)

    assert told in str(error.value)


def test_a_preset_beside_a_scenario_is_refused_with_its_place():
    with pytest.raises(ConfigError, match=r"preset stands in \[engine\] of a scenario alone"):
        scenario().with_settings(["preset=vllm-v1"])


def test_vllm_preempts_the_latest_and_admits_nobody_in_that_step(tmp_path):
    """4 blocks of 4 hold tokens: b yields when a needs its third, and c waits behind b."""
    requests = [
        {"id": "a", "prompt_tokens": 8, "output_tokens": 9},
        {"id": "b", "prompt_tokens": 4, "output_tokens": 9},
        {"id": "c", "arrival": 3, "prompt_tokens": 2, "output_tokens": 1},
    ]
    text = json.loads(scenario_text(requests, preset="vllm-v1", num_blocks=5))
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(text), encoding="utf-8")

    answer = everbatch("simulate", path, "--json")
    told = json.loads(answer.out)["requests"]

    assert answer.status == 0, answer.err
    assert [told[id]["num_preemptions"] for id in "abc"] == [0, 1, 0]
    assert told["c"]["first_step"] > told["a"]["finished_step"]
