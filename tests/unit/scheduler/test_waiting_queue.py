"""The queue: arrival order whatever the order of coming, removal from anywhere."""

from bisect import insort
from random import Random

import pytest

from everbatch.scheduler.queue import MAX_RUN, SortedQueue
from everbatch.scheduler.request import Request


def request(arrival_number):
    # Ids run against the arrival order: they must not matter.
    return Request(f"r{99 - arrival_number}", arrival_number, 1, 1)


def filled(*arrival_numbers):
    queue = SortedQueue(lambda one: 0)
    requests = {number: request(number) for number in arrival_numbers}
    for one in requests.values():
        queue.push(one)
    return queue, requests


def numbers(queue):
    return [one.arrival_number for one in queue.in_order(0, lambda one: 0)]


def test_an_empty_queue_has_no_head():
    queue = SortedQueue(lambda one: 0)

    assert queue.peek(0) is None
    assert len(queue) == 0
    assert numbers(queue) == []


def test_order_is_that_of_arrival():
    queue, _ = filled(3, 1, 4, 0, 2)

    assert numbers(queue) == [0, 1, 2, 3, 4]
    assert queue.peek(0).arrival_number == 0


@pytest.mark.parametrize("gone", [0, 2, 4])
def test_requests_leave_from_anywhere(gone):
    queue, requests = filled(0, 1, 2, 3, 4)
    queue.remove(requests[gone])

    assert numbers(queue) == [n for n in range(5) if n != gone]
    assert requests[gone] not in queue
    assert len(queue) == 4


def test_a_victim_comes_back_before_those_who_arrived_later():
    queue, requests = filled(0, 1, 2, 3)
    queue.remove(requests[0])
    queue.remove(requests[1])
    queue.push(requests[1])

    assert numbers(queue) == [1, 2, 3]
    assert queue.peek(0) is requests[1]


def test_victims_come_back_before_a_head_that_has_moved_on():
    queue, requests = filled(*range(12))
    for number in range(4):
        queue.remove(requests[number])
    for number in (2, 0, 3, 1):
        queue.push(requests[number])

    assert numbers(queue) == list(range(12))
    assert len(queue) == 12


def test_who_left_and_came_back_stands_there_once():
    queue, requests = filled(0, 1, 2)
    for _ in range(3):
        queue.remove(requests[1])
        queue.push(requests[1])

    assert numbers(queue) == [0, 1, 2]


def test_heads_removed_one_by_one_leave_the_rest_in_order():
    queue, requests = filled(*range(20))
    for number in range(20):
        assert queue.peek(0) is requests[number]
        queue.remove(requests[number])

    assert queue.peek(0) is None


def test_the_middle_removed_first_is_skipped_when_the_head_goes():
    queue, requests = filled(*range(8))
    for number in (3, 1, 2, 6, 0):
        queue.remove(requests[number])

    assert queue.peek(0) is requests[4]
    assert numbers(queue) == [4, 5, 7]


def test_nobody_waits_twice():
    queue, requests = filled(0)

    with pytest.raises(AssertionError):
        queue.push(requests[0])


def test_who_does_not_wait_cannot_be_removed():
    queue, _ = filled(0)

    with pytest.raises(KeyError):
        queue.remove(request(1))


@pytest.mark.parametrize("spread", [1, 3, 10_000])
def test_a_long_queue_is_in_order_however_it_turns_over(spread):
    # As srpt's: keys repeat, newcomers go anywhere; heads leave, and some from the middle.
    draw = Random(spread)
    queue = SortedQueue(lambda one: one.num_prompt_tokens)
    expected = []
    for number in range(8 * MAX_RUN):
        one = request(number)
        one.num_prompt_tokens = draw.randrange(spread)
        queue.push(one)
        insort(expected, (one.num_prompt_tokens, number, one))
        if number > 3 * MAX_RUN:
            grows = number < 6 * MAX_RUN
            for _ in range(draw.randrange(2 if grows else 4)):
                place = draw.choice([0, 0, draw.randrange(len(expected))])
                queue.remove(expected.pop(place)[2])
        assert queue.peek(0) is expected[0][2]
        if number % 997 == 0:
            assert list(queue.in_order(0, lambda one: 0)) == [entry[2] for entry in expected]

    while expected:
        assert queue.peek(0) is expected[0][2]
        queue.remove(expected.pop(0)[2])
    assert len(queue) == 0
    assert queue.peek(0) is None
