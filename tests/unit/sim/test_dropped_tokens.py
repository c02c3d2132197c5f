"""What a pass samples for whoever leaves while it runs is no token: in no figure, line or event."""

import json
from io import StringIO

import pytest

from everbatch.diagnose.explain import explain
from everbatch.diagnose.log import Ruler
from everbatch.diagnose.sentences import Teller
from everbatch.sim.run import simulate
from everbatch.sim.step_lines import StepLines
from everbatch.workload.scenario import Scenario, parse_scenario
from everbatch.workload.times import SECONDS

# 2 GB of weights at 1 TB/s: 2 ms a pass. 2 FLOPs × 1e9 × a token: 2 ms a token.
CLOCK = {
    "clock": {"kind": "nominal"},
    "hardware": {"flops": 1e12, "memory_bandwidth": 1e12},
    "model": {"num_params": 1e9, "bytes_per_value": 2},
}
ENGINE = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "num_blocks": 64, "block_size": 4}
OTHER = {"id": "other", "prompt_tokens": 1, "output_tokens": 8}
IMPATIENT = {
    **{"arrivals": "closed", "users": 8, "num_requests": 60, "prompt": 9, "output": 12},
    **{"patience": 0.07, "retries": 2, "backoff": 0.01},
}


def scenario(*requests: dict, **sections) -> Scenario:
    tables = {"engine": ENGINE, **CLOCK, **sections}
    if requests:
        tables["requests"] = list(requests)
    return parse_scenario(json.dumps(tables), "given", "given")


def run(*requests: dict, **sections) -> tuple[dict, list[dict], list[dict]]:
    """Gives the summary, the lines of steps and the events."""
    log, lines = StringIO(), StringIO()
    given = scenario(*requests, **sections)
    summary = simulate(given, log, [StepLines(lines, ENGINE["max_num_seqs"], SECONDS)])
    return summary, read(lines), read(log)[1:]


def read(file: StringIO) -> list[dict]:
    return [json.loads(line) for line in file.getvalue().splitlines()]


def outputs_of_steps(events: list[dict]) -> int:
    """Count outputs as a reader of the log does."""
    steps = sum(e["count"] * e["decodes"] for e in events if e["event"] == "steps")
    return steps + sum(e["emitted"] for e in events if e["event"] == "step")


def test_a_first_token_that_is_dropped_is_none():
    leaver = {"id": "leaver", "prompt_tokens": 4, "output_tokens": 8, "abort_at": 0.001}
    summary, lines, events = run(leaver, {**OTHER, "arrival": 0.1})

    facts = summary["requests"]["leaver"]
    assert (facts["output_tokens"], facts["first_token_s"]) == (0, None)
    assert summary["ttft"]["mean"] == pytest.approx(0.002)
    assert lines[0]["emitted"] == {}
    [decoding] = [e for e in events if e["event"] == "decoding" and e["id"] == "leaver"]
    assert decoding["emitted"] is False


def test_a_first_token_that_is_the_last_one_can_be_dropped():
    leaver = {"id": "leaver", "prompt_tokens": 4, "output_tokens": 1, "abort_at": 0.001}
    summary, lines, _ = run(leaver)

    assert summary["requests"]["leaver"]["first_token_s"] is None
    assert summary["ttft"]["mean"] is None
    assert lines[0]["emitted"] == {}


def test_the_last_gap_of_whoever_leaves_is_none():
    # Tokens at 2, 4 and 6 ms; then a prompt makes a pass of 20 ms, in which it leaves.
    leaver = {"id": "leaver", "prompt_tokens": 1, "output_tokens": 8, "abort_at": 0.008}
    prompt = {"id": "prompt", "prompt_tokens": 9, "output_tokens": 1, "arrival": 0.006}
    summary, lines, events = run(leaver, prompt)

    assert summary["requests"]["leaver"]["output_tokens"] == 3
    assert summary["tpot"]["mean"] == pytest.approx(0.002)
    assert summary["itl"]["p99"] == pytest.approx(0.002)
    assert lines[-1]["emitted"] == {"prompt": 1}
    assert outputs_of_steps(events) == 4


def test_whoever_leaves_in_its_first_step_of_decoding_has_no_gap():
    leaver = {"id": "leaver", "prompt_tokens": 1, "output_tokens": 8, "abort_at": 0.003}
    summary, _, events = run(leaver)

    assert summary["requests"]["leaver"]["output_tokens"] == 1
    assert summary["tpot"]["mean"] is None
    assert summary["itl"]["mean"] is None
    assert outputs_of_steps(events) == 1


def test_samples_that_leave_have_no_gap_either():
    leaver = {"id": "leaver", "prompt_tokens": 1, "output_tokens": 8, "n": 2, "abort_at": 0.008}
    prompt = {"id": "prompt", "prompt_tokens": 9, "output_tokens": 1, "arrival": 0.006}
    summary, _, events = run(leaver, prompt)

    assert summary["requests"]["leaver"]["output_tokens"] == 4
    assert summary["itl"]["p99"] == pytest.approx(0.004)
    assert outputs_of_steps(events) == 5


def test_whoever_leaves_between_two_steps_keeps_all_gaps():
    leaver = {"id": "leaver", "prompt_tokens": 1, "output_tokens": 8, "abort_at": 0.008}
    summary, _, events = run(leaver, {**OTHER, "arrival": 0.004})

    assert summary["requests"]["leaver"]["output_tokens"] == 3
    # Gaps of 2 and 4 ms.
    assert summary["tpot"]["p99"] == pytest.approx(0.003, rel=0.01)
    assert outputs_of_steps(events) == summary["useful_tokens"] == 3 + 8


def test_where_clients_lose_patience_log_lines_and_summary_count_the_same():
    summary, lines, events = run(workload=IMPATIENT)
    ended = [e["output_tokens"] for e in events if e["event"] == "finished"]
    left = [e for e in events if e["event"] == "finished" and e["reason"] == "abort"]

    assert len(left) > 20
    assert outputs_of_steps(events) == sum(ended) == summary["useful_tokens"]
    assert sum(len(line["emitted"]) for line in lines) == summary["useful_tokens"]
    told = summary["requests"].values()
    assert all((facts["first_token_s"] is None) == (not facts["output_tokens"]) for facts in told)


def test_explain_tells_of_the_output_that_was_dropped():
    log = StringIO()
    # Tokens at 2, 4 and 6 ms; it leaves while the fourth is computed.
    simulate(scenario({"id": "a", "prompt_tokens": 1, "output_tokens": 9, "abort_at": 0.007}), log)
    explanation = explain(log.getvalue().splitlines(keepends=True), "a")
    rows = Teller(explanation.config, Ruler(is_steps=False)).rows(explanation.lives[0])

    assert "decode: 2 outputs; the last step's was dropped" in [row.text for row in rows]
