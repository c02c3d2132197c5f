"""Samples, swaps, deadlines and static batches in lines and records of a simulated run."""

import json
from io import StringIO

import pytest
from command_line import scenario_text

from everbatch.base.errors import ConfigError
from everbatch.scheduler.config import PreemptionCosts
from everbatch.sim.run import simulate
from everbatch.sim.step_lines import StepLines
from everbatch.workload.scenario import parse_scenario


def request(id: str, prompt_tokens: int = 4, output_tokens: int = 3, **fields) -> dict:
    return {"id": id, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens, **fields}


def run(*requests, run=None, **engine) -> tuple[dict, list[dict]]:
    """Give a run's summary and its lines."""
    scenario = parse_scenario(scenario_text(requests, run, **engine), "given", "given")
    file = StringIO()
    summary = simulate(scenario, None, [StepLines(file, scenario.engine.max_num_seqs)])
    return summary, [json.loads(line) for line in file.getvalue().splitlines()]


def facts(summary: dict, id: str, *names: str) -> tuple:
    return tuple(summary["requests"][id][name] for name in names)


# Samples


def test_the_first_sample_computes_the_prompt_and_all_emit_at_once():
    _, lines = run(request("a", 6, 3, n=2))

    assert lines[0]["scheduled"] == {"a/0": 6}
    assert lines[0]["emitted"] == {"a/0": 1, "a/1": 1}
    assert lines[0]["admitted"] == ["a/0", "a/1"]
    assert lines[0]["slots"] == ["a/0", "a/1", None, None]
    assert lines[1]["scheduled"] == {"a/0": 1, "a/1": 1}


def test_a_request_sums_up_its_samples():
    summary, lines = run(request("a", 6, 3, n=2))

    assert facts(summary, "a", "output_tokens", "finished_step", "first_token_step") == (6, 3, 1)
    assert facts(summary, "a/1", "output_tokens", "finish_reason", "sample_of") == (3, "stop", "a")
    assert lines[-1]["finished"] == ["a/0", "a/1", "a"]
    assert summary["useful_tokens"] == 6
    assert summary["num_finished"] == {"stop": 1}


def test_samples_of_a_waiting_request_wait_as_one():
    summary, lines = run(request("b", 4, 3), request("a", n=2), max_num_seqs=2)

    assert lines[0]["deferred"] == {"a": "sequence_budget"}
    assert lines[0]["waiting"] == 1
    assert facts(summary, "a", "first_step", "queue_wait") == (4, 3)
    assert facts(summary, "a/1", "first_step", "queue_wait") == (4, 3)


def test_a_refused_request_has_no_samples():
    summary, _ = run(request("a", n=5), request("b"))

    assert list(summary["requests"]) == ["a", "b"]
    assert "max_num_seqs" in summary["requests"]["a"]["rejected"]


def test_the_state_of_a_request_is_that_of_its_foremost_sample():
    summary, _ = run(request("a", 4, 9, n=2), request("b", n=2), run={"horizon": 3}, max_num_seqs=2)

    assert facts(summary, "a", "state", "output_tokens") == ("DECODE", 6)
    assert facts(summary, "b", "state", "output_tokens") == ("WAITING", 0)


def test_times_between_tokens_are_those_of_each_sample():
    summary, _ = run(request("a", 4, 5, n=3))

    assert summary["tpot"]["mean"] == summary["itl"]["mean"] == 1.0
    assert summary["ttft"]["mean"] == 1.0
    assert summary["e2e"]["mean"] == 5.0


def test_samples_write_other_texts_into_the_cache():
    # Each of three samples fills a block of outputs of its own.
    summary, lines = run(
        request("a", 4, 6, n=3), enable_prefix_caching=True, max_num_seqs=3, num_blocks=16
    )

    assert lines[-1]["cached_blocks"] == 1 + 3
    assert summary["peak_blocks"] == 1 + 2 * 3


# Swaps


def swap(**engine) -> tuple[dict, list[dict]]:
    """The golden run's two requests, with a host tier."""
    return run(
        request("a", 4, 7),
        request("b", 6, 7),
        num_blocks=4,
        **{"num_host_blocks": 4, "preemption_mode": "swap", **engine},
    )


def test_a_swapped_request_stands_in_both_lists_when_it_goes_and_when_it_comes():
    summary, lines = swap()

    assert [(line["step"], line["preempted"]) for line in lines if line["swapped_out"]] == [
        (4, ["b"])
    ]
    assert [(line["step"], line["swapped_in"]) for line in lines if line["resumed"]] == [(8, ["b"])]
    assert lines[3]["swapped_out"] == ["b"]
    assert facts(summary, "b", "num_preemptions", "recomputed_tokens", "finished_step") == (
        1,
        0,
        11,
    )


