"""The state machine of a request, move by move."""

import itertools

import pytest

from everbatch.scheduler.request import ALLOWED_MOVES, Request, RequestStatus

W, P, D, X, F = (
    RequestStatus.WAITING,
    RequestStatus.PREFILL,
    RequestStatus.DECODE,
    RequestStatus.PREEMPTED,
    RequestStatus.FINISHED,
)
LEGAL = {
    *((W, P), (P, D), (D, F), (P, F)),
    *((P, X), (D, X), (X, W), (X, P), (X, D)),
    *((W, F), (X, F)),
}


def request_in(status):
    return Request("a", 0, num_prompt_tokens=8, max_tokens=4, status=status)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(RequestStatus, repeat=2)))
def test_only_the_moves_of_the_mission_are_possible(old, new):
    request = request_in(old)
    if (old, new) in LEGAL:
        request.move_to(new)

        assert request.status is new
    else:
        with pytest.raises(AssertionError):
            request.move_to(new)
        assert request.status is old


def test_every_state_has_its_row_and_the_last_one_no_way_out():
    assert set(ALLOWED_MOVES) == set(RequestStatus)
    assert ALLOWED_MOVES[F] == ()


def test_a_victim_without_outputs_comes_back_as_a_prompt():
    request = request_in(W)

    assert not request.is_rebuilding
    assert request.prefill_target == 8
    assert request.num_context_tokens == 8


def test_a_rebuild_consumes_all_but_the_pending_output():
    request = request_in(W)
    request.num_output_tokens = 3

    assert request.is_rebuilding
    assert request.prefill_target == 10
    assert request.num_context_tokens == 11
