"""The life of one request as a log tells it: chapters in order, who is in it, and sums."""

import json

import pytest
from builders import client
from unit.diagnose.logs import changed, life_of, log_of, log_with_leavers, request, told

from everbatch.base.errors import EventLogError, EverbatchError
from everbatch.diagnose.explain import UnknownRequest, explain
from everbatch.diagnose.life import Lack, Life, sums
from everbatch.diagnose.log import SIZES, Ruler
from everbatch.diagnose.sentences import Teller


def test_a_request_alone_is_admitted_prefilled_and_decoded():
    life = life_of(log_of(request("a", 6, 3, arrival=2)), "a")

    assert told(life) == [
        ("admitted", 3, 3),
        ("prefill", 3, 3),
        ("decode", 4, 5),
        ("finished", 5, 5),
    ]
    facts = sums(life)
    assert (facts.queue_wait, facts.ttft, facts.prefill, facts.decode, facts.e2e) == (0, 1, 1, 2, 3)
    assert (facts.output_tokens, facts.steps_waited) == (3, {})


def test_steps_have_the_numbers_of_ticks_after_an_idle_time():
    life = life_of(log_of(request("early", 4, 2), request("a", 4, 2, arrival=10)), "a")

    assert told(life)[0] == ("admitted", 11, 11)


def test_a_wait_lasts_until_the_step_before_the_admission():
    log = log_of(request("a", 4, 5), request("b", 4, 2, arrival=1), max_num_seqs=1)
    [wait] = life_of(log, "b").waits()

    assert (wait.reason, wait.from_step, wait.to_step, wait.num_steps) == (
        "sequence_budget",
        2,
        5,
        4,
    )
    assert wait.lacking == Lack(slots=1)
    assert wait.usage.slots == ((0, "a"),)
    assert [back.id for back in wait.freed] == ["a"]


def test_behind_the_head_the_heads_are_named_one_after_another():
    requests = [request("a", 4, 4), request("b", 4, 3), request("c", 4, 3)]
    log = log_of(*requests, request("d", 4, 1), max_num_seqs=1)
    [behind, first] = life_of(log, "d").waits()

    assert behind.reason == "behind_head" and first.reason == "sequence_budget"
    assert [(head.id, head.from_step, head.to_step) for head in behind.heads] == [
        ("b", 1, 4),
        ("c", 5, 7),
    ]
    assert behind.heads[0].lacking == Lack(slots=1)


def test_all_that_was_lacking_is_named_not_the_first_alone():
    log = log_of(
        request("a", 12, 6),
        request("b", 9, 2, arrival=1),
        max_num_seqs=1,
        num_blocks=5,
        enable_chunked_prefill=False,
        max_num_batched_tokens=12,
    )
    [wait] = life_of(log, "b").waits()

    # a decodes: 4 of 5 blocks are held, 11 of 12 tokens are left.
    assert wait.lacking == Lack(slots=1, blocks=2)


def test_who_holds_blocks_is_named_with_their_number():
    log = log_of(
        request("a", 8, 3), request("b", 4, 3), request("c", 12, 2, arrival=1), num_blocks=6
    )
    [wait] = life_of(log, "c").waits()

    # In step 2 both decode into a new block.
    assert wait.usage.blocks == (("a", 3), ("b", 2))
    assert (wait.needed, wait.available, wait.lacking) == (3, 1, Lack(blocks=2))


def test_a_victim_is_told_for_whose_blocks_it_yielded():
    log = log_of(request("a", 7, 6), request("b", 6, 4), num_blocks=4)
    [loss] = life_of(log, "b").losses()

    assert (loss.requester, loss.needed, loss.way) == ("a", 1, "recompute")


def test_a_rebuild_is_told_apart_from_the_first_reading():
    log = log_of(request("a", 4, 7), request("b", 6, 7), num_blocks=4)
    life = life_of(log, "b")

    assert [run.kind for run in life.runs()] == ["prefill", "decode", "rebuild", "decode"]
    facts = sums(life)
    assert (facts.recomputed_tokens, facts.num_preemptions, facts.preempted_wait) == (8, 1, 4)
    assert facts.output_tokens == 7


