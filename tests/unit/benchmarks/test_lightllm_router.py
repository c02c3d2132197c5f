"""LightLLM's router before our scheduler: whom it lets in, when, and what VTC charges for it."""

import random

import pytest
from fidelity.lightllm import (
    DECODES_BETWEEN_BATCHES,
    RouterQueue,
    Seat,
    TwoPasses,
    peak_tokens,
)
from fidelity.vtc_runs import Served, simulate

from everbatch.costs.work import StepWork
from everbatch.scheduler.policy import Fcfs
from everbatch.scheduler.request import Request

STEP_NS = 1_000_000
EVEN = TwoPasses(prompt_token=0.0, decode_step=STEP_NS, context_token=0.0)


def router(num_tokens: int = 10_000) -> RouterQueue:
    return RouterQueue(Fcfs().queue, num_tokens, None)


def request(number: int, prompt: int = 100, outputs: int = 50, tenant: str = "a") -> Request:
    return Request(str(number), number, prompt, outputs, tenant=tenant)


def let_in(queue: RouterQueue, step: int) -> list[str]:
    """Let everybody in who may come at a boundary; gives their ids."""
    admitted = list(queue.in_order(step))
    for one in admitted:
        queue.remove(one)
    return [one.id for one in admitted]


def served(number: int, *, tenant: str = "a", arrival_s: float = 0.0, outputs: int = 50) -> Served:
    return Served(tenant, 100, outputs, arrival_s, None, None)


def test_the_peak_is_the_most_that_growing_requests_hold_together():
    """Against counting, token by token, what each holds until it ends."""
    rng = random.Random(3)
    for _ in range(200):
        step = rng.randrange(50)
        seats = sorted(
            Seat(step + rng.randrange(1, 40), step - rng.randrange(30), rng.randrange(1, 90), "a")
            for _ in range(rng.randrange(1, 9))
        )
        held = [
            sum(s.num_prompt_tokens + at - s.first_step + 1 for s in seats if s.last_step > at)
            for at in range(step, step + 41)
        ]

        assert peak_tokens(seats, step) == max(held)


def test_the_peak_must_stay_below_the_pool_that_adapters_leave():
    """100 tokens of prompt and 50 outputs, of which the last is not held, and 32 of the adapter."""
    fits, full = router(100 + 50 + 32 + 1), router(100 + 50 + 32)
    for queue in (fits, full):
        queue.push(request(0))

    assert let_in(fits, 0) == ["0"]
    assert let_in(full, 0) == []


def test_each_client_in_use_costs_an_adapter():
    same, others = router(2 * 150 + 32 + 1), router(2 * 150 + 32 + 1)
    for number in range(2):
        same.push(request(number))
        others.push(request(number, tenant=str(number)))

    assert let_in(same, 0) == ["0", "1"]
    assert let_in(others, 0) == ["0"]


def test_the_first_that_does_not_fit_ends_the_scan():
    queue = router(400)
    for number, prompt in enumerate((100, 300, 10)):
        queue.push(request(number, prompt))

    assert let_in(queue, 0) == ["0"]


def test_a_batch_has_3072_prompt_tokens_at_most():
    queue = router()
    for number, prompt in enumerate((1_000, 1_000, 1_072, 1)):
        queue.push(request(number, prompt))

    assert let_in(queue, 0) == ["0", "1", "2"]


def test_ten_decodes_go_by_between_two_batches_that_let_somebody_in():
    queue = router()
    queue.push(request(0))
    let_in(queue, 0)
    queue.push(request(1))
    waits = [let_in(queue, step) for step in range(1, DECODES_BETWEEN_BATCHES)]

    assert not any(waits)
    assert let_in(queue, DECODES_BETWEEN_BATCHES) == ["1"]


def test_a_batch_that_lets_nobody_in_is_tried_again_at_once():
    queue = router(400)
    queue.push(request(0, prompt=250, outputs=20))
    let_in(queue, 0)
    queue.push(request(1))

    assert [let_in(queue, step) for step in (10, 15, 19)] == [[], [], []]
    assert let_in(queue, 20) == ["1"]


def test_nobody_waits_for_ten_decodes_where_nobody_runs():
    queue = router()
    queue.push(request(0, outputs=3))
    let_in(queue, 0)
    queue.push(request(1))

    assert let_in(queue, 3) == ["1"]


def test_prompts_and_decodes_take_a_pass_each():
    work = StepWork(num_decodes=4, decode_context=1_000)
    work.add_chunk(0, 200)
    passes = TwoPasses(prompt_token=10.0, decode_step=500.0, context_token=0.5)

    assert passes.duration_ns(work) == 200 * 10 + 500 + 500
    assert passes.duration_ns(StepWork(prefill_tokens=200, num_chunks=1)) == 2_000


@pytest.mark.parametrize("knows_lengths", [False, True])
def test_vtc_behind_the_router_serves_two_clients_alike(knows_lengths):
    """One sends twice as much: after the same time both have been served as much."""
    requests = [served(n, tenant="greedy" if n % 3 else "modest") for n in range(300)]
    fair = simulate(requests, EVEN, policy="vtc", knows_lengths=knows_lengths)
    in_turn = simulate(requests, EVEN)
    half = sorted(one.e2e_s for one in fair)[150]
    num_fair = sum(one.tenant == "modest" for one in fair if one.e2e_s <= half)
    num_in_turn = sum(one.tenant == "modest" for one in in_turn if one.e2e_s <= half)

    assert 65 <= num_fair <= 85
    assert num_in_turn <= 60


def test_known_lengths_charge_a_long_request_before_it_has_run():
    """The client of a long request waits for the other's short ones at once, not once it shows."""
    requests = [
        served(0, tenant="long", outputs=2_000),
        *(served(n, tenant=tenant) for n in range(1, 61) for tenant in ("long", "short")),
    ]
    known = simulate(requests, EVEN, policy="vtc", knows_lengths=True)
    unknown = simulate(requests, EVEN, policy="vtc")

    assert _mean_ttft(known, "short") < _mean_ttft(unknown, "short")


def test_a_rate_limit_refuses_and_serves_the_rest():
    requests = [served(n, arrival_s=float(n)) for n in range(12)]
    run = simulate(requests, EVEN, requests_per_minute=5)

    assert [one.ttft_s is not None for one in run] == [True] * 5 + [False] * 7


def _mean_ttft(run: list[Served], tenant: str) -> float:
    times = [one.ttft_s for one in run if one.tenant == tenant]
    return sum(times) / len(times)
