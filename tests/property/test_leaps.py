"""Steps taken many at a time are the steps taken one by one: same summary, same event log."""

import io
import json
from random import Random

import pytest
from builders import World, client, make_config

from everbatch.executors.simulated import SimulatedText
from everbatch.sim import run as run_loop
from everbatch.sim.run import RunOptions, SimulatedRun
from everbatch.workload.builtin_scenarios import builtin_names, find_scenario
from everbatch.workload.scenario import Scenario, parse_scenario

HARDWARE = {"flops": 1e12, "memory_bandwidth": 1e12, "pcie_bandwidth": 1e11}
MODEL = {
    "num_params": 1e9,
    "bytes_per_value": 2,
    "num_layers": 10,
    "num_kv_heads": 2,
    "head_dim": 64,
    "hidden_size": 512,
}
TAILS = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "policy": "priority",
    "preemption_trigger": "stall",
    "preemption_extent": "tail",
}


def run(scenario: Scenario, *, leaps: bool) -> tuple[dict, str, int]:
    """Give a run's summary, its event log, and how many steps were planned for it."""
    log = io.StringIO()
    simulated = SimulatedRun(scenario, log, (), RunOptions(leaps=leaps))
    scheduler, num_plans = simulated.engine.scheduler, 0
    plan = scheduler.schedule

    def counted(now_ns):
        nonlocal num_plans
        num_plans += 1
        return plan(now_ns)

    scheduler.schedule = counted
    return simulated.run(), log.getvalue(), num_plans


def zeros(text: SimulatedText, blocks: range, block_size: int, sample: int = 0) -> list[bytes]:
    """Read token ids as if all were 0."""
    return [bytes(4 * block_size)] * len(blocks)


def both_ways(scenario: Scenario) -> tuple[int, int]:
    """Check that leaps change nothing; gives how many steps were planned with and without."""
    summary, log, num_plans = run(scenario, leaps=True)
    slow_summary, slow_log, num_slow_plans = run(scenario, leaps=False)
    assert summary == slow_summary
    assert log == slow_log
    return num_plans, num_slow_plans


@pytest.mark.parametrize("name", [name for name in builtin_names() if name != "incident-slow"])
def test_a_built_in_scenario_gives_the_same_with_leaps(name):
    both_ways(find_scenario(name))


def random_engine(draw: Random) -> dict:
    block_size = draw.choice([1, 2, 4, 16])
    num_blocks = draw.choice([40, 60, 400, 400]) * 4 // block_size + 1
    engine = {
        "max_num_seqs": draw.choice([1, 2, 4, 8]),
        "max_num_batched_tokens": draw.choice([8, 16, 64, 256]),
        "block_size": block_size,
        "num_blocks": num_blocks,
        "num_host_blocks": draw.choice([0, 0, 20]),
        "batching": draw.choice(["continuous"] * 5 + ["static"]),
        "enable_prefix_caching": draw.random() < 0.5,
        "enable_chunked_prefill": draw.random() < 0.8,
        "min_prefill_tokens": draw.choice([0, 0, 4]),
        "prefill_aging_steps": draw.choice([0, 0, 5]),
        "policy": draw.choice(["fcfs", "fcfs", "priority", "srpt", "vtc"]),
        "aging_steps": draw.choice([0, 0, 3]),
        "backfill": draw.choice(["none", "none", "safe", "greedy"]),
        "admission": draw.choice(["now", "prompt", "peak", "reserve"]),
        "watermark": draw.choice([0.0, 0.1]),
        "preemption_trigger": draw.choice(["shortage", "stall"]),
        "preemption_extent": draw.choice(["whole", "tail"]),
        "preemption_victim": draw.choice(["newest", "priority", "least_lost", "largest"]),
        "max_preemptions": draw.choice([0, 0, 1]),
    }
    if engine["num_host_blocks"]:
        engine["preemption_mode"] = "swap"
    return engine


