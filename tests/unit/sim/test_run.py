"""A run on the clock of steps: the order at a boundary, idle ticks, horizons, and its ends."""

from io import StringIO

import pytest
from command_line import scenario_text

from everbatch.engine.engine import StepResult
from everbatch.sim.progress import NoProgress
from everbatch.sim.run import RunOptions, SimulatedRun, simulate
from everbatch.workload.scenario import parse_scenario


def request(id: str, prompt_tokens: int = 4, output_tokens: int = 3, **fields) -> dict:
    return {"id": id, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens, **fields}


def scenario_of(*requests, run=None, **engine):
    return parse_scenario(scenario_text(requests, run, **engine), "given", "given")


def run(*requests, **options) -> dict:
    return simulate(scenario_of(*requests, **options))


def facts(summary: dict, id: str, *names: str) -> tuple:
    return tuple(summary["requests"][id][name] for name in names)


# Arrival and order


def test_what_arrives_at_20_runs_in_21():
    summary = run(request("a", arrival=20))

    assert facts(summary, "a", "first_step", "queue_wait", "finished_step") == (21, 0, 23)


def test_arrivals_at_one_boundary_keep_the_order_of_the_file():
    summary = run(request("z"), request("a"), max_num_seqs=1)

    assert facts(summary, "z", "first_step") == (1,)
    assert facts(summary, "a", "first_step") == (4,)


def test_the_file_s_order_does_not_matter_across_boundaries():
    summary = run(request("late", arrival=2), request("early"), max_num_seqs=1)

    assert facts(summary, "early", "first_step") == (1,)
    assert facts(summary, "late", "first_step", "queue_wait") == (4, 1)


def test_a_slot_freed_at_a_boundary_is_taken_there():
    summary = run(request("a"), request("b", arrival=3), max_num_seqs=1)

    assert facts(summary, "a", "finished_step") == (3,)
    assert facts(summary, "b", "first_step", "queue_wait") == (4, 0)


# Ends


def test_stop_wins_over_length_when_both_come_with_one_token():
    assert facts(run(request("a", max_tokens=3)), "a", "finish_reason") == ("stop",)


def test_the_client_s_limit_ends_a_longer_text():
    summary = run(request("a", output_tokens=9, max_tokens=2))

    assert facts(summary, "a", "finish_reason", "output_tokens") == ("length", 2)


def test_one_output_is_emitted_in_the_step_of_the_prompt():
    summary = run(request("a", output_tokens=1))

    assert facts(summary, "a", "first_step", "first_token_step", "finished_step") == (1, 1, 1)
    assert summary["steps"] == 1


def test_a_refused_request_ends_at_once_with_a_sentence():
    summary = run(request("a"), request("big", prompt_tokens=300, arrival=1))

    assert facts(summary, "big", "state", "finish_reason", "first_step") == ("FINISHED", None, None)
    assert "300" in summary["requests"]["big"]["rejected"]
    assert summary["num_rejected"] == 1
    assert facts(summary, "a", "rejected") == (None,)


def test_a_prompt_that_fills_the_pool_is_accepted_with_one_output_only():
    summary = run(
        request("one", 256, 1), request("two", 256, 2), request("last", 255, 2), num_blocks=64
    )

    assert summary["requests"]["one"]["rejected"] is None
    assert summary["requests"]["last"]["rejected"] is None
    assert summary["requests"]["two"]["rejected"] is not None


# Aborts


def test_an_abort_keeps_the_tokens_up_to_its_boundary():
    summary = run(request("a", output_tokens=9, abort_at=4), request("b", output_tokens=9))

    assert facts(summary, "a", "finish_reason", "finished_step", "output_tokens") == ("abort", 4, 4)
    assert summary["useful_tokens"] == 13


def test_who_finishes_in_the_step_before_is_not_aborted():
    summary = run(request("a", abort_at=3))

    assert facts(summary, "a", "finish_reason", "finished_step") == ("stop", 3)


@pytest.mark.parametrize("abort_at", [0, 5])
def test_an_abort_not_after_the_arrival_leaves_no_token(abort_at):
    summary = run(request("a", arrival=5, abort_at=abort_at))

    assert facts(summary, "a", "finish_reason", "finished_step", "output_tokens") == ("abort", 5, 0)
    assert facts(summary, "a", "first_step", "queue_wait") == (None, None)
    assert summary["steps"] == 5


def test_an_abort_of_somebody_refused_does_nothing():
    summary = run(request("big", prompt_tokens=300, abort_at=2), request("a"))

    assert facts(summary, "big", "finish_reason", "finished_step") == (None, None)


def test_an_abort_at_the_horizon_counts():
    summary = run(request("a", output_tokens=9, abort_at=4), run={"horizon": 4})

    assert facts(summary, "a", "finish_reason", "finished_step") == ("abort", 4)


# Horizons and idle ticks


def test_ticks_pass_while_nobody_is_there():
    summary = run(request("a"), request("b", arrival=10))

    assert summary["steps"] == 13
    assert summary["slot_iterations"] == 52
    assert summary["idle_slot_iterations"] == {"queue_empty": 46}
    assert facts(summary, "b", "first_step") == (11,)


