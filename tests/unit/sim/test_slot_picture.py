"""Slots over time, and their picture as SVG."""

from xml.etree import ElementTree

from everbatch.sim.run import simulate
from everbatch.sim.slot_phases import Phase
from everbatch.sim.slot_picture import COLOURS, SlotRows, SlotSpan, SlotTimes, draw_slots
from everbatch.workload.builtin_scenarios import find_scenario

SVG = "{http://www.w3.org/2000/svg}"


def slots_of(name, horizon=240):
    """Run a built-in scenario, whose times are steps."""
    times = SlotTimes(4)
    simulate(find_scenario(name).with_run(horizon=horizon), None, [times])
    return times.close()


def drawn(text):
    """Give the spans of a picture as (colour, x, width), those of nobody left out."""
    boxes = ElementTree.fromstring(text).findall(f"{SVG}rect")
    return [
        (box.get("fill"), float(box.get("x")), float(box.get("width")))
        for box in boxes
        if box.find(f"{SVG}title") is not None
    ]


def test_a_static_batch_masks_the_slots_of_those_who_have_ended():
    slots = slots_of("lesson-static")

    assert slots[0] == [
        SlotSpan(0, 1, Phase.PREFILL, "1"),
        SlotSpan(1, 20, Phase.DECODE, "1"),
        SlotSpan(20, 200, Phase.MASKED, None),
        SlotSpan(200, 201, Phase.PREFILL, "5"),
        SlotSpan(201, 240, Phase.DECODE, "5"),
    ]
    assert slots[3][1:] == [
        SlotSpan(1, 200, Phase.DECODE, "4"),
        SlotSpan(200, 240, Phase.IDLE, None),
    ]


def test_a_slot_that_is_free_is_taken_at_once_under_continuous_batching():
    slots = slots_of("lesson-continuous", 80)

    assert slots[0] == [
        SlotSpan(0, 1, Phase.PREFILL, "1"),
        SlotSpan(1, 20, Phase.DECODE, "1"),
        SlotSpan(20, 21, Phase.PREFILL, "5"),
        SlotSpan(21, 60, Phase.DECODE, "5"),
        SlotSpan(60, 80, Phase.IDLE, None),
    ]


def test_spans_of_all_runs_stand_on_one_axis():
    short = SlotRows("short", [[SlotSpan(0, 100, Phase.DECODE, "a")]])
    long = SlotRows("long", [[SlotSpan(0, 200, Phase.PREFILL, "b")]])

    [half, whole] = drawn(draw_slots("both", [short, long]))

    assert [half[0], whole[0]] == [COLOURS[Phase.DECODE], COLOURS[Phase.PREFILL]]
    assert half[1] == whole[1]
    assert half[2] * 2 == whole[2]


def test_who_is_named_in_a_picture_cannot_break_it():
    slots = [[SlotSpan(0, 10**9, Phase.DECODE, "<a&b>")]]
    text = draw_slots('"quoted" & <more>', [SlotRows("<title>", slots, [(5, "<mark>")])])
    words = [item.text for item in ElementTree.fromstring(text).iter(f"{SVG}text")]

    assert {"<a&b>", "<title>", "<mark>", "0 s", "1 s"} <= set(words)


def test_a_span_too_short_to_be_seen_is_drawn_all_the_same():
    slots = [[SlotSpan(0, 1, Phase.PREFILL, "a"), SlotSpan(1, 10**9, Phase.DECODE, "a")]]

    assert drawn(draw_slots("t", [SlotRows("r", slots)]))[0][2] == 1.0


def test_a_run_without_a_step_is_drawn_empty():
    assert drawn(draw_slots("nothing", [SlotRows("r", [[], []])])) == []
