"""Steps taken many at a time are the steps taken one by one: same summary, same event log."""

import json
from random import Random

import pytest
from property.leaping import both_ways, scenario_of

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


def zeros(text: SimulatedText, blocks: range, block_size: int, sample: int = 0) -> list[bytes]:
    """Read token ids as if all were 0."""
    return [bytes(4 * block_size)] * len(blocks)


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

    num_plans, num_slow_plans = both_ways(scenario_of(engine, requests))

    assert num_slow_plans == 200
    assert num_plans == 1


def test_a_blocked_queue_needs_few_plans():
    requests = [{"id": "r", "prompt_tokens": 20, "output_tokens": 100, "count": 12}]
    engine = {"max_num_seqs": 4, "max_num_batched_tokens": 256, "num_blocks": 200}

    num_plans, num_slow_plans = both_ways(scenario_of(engine, requests))

    # Each of three waves is admitted by one plan; one more finds the head of the queue blocked.
    assert num_slow_plans == 300
    assert num_plans <= 6


@pytest.mark.parametrize("first", range(0, 150, 50))
def test_crowds_whose_tokens_are_all_alike_give_the_same_with_leaps(monkeypatch, first):
    monkeypatch.setattr(SimulatedText, "read", zeros)
    for seed in range(first, first + 50):
        both_ways(random_scenario(seed, enable_prefix_caching=True))


def test_a_leap_may_end_anywhere(monkeypatch):
    monkeypatch.setattr(run_loop, "STEPS_A_LEAP", 3)
    for seed in range(40):
        both_ways(random_scenario(seed))


def test_a_leap_keeps_few_steps_in_memory(monkeypatch):
    monkeypatch.setattr(run_loop, "STEPS_A_LEAP", 100)
    requests = [{"id": "r", "prompt_tokens": 4, "output_tokens": 1000}]
    engine = {"max_num_seqs": 1, "max_num_batched_tokens": 16, "num_blocks": 100, "block_size": 16}
    simulated = SimulatedRun(scenario_of(engine, requests), None, (), RunOptions())
    fold, most = simulated.accounts.fold_steps, 0

    def counted(steps):
        nonlocal most
        most = max(most, len(steps.durations))
        fold(steps)

    simulated.accounts.fold_steps = counted
    assert simulated.run()["steps"] == 1000
    assert most == 100
