"""Scenarios: defaults, every error by key, value and range, expansion of `count` and `every`."""

import json
from dataclasses import replace

import pytest
from command_line import scenario_text

from everbatch.base.errors import ConfigError
from everbatch.workload.builtin_scenarios import builtin_names, find_scenario, template_text
from everbatch.workload.engine_section import DEFAULTS, OPTIONS
from everbatch.workload.requests import Segment
from everbatch.workload.scenario import Scenario, parse_scenario, read_scenario

REQUEST = {"id": "a", "prompt_tokens": 4, "output_tokens": 3}


def read(text: str) -> Scenario:
    return parse_scenario(text, "given", "given.json")


def scenario(requests=(REQUEST,), **engine) -> Scenario:
    return read(scenario_text(requests, **engine))


def with_sections(**sections) -> Scenario:
    return read(json.dumps({**json.loads(scenario_text()), **sections}))


def with_request(**fields) -> Scenario:
    return scenario([{**REQUEST, **fields}])


def _kind(option: str) -> str:
    return type(DEFAULTS.get(option, 0)).__name__


def test_toml_and_json_are_the_same():
    toml = """
        [engine]
        max_num_seqs = 4
        max_num_batched_tokens = 512
        num_blocks = 64
        block_size = 4
        [[requests]]
        id = "a"
        prompt_tokens = 4
        output_tokens = 3
    """

    assert read(toml) == scenario()


def test_defaults_are_those_of_the_format():
    found = scenario()
    spec = found.requests[0]

    assert (found.clock.kind, found.run.horizon, found.run.horizons, found.run.seed) == (
        "steps",
        None,
        (),
        0,
    )
    assert (spec.arrival, spec.max_tokens, spec.priority, spec.tenant) == (0, 3, 0, "")
    assert (spec.cache_salt, spec.num_samples, spec.abort_at, spec.deadline) == ("", 1, None, None)
    assert found.engine.enable_chunked_prefill
    assert not found.engine.enable_prefix_caching
    assert (found.engine.admission, found.engine.preemption_trigger) == ("prompt", "shortage")


def test_options_reach_the_scheduler():
    found = scenario(enable_prefix_caching=True, watermark=0.25, admission="now")

    assert found.engine.enable_prefix_caching
    assert found.engine.watermark == 0.25
    assert found.engine.admission == "now"


def test_a_chunk_cap_above_the_budget_is_harmless():
    assert scenario(long_prefill_token_threshold=9_999).engine.long_prefill_token_threshold == 9_999


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ({"max_num_seq": 4}, '[engine] has no key "max_num_seq" (did you mean "max_num_seqs"?)'),
        ({"max_num_seqs": 0}, "[engine] max_num_seqs must lie in [1, 65536], got 0"),
        ({"max_num_seqs": "4"}, '[engine] max_num_seqs is "4", it must be an integer'),
        ({"max_num_seqs": True}, "[engine] max_num_seqs is true, it must be an integer"),
        ({"max_num_seqs": 4.0}, "[engine] max_num_seqs is 4.0, it must be an integer"),
        ({"num_host_blocks": False}, "num_host_blocks is false, it must be an integer"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching is 1, it must be true or false"),
        ({"policy": 3}, "policy is 3, it must be a string"),
        ({"watermark": 1.0}, "watermark must lie in [0, 1), got 1.0"),
        ({"admission": "never"}, "admission must be one of"),
        ({"block_size": 0}, "block_size must lie in [1, 4096], got 0"),
    ],
)
def test_a_wrong_option_is_named_with_its_value_and_range(engine, told):
    with pytest.raises(ConfigError) as error:
        scenario(**engine)

    assert told in str(error.value)


