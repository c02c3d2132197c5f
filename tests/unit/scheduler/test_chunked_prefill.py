"""Prompts in pieces: sizes of chunks, the threshold, the order between prompts."""

import pytest
from builders import alone, client, finals, run_world

BUDGET = 16


def chunks_of(world, id):
    return [r.scheduled[id] for r in world.records if id in r.scheduled]


@pytest.mark.parametrize(
    ("prompt_tokens", "expected"),
    [
        (1, [1]),
        (BUDGET - 1, [15]),
        (BUDGET, [16]),
        (BUDGET + 1, [16, 1]),
        (BUDGET + 6, [16, 6]),
        (2 * BUDGET, [16, 16]),
        (2 * BUDGET + 1, [16, 16, 1]),
    ],
)
def test_a_prompt_takes_whole_budgets_and_the_rest(prompt_tokens, expected):
    c = client("a", prompt_tokens, 3)
    world = run_world([c], max_num_batched_tokens=BUDGET)

    assert chunks_of(world, "a") == expected
    assert len(world.records) == len(expected) + 2
    assert world.texts["a"] == alone(c)


def test_a_chunk_fills_exactly_what_decodes_leave():
    clients = [*(client(id, 1, 9) for id in "abc"), client("p", 29, 2, arrival=1)]
    world = run_world(clients, max_num_batched_tokens=BUDGET)

    assert chunks_of(world, "p") == [13, 13, 3]
    assert [r.decodes for r in world.records[1:4]] == [3, 3, 3]


def test_a_chunk_starts_and_ends_within_blocks():
    clients = [client("a", 1, 9), client("p", 20, 4, arrival=1)]
    world = run_world(clients, max_num_batched_tokens=7)

    assert chunks_of(world, "p") == [6, 6, 6, 2]
    assert world.texts["p"] == alone(clients[1])


def test_the_threshold_caps_one_prompt_and_leaves_the_rest_to_the_next():
    world = run_world(
        [client("a", 10, 1), client("b", 10, 1)],
        max_num_batched_tokens=BUDGET,
        long_prefill_token_threshold=6,
    )

    assert [r.scheduled for r in world.records] == [{"a": 6, "b": 6}, {"a": 4, "b": 4}]


def test_a_threshold_above_the_budget_is_harmless():
    world = run_world(
        [client("a", 20, 1)], max_num_batched_tokens=BUDGET, long_prefill_token_threshold=99
    )

    assert chunks_of(world, "a") == [16, 4]


def test_a_prompt_that_has_begun_goes_before_the_queue():
    world = run_world(
        [client("a", 20, 1), client("b", 4, 1, arrival=1)], max_num_batched_tokens=BUDGET
    )

    assert [list(r.scheduled) for r in world.records] == [["a"], ["a", "b"]]


def test_a_prompt_that_has_begun_is_not_overtaken_for_want_of_blocks():
    # `p` lacks two blocks; `q` needs the one that is there, but came later.
    world = run_world(
        [client("a", 12, 8), client("p", 16, 1), client("q", 4, 1)],
        num_blocks=6,
        max_num_batched_tokens=16,
        long_prefill_token_threshold=0,
        admission="now",
        preemption_trigger="stall",
    )
    first = {e.id: e.step for e in world.events if e.kind == "admitted" and not e.resumed}

    assert first["p"] == 1
    assert first["q"] >= finals(world)["p"].step


def test_the_last_chunk_emits_and_earlier_ones_do_not():
    world = run_world([client("a", 33, 2)], max_num_batched_tokens=BUDGET)

    assert [r.emitted for r in world.records] == [[], [], ["a"], ["a"]]


def test_with_one_output_the_last_chunk_ends_the_request():
    world = run_world([client("a", 20, 1)], max_num_batched_tokens=BUDGET)

    assert world.records[-1].finished == {"a": "stop"}
    assert "decoding" not in {e.kind for e in world.events}


def test_chunks_of_one_token_work():
    c = client("a", 5, 3)
    world = run_world([c], max_num_batched_tokens=1)

    assert chunks_of(world, "a") == [1] * 5
    assert world.texts["a"] == alone(c)