def test_with_a_horizon_the_steps_equal_it():
    assert run(request("a"), run={"horizon": 9})["steps"] == 9
    assert run(request("a", output_tokens=30), run={"horizon": 9})["steps"] == 9


def test_at_the_horizon_the_unfinished_keep_their_state():
    summary = run(
        request("a", output_tokens=9),
        request("b"),
        request("c", arrival=4),
        request("d", arrival=5),
        max_num_seqs=1,
        run={"horizon": 4},
    )

    assert facts(summary, "a", "state", "output_tokens", "finished_step") == ("DECODE", 4, None)
    for id in "bcd":
        assert facts(summary, id, "state", "first_step", "queue_wait") == ("WAITING", None, None)


@pytest.mark.parametrize("point", [1, 2, 5, 8, 40])
def test_a_reporting_point_says_what_a_run_with_that_horizon_says(point):
    requests = [request("a", output_tokens=6), request("b", arrival=9), request("c", abort_at=2)]
    lasting = run(*requests, run={"horizons": [1, 2, 5, 8, 40]}, max_num_seqs=2)
    alone = run(*requests, run={"horizon": point}, max_num_seqs=2)

    reported = lasting["horizons"][str(point)]
    assert reported == {name: alone[name] for name in reported}


def test_points_beyond_the_horizon_change_nothing_else():
    requests = [request("a", output_tokens=30)]
    logs = [StringIO(), StringIO()]
    short, long = (
        simulate(scenario_of(*requests, run={"horizon": 5, "horizons": points}), log)
        for points, log in zip(([], [20]), logs, strict=True)
    )

    assert long["horizons"]["20"]["useful_tokens"] == 20
    assert short["horizons"] == {}
    assert {**long, "horizons": {}} == short
    assert logs[0].getvalue() == logs[1].getvalue()


# Figures


def test_gaps_between_tokens_are_counted_over_preemptions_too():
    # b emits in 1 to 3 and 9 to 12: gaps 1 1 6 1 1 1; a emits in 1 to 7: six of 1.
    summary = run(request("a", 4, 7), request("b", 6, 7), num_blocks=4, max_num_batched_tokens=512)

    assert summary["itl"]["mean"] == pytest.approx(17 / 12)
    assert summary["tpot"]["mean"] == pytest.approx((1 + 11 / 6) / 2)
    assert summary["e2e"]["mean"] == 9.5


def test_times_to_first_token_count_from_the_arrival():
    summary = run(request("a", 4, 5), request("b", 4, 5, arrival=2), max_num_seqs=1)

    # b arrives at 2 and emits in step 6.
    assert summary["ttft"]["mean"] == (1 + 4) / 2


def test_an_empty_slot_is_blamed_on_as_many_as_wait():
    # 30 tokens a prompt: the second must wait for the first to leave its blocks.
    summary = run(request("a", 30, 3), request("b", 30, 3), num_blocks=10)

    # Three slots beside a's for three steps: one for b, two for nobody; then three for nobody.
    assert summary["idle_slot_iterations"] == {"kv_budget": 3, "queue_empty": 15}


def test_peak_blocks_are_those_of_a_step_before_anything_is_freed():
    summary = run(request("a", 8, 1))

    assert summary["peak_blocks"] == 2


def test_equal_texts_hit_the_cache():
    prompt = {"prompt": [{"text": "system", "tokens": 12}, {"tokens": 3}]}
    requests = [
        {"id": str(number), "arrival": number, "output_tokens": 1, **prompt} for number in (0, 1)
    ]
    summary = run(*requests, enable_prefix_caching=True)

    assert summary["prefix_cache_hit_tokens"] == 12
    assert facts(summary, "1", "cached_tokens") == (12,)
    assert summary["scheduled_tokens"] == 15 + 3


def test_every_slot_iteration_is_accounted_for():
    summary = run(
        *(request(str(number), 5 + number, 9, arrival=number // 3) for number in range(12)),
        num_blocks=14,
        max_num_batched_tokens=16,
    )
    held = summary["slot_iterations"] - sum(summary["idle_slot_iterations"].values())

    assert summary["useful_tokens"] == 12 * 9
    assert summary["num_preemptions"] > 0
    assert summary["useful_tokens"] <= held <= summary["scheduled_tokens"]


# No progress


class _Stuck:
    """An engine's scheduling that always has an excuse: nobody can run."""

    def __init__(self, engine) -> None:
        self._engine = engine

    def step(self, inbox=None) -> StepResult:
        return StepResult(events=self._engine.scheduler.take_events())


def test_a_run_that_cannot_go_on_names_requests_and_budgets():
    stuck = SimulatedRun(scenario_of(*(request(str(n)) for n in range(9))), None, [], RunOptions())
    stuck.engine.step = _Stuck(stuck.engine).step

    with pytest.raises(NoProgress) as error:
        stuck.run()

    message = str(error.value)
    assert message.startswith("no progress at boundary 0: none of 9 requests can run: 0 (")
    assert "and 1 more" in message
    assert "4 slots, 512 tokens a step, 64 KV blocks of which 64 are free" in message