def test_waiting_with_a_slot_is_counted_apart():
    log = log_of(request("a", 4, 7), request("b", 6, 7), num_blocks=4, preemption_trigger="stall")
    facts = sums(life_of(log, "b"))

    assert (facts.stalled, facts.preempted_wait, facts.queue_wait) == (2, 2, 0)


def test_chunks_of_one_prompt_are_one_chapter():
    life = life_of(log_of(request("a", 10, 1), max_num_batched_tokens=4), "a")
    [run] = life.runs()

    assert (run.kind, run.tokens, run.num_passes, run.from_step, run.to_step) == (
        "prefill",
        10,
        3,
        1,
        3,
    )
    assert sums(life).ttft == 3


@pytest.mark.parametrize("id", ["a/0", "a/1"])
def test_a_sample_is_explained_by_its_own_id(id):
    life = life_of(log_of(request("a", 6, 3, n=2)), id)

    assert life.num_samples == 2
    assert told(life) == [
        ("admitted", 1, 1),
        ("prefill", 1, 1),
        ("decode", 2, 3),
        ("finished", 3, 3),
    ]


def test_a_request_s_own_id_tells_of_all_samples():
    log = log_of(request("x", 4, 3), request("a", 6, 3, n=2), max_num_seqs=2)
    lives = explain(log, "a").lives

    assert [life.id for life in lives] == ["a/0", "a/1"]
    assert [life.waits()[0].lacking for life in lives] == [Lack(slots=1)] * 2
    assert lives[1].runs()[0].by == "a/0"


def test_a_sample_that_goes_on_with_a_prompt_is_told_to_read_it():
    log = log_with_leavers({2: "a/0"}, client("a", 10, 3, n=3), max_num_batched_tokens=4)
    prefills = {
        life.id: [(run.by, run.from_step, run.to_step, run.tokens) for run in life.runs()[:-1]]
        for life in explain(log, "a").lives[1:]
    }

    assert prefills == {
        "a/1": [("a/0", 1, 2, 8), (None, 3, 3, 2)],
        "a/2": [("a/0", 1, 2, 8), ("a/1", 3, 3, 2)],
    }


def test_a_sample_that_yields_after_others_took_over_leaves_them_their_slots():
    clients = [client("b", 4, 20), client("a", 8, 9, n=3)]
    options = {"num_blocks": 8, "long_prefill_token_threshold": 4, "admission": "now"}
    life = life_of(log_with_leavers({1: "a/0"}, *clients, **options), "a/2")
    wait = life.waits()[0]

    assert (wait.phase, wait.usage.slots) == ("preempted", ((0, "b"), (2, "a/1")))


PROMPT_LOST = {"num_blocks": 8, "max_num_batched_tokens": 3, "admission": "now"}
"""The prompt of "b" takes many steps, and is preempted by the growing "a" before it is read."""


def lives_of_a_lost_prompt(leaving: dict[int, str], **engine) -> list[Life]:
    clients = [client("a", 4, 12), client("b", 20, 3, n=3, arrival=1)]
    return explain(log_with_leavers(leaving, *clients, **PROMPT_LOST | engine), "b").lives


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("extent", ["whole", "tail"])
def test_samples_yield_and_wait_with_the_one_that_reads_their_prompt(mode, extent):
    options = {"preemption_mode": mode, "preemption_extent": extent, "num_host_blocks": 9}
    reader, *others = lives_of_a_lost_prompt({}, **options)

    for life in others:
        first_decode = [what for what, _, _ in told(life)].index("decode")
        assert told(life)[:first_decode] == told(reader)[:first_decode]
        assert {loss.by for loss in life.losses()} == {"b/0"}
        assert [wait.by for wait in life.waits()] == ["b/0"] * len(life.waits())
    assert reader.waits()[0].reason == "cooldown"
    assert {loss.by for loss in reader.losses()} == {None}
    # Each lost a slot of its own.
    assert [life.losses()[0].slot for life in (reader, *others)] == [1, 2, 3]


