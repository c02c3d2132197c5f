"""Every run is checked for tokens and blocks that were lost or found."""

import pytest
from command_line import scenario_text

from everbatch.base.errors import InvariantViolation
from everbatch.sim.run import RunOptions, SimulatedRun
from everbatch.workload.scenario import parse_scenario

REQUESTS = [
    {"id": "a", "prompt_tokens": 6, "output_tokens": 9},
    {"id": "b", "prompt_tokens": 6, "output_tokens": 9, "n": 2},
]


def prepared(**engine) -> SimulatedRun:
    text = scenario_text(REQUESTS, {"horizons": [4]}, num_blocks=7, **engine)
    return SimulatedRun(parse_scenario(text, "given", "given"), None, [], RunOptions())


@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"preemption_mode": "swap", "num_host_blocks": 8},
        {"preemption_extent": "tail"},
        {"enable_prefix_caching": True},
    ],
)
def test_what_goes_right_adds_up(engine):
    assert prepared(**engine).run()["num_preemptions"] > 0


def test_a_block_that_nobody_holds_is_noticed():
    run = prepared()
    run.engine.scheduler.state.pool.allocate(1)

    with pytest.raises(InvariantViolation, match="blocks taken from the pool"):
        run.run()


def test_a_token_that_nobody_got_is_noticed():
    run = prepared()
    run.accounts.counters.useful_tokens += 1

    with pytest.raises(InvariantViolation, match="outputs are not those that steps emitted"):
        run.run()


def test_a_token_that_was_never_computed_is_noticed():
    run = prepared()
    run.accounts.counters.scheduled_tokens += 1

    with pytest.raises(InvariantViolation, match="not those that were planned"):
        run.run()
