"""The flags of `everbatch bench serve`: what they mean together, and what is refused."""

import json

import pytest
from command_line import everbatch

from everbatch.base.units import NS_PER_S
from everbatch.cli.bench import serve
from everbatch.cli.bench_plan import make_plan
from everbatch.loadgen.run import RunSettings
from everbatch.loadgen.session import Plan
from everbatch.workload.requests import RequestSpec


def plan_of(*arguments: object) -> Plan:
    context = serve.make_context("serve", [str(one) for one in arguments])
    given = dict(context.params)
    goals = given.pop("more_goals")
    return make_plan(given, goals)


def requests_of(plan: Plan) -> list[RequestSpec]:
    source, found = plan.source(), []
    while source.peek() is not None:
        found.append(source.pop())
    return found


@pytest.fixture
def trace(tmp_path):
    rows = [{"arrival_s": at, "prompt_tokens": 20 + at, "output_tokens": 5} for at in (0, 2, 4, 8)]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_without_flags_a_hundred_requests_come_at_once():
    plan = plan_of()
    found = requests_of(plan)

    assert (plan.target.host, plan.target.port, plan.endpoint) == ("127.0.0.1", 8000, "completions")
    assert len(found) == 100
    assert {(one.arrival, one.prompt.num_tokens, one.output_tokens) for one in found} == {
        (0, 256, 64)
    }
    assert plan.settings == RunSettings()


def test_names_of_vllm_s_benchmark_work():
    plan = plan_of(
        *("--base-url", "http://a:1/v1", "--endpoint", "/v1/chat/completions"),
        *("--random-input-len", "8", "--random-output-len", "2", "--random-prefix-len", "4"),
        *("--metric-percentiles", "25,99.9", "--goodput", "ttft:500", "tpot:50", "e2el:5000"),
        *("--num-prompts", "3", "--request-rate", "inf"),
    )

    assert (plan.target.url, plan.endpoint) == ("http://a:1", "chat")
    assert plan.figures.percents == (25, 99.9)
    assert plan.figures.goals == {"ttft": 500, "tpot": 50, "e2el": 5000}
    assert [len(one.prompt.segments) for one in requests_of(plan)] == [2, 2, 2]


def test_goals_may_be_one_word_each_or_one_for_all():
    assert plan_of("--goodput", "ttft:5,itl:7", "--goodput", "tpot:6").figures.goals == {
        "ttft": 5,
        "itl": 7,
        "tpot": 6,
    }


def test_clients_without_a_rate_are_a_closed_loop():
    assert plan_of("--max-concurrency", 4).settings == RunSettings(4, is_closed=True)
    assert plan_of("--max-concurrency", 4, "--request-rate", 2).settings == RunSettings(4)


def test_duration_takes_the_place_of_a_number():
    plan = plan_of("--duration", 10, "--request-rate", 5)
    found = requests_of(plan)

    assert plan.settings.duration_ns == 10 * NS_PER_S
    assert 20 < len(found) < 90
    assert len(requests_of(plan_of("--duration", 10, "--request-rate", 5, "--num-prompts", 4))) == 4


def test_trace_gives_times_and_lengths(trace):
    found = requests_of(plan_of("--trace", trace, "--speed-up", 2))

    assert [one.arrival // NS_PER_S for one in found] == [0, 1, 2, 4]
    assert [one.prompt.num_tokens for one in found] == [20, 22, 24, 28]
    settings = plan_of("--trace", trace, "--max-concurrency", 2).settings
    assert settings == RunSettings(2)


def test_part_of_a_trace_is_sent(trace):
    assert len(requests_of(plan_of("--trace", trace, "--num-prompts", 2))) == 2
    # In seconds of the run, not of the trace.
    assert len(requests_of(plan_of("--trace", trace, "--speed-up", 2, "--duration", 2))) == 2


def test_file_is_sent_once(tmp_path):
    path = tmp_path / "prompts"
    path.write_text("a\nb\nc\n")

    assert len(requests_of(plan_of("--dataset", path))) == 3
    assert len(requests_of(plan_of("--dataset", path, "--num-prompts", 7))) == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--request-rate", "0"], "must be inf or a number"),
        (["--request-rate", "nan"], "must be inf or a number"),
        (["--input-len", "9-3"], "the lower one first"),
        (["--input-len", "0"], "must lie between 1"),
        (["--input-len", "a"], "must be a whole number"),
        (["--percentiles", "50,101"], "outside 0 to 100"),
        (["--percentiles", "x"], "numbers with commas"),
        (["--extra-body", "[]"], "must be an object"),
        (["--extra-body", "{"], "is no JSON"),
        (["--goodput", "ttf:5"], 'did you mean "ttft"'),
        (["--goodput", "ttft:0"], "milliseconds above 0"),
        (["--goodput", "ttft"], "milliseconds above 0"),
        (["ttft:5"], "goals stand behind --goodput"),
        (["--speed-up", "2"], "goes with --trace"),
        (["--duration", "5"], "has no end of requests"),
        (["--ramp-up-start-rps", "5"], "need --ramp-up-strategy"),
        (["--ramp-up-strategy", "linear"], "needs --ramp-up-start-rps"),
        (
            [
                *("--ramp-up-strategy", "linear", "--request-rate", "3"),
                *("--ramp-up-start-rps", "1", "--ramp-up-end-rps", "2"),
            ],
            "give one of them",
        ),
        (["--token-ids", "1-5", "--endpoint", "chat"], "--endpoint completions"),
        (["--dataset", "absent"], "cannot be read"),
        (["--trace", "absent"], "absent"),
        (["--url", "ftp://x"], "is no URL of a server"),
    ],
)
def test_what_does_not_fit_is_one_line(arguments, words):
    answer = everbatch("bench", "serve", *arguments)

    assert (answer.status, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    assert words in answer.err


@pytest.mark.parametrize(
    "flags", [["--request-rate", "2"], ["--burstiness", "2"], ["--prefix-len", "5"]]
)
def test_trace_does_not_go_with_arrivals_of_one_s_own(trace, flags):
    answer = everbatch("bench", "serve", "--trace", trace, *flags)

    assert answer.status == 2
    assert f"{flags[0]} does not go with --trace" in answer.err


def test_server_that_is_away_is_one_line_and_no_file(tmp_path):
    report = tmp_path / "report.html"

    answer = everbatch("bench", "serve", "--url", "127.0.0.1:1", "--html", report)

    assert (answer.status, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    assert "no server answers at http://127.0.0.1:1" in answer.err
    assert not report.exists()