def test_without_room_in_the_host_tier_it_is_recomputed():
    summary, lines = swap(num_host_blocks=1)

    assert not any(line["swapped_out"] or line["swapped_in"] for line in lines)
    assert facts(summary, "b", "recomputed_tokens", "finished_step") == (8, 12)


def test_who_leaves_while_swapped_out_is_not_swapped_in():
    summary, lines = run(
        request("a", 4, 7),
        request("b", 6, 7, abort_at=5),
        num_blocks=4,
        num_host_blocks=4,
        preemption_mode="swap",
    )

    assert facts(summary, "b", "finish_reason", "output_tokens", "preempted_wait") == (
        "abort",
        3,
        2,
    )
    assert not any(line["swapped_in"] for line in lines)


def test_a_swapped_decode_stands_behind_prompts_that_have_begun():
    # b comes back, in step 8, from the queue; nobody is in prefill but c, admitted behind it.
    _, lines = run(
        request("a", 4, 7),
        request("b", 6, 7),
        request("c", 1, 3, arrival=6),
        num_blocks=4,
        num_host_blocks=4,
        preemption_mode="swap",
    )
    line = next(line for line in lines if line["swapped_in"])

    assert list(line["scheduled"]) == ["b", "c"]
    assert (line["decode"], line["prefill"]) == (["b"], ["c"])


# What auto compares


def auto(**tables) -> str:
    text = json.loads(scenario_text(num_host_blocks=4, preemption_mode="auto"))
    return json.dumps({**text, **tables})


HARDWARE = {"flops": 1e12, "pcie_bandwidth": 1e10}
MODEL = {
    "num_params": 1e9,
    "num_layers": 10,
    "num_kv_heads": 4,
    "head_dim": 100,
    "bytes_per_value": 2,
}


def test_auto_compares_a_block_over_the_link_twice_with_two_flops_a_parameter():
    engine = parse_scenario(auto(hardware=HARDWARE, model=MODEL), "given", "given").engine

    # 2 · 4 tokens · 2 · 10 · 4 · 100 · 2 bytes over 10 GB/s; 2 GFLOP at 1 TFLOP/s.
    assert engine.preemption_costs == PreemptionCosts(12_800, 2_000_000)


def test_auto_takes_the_sizes_of_known_names_and_numbers_go_before_them():
    names = {"hardware": {"name": "h100-sxm"}, "model": {"name": "nominal-8b"}}
    slower = {**names, "hardware": {"name": "h100-sxm", "pcie_bandwidth": 32e9}}
    costs = [
        parse_scenario(auto(**tables), "given", "given").engine.preemption_costs
        for tables in (names, slower)
    ]

    # A block of 4 tokens of 131,072 bytes, twice over 64 or 32 GB/s; 16 GFLOP at 989 TFLOP/s.
    assert costs == [PreemptionCosts(16_384, 16_178), PreemptionCosts(32_768, 16_178)]


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({}, "give [hardware] name, or flops, pcie_bandwidth"),
        ({"hardware": HARDWARE}, "give [model] name, or num_params"),
        (
            {"hardware": {"name": "h100-sxn"}, "model": MODEL},
            'there is no device "h100-sxn" (did you mean "h100-sxm"?)',
        ),
        (
            {"hardware": HARDWARE, "model": {**MODEL, "name": "x"}},
            'there is no model "x"; known are nominal-8b',
        ),
        (
            {"hardware": HARDWARE, "model": {"num_params": 1e9}},
            "needs [model] num_layers, num_kv_heads, head_dim, bytes_per_value",
        ),
    ],
)
def test_auto_without_numbers_is_refused_by_name(tables, told):
    with pytest.raises(ConfigError) as error:
        parse_scenario(auto(**tables), "given", "given")

    assert told in str(error.value)


def test_the_event_of_a_preemption_tells_both_costs():
    # Swapping b's two blocks takes 25.6 us, computing its 8 tokens again 16 ms.
    requests = [request("a", 4, 7), request("b", 6, 7)]
    text = json.loads(scenario_text(requests, num_blocks=4, num_host_blocks=4))
    text["engine"]["preemption_mode"] = "auto"
    log = StringIO()
    scenario = parse_scenario(
        json.dumps({**text, "hardware": HARDWARE, "model": MODEL}), "given", "given"
    )
    simulate(scenario, log)
    (preempted,) = [
        event
        for event in map(json.loads, log.getvalue().splitlines())
        if event["event"] == "preempted"
    ]

    assert preempted["way"] == "swap"
    assert (preempted["swap_ns"], preempted["recompute_ns"]) == (25_600, 16_000_000)


