"""Listed requests come by (arrival, position), and each source tells what it does not know."""

from everbatch.workload.requests import Prompt, RequestSpec, Segment
from everbatch.workload.sources import ListedRequests, RequestSource


def spec(position: int, arrival: int) -> RequestSpec:
    prompt = Prompt(4, (Segment(None, 4),))
    return RequestSpec(f"r{position}", position, arrival, prompt, output_tokens=2, max_tokens=2)


def drained(source: RequestSource) -> list[str]:
    ids = []
    while source.peek() is not None:
        ids.append(source.pop().id)
    return ids


def test_listed_requests_come_by_arrival_then_position():
    source = ListedRequests([spec(0, 9), spec(1, 3), spec(2, 9), spec(3, 3)])

    assert source.num_requests == 4
    assert source.peek() == 3
    assert drained(source) == ["r1", "r3", "r0", "r2"]
    assert source.num_requests == 4


def test_an_end_brings_nobody_who_is_not_listed():
    source = ListedRequests([spec(0, 0)])
    source.pop()

    source.ended("r0", 5)

    assert source.peek() is None
    assert source.notes() == []


def test_an_empty_list_has_nobody():
    source = ListedRequests([])

    assert (source.num_requests, source.peek()) == (0, None)
