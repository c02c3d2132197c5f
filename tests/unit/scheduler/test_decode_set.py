"""The decode set and its calendar: what falls due when."""

import pytest

from everbatch.scheduler.decode_set import DecodeSet
from everbatch.scheduler.request import Request


def member(computed, outputs, max_tokens):
    request = Request("m", 0, num_prompt_tokens=computed, max_tokens=max_tokens)
    request.num_computed_tokens = computed
    request.num_output_tokens = outputs
    return request


def run(decodes, num_steps):
    """Advance; gives the steps in which somebody's blocks were full, and in which one ended."""
    full, ended = [], []
    for step in range(1, num_steps + 1):
        now_full, now_ended = decodes.advance()
        full += [step] * len(now_full)
        ended += [step] * len(now_ended)
        for request in list(now_ended):
            decodes.leave(request)
    return full, ended


@pytest.mark.parametrize("computed", range(1, 10))
@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
def test_blocks_are_full_when_the_cached_tokens_fill_them(computed, block_size):
    decodes = DecodeSet(block_size)
    decodes.join(member(computed, 1, 1_000))
    full, _ = run(decodes, 12)

    assert full == [step for step in range(1, 13) if (computed + step) % block_size == 0]


@pytest.mark.parametrize(("outputs", "max_tokens"), [(1, 2), (1, 5), (4, 5)])
def test_a_member_ends_with_its_last_output(outputs, max_tokens):
    decodes = DecodeSet(4)
    decodes.join(member(8, outputs, max_tokens))
    _, ended = run(decodes, 12)

    assert ended == [max_tokens - outputs]
    assert len(decodes) == 0


def test_a_request_with_all_its_outputs_cannot_join():
    with pytest.raises(AssertionError):
        DecodeSet(4).join(member(8, 5, 5))


def test_progress_counts_the_steps_since_joining():
    decodes = DecodeSet(4)
    decodes.advance()
    request = member(5, 1, 9)

    assert decodes.progress(request) == 0

    decodes.join(request)
    decodes.advance()
    decodes.advance()

    assert decodes.progress(request) == 2
    assert decodes.computed_tokens(request) == 7
    assert decodes.leave(request) == 2
    assert decodes.progress(request) == 0
    assert request not in decodes


def test_who_has_left_is_due_no_more():
    decodes = DecodeSet(2)
    stays, leaves = member(2, 1, 50), member(2, 1, 4)
    decodes.join(stays)
    decodes.join(leaves)
    decodes.advance()
    decodes.leave(leaves)
    due = [decodes.advance() for _ in range(4)]

    assert [list(full) for full, _ in due] == [[stays], [], [stays], []]
    assert [list(ended) for _, ended in due] == [[], [], [], []]


def test_who_leaves_when_full_is_taken_off_the_list_of_this_step():
    decodes = DecodeSet(2)
    one, two = member(1, 1, 50), member(1, 1, 50)
    decodes.join(one)
    decodes.join(two)
    full, _ = decodes.advance()
    decodes.leave(one)

    assert list(full) == [two]


def test_who_comes_back_starts_a_new_count():
    decodes = DecodeSet(4)
    request = member(5, 1, 9)
    decodes.join(request)
    decodes.advance()
    decodes.leave(request)
    request.num_computed_tokens, request.num_output_tokens = 6, 2
    decodes.advance()
    decodes.join(request)
    full, ended = run(decodes, 8)

    assert full == [2, 6]
    assert ended == [7]


def test_filling_names_those_whose_blocks_the_next_step_fills():
    decodes = DecodeSet(2)
    early, late = member(1, 1, 50), member(2, 1, 50)
    decodes.join(early)
    decodes.join(late)

    assert list(decodes.filling()) == [early]

    decodes.advance()

    assert list(decodes.filling()) == [late]


def test_members_stand_in_order_of_joining():
    decodes = DecodeSet(4)
    members = [member(3, 1, 9) for _ in range(3)]
    for request in reversed(members):
        decodes.join(request)

    assert list(decodes) == members[::-1]


def test_many_steps_at_once_fill_the_blocks_that_they_fill_one_by_one():
    for num_steps in range(1, 14):
        one_by_one, at_once = DecodeSet(4), DecodeSet(4)
        for decodes in (one_by_one, at_once):
            for computed in (5, 6, 9, 11):
                decodes.join(member(computed, 1, 1_000))
        fills = []
        for step in range(1, num_steps):
            full, _ = one_by_one.advance()
            fills += [(step, [request.num_computed_tokens for request in full])] * bool(full)

        told = at_once.fills_before(num_steps)

        assert [(step, [r.num_computed_tokens for r in full]) for step, full in told] == fills
        assert at_once.num_steps == one_by_one.num_steps == num_steps - 1
        assert [r.num_computed_tokens for r in at_once.advance()[0]] == [
            r.num_computed_tokens for r in one_by_one.advance()[0]
        ]