# Deadlines


@pytest.mark.parametrize(("deadline", "reason"), [(4, "stop"), (3, "deadline")])
def test_it_may_be_planned_at_the_deadline_at_the_latest(deadline, reason):
    summary, _ = run(request("a", 4, 4), request("b", deadline=deadline), max_num_seqs=1)

    assert facts(summary, "b", "finish_reason") == (reason,)


def test_who_never_started_ends_at_the_boundary_after_its_deadline():
    summary, lines = run(request("a", 4, 9), request("b", arrival=1, deadline=3), max_num_seqs=1)

    assert facts(summary, "b", "finish_reason", "finished_step", "first_step") == (
        "deadline",
        5,
        None,
    )
    assert [line["step"] for line in lines if "b" in line["finished"]] == [6]


@pytest.mark.parametrize(("horizon", "state"), [(4, "WAITING"), (5, "FINISHED")])
def test_deadlines_pass_at_the_horizon_too(horizon, state):
    summary, _ = run(
        request("a", 4, 9),
        request("b", arrival=1, deadline=3),
        max_num_seqs=1,
        run={"horizon": horizon},
    )

    assert facts(summary, "b", "state") == (state,)


def test_a_deadline_passes_at_a_reporting_point_as_in_a_run_of_that_length():
    requests = [request("a", 4, 9), request("b", arrival=1, deadline=3)]
    lasting, _ = run(*requests, max_num_seqs=1, run={"horizons": [4, 5]})

    assert lasting["horizons"]["4"]["num_finished"] == {}
    assert lasting["horizons"]["5"]["num_finished"] == {"deadline": 1}


def test_a_deadline_is_void_once_a_request_has_run():
    summary, _ = run(request("a", 4, 7), request("b", 6, 7, deadline=2), num_blocks=4)

    assert facts(summary, "b", "num_preemptions", "finish_reason") == (1, "stop")


def test_all_samples_share_one_deadline():
    summary, _ = run(request("a", 4, 9), request("b", deadline=2, n=2), max_num_seqs=2)

    assert facts(summary, "b", "finish_reason", "output_tokens") == ("deadline", 0)
    assert facts(summary, "b/1", "finish_reason") == ("deadline",)


# Tenants


def test_a_tenant_with_twice_the_weight_gets_twice_the_service():
    requests = [
        request(f"{tenant}{number}", 4, 4, tenant=tenant) for number in range(30) for tenant in "ab"
    ]
    text = json.loads(scenario_text(requests, {"horizon": 60}, max_num_seqs=1, policy="vtc"))
    text["tenants"] = {"a": {"weight": 2.0}, "b": {}}

    summary = simulate(parse_scenario(json.dumps(text), "given", "given"))

    served = {
        tenant: sum(
            facts["output_tokens"]
            for id, facts in summary["requests"].items()
            if id.startswith(tenant)
        )
        for tenant in "ab"
    }
    assert served == {"a": 40, "b": 20}


def test_a_rate_a_minute_is_refused_where_steps_have_no_length():
    text = json.loads(scenario_text())
    text["tenants"] = {"a": {"max_requests_per_minute": 3}}

    with pytest.raises(ConfigError) as error:
        parse_scenario(json.dumps(text), "given", "given")

    assert "[tenants] a max_requests_per_minute is 3" in str(error.value)
    assert "no minutes" in str(error.value)


# Static batches


def test_a_member_that_got_no_token_yet_has_not_started():
    # Both form a batch; the budget has tokens for the first only.
    summary, lines = run(
        request("a", 4, 3), request("b", 4, 3), batching="static", max_num_batched_tokens=4
    )

    assert lines[0]["slots"] == ["a", "b", None, None]
    assert lines[0]["deferred"] == {"b": "token_budget"}
    assert facts(summary, "b", "first_step", "queue_wait") == (2, 1)


def test_a_deadline_passes_for_a_member_that_got_no_token():
    summary, _ = run(
        request("a", 12, 3),
        request("b", 4, 3, deadline=1),
        batching="static",
        max_num_batched_tokens=4,
    )

    assert facts(summary, "b", "finish_reason", "finished_step") == ("deadline", 2)


def test_masked_slots_are_named_and_not_scheduled():
    _, lines = run(request("a", 4, 2, n=2), request("b", 4, 5), batching="static", max_num_seqs=3)

    assert [line["masked"] for line in lines] == [[], [], *[["a/0", "a/1"]] * 3]
    assert all(list(line["scheduled"]) == ["b"] for line in lines[2:])
