"""The lines of `--steps`: blocks add up, counts are those after a step, slots those during it."""

import json
from io import StringIO

from command_line import scenario_text

from everbatch.sim.run import simulate
from everbatch.sim.step_lines import StepLines
from everbatch.workload.scenario import parse_scenario


def lines_of(requests, **engine) -> list[dict]:
    scenario = parse_scenario(scenario_text(requests, **engine), "given", "given")
    file = StringIO()
    simulate(scenario, None, [StepLines(file, scenario.engine.max_num_seqs)])
    return [json.loads(line) for line in file.getvalue().splitlines()]


def request(id: str, prompt_tokens: int = 4, output_tokens: int = 3, **fields) -> dict:
    return {"id": id, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens, **fields}


def crowd(**engine) -> list[dict]:
    """Twelve requests that share, fight for memory, leave and come back."""
    requests = [
        {
            "id": str(number),
            "arrival": number // 3,
            "prompt": [{"text": "system", "tokens": 6}, {"tokens": number}],
            "output_tokens": 9,
            "abort_at": 8 if number == 4 else 99,
        }
        for number in range(12)
    ]
    return lines_of(requests, num_blocks=14, max_num_batched_tokens=16, **engine)


def test_blocks_add_up_in_every_line():
    for line in crowd(enable_prefix_caching=True):
        assert line["free_blocks"] + line["cached_blocks"] + line["used_blocks"] == 14


def test_every_live_request_is_scheduled_or_deferred():
    for line in crowd():
        assert not set(line["scheduled"]) & set(line["deferred"])
        assert line["tokens"] == sum(line["scheduled"].values())
        assert list(line["scheduled"]) == line["decode"] + line["prefill"]


def test_who_is_scheduled_has_a_slot_in_that_step():
    for line in crowd(preemption_trigger="stall"):
        assert set(line["scheduled"]) <= set(line["slots"])


def test_running_and_waiting_are_all_that_have_arrived_and_not_ended():
    finished: set[str] = set()
    for line in crowd():
        finished |= set(line["finished"])
        num_arrived = min(12, 3 * line["step"])
        assert line["running"] + line["waiting"] == num_arrived - len(finished)


def test_counts_are_those_after_who_ended_has_left_and_slots_those_of_the_step():
    last = lines_of([request("a")])[-1]

    assert last["finished"] == ["a"]
    assert (last["running"], last["used_blocks"]) == (0, 0)
    assert last["slots"] == ["a", None, None, None]


def test_decodes_stand_in_order_of_admission_not_of_slots():
    lines = lines_of(
        [request("a", 4, 2), request("b", 4, 9), request("c", 4, 9, arrival=2)], max_num_seqs=2
    )

    assert lines[4]["slots"] == ["c", "b"]
    assert lines[4]["decode"] == ["b", "c"]


def test_idle_ticks_write_no_line():
    lines = lines_of([request("a"), request("b", arrival=7)])

    assert [line["step"] for line in lines] == [1, 2, 3, 8, 9, 10]


def test_an_abort_at_a_boundary_stands_in_the_next_line():
    lines = lines_of([request("a", 4, 9, abort_at=2), request("b", 4, 5)])

    assert [line["step"] for line in lines if "a" in line["finished"]] == [3]
    assert "a" not in lines[2]["scheduled"]
    assert lines[2]["slots"][0] is None


def test_a_chunk_that_does_not_end_the_prompt_emits_nothing():
    lines = lines_of([request("a", 10)], max_num_batched_tokens=6)

    assert [(line["scheduled"], line["emitted"]) for line in lines[:2]] == [
        ({"a": 6}, {}),
        ({"a": 4}, {"a": 1}),
    ]


def test_deferred_names_all_that_wait_in_order_of_arrival():
    lines = lines_of([request(id) for id in "dcba"], max_num_seqs=1)

    assert list(lines[0]["deferred"].items()) == [
        ("c", "sequence_budget"),
        ("b", "behind_head"),
        ("a", "behind_head"),
    ]