def random_request(draw: Random, number: int, second: float, most_samples: int) -> dict:
    request = {
        "id": f"r{number}",
        "arrival": draw.randrange(120) * second,
        "prompt": [
            {"text": f"head{draw.randrange(3)}", "tokens": draw.randrange(1, 30)},
            {"text": f"tail{number}", "tokens": draw.randrange(1, 30)},
        ],
        "output_tokens": draw.randrange(1, 40),
        "priority": draw.randrange(3),
        "tenant": draw.choice("ab"),
    }
    if draw.random() < 0.5:
        request["max_tokens"] = draw.randrange(1, 40)
    if draw.random() < 0.05:
        request["abort_at"] = draw.randrange(150) * second
    if draw.random() < 0.1:
        request["deadline"] = draw.randrange(1, 60) * second
    if draw.random() < 0.05:
        request["n"] = min(2, most_samples)
    return request


def random_workload(draw: Random) -> dict:
    """Clients who come at random, in bursts or one after the other, and may leave or try again."""
    kind = draw.choice(["poisson", "burst", "closed"])
    workload = {
        "arrivals": kind,
        "num_requests": draw.randrange(1, 15),
        "prompt": {"lengths": "uniform", "min": 1, "max": 30},
        "output": {"lengths": "uniform", "min": 1, "max": draw.choice([5, 40])},
        "prefix_tokens": draw.choice([0, 0, 20]),
        "retries": draw.choice([0, 0, 2]),
    }
    if kind == "closed":
        workload |= {"users": draw.randrange(1, 6), "think_time": draw.choice([0.0, 0.02])}
    else:
        workload["rate"] = draw.choice([10, 200])
    if kind == "burst":
        workload["burst_size"] = draw.randrange(1, 8)
    if draw.random() < 0.3:
        workload |= {"patience": draw.choice([0.0, 0.02, 0.2]), "impatient": 0.5}
    if draw.random() < 0.3:
        workload["deadline"] = draw.choice([0.0, 0.01, 0.1])
    return workload


def random_scenario(seed: int, *, has_workload: bool = False, **options: object) -> Scenario:
    """A small crowd under options drawn at random, on a pool that is often too small."""
    draw = Random(seed)
    kind = draw.choice(["nominal", "roofline"] + ["steps"] * (not has_workload))
    second = 1 if kind == "steps" else 0.005
    engine = random_engine(draw) | options
    scenario = {
        "engine": engine,
        "clock": {"kind": kind},
        "requests": [
            random_request(draw, number, second, engine["max_num_seqs"])
            for number in range(draw.randrange(1, 25))
        ],
        "run": {"seed": seed, "horizons": [draw.randrange(1, 200) * second]},
        "faults": [],
    }
    if kind != "steps":
        scenario |= {"hardware": HARDWARE, "model": MODEL, "slo": {"itl": 0.004}}
        scenario["clock"]["noise"] = draw.choice([0.0, 0.1])
        if draw.random() < 0.5:
            slow = {"kind": "slow", "start": 0.1, "end": 0.3, "factor": 2.5}
            scenario["faults"].append(slow)
    if draw.random() < 0.1:
        scenario["faults"].append({"kind": "fail", "share": 0.05})
    if has_workload:
        del scenario["requests"]
        scenario["workload"] = random_workload(draw)
    return parse_scenario(json.dumps(scenario), f"seed {seed}", f"seed {seed}")


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_random_crowds_give_the_same_with_leaps(first):
    for seed in range(first, first + 50):
        both_ways(random_scenario(seed))


def test_random_clients_give_the_same_with_leaps():
    for seed in range(60):
        both_ways(random_scenario(seed, has_workload=True))


def test_decodes_alone_need_few_plans():
    requests = [{"id": "r", "prompt_tokens": 20, "output_tokens": 200, "count": 8}]
    engine = {"max_num_seqs": 8, "max_num_batched_tokens": 256, "num_blocks": 200}
    text = json.dumps({"engine": engine, "requests": requests})

    num_plans, num_slow_plans = both_ways(parse_scenario(text, "decodes", "decodes"))

    assert num_slow_plans == 200
    assert num_plans == 1


def test_a_blocked_queue_needs_few_plans():
    requests = [{"id": "r", "prompt_tokens": 20, "output_tokens": 100, "count": 12}]
    engine = {"max_num_seqs": 4, "max_num_batched_tokens": 256, "num_blocks": 200}
    text = json.dumps({"engine": engine, "requests": requests})

    num_plans, num_slow_plans = both_ways(parse_scenario(text, "waves", "waves"))

    # Each of three waves is admitted by one plan; one more finds the head of the queue blocked.
    assert num_slow_plans == 300
    assert num_plans <= 6


