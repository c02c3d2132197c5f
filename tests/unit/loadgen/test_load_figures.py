"""What is made of records: latencies, throughput, goodput, failures; the page; warnings."""

import json
import re
from array import array
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from everbatch.calibration.request_log import is_request_log, read_request_log
from everbatch.loadgen.figures import (
    FigureOptions,
    RunTimes,
    Summary,
    is_good,
    summarize,
    warnings,
)
from everbatch.loadgen.plots import HEIGHT, WIDTH, Line, Plot, plot_svg, round_step, short
from everbatch.loadgen.records import Outcome, Record
from everbatch.loadgen.report import plots_of, report_html
from everbatch.loadgen.request_log import log_lines
from everbatch.loadgen.session import Finished
from everbatch.loadgen.statistics import milliseconds
from everbatch.workload.traces.formats import open_trace

MS = 1_000_000
FACTS = {"date": "2026-01-01", "url": "http://x", "model_id": "<m>", "endpoint": "chat"}


def record(
    *times_ms: float, due: float = 0, outcome: Outcome = Outcome.COMPLETED, **more
) -> Record:
    """A request that was due and sent at one time, whose tokens came at others."""
    times = [round(time * MS) for time in times_ms]
    made = Record(0, round(due * MS), 10, len(times), sent_ns=round(due * MS))
    made.token_times = array("q", times)
    made.last_ns = made.end_ns = times[-1] if times else None
    made.outcome = outcome
    made.counted_prompt_tokens, made.counted_output_tokens = 10, len(times)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def figures(*records: Record, end_ms: float = 1_000, cpu_ms: float = 1, **options) -> Summary:
    times = RunTimes(0, round(end_ms * MS), round(cpu_ms * MS))
    return summarize(records, times, FigureOptions(**options), FACTS)


def test_percentiles_lie_between_ranks():
    found = milliseconds("x", [MS * value for value in (4, 1, 3, 2)], (0, 50, 90, 100))

    assert found["mean_x_ms"] == found["median_x_ms"] == found["p50_x_ms"] == 2.5
    assert found["std_x_ms"] == pytest.approx(1.25**0.5)
    assert (found["p0_x_ms"], found["p100_x_ms"]) == (1, 4)
    assert found["p90_x_ms"] == pytest.approx(3.7)


def test_no_samples_have_no_figures():
    assert set(milliseconds("x", [], (99.9,)).values()) == {None}
    assert "p99.9_x_ms" in milliseconds("x", [], (99.9,))


def test_only_completed_requests_have_latencies_and_throughput():
    found = figures(
        record(10, 20, 30),
        record(15, outcome=Outcome.CANCELLED),
        record(outcome=Outcome.FAILED, error="http 500", message="x"),
        record(900, outcome=Outcome.UNFINISHED),
        end_ms=2_000,
    )

    assert found["mean_ttft_ms"] == 10
    assert [found[one.value] for one in Outcome] == [1, 1, 1, 1]
    assert (found["request_throughput"], found["output_throughput"]) == (0.5, 1.5)
    assert found["total_token_throughput"] == 6.5
    assert found["cancelled_output_tokens"] == 1


def test_one_token_has_no_time_per_token():
    found = figures(record(10))

    assert found["mean_tpot_ms"] is None
    assert found["mean_e2el_ms"] == 10


def test_most_tokens_of_a_second_and_most_requests_at_once():
    found = figures(record(10, 999, 1_001), record(1_002, 1_003, due=5), record(1_010, due=1_005))

    assert found["max_output_tokens_per_s"] == 4
    assert found["max_concurrent_requests"] == 2


@pytest.mark.parametrize(
    ("goals", "is_met"),
    [
        ({"ttft": 100}, True),
        ({"ttft": 99.9}, False),
        ({"tpot": 50}, True),
        ({"tpot": 49}, False),
        ({"itl": 80}, True),
        ({"itl": 79}, False),
        ({"e2el": 200}, True),
        ({"e2el": 199}, False),
        ({"ttft": 100, "e2el": 199}, False),
    ],
)
def test_goals_are_met_up_to_their_edge(goals, is_met):
    assert is_good(record(100, 120, 200), FigureOptions(goals=goals)) is is_met


def test_goodput_is_of_all_that_completed():
    found = figures(record(10), record(90), record(20), goals={"ttft": 50}, end_ms=500)

    assert (found["num_good"], found["request_goodput"]) == (2, 4.0)
    assert figures(record(10))["request_goodput"] is None


def test_messages_of_a_failure_are_told_once_and_only_some():
    failed = [
        record(outcome=Outcome.FAILED, error="http 400", message=f"m{number % 7}")
        for number in range(20)
    ]

    assert figures(*failed)["errors"] == {
        "http 400": {"count": 20, "messages": ["m0", "m1", "m2", "m3", "m4"]}
    }


def test_generator_tells_what_it_took():
    found = figures(record(10, 20, late_ns=3 * MS), record(30, 40, held_ns=MS), cpu_ms=100)

    assert found["generator"]["cpu_share"] == 0.1
    assert found["generator"]["cpu_us_per_token"] == 25_000
    assert found["generator"]["max_late_ms"] == 3
    assert (found["generator"]["num_held"], found["generator"]["mean_held_ms"]) == (1, 0.5)