def test_one_sample_asked_about_alone_is_told_the_same():
    clients = [client("a", 4, 12), client("b", 20, 3, n=2, arrival=1)]
    log = log_with_leavers({}, *clients, **PROMPT_LOST)

    assert life_of(log, "b/1") == explain(log, "b").lives[1]


def test_after_a_hand_over_samples_wait_with_the_one_that_reads_now():
    _, reader, follower = lives_of_a_lost_prompt({3: "b/0"})

    assert [loss.by for loss in reader.losses()] == [None]
    assert [loss.by for loss in follower.losses()] == ["b/1"]
    assert [run.by for run in follower.runs()[:3]] == ["b/0", "b/1", "b/1"]


def test_once_the_prompt_is_read_each_sample_yields_alone():
    lives = lives_of_a_lost_prompt({}, preemption_trigger="stall")

    assert all(life.losses() for life in lives)
    assert {loss.by for life in lives for loss in life.losses()} == {None}


def test_what_a_sample_waited_with_is_said():
    clients = [client("a", 4, 12), client("b", 20, 3, n=2, arrival=1)]
    explanation = explain(log_with_leavers({}, *clients, **PROMPT_LOST), "b/1")
    [life] = explanation.lives
    rows = Teller(explanation.config, Ruler(is_steps=False)).rows(life)
    details = [detail for row in rows for detail in row.details]

    assert "so did b/0, which reads the prompt for all" in details
    assert (
        "b/0, which reads the prompt for all, gave up 5 blocks; 18 tokens must be computed again"
        in details
    )


def test_a_request_whose_id_looks_like_a_sample_s_is_not_taken_for_one():
    life = life_of(log_of(request("a", 4, 9), request("a/1", 4, 3)), "a/1")

    assert told(life) == [
        ("admitted", 1, 1),
        ("prefill", 1, 1),
        ("decode", 2, 3),
        ("finished", 3, 3),
    ]


def test_a_sample_that_leaves_its_prompt_to_another_gives_back_its_slot_alone():
    clients = [client("a", 16, 2, n=2), client("b", 4, 2, arrival=1)]
    options = {"max_num_seqs": 2, "long_prefill_token_threshold": 4}
    [wait] = life_of(log_with_leavers({2: "a/0"}, *clients, **options), "b").waits()

    assert [(back.id, back.slot, back.blocks) for back in wait.freed] == [("a/0", 0, 0)]


def test_a_refusal_is_explained_with_its_numbers():
    life = life_of(log_of(request("a"), request("big", 300, 3)), "big")

    assert (life.end.kind, life.end.reason) == ("rejected", "context_limit")
    assert life.end.needed > life.end.limit


def test_a_request_that_left_while_it_waited_has_an_end():
    log = log_of(request("a", 4, 9), request("b", 4, 2, abort_at=3), max_num_seqs=1)
    life = life_of(log, "b")

    assert told(life) == [("sequence_budget", 1, 3), ("finished", 3, 3)]
    assert life.end.reason == "abort"
    assert not sums(life).has_started


def test_a_request_that_failed_is_told_why():
    log = log_of(request("a", 4, 3))
    failed = changed(log, "finished", reason="error", message="its logits are no finite numbers")
    explanation = explain(failed, "a")
    [life] = explanation.lives
    teller = Teller(explanation.config, Ruler(is_steps=True))

    assert teller.rows(life)[-1].text == (
        "ended with an error, 3 outputs: its logits are no finite numbers"
    )


def test_a_log_that_ends_early_leaves_a_life_without_an_end():
    log = log_of(request("a", 4, 9), request("b", 4, 2), run={"horizon": 4}, max_num_seqs=1)
    life = life_of(log, "b")

    assert life.end is None
    [wait] = life.waits()
    assert (wait.to_step, wait.is_open) == (4, True)
    assert sums(life).queue_wait == 4