def waiting_behind_its_prefix(**options: object) -> Scenario:
    """The prompt of "w" is cached in part, but the blocks are lacking; two decodes take those."""
    head = {"text": "head", "tokens": 16}
    requests = [
        {"id": "r", "prompt_tokens": 8, "output_tokens": 12, "count": 2},
        {"id": "p", "prompt": [head], "output_tokens": 1},
        {"id": "w", "prompt": [head, {"tokens": 16}], "output_tokens": 9, "arrival": 2},
    ]
    engine = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "block_size": 4,
        "num_blocks": 10,
        "enable_prefix_caching": True,
        **options,
    }
    text = json.dumps({"engine": engine, "requests": requests})
    return parse_scenario(text, "waiting", "waiting")


def test_a_head_that_lacks_blocks_needs_few_plans_with_prefix_caching():
    num_plans, num_slow_plans = both_ways(waiting_behind_its_prefix())

    assert num_plans < num_slow_plans / 2


def test_a_head_that_must_be_read_at_once_is_told_when_its_prefix_is_gone():
    scenario = waiting_behind_its_prefix(enable_chunked_prefill=False)

    both_ways(scenario)

    _, log, _ = run(scenario, leaps=True)
    reasons = [e["reason"] for e in map(json.loads, log.splitlines()) if e["event"] == "deferred"]
    assert reasons == ["kv_budget", "token_budget"]


@pytest.mark.parametrize("first", range(0, 150, 50))
def test_crowds_whose_tokens_are_all_alike_give_the_same_with_leaps(monkeypatch, first):
    monkeypatch.setattr(SimulatedText, "read", zeros)
    for seed in range(first, first + 50):
        both_ways(random_scenario(seed, enable_prefix_caching=True))


def test_who_is_stripped_while_waiting_makes_room_for_the_head():
    # r1 waits and has kept its head; nobody can run, so it loses that, and r2 before it fits.
    requests = [
        {"id": "r0", "prompt_tokens": 8, "output_tokens": 9, "priority": 0},
        {"id": "r1", "prompt_tokens": 8, "output_tokens": 12, "priority": 2},
        {"id": "r2", "prompt_tokens": 1, "output_tokens": 3, "priority": 0},
    ]
    engine = TAILS | {"block_size": 2, "num_blocks": 10, "preemption_victim": "priority"}
    text = json.dumps({"engine": engine, "requests": requests})

    both_ways(parse_scenario(text, "stripped", "stripped"))


def test_who_leaves_at_a_reporting_point_makes_room_for_the_head():
    # At boundary 16 two who wait leave, one of them with blocks, and figures are reported.
    requests = [
        {"id": "r0", "prompt_tokens": 20, "output_tokens": 32, "priority": 0},
        {"id": "r1", "prompt_tokens": 4, "output_tokens": 5, "priority": 2, "abort_at": 16},
        {"id": "r2", "prompt_tokens": 19, "output_tokens": 19, "priority": 2, "abort_at": 16},
        {"id": "r3", "prompt_tokens": 3, "output_tokens": 4, "priority": 0},
    ]
    engine = TAILS | {"block_size": 4, "num_blocks": 13, "admission": "now"}
    scenario = {"engine": engine, "requests": requests, "run": {"horizons": [16]}}

    both_ways(parse_scenario(json.dumps(scenario), "leaving", "leaving"))


def test_nobody_leaps_before_a_failed_step_was_tried_again():
    world = World(make_config(), [client("a", 5, 8), client("b", 5, 8)], frozenset({3}))
    world.arrive()
    while not world.step().error:
        pass

    assert world.engine.leap(lambda stretch: pytest.fail("the executor has forgotten all")) is None


def test_a_leap_may_end_anywhere(monkeypatch):
    monkeypatch.setattr(run_loop, "STEPS_A_LEAP", 3)
    for seed in range(40):
        both_ways(random_scenario(seed))


