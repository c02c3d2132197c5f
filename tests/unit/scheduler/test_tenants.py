"""Accounts of tenants: closing those that idle shows in no decision and bounds the memory."""

from random import Random

import pytest
from builders import Client, World, make_config

from everbatch.scheduler.config import TenantConfig
from everbatch.scheduler.tenants import MAX_IDLE_ACCOUNTS, TenantLedger

NUM_INVENTED = 100_000


def crowd(seed, num_clients):
    """Clients of a few tenants who stay and of many who come once or again after a while."""
    draw = Random(seed)
    clients = []
    for number in range(num_clients):
        tenant = draw.choice(["a", "b", "", f"new{number}", f"again{draw.randrange(30)}"])
        prompt = [1_000 * number + position for position in range(draw.randint(1, 12))]
        clients.append(
            Client(
                f"r{number}",
                prompt,
                draw.randint(1, 9),
                arrival=draw.randrange(num_clients),
                abort_at=draw.choice([None, None, None, draw.randrange(num_clients)]),
                abort_during=draw.choice([None, None, None, draw.randrange(num_clients)]),
                tenant=tenant,
                n=draw.choice([1, 1, 1, 2]),
            )
        )
    return clients


def run_crowd(seed, *, closes_accounts, **options):
    tenants = {"a": TenantConfig(2.0), "b": TenantConfig(0.3)}
    config = make_config(policy="vtc", tenants=tenants, num_blocks=12, admission="now", **options)
    world = World(config, crowd(seed, 150))
    world.engine.scheduler.state.ledger.closes_accounts = closes_accounts
    return world.run()


@pytest.mark.parametrize("backfill", ["none", "greedy"])
@pytest.mark.parametrize("seed", range(8))
def test_closing_accounts_changes_no_decision(seed, backfill):
    closing = run_crowd(seed, closes_accounts=True, backfill=backfill)
    keeping = run_crowd(seed, closes_accounts=False, backfill=backfill)

    assert closing.events == keeping.events
    assert len(keeping.engine.scheduler.state.ledger) > 40
    assert len(closing.engine.scheduler.state.ledger) < 25


def ledger_with(*tenants, step=0):
    """A ledger in which each tenant has one request, which waits."""
    ledger = TenantLedger({})
    for tenant in tenants:
        ledger.arrive(tenant, 1, step)
        ledger.enter_queue(tenant, step)
    return ledger


def test_who_owes_service_is_remembered():
    ledger = ledger_with("rich", "poor")
    ledger.leave_queue("rich")
    ledger.charge_prompt("rich", 50)
    ledger.depart("rich")
    for number in range(20):
        ledger.arrive(f"new{number}", 1, 0)
        ledger.enter_queue(f"new{number}", 0)
        ledger.leave_queue(f"new{number}")
        ledger.depart(f"new{number}")
    ledger.arrive("rich", 1, 0)
    ledger.enter_queue("rich", 0)

    assert ledger.service("rich", 0) == 50
    assert ledger.service("poor", 0) == 0


def test_who_comes_back_while_on_the_list_of_idle_ones_keeps_its_account():
    ledger = ledger_with("a", "b")
    for tenant, num_tokens in (("a", 5), ("b", 9)):
        ledger.leave_queue(tenant)
        ledger.charge_prompt(tenant, num_tokens)
    ledger.depart("a")
    ledger.arrive("a", 1, 0)
    ledger.arrive("c", 1, 0)
    ledger.enter_queue("c", 0)
    ledger.charge_prompt("a", 30)

    assert ledger.service("a", 0) == 35
    assert ledger.service("c", 0) == 9


@pytest.mark.parametrize(
    ("num_waiting", "most"), [(0, 10), (4, MAX_IDLE_ACCOUNTS + 10)], ids=["in turn", "backlog"]
)
def test_a_hundred_thousand_invented_tenants_leave_few_accounts_behind(num_waiting, most):
    """Where somebody always waits who got nothing yet, who got something owes it for ever."""
    ledger, waiting, largest = TenantLedger({}), [], 0
    for number in range(NUM_INVENTED):
        tenant = f"invented{number}"
        ledger.arrive(tenant, 1, number)
        ledger.enter_queue(tenant, number)
        waiting.append(tenant)
        if len(waiting) > num_waiting:
            served = waiting.pop(0)
            ledger.leave_queue(served)
            ledger.charge_prompt(served, 10 + number % 7)
            ledger.depart(served)
        largest = max(largest, len(ledger))

    assert largest <= most


def test_of_too_many_idle_tenants_the_least_served_are_forgotten_first():
    ledger = ledger_with("waits")
    for number in range(MAX_IDLE_ACCOUNTS + 3):
        ledger.arrive(str(number), 1, 0)
        ledger.enter_queue(str(number), 0)
        ledger.leave_queue(str(number))
        ledger.charge_prompt(str(number), 1 + number)
        ledger.depart(str(number))
    ledger.arrive("new", 1, 0)
    ledger.enter_queue("new", 0)

    assert len(ledger) == MAX_IDLE_ACCOUNTS + 2
    assert ledger.service("3", 0) == 4
    with pytest.raises(KeyError):
        ledger.service("2", 0)
