"""The timeline: one row a slot, folded to the width, phases told apart."""

import pytest
from command_line import scenario_text

from everbatch.cli.slot_timeline import draw_timeline
from everbatch.sim.run import simulate
from everbatch.sim.slot_history import SlotHistory, Span
from everbatch.sim.slot_phases import Phase
from everbatch.workload.scenario import parse_scenario


def request(id: str, prompt_tokens: int = 4, output_tokens: int = 5, **fields) -> dict:
    return {"id": id, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens, **fields}


def history_of(*requests, **engine) -> tuple[SlotHistory, int]:
    scenario = parse_scenario(scenario_text(requests, **engine), "given", "given")
    history = SlotHistory(scenario.engine.max_num_seqs)
    summary = simulate(scenario, None, [history])
    return history, summary["steps"]


def drawn(*requests, width: int = 80, unicode: bool = False, **engine) -> list[str]:
    history, steps = history_of(*requests, **engine)
    return [line.plain for line in draw_timeline(history, steps, width, unicode=unicode)]


def test_prefill_decode_and_idle_are_told_apart():
    lines = drawn(request("a", 4, 5), request("b", 4, 3, arrival=6), max_num_seqs=2)

    assert lines[1] == "slot 1 Pa===.Pb="
    assert lines[2] == "slot 2 ........."


def test_a_preemption_and_a_held_slot_are_told_apart():
    lines = drawn(request("a", 4, 7), request("b", 6, 7), num_blocks=4, preemption_trigger="stall")

    assert lines[1] == "slot 1 Pa=====Pb==="
    assert lines[2] == "slot 2 Pb=~~x......"


def test_every_chunk_is_prefill():
    assert drawn(request("a", 10, 4), max_num_batched_tokens=4)[1] == "slot 1 PPPa=="


def test_an_id_that_does_not_fit_is_left_out():
    assert drawn(request("a-long-name", 4, 5))[1] == "slot 1 P===="
    assert drawn(request("名", 4, 5))[1] == "slot 1 P===="


def test_a_run_folds_to_the_width():
    lines = drawn(request("a", 4, 50), width=27, max_num_seqs=1)

    assert [line for line in lines if line.startswith("slot")] == [
        "slot 1 Pa==================",
        "slot 1 a===================",
        "slot 1 a=========",
    ]
    assert [line.split()[1] for line in lines if line.startswith("step")] == ["1", "21", "41"]


def test_a_very_long_run_has_several_steps_in_a_column():
    requests = request("a", 4, 1000), request("b", 4, 3, arrival=500)
    lines = drawn(*requests, width=27, max_num_seqs=2, num_blocks=300)

    assert "(one column: 10 steps)" in lines[-1]
    assert max(map(len, lines[:-1])) <= 27
    # The strongest phase of a column is shown: b's prefill, not the idle steps around it.
    assert "".join(line[7:] for line in lines if line.startswith("slot 2")).count("P") == 1


@pytest.mark.parametrize("unicode", [True, False])
def test_the_legend_tells_all_glyphs(unicode):
    legend = drawn(request("a"), unicode=unicode)[-1]

    assert legend.isascii() is not unicode
    for word in ("prefill", "decode", "masked", "preempted", "idle"):
        assert word in legend


def test_spans_cover_all_steps_of_a_slot():
    history, steps = history_of(request("a", 4, 3), request("b", 4, 2, arrival=5), max_num_seqs=1)

    assert history.spans(0, steps) == [
        Span(1, 1, Phase.PREFILL, "a"),
        Span(2, 3, Phase.DECODE, "a"),
        Span(4, 5, Phase.IDLE, None),
        Span(6, 6, Phase.PREFILL, "b"),
        Span(7, 7, Phase.DECODE, "b"),
    ]
