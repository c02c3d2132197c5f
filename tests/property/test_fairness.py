"""Bounds on waiting and on service, under random crowds: aging, and two tenants under vtc."""

from random import Random

import pytest
from builders import Client, World, client, make_config, run_world

from everbatch.base.events import StepRan
from everbatch.scheduler.config import TenantConfig
from everbatch.scheduler.tenants import OUTPUT_TOKEN_PRICE, PROMPT_TOKEN_PRICE

MAX_PROMPT_TOKENS, MAX_OUTPUT_TOKENS = 12, 8
MAX_SEQS = 4


def random_client(draw, id, tenant="", priority=0):
    prompt = [draw.randrange(50) for _ in range(draw.randint(1, MAX_PROMPT_TOKENS))]
    return Client(id, prompt, draw.randint(1, MAX_OUTPUT_TOKENS), tenant=tenant, priority=priority)


def admit(world, c):
    world.executor.output_lengths[c.id] = c.output_tokens
    world.add(c)
    return c


class Backlog:
    """Keeps tenants waiting and counts what they get, over their weights."""

    def __init__(self, world, draw, weights):
        self.world, self.draw, self.weights = world, draw, weights
        self.clients = {}
        self.service = dict.fromkeys(weights, 0.0)

    def fill(self, tenant, at_least=2):
        queue = self.world.engine.scheduler.state.policy.queue
        waiting = sum(r.tenant == tenant for r in queue.in_order(0, lambda _: 0))
        while waiting < at_least:
            c = random_client(self.draw, f"{tenant}{len(self.clients)}", tenant)
            self.clients[c.id] = admit(self.world, c)
            waiting += 1

    def step(self):
        result = self.world.step()
        for event in result.events:
            if isinstance(event, StepRan):
                for id, _, count in event.chunks:
                    self._charge(id, PROMPT_TOKEN_PRICE * count)
        for output in result.outputs:
            self._charge(output.request_id, OUTPUT_TOKEN_PRICE)

    def _charge(self, id, price):
        tenant = self.clients[id].tenant
        self.service[tenant] += price / self.weights[tenant]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_two_backlogged_tenants_are_served_alike_under_vtc(seed, weight):
    """VTC (OSDI 2024), theorem 4.8: |W_a - W_b| <= 2 U in any interval in which both wait.

    U bounds how far two counters of waiting tenants drift apart (lemma 4.3). A tenant gets a slot
    only while its counter is the smallest; from then on only those of its requests that run raise
    it. At most max_num_seqs run, each for its prompt at price 1 and its outputs at price 2. So
    U = max_num_seqs * (w_p * longest prompt + w_q * longest output) over the smaller weight; the
    paper's max(w_p * L_input, w_q * M) charges prompts at admission and M tokens of a batch.
    """
    draw = Random(seed)
    weights = {"a": weight, "b": 1.0, "c": 1.0}
    config = make_config(
        policy="vtc",
        max_num_seqs=MAX_SEQS,
        max_num_batched_tokens=draw.choice([4, 8, 64]),
        num_blocks=40,
        admission="reserve",
        tenants={"a": TenantConfig(weight)},
    )
    world = World(config, [])
    backlog = Backlog(world, draw, weights)
    bound = MAX_SEQS * (
        PROMPT_TOKEN_PRICE * MAX_PROMPT_TOKENS + OUTPUT_TOKEN_PRICE * MAX_OUTPUT_TOKENS
    )
    # One tenant alone, then idle; a third comes and goes; then both are backlogged.
    for _ in range(60):
        backlog.fill("b")
        backlog.step()
    while world.engine.has_work:
        backlog.step()
    gaps = []
    for boundary in range(300):
        backlog.fill("a")
        backlog.fill("b")
        if boundary % 40 < 10:
            backlog.fill("c", 1)
        backlog.step()
        gaps.append(backlog.service["a"] - backlog.service["b"])

    assert max(gaps) - min(gaps) <= 2 * bound
    assert min(backlog.service.values()) > 0


@pytest.mark.parametrize("aging_steps", [1, 3])
def test_aging_bounds_the_wait_of_the_lowest_priority(aging_steps):
    """A request of priority p is overtaken by whoever of priority 0 comes within p * aging_steps.

    Later ones stand behind it, so it waits for those who were there or came by then: at most that
    many arrivals, each for max_num_seqs-th of its prompt's and outputs' steps.
    """
    draw = Random(aging_steps)
    config = make_config(policy="priority", aging_steps=aging_steps, num_blocks=64, max_num_seqs=2)
    world = World(config, [])
    for number in range(4):
        admit(world, random_client(draw, f"early{number}"))
    low = admit(world, random_client(draw, "low", priority=5))
    boundary = 0
    while not world.texts["low"]:
        admit(world, random_client(draw, f"high{boundary}"))
        world.step()
        boundary += 1

    steps_of_one = 1 + MAX_OUTPUT_TOKENS
    assert boundary <= (4 + 5 * aging_steps + 1) * steps_of_one / 2 + steps_of_one
    assert low.id in world.texts


def test_without_aging_the_lowest_priority_waits_as_long_as_others_come():
    draw = Random(0)
    world = World(make_config(policy="priority", num_blocks=64, max_num_seqs=2), [])
    for number in range(4):
        admit(world, random_client(draw, f"early{number}"))
    admit(world, random_client(draw, "low", priority=5))
    for boundary in range(200):
        admit(world, random_client(draw, f"high{boundary}"))
        world.step()

    assert world.texts["low"] == []


def first_steps(world):
    steps = {}
    for event in world.events:
        if event.kind == "admitted":
            steps.setdefault(event.id, event.step)
    return steps


@pytest.mark.parametrize("admission", ["prompt", "now", "peak", "reserve"])
def test_safe_backfill_never_delays_the_head(admission):
    """If everybody runs to max_tokens and nobody has to yield, the head starts when it would."""
    num_passed = 0
    for seed in range(60):
        draw = Random(seed)
        options = {
            "max_num_seqs": draw.randint(2, 4),
            "num_blocks": draw.randint(4, 16),
            "block_size": draw.randint(1, 4),
            "admission": admission,
            "watermark": draw.choice([0.0, 0.0, 0.2]),
        }
        pool_tokens = options["num_blocks"] * options["block_size"]
        clients = []
        for number in range(draw.randint(3, 7)):
            prompt = draw.randint(1, pool_tokens // 2)
            output = draw.randint(1, min(6, pool_tokens - prompt + 1))
            clients.append(client(f"r{number}", prompt, output))
        plain = run_world(clients, **options)
        passing = run_world(clients, backfill="safe", **options)
        without, steps = first_steps(plain), first_steps(passing)
        head = next((c.id for c in clients if without[c.id] > 1), None)
        yielded = any(e.kind == "preempted" for w in (plain, passing) for e in w.events)
        if head is not None and not yielded:
            assert steps[head] <= without[head], f"seed {seed}"
            num_passed += any(steps[id] < without[id] for id in steps)

    assert num_passed > 0