@pytest.mark.parametrize("size", ["max_num_seqs", "max_num_batched_tokens", "num_blocks"])
def test_the_sizes_must_be_given(size):
    tables = json.loads(scenario_text())
    del tables["engine"][size]

    with pytest.raises(ConfigError, match=rf"\[engine\] lacks {size}"):
        read(json.dumps(tables))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"arival": 3}, 'requests[0] has no key "arival" (did you mean "arrival"?)'),
        ({"id": 5}, "requests[0] id is 5, it must be a string"),
        ({"id": ""}, "requests[0] id is"),
        ({"id": "\ud800"}, "id is '\\ud800', it must be a string without lone surrogates"),
        ({"prompt_tokens": 0}, "requests[0] prompt_tokens is 0, it must be an integer from 1"),
        ({"prompt_tokens": -1}, "prompt_tokens is -1"),
        ({"output_tokens": 0}, "output_tokens is 0, it must be an integer from 1"),
        ({"max_tokens": 0}, "max_tokens is 0, it must be an integer from 1"),
        ({"arrival": 1.5}, "arrival is 1.5, it must be a whole number of steps"),
        ({"arrival": -1}, "arrival is -1, it must be an integer from 0"),
        ({"abort_at": 0.5}, "abort_at is 0.5, it must be a whole number of steps"),
        ({"deadline": "soon"}, 'deadline is "soon", it must be an integer'),
        ({"priority": 0.5}, "priority is 0.5, it must be an integer"),
        ({"tenant": 1}, "tenant is 1, it must be a string"),
        ({"n": 0}, "n is 0, it must be an integer from 1"),
        ({"count": 0}, "count is 0, it must be an integer from 1"),
        ({"every": 2}, "has every without count"),
        ({"prompt": [{"text": "a", "tokens": 1}]}, "has prompt_tokens and prompt: give one of"),
    ],
)
def test_a_wrong_request_is_named_with_its_value_and_range(fields, told):
    with pytest.raises(ConfigError) as error:
        with_request(**fields)

    assert told in str(error.value)


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ({}, "has no prompt: give one of prompt_tokens, prompt, prompt_token_ids"),
        ({"prompt": []}, "prompt is []"),
        ({"prompt": [{"text": "a"}]}, "prompt[0] lacks tokens"),
        ({"prompt": [{"text": "a", "tokens": 0}]}, "prompt has 0 tokens in all"),
        ({"prompt": [{"txt": "a", "tokens": 1}]}, 'has no key "txt" (did you mean "text"?)'),
        ({"prompt": [{"text": "a", "tokens": 1.5}]}, "tokens is 1.5"),
        ({"prompt_token_ids": []}, "prompt_token_ids is []"),
        ({"prompt_token_ids": [1, -1]}, "prompt_token_ids holds -1"),
        ({"prompt_token_ids": [1, 2**31]}, "prompt_token_ids holds 2147483648"),
        ({"prompt_token_ids": [1, "2"]}, 'prompt_token_ids holds "2"'),
    ],
)
def test_a_wrong_prompt_is_named(prompt, told):
    with pytest.raises(ConfigError) as error:
        scenario([{"id": "a", "output_tokens": 3, **prompt}])

    assert told in str(error.value)


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"motor": {}}, 'has no key "motor"'),
        ({"clock": {"kind": "step"}}, '(did you mean "steps"?)'),
        ({"clock": {"file": "profile.json"}}, '[clock] file belongs to the kind "calibrated"'),
        ({"workload": {"trace": "t.csv"}}, "has both [workload] and [[requests]]"),
        ({"run": {"horizon": 0}}, "[run] horizon is 0, it must be an integer from 1"),
        ({"run": {"horizon": 2.5}}, "horizon is 2.5, it must be a whole number of steps"),
        ({"run": {"horizons": 80}}, "horizons is 80, it must be a list"),
        ({"run": {"horizons": [80, 0]}}, "horizons holds 0"),
        ({"run": {"seed": -1}}, "seed is -1"),
        ({"tenants": {"a": {"weight": 0}}}, "[tenants] a weight is 0, it must be a number above 0"),
        ({"tenants": {"a": {"share": 1}}}, '[tenants] a has no key "share"'),
        ({"hardware": {}}, "[hardware] lacks name"),
        ({"model": {"num_params": -1}}, "[model] num_params is -1, it must be a number above 0"),
        ({"requests": []}, "requests must be a list of one table or more"),
        ({"engine": 3}, "[engine] must be a table, not 3"),
    ],
)
def test_a_wrong_section_is_named(sections, told):
    with pytest.raises(ConfigError) as error:
        with_sections(**sections)

    assert told in str(error.value)


@pytest.mark.parametrize("option", sorted(OPTIONS))
def test_an_option_is_given_to_the_scheduler_or_refused(option):
    other = {"bool": True, "int": 7, "float": 0.5, "str": "static"}[_kind(option)]
    choices = {"admission": "now", "preemption_trigger": "stall"}
    value = choices.get(option, False if option == "enable_chunked_prefill" else other)

    try:
        found = scenario(**{option: value})
    except ConfigError as error:
        assert f"[engine] {option}" in str(error)
    else:
        assert getattr(found.engine, option) == value


def test_copies_are_numbered_and_arrive_one_after_another():
    specs = with_request(id="d", arrival=3, count=3, every=2).requests

    assert [(spec.id, spec.arrival, spec.position) for spec in specs] == [
        ("d0", 3, 0),
        ("d1", 5, 1),
        ("d2", 7, 2),
    ]


def test_copies_arrive_all_at_once_by_default():
    assert [spec.arrival for spec in with_request(count=3).requests] == [0, 0, 0]