@pytest.mark.parametrize(
    ("late_ms", "cpu_ms", "words"),
    [(10, 800, []), (11, 1, ["up to 11 ms"]), (0, 810, ["busy 81 %"])],
)
def test_warnings_tell_what_is_the_generator_s_doing(late_ms, cpu_ms, words):
    told = warnings(figures(record(10, late_ns=late_ms * MS), cpu_ms=cpu_ms))

    assert len(told) == len(words)
    assert all(word in line for word, line in zip(words, told, strict=True))


def test_nothing_that_was_sent_has_figures_too():
    found = figures(end_ms=0)

    assert found["request_throughput"] is None
    assert warnings(found) == []


def finished(*records: Record, **options) -> Finished:
    times = RunTimes(0, 1_000 * MS, MS)
    chosen = FigureOptions(**options)
    summary = summarize(records, times, chosen, FACTS)
    return Finished(
        summary, list(records), times, chosen, ["a < b"], False, 1_700_000_000_000_000_001
    )


def test_page_is_whole_and_needs_nothing_else():
    page = report_html(
        finished(
            record(10, 20, 35),
            record(40, 50, due=30),
            record(outcome=Outcome.FAILED, error="http 500", message="<script>"),
            goals={"ttft": 50},
        )
    )

    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(svg)
    assert page.count("<svg") == 8
    assert not re.search(r"(src|href)=|@import|url\(|<script", page)
    assert "&lt;script&gt;" in page
    assert "&lt;m&gt;" in page
    assert "a &lt; b" in page


def test_rates_over_time_hold_every_token_and_last_to_the_end():
    run = finished(record(*range(0, 1_001, 7)))
    [plot] = [plot for plot in plots_of(run) if plot.title == "Output tokens a second"]
    points = plot.lines[0].points
    steps = pairwise(points)

    assert points[-1][0] == pytest.approx(1.0)
    # The first one is at 0, so none is lost at either end.
    tokens = sum(rate * (end - start) for (start, rate), (end, _) in steps)
    assert tokens == pytest.approx(len(range(0, 1_001, 7)))


def test_page_tells_a_figure_once_and_the_generator_s_lateness_as_a_table():
    page = report_html(finished(record(10, 20)))

    assert page.count("<th>median</th>") == page.count("<th>p99</th>") == 2
    assert "<th>p50</th>" not in page
    assert "<td>sent late, ms</td>" in page
    assert "late_ms" not in page


@pytest.mark.parametrize("records", [(), (record(outcome=Outcome.FAILED, error="timeout"),)])
def test_page_of_a_run_without_answers_is_drawn_too(records):
    assert "nothing to draw" in report_html(finished(*records))


def test_request_log_is_a_trace_of_what_was_answered(tmp_path):
    path = tmp_path / "log.jsonl"
    done = finished(
        record(40, 50, due=30, number=0),
        record(10, 20.5, due=1, number=1),
        record(10, outcome=Outcome.CANCELLED),
        record(outcome=Outcome.FAILED, error="timeout"),
    )

    path.write_text("".join(log_lines(done)))
    trace = open_trace(path)
    rows = [row for _, row in trace.rows()]

    assert (trace.format, trace.remarks) == ("vllm", {})
    assert [(row.prompt_tokens, row.output_tokens) for row in rows] == [(10, 2), (10, 2)]
    assert rows[1].arrival_ns - rows[0].arrival_ns == 29 * MS
    first = json.loads(path.read_text().partition("\n")[0], parse_float=str)
    assert first == {
        "request_id": "1",
        "arrival_time": "1700000000.001000001",
        "input_toks": 10,
        "output_toks": 2,
        "first_token_ts": "1700000000.010000001",
        "last_token_ts": "1700000000.020500001",
    }


def test_request_log_can_be_calibrated_with(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(log_lines(finished(record(40, 50, due=30), record(10, 21, due=1)))))

    assert is_request_log(path)
    first, second = read_request_log(path).requests
    assert (first.ttft_ns, first.decode_ns) == (9 * MS, 11 * MS)
    assert (second.ttft_ns, second.decode_ns) == (10 * MS, 10 * MS)


def path_of(svg: str) -> list[tuple[float, float]]:
    [path] = re.findall(r' d="M([^"]*)"', svg)
    return [tuple(map(float, point.split())) for point in path.split("L")]


def test_line_ends_in_the_corners():
    svg = plot_svg(Plot("t", "x", "y", [Line("a", [(0, 0), (5, 1), (10, 4)])]))

    assert path_of(svg) == [(64, 256), (344, 196), (624, 16)]
    assert f'viewBox="0 0 {WIDTH} {HEIGHT}"' in svg


def test_long_lines_are_thinned_but_keep_their_ends():
    points = [(float(x), float(x)) for x in range(5_000)]

    drawn = path_of(plot_svg(Plot("t", "x", "y", [Line("a", points)])))

    assert len(drawn) == 400
    assert (drawn[0], drawn[-1]) == ((64, 256), (624, 16))


@pytest.mark.parametrize(
    ("size", "step"), [(0.9, 1), (1, 1), (1.1, 2), (3, 5), (6, 10), (0.03, 0.05), (20, 20)]
)
def test_ticks_are_round(size, step):
    assert round_step(size) == pytest.approx(step)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.25, "0.25"), (950, "950"), (1_200, "1.2k"), (3e6, "3M")]
)
def test_ticks_are_short(value, text):
    assert short(value) == text