def test_a_leap_keeps_few_steps_in_memory(monkeypatch):
    monkeypatch.setattr(run_loop, "STEPS_A_LEAP", 100)
    requests = [{"id": "r", "prompt_tokens": 4, "output_tokens": 1000}]
    engine = {"max_num_seqs": 1, "max_num_batched_tokens": 16, "num_blocks": 100, "block_size": 16}
    text = json.dumps({"engine": engine, "requests": requests})
    simulated = SimulatedRun(parse_scenario(text, "long", "long"), None, (), RunOptions())
    fold, most = simulated.accounts.fold_steps, 0

    def counted(steps):
        nonlocal most
        most = max(most, len(steps.durations))
        fold(steps)

    simulated.accounts.fold_steps = counted
    assert simulated.run()["steps"] == 1000
    assert most == 100


def test_what_is_reserved_for_a_protected_request_is_taken_by_nobody():
    # "p" was preempted once, so all of its life is reserved: "q" waits rather than take of that.
    requests = [
        {"id": "q", "prompt_tokens": 2, "output_tokens": 16},
        {"id": "r", "prompt_tokens": 6, "output_tokens": 5},
        {"id": "p", "prompt_tokens": 3, "output_tokens": 10},
    ]
    engine = {
        "max_num_seqs": 3,
        "max_num_batched_tokens": 64,
        "block_size": 1,
        "num_blocks": 20,
        "max_preemptions": 1,
    }
    text = json.dumps({"engine": engine, "requests": requests})

    both_ways(parse_scenario(text, "protected", "protected"))


def test_decodes_take_turns_while_a_prompt_that_waits_has_a_share():
    # Whoever was held back for the share goes behind the others, though all fit in the end.
    lengths = [(27, 1, 2), (20, 5, 0), (15, 3, 0), (50, 2, 0), (47, 2, 0)]
    requests = [
        {"id": f"r{i}", "prompt_tokens": prompt, "output_tokens": output, "priority": priority}
        for i, (prompt, output, priority) in enumerate(lengths)
    ]
    engine = {
        "max_num_seqs": 16,
        "max_num_batched_tokens": 8,
        "block_size": 2,
        "num_blocks": 81,
        "prefill_aging_steps": 5,
        "policy": "priority",
    }
    text = json.dumps({"engine": engine, "requests": requests})

    both_ways(parse_scenario(text, "turns", "turns"))


def test_who_waits_is_told_whenever_age_puts_another_one_at_the_head():
    requests = [
        {"id": "r", "prompt_tokens": 4, "output_tokens": 60},
        {"id": "a", "prompt_tokens": 4, "output_tokens": 3, "priority": 2, "arrival": 1},
        {"id": "b", "prompt_tokens": 4, "output_tokens": 3, "priority": 1, "arrival": 4},
    ]
    engine = {
        "max_num_seqs": 1,
        "max_num_batched_tokens": 64,
        "num_blocks": 100,
        "policy": "priority",
        "aging_steps": 5,
    }
    text = json.dumps({"engine": engine, "requests": requests})
    scenario = parse_scenario(text, "aging", "aging")

    both_ways(scenario)

    _, log, _ = run(scenario, leaps=True)
    events = [e for e in map(json.loads, log.splitlines()) if e["event"] == "deferred"]
    heads = [e["id"] for e in events if e["reason"] == "sequence_budget"]
    # They take turns while "r" decodes.
    assert heads[:4] == ["a", "b", "a", "b"]


def test_who_waits_is_told_whenever_shares_put_another_one_at_the_head():
    # Both tenants decode, but a token of "b" weighs less: the order of who waits changes meanwhile.
    lengths = [(56, 101, "a", 0), (5, 134, "b", 1), (17, 22, "b", 1), (257, 79, "b", 1)]
    lengths.append((220, 27, "a", 3))
    requests = [
        {
            "id": f"r{i}",
            "prompt_tokens": prompt,
            "output_tokens": output,
            "tenant": tenant,
            "arrival": arrival,
        }
        for i, (prompt, output, tenant, arrival) in enumerate(lengths)
    ]
    engine = {
        "max_num_seqs": 2,
        "max_num_batched_tokens": 512,
        "num_blocks": 200,
        "policy": "vtc",
    }
    tenants = {"a": {"weight": 1.0}, "b": {"weight": 1.5}}
    text = json.dumps({"engine": engine, "tenants": tenants, "requests": requests})

    both_ways(parse_scenario(text, "shares", "shares"))