def test_one_copy_is_numbered_too():
    assert [spec.id for spec in with_request(id="d", count=1).requests] == ["d0"]


def test_positions_go_on_after_copies():
    specs = scenario([{**REQUEST, "id": "d", "count": 2}, {**REQUEST, "id": "z"}]).requests

    assert [spec.position for spec in specs] == [0, 1, 2]


@pytest.mark.parametrize(
    "requests",
    [
        [REQUEST, REQUEST],
        [{**REQUEST, "id": "a1"}, {**REQUEST, "count": 2}],
        [{**REQUEST, "n": 2}, {**REQUEST, "id": "a/1"}],
    ],
)
def test_ids_are_unique_after_expansion(requests):
    with pytest.raises(ConfigError, match="ids must be unique"):
        scenario(requests)


def test_segments_keep_their_order_and_nameless_ones_are_private():
    segments = [{"text": "system", "tokens": 48}, {"tokens": 5}, {"text": "a", "tokens": 0}]
    prompt = scenario([{"id": "a", "output_tokens": 3, "prompt": segments}]).requests[0].prompt

    assert prompt.num_tokens == 53
    assert prompt.segments == (Segment("system", 48), Segment(None, 5), Segment("a", 0))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[engine", "given.json is not TOML"),
        ('{"engine": ', "given.json is not JSON"),
        ('{"engine": {}, "engine": {}}', 'the key "engine" comes twice'),
        ('{"engine": {"watermark": NaN}}', "NaN is no number of JSON"),
        ("{" + '"a":[' * 100_000, "is not JSON: "),
    ],
)
def test_a_broken_file_is_named(text, told):
    with pytest.raises(ConfigError) as error:
        read(text)

    assert told in str(error.value)


def test_a_missing_file_a_folder_and_bad_bytes_are_errors_of_one_line(tmp_path):
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")

    for path in (tmp_path / "none.toml", tmp_path, binary):
        with pytest.raises(ConfigError) as error:
            read_scenario(path)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)


def test_a_nearly_right_name_is_recognised():
    with pytest.raises(ConfigError, match='did you mean "lesson-static"'):
        find_scenario("lesson-statik")


def test_the_template_names_every_option():
    lines = template_text().splitlines()

    assert [
        option for option in OPTIONS if not any(line.startswith(option) for line in lines)
    ] == []


def test_the_template_is_a_scenario_of_defaults():
    found = parse_scenario(template_text(), "template", "template")
    defaults = scenario(block_size=16, num_blocks=4096)

    assert replace(found.engine, tenants={}) == defaults.engine
    assert len(found.requests) == 11


def test_every_builtin_says_what_it_shows():
    from everbatch.workload.builtin_scenarios import builtin_summary

    assert {"lesson-static", "lesson-continuous", "golden-shortage", "golden-stall"} <= set(
        builtin_names()
    )
    assert all(20 < len(builtin_summary(name)) <= 100 for name in builtin_names())


def test_workloads_are_told_apart_by_their_digest():
    same = scenario(enable_prefix_caching=True).requests_digest()

    assert scenario().requests_digest() == same
    assert with_request(arrival=1).requests_digest() != same
    assert with_request(priority=1).requests_digest() != same
    assert with_request(abort_at=1).requests_digest() != same


# Options given beside a scenario


def test_settings_replace_options_of_the_engine():
    given = scenario().with_settings(["max_num_seqs=7", "admission=peak", "watermark=0.5"])

    engine = given.engine
    assert (engine.max_num_seqs, engine.admission, engine.watermark) == (7, "peak", 0.5)
    assert given.requests == scenario().requests


def test_a_later_setting_counts():
    assert scenario().with_settings(["policy=srpt", "policy=vtc"]).engine.policy == "vtc"


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("max_num_seqs", '"max_num_seqs" sets nothing: write OPTION=VALUE'),
        ("max_num_seq=3", 'no key "max_num_seq" (did you mean "max_num_seqs"?)'),
        ("max_num_seqs=many", 'max_num_seqs is "many", it must be an integer'),
        ("max_num_seqs=0", "max_num_seqs must lie in [1,"),
        ("enable_prefix_caching=yes", 'enable_prefix_caching is "yes", it must be true or false'),
        ("policy=best", "policy must be one of fcfs, priority, srpt, vtc"),
        ("watermark=nan", "watermark must lie in [0, 1)"),
        ("preemption_mode=auto", "give [hardware] name, or flops, pcie_bandwidth"),
    ],
)
def test_a_setting_that_is_none_is_refused_by_name(setting, told):
    with pytest.raises(ConfigError) as error:
        scenario().with_settings([setting])

    assert told in str(error.value)
