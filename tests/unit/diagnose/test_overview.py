"""A whole log in figures, and which requests are worth asking about."""

from io import StringIO

import pytest
from unit.diagnose.logs import life_of, log_of, request

from everbatch.diagnose.life import sums
from everbatch.diagnose.overview import overview
from everbatch.sim.run import simulate
from everbatch.workload.builtin_scenarios import find_scenario


def test_the_longest_waits_come_first():
    requests = [request("a", 4, 5), request("b", 4, 2), request("c", 4, 2)]
    found = overview(log_of(*requests, max_num_seqs=1))
    ranked = found.worst(2)["longest wait"]

    assert [(totals.id, totals.wait(found.last_t)) for totals in ranked] == [("c", 7), ("b", 5)]
    assert ranked[0].main_reason == "behind_head"
    assert ranked[0].steps_waited == {"behind_head": 5, "sequence_budget": 2}


def test_a_wait_ends_with_its_request():
    requests = [request("a", 4, 30), request("late", 4, 2, deadline=5), request("gone", abort_at=3)]
    found = overview(log_of(*requests, max_num_seqs=1))
    waits = {totals.id: totals.wait(found.last_t) for totals in found.totals.values()}

    assert found.ends() == {"stop": 1, "deadline": 1, "abort": 1}
    assert waits == {"a": 0, "late": 6, "gone": 3}


@pytest.mark.parametrize(
    "name", ["backfill", "memory-pressure", "overload", "overload-deadline", "victims"]
)
def test_the_overview_and_the_lives_agree(name):
    file = StringIO()
    simulate(find_scenario(name), file)
    log = file.getvalue().splitlines(keepends=True)
    found = overview(log)

    for id, totals in found.totals.items():
        facts = sums(life_of(log, id))
        in_overview = (totals.wait(found.last_t), totals.steps_waited)
        assert in_overview == (facts.queue_wait, facts.steps_waited)


def test_victims_are_ranked_by_preemptions_and_by_what_was_computed_again():
    found = overview(log_of(request("a", 4, 7), request("b", 6, 7), num_blocks=4))
    ranked = found.worst(5)

    assert [totals.id for totals in ranked["most preemptions"]] == ["b"]
    assert [t.recomputed_tokens for t in ranked["most recomputed tokens"]] == [8]
    assert ranked["longest wait"] == []


def test_samples_count_for_their_request():
    found = overview(log_of(request("x", 4, 3), request("a", 6, 3, n=2), max_num_seqs=2))

    assert list(found.totals) == ["x", "a"]
    assert found.totals["a"].steps_waited == {"sequence_budget": 3}
    assert found.totals["a"].output_tokens == 6


def test_steps_outputs_and_ends_are_counted():
    requests = [request("a", 4, 6), request("b", 4, 9), request("big", 300, 3)]
    found = overview(log_of(*requests, run={"horizon": 7}))

    assert (found.num_steps, found.num_emitted) == (7, 13)
    assert found.ends() == {"stop": 1, "no end in the log": 1}
    assert found.rejected == {"context_limit": 1}


def test_a_wait_that_is_open_at_the_end_counts():
    requests = [request("a", 4, 9), request("b", 4, 2)]
    found = overview(log_of(*requests, run={"horizon": 4}, max_num_seqs=1))

    assert found.totals["b"].steps_waited == {"sequence_budget": 4}
    assert found.reasons().total() == 4