def test_a_decode_that_runs_when_the_log_ends_counts_its_outputs():
    life = life_of(log_of(request("a", 4, 9), run={"horizon": 4}), "a")

    assert told(life)[-1] == ("decode", 2, 4)
    assert life.num_outputs == 4


def test_of_two_requests_of_one_id_the_last_is_explained():
    log = log_of(request("a", 4, 2))
    again = [*log, *log_of(request("a", 8, 5))[1:]]
    life = life_of(again, "a")

    assert (life.prompt_tokens, life.num_namesakes) == (8, 1)


def test_an_unknown_id_names_those_that_come_close():
    with pytest.raises(UnknownRequest, match="did you mean request-1"):
        explain(log_of(request("request-1"), request("z")), "request1")


def test_a_log_of_before_the_lacking_fields_tells_what_its_numbers_tell():
    log = log_of(request("a", 4, 5), request("b", 4, 2, arrival=1), max_num_seqs=1)
    gone = dict.fromkeys(("behind", "lacking_slots", "lacking_tokens", "lacking_blocks"))
    [wait] = life_of(changed(log, "deferred", **gone), "b").waits()

    assert wait.lacking == Lack(slots=1)


def test_times_without_the_clock_of_steps_are_nanoseconds_and_steps_are_passes():
    log = log_of(request("early", 4, 2), request("a", 4, 2, arrival=10))
    log[0] = log[0].replace('"clock":"steps"', '"clock":"ns"')
    life = life_of(log, "a")

    # Two passes ran before it.
    assert told(life)[0] == ("admitted", 3, 3)


# Damage


def test_a_torn_last_line_is_named_and_passed_over():
    log = log_of(request("a", 4, 3))
    explanation = explain([*log[:-1], log[-1][:10]], "a")

    assert explanation.torn_line == len(log)
    assert explanation.damage is None
    assert explanation.lives[0].end is None


def test_what_comes_before_a_broken_line_is_explained():
    log = log_of(request("a", 4, 3))
    explanation = explain([*log[:4], "{broken\n", *log[4:]], "a")

    assert explanation.damage.startswith("line 5 is not JSON")
    assert explanation.lives[0].chapters


def test_an_unknown_id_in_a_broken_log_is_told_with_the_damage():
    with pytest.raises(UnknownRequest, match="line 2 is not JSON"):
        explain([log_of(request("a"))[0], "?\n"], "a")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "it is empty"),
        (["no JSON\n"], "line 1 is not JSON"),
        (['{"event":"header","version":99}\n'], "version 99"),
        (['{"event":"header","version":1}\n'], "no configuration"),
        (['{"event":"header","version":1,"config":{}}\n'], "max_num_seqs .* not None"),
        (['{"event":"arrived"}\n'], 'no header but {"event":"arrived"}: give what --event-log'),
    ],
)
def test_what_is_no_log_is_an_error(lines, words):
    with pytest.raises(EventLogError, match=words):
        explain(lines, "a")


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize(("size", "is_refused"), [("0", True), ("true", True), ("1", False)])
def test_a_configuration_has_sizes_of_at_least_1(name, size, is_refused):
    header = {"event": "header", "version": 1, "config": dict.fromkeys(SIZES, 4)}
    line = json.dumps(header).replace(f'"{name}": 4', f'"{name}": {size}')
    words = f"{name} .* at least 1" if is_refused else "names no request"

    with pytest.raises(EverbatchError, match=words):
        explain([line + "\n"], "a")


def test_a_log_that_has_lost_its_beginning_is_explained_from_there():
    log = log_of(request("a", 4, 6), request("b", 4, 2), max_num_seqs=1)
    header = log[0].replace('"clock":"steps"', '"clock":"steps","dropped":3')
    life = life_of([header, *log[4:]], "a")

    assert life.arrival_t is None
    assert life.end.output_tokens == 6
    assert sums(life).queue_wait is None
