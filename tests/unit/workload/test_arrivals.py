"""Closed loops: users who wait, think, and send again."""

import pytest
from trace_rows import FILES, lengths

from everbatch.base.fields import Fields
from everbatch.workload.sources import RequestSource
from everbatch.workload.workload_section import WORKLOAD_KEYS, read_workload

SECOND = 1_000_000_000
SIZES = {"prompt": 100, "output": 10}


def closed(**keys) -> RequestSource:
    table = Fields({"arrivals": "closed", **SIZES, **keys}, "[workload]", WORKLOAD_KEYS)
    return read_workload(table, FILES, seed=5).source()


def served(source: RequestSource, duration: int) -> list[tuple[int, str]]:
    """Serve each request in so much time, all at once; give (arrival, id) in order."""
    running: list[tuple[int, int, str]] = []
    sent: list[tuple[int, str]] = []
    while True:
        next_arrival = source.peek()
        if running and (next_arrival is None or running[0][0] <= next_arrival):
            now, _, id = running.pop(0)
            source.ended(id, now)
        elif next_arrival is None:
            return sent
        else:
            spec = source.pop()
            sent.append((spec.arrival, spec.id))
            running.append((spec.arrival + duration, spec.position, spec.id))
            running.sort()


def test_users_send_at_0_and_again_when_theirs_has_ended():
    source = closed(users=2, num_requests=5)

    first, second = source.pop(), source.pop()

    assert (first.arrival, second.arrival) == (0, 0)
    assert source.peek() is None
    source.ended(second.id, 7)
    assert source.peek() == 7
    assert source.pop().id == "2"
    source.ended(first.id, 9)
    assert source.peek() == 9


def test_users_think_before_they_send():
    sent = served(closed(users=1, think_time=1.5, num_requests=3), duration=SECOND)

    assert [arrival for arrival, _ in sent] == [0, 2_500_000_000, 5_000_000_000]


def test_never_more_requests_than_users_live():
    sent = served(closed(users=3, num_requests=10), duration=SECOND)

    assert [arrival // SECOND for arrival, _ in sent] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert [id for _, id in sent] == [str(number) for number in range(10)]


def test_more_users_than_requests():
    assert len(served(closed(users=9, num_requests=4), duration=1)) == 4


def test_who_would_send_at_the_end_or_later_stays_silent():
    assert len(served(closed(users=1, duration=3), duration=SECOND)) == 3


def test_an_end_that_is_told_twice_or_of_nobody_sends_nothing():
    source = closed(users=1, num_requests=5)
    spec = source.pop()
    source.ended("nobody", 3)
    source.ended(spec.id, 4)

    source.ended(spec.id, 5)

    source.pop()
    assert source.peek() is None


def test_a_request_is_the_same_however_fast_it_is_served():
    keys = {"users": 4, "num_requests": 40, "think_time": 1, "think_cv": 1}
    keys["prompt"] = {"lengths": "uniform", "min": 1, "max": 1000}

    def prompts(order) -> list[tuple[int, int]]:
        source, live, specs = closed(**keys), [], []
        now = 0
        while len(specs) < 40:
            while source.peek() is not None:
                specs.append(source.pop())
                live.append(specs[-1])
            now = max(now, specs[-1].arrival) + SECOND
            source.ended(live.pop(order).id, now)
        return lengths(specs)

    assert prompts(order=0) == prompts(order=-1)


@pytest.mark.parametrize("cv", [0, 1, 0.5])
def test_thinking_takes_the_mean_time_asked_for(cv):
    keys = {"users": 1, "num_requests": 4000, "think_time": 2, "think_cv": cv}
    sent = served(closed(**keys), duration=0)

    assert sent[-1][0] / 3999 / SECOND == pytest.approx(2, rel=0.06)
