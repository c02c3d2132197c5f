"""A scenario run with leaps and without."""

import io
import json

from everbatch.sim.run import RunOptions, SimulatedRun
from everbatch.workload.scenario import Scenario, parse_scenario


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


def both_ways(scenario: Scenario) -> tuple[int, int]:
    """Check that leaps change nothing; gives how many steps were planned with and without."""
    summary, log, num_plans = run(scenario, leaps=True)
    slow_summary, slow_log, num_slow_plans = run(scenario, leaps=False)
    assert summary == slow_summary
    assert log == slow_log
    return num_plans, num_slow_plans


def scenario_of(engine: dict, requests: list[dict], **more: object) -> Scenario:
    """Give a scenario of an engine's options, requests and other sections."""
    text = json.dumps({"engine": engine, "requests": requests, **more})
    return parse_scenario(text, "leaps", "leaps")
