"""`everbatch trace`: what it tells of a trace, and what it writes of one."""

import json
import os
import pty
import sys
from pathlib import Path
from subprocess import DEVNULL, Popen

import pytest
from command_line import everbatch, read_lines

from everbatch.workload.traces import statistics

FILES = Path(__file__).parents[1] / "workload" / "trace_files"
SHARED = Path(__file__).resolve().parents[4] / "shared" / "traces"
AZURE, MOONCAKE = FILES / "azure.csv", FILES / "mooncake.jsonl"
PLAIN = {"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 3}


def figures(*arguments: object) -> dict:
    answer = everbatch("trace", "inspect", *arguments, "--json")
    assert answer.status == 0, answer.err
    return json.loads(answer.out)


def plain(tmp_path, *rows: dict) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f"{json.dumps({**PLAIN, **row})}\n" for row in rows))
    return path


def converted(tmp_path, source: Path, *arguments: object, name: str = "out"):
    """Convert a trace; give what it wrote and what it said."""
    path = tmp_path / name
    answer = everbatch("trace", "convert", source, "-o", path, *arguments)
    assert (answer.status, answer.out) == (0, ""), answer.err
    return path, answer.err


def test_inspect_tells_rate_burstiness_and_lengths(tmp_path):
    rows = [{"arrival_s": at, "prompt_tokens": at + 1} for at in (0, 1, 1, 4)]

    found = figures(plain(tmp_path, *rows))

    assert (found["rows"], found["span_s"], found["requests_per_s"]) == (4, 4.0, 0.75)
    # Gaps 1, 0, 3: mean 4/3, variance 14/9.
    assert found["arrival_cv"] == pytest.approx((14 / 9) ** 0.5 / (4 / 3))
    assert found["simultaneous"] == 1
    assert found["prompt_tokens"] == {
        "mean": 2.5,
        "p50": 2,
        "p90": 5,
        "p99": 5,
        "max": 5,
        "total": 10,
    }
    assert found["prefix"] is None
    assert sum(found["arrivals"]["counts"]) == 4


def test_inspect_counts_what_an_unbounded_cache_would_hit(tmp_path):
    system = [{"text": "system", "tokens": 40}]
    rows = [
        {"prompt_tokens": 50, "prefix": system},
        {"prompt_tokens": 60, "prefix": [{"text": "system", "tokens": 48}]},
        {"prompt_tokens": 90, "prefix": [*system, {"text": "new", "tokens": 9}, *system]},
    ]

    found = figures(plain(tmp_path, *rows))["prefix"]

    # The second hits 40 of 48 tokens; in the third nothing behind the new text counts.
    assert (found["pieces"], found["hit_pieces"], found["hit_tokens"]) == (5, 1, 80)
    assert found["hit_token_rate"] == 80 / 200


def test_inspect_looks_at_so_many_different_pieces_and_says_in_how_many_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "MAX_PIECES", 3)
    rows = [
        {"prompt_tokens": 50, "prefix": [{"text": f"{n // 2}", "tokens": 40}]} for n in range(10)
    ]

    path = plain(tmp_path, *rows)
    found = figures(path)["prefix"]

    # The fifth row has the third text.
    assert (found["rows"], found["pieces"], found["hit_pieces"]) == (5, 5, 2)
    assert found["hit_token_rate"] == 80 / 250
    assert "without bounds, in the first 5 rows" in everbatch("trace", "inspect", path).out


def test_inspect_tells_rows_without_tokens(tmp_path):
    path = plain(tmp_path, {"output_tokens": 0}, {"prompt_tokens": 0}, {})

    assert (figures(path)["no_prompt"], figures(path)["no_output"]) == (1, 1)
    assert (
        "1 with no output tokens: a run leaves them out" in everbatch("trace", "inspect", path).out
    )


def test_inspect_prints_tables_and_a_bar_for_each_stretch_of_time():
    out = everbatch("trace", "inspect", AZURE).out

    assert out.startswith("azure.csv, format azure (detected)\n")
    assert "24" in out
    assert "█" in out or "#" in out


def test_inspect_of_lengths_alone_says_so():
    out = everbatch("trace", "inspect", FILES / "vidur.csv").out

    assert "none: lengths only" in out
    assert figures(FILES / "vidur.csv")["span_s"] is None


def test_inspect_of_one_row_has_no_rate(tmp_path):
    path = plain(tmp_path, {})

    assert figures(path)["requests_per_s"] is None
    assert everbatch("trace", "inspect", path).status == 0


def test_a_broken_row_is_an_error_of_one_line(tmp_path):
    path = plain(tmp_path, {}, {"output_tokens": -1})

    answer = everbatch("trace", "inspect", path)

    assert (answer.status, answer.out) == (2, "")
    assert answer.err == (
        f"everbatch: {path}: line 2: output_tokens is -1, it must be an integer from 0 to "
        "1,073,741,824\n"
    )


def test_plain_rows_of_azure_are_exact_and_named_by_their_row(tmp_path):
    path, said = converted(tmp_path, AZURE)

    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[1] == '{"arrival_s":4.314579,"prompt_tokens":396,"output_tokens":109,"id":"1"}'
    assert "24 rows in" in said
    assert figures(path)["span_s"] == figures(AZURE)["span_s"]


def test_a_window_a_sample_a_limit_and_a_speed_can_be_cut_out(tmp_path):
    path, _ = converted(tmp_path, AZURE, "--start", 5, "--duration", 5, "--speed", 2)
    few, _ = converted(tmp_path, AZURE, "--sample", 0.5, "--seed", 1, name="few")
    limited, _ = converted(tmp_path, AZURE, "--limit", 3, name="limited")

    assert [row["id"] for row in read_lines(path)] == [str(row) for row in range(4, 13)]
    assert max(row["arrival_s"] for row in read_lines(path)) < 2.5
    assert 4 < len(read_lines(few)) < 20
    assert len(read_lines(limited)) == 3


@pytest.mark.parametrize("to", ["azure", "mooncake", "jsonl"])
def test_each_format_brings_back_times_and_lengths(tmp_path, to):
    there, _ = converted(tmp_path, AZURE, "--to", to)

    back, _ = converted(tmp_path, there, name="back")

    rows, expected = read_lines(back), read_lines(converted(tmp_path, AZURE, name="plain")[0])
    assert figures(there)["format"] == to
    assert rows == expected


def test_mooncake_s_blocks_survive_the_way_through_plain_rows(tmp_path):
    plain_rows, _ = converted(tmp_path, MOONCAKE)

    back, said = converted(tmp_path, plain_rows, "--to", "mooncake", name="back")

    ids = {}
    expected = read_lines(MOONCAKE)
    for row in expected:
        row["hash_ids"] = [ids.setdefault(id, len(ids)) for id in row["hash_ids"]]
    assert read_lines(back) == expected
    assert "lost" not in said


def test_what_a_format_has_no_place_for_is_told(tmp_path):
    extras = {"tenant": "a", "n": 2, "prefix": [{"text": "s", "tokens": 4}], "abort_s": 9}
    path = plain(tmp_path, extras, {})

    _, to_azure = converted(tmp_path, path, "--to", "azure")
    _, to_mooncake = converted(tmp_path, path, "--to", "mooncake")
    same, to_plain = converted(tmp_path, path, name="same")

    for what in ("tenant", "samples", "abort", "prefix"):
        assert f"1 row lost its {what}" in to_azure
    assert "1 row lost its prefix, which is not blocks of 512 tokens" in to_mooncake
    assert "lost" not in to_plain
    assert read_lines(same) == [{**PLAIN, **extras, "id": "0"}, {**PLAIN, "id": "1"}]


def test_rows_left_out_are_counted(tmp_path):
    path = plain(tmp_path, {"output_tokens": 0}, {})

    _, said = converted(tmp_path, path)

    assert "1 row left out: no output tokens" in said


def test_a_file_that_ends_in_an_error_writes_nothing(tmp_path):
    path = plain(tmp_path, {}, {"output_tokens": "x"})
    place = tmp_path / "out"
    place.write_text("before")

    answer = everbatch("trace", "convert", path, "-o", place)

    assert answer.status == 2
    assert place.read_text() == "before"
    assert sorted(found.name for found in tmp_path.iterdir()) == ["out", "trace.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("-o", "x.gz"), "what is written is not compressed, drop the .gz"),
        (("-o", "x", "--sample", "0"), "--sample"),
        (("-o", "x", "--speed", "0"), "--speed"),
        (("-o", "x", "--to", "vidur"), "--to"),
        (("-o", "x", "--start", "900"), "no row is left of what is asked for: from 900 s"),
        ((), "--output"),
    ],
)
def test_wrong_arguments_are_named(tmp_path, monkeypatch, arguments, told):
    monkeypatch.chdir(tmp_path)

    answer = everbatch("trace", "convert", AZURE, *arguments)

    assert answer.status == 2
    assert told in answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_trace_is_not_written_over(tmp_path):
    path = plain(tmp_path, {}, {})
    before = path.read_bytes()

    answer = everbatch("trace", "convert", path, "-o", path, "--limit", "1")

    assert answer.status == 2
    assert f"--output {path} is the trace itself" in answer.err
    assert path.read_bytes() == before


@pytest.mark.parametrize(("day", "status"), [(2_921_939, 0), (2_921_940, 2)])
def test_azure_s_days_end_with_the_year_9999(tmp_path, day, status):
    path = plain(tmp_path, {"arrival_s": 0}, {"arrival_s": day * 86_400 / 1024})

    answer = everbatch(
        "trace", "convert", path, "-o", tmp_path / "x", "--to", "azure", "--speed", str(1 / 1024)
    )

    assert answer.status == status
    assert ("past the year 9999" in answer.err) == bool(status)


def test_a_trace_without_rows_is_not_one_of_lengths(tmp_path):
    path = tmp_path / "header.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")

    answer = everbatch("trace", "inspect", path)

    assert answer.status == 0
    assert "lengths only" not in answer.out


def test_lengths_alone_cannot_be_converted(tmp_path):
    answer = everbatch("trace", "convert", FILES / "vidur.csv", "-o", tmp_path / "x")

    assert "lengths only, no arrivals" in answer.err


def long_trace(tmp_path) -> Path:
    path = tmp_path / "long.jsonl"
    path.write_text(f"{json.dumps({**PLAIN, 'tenant': 'x' * 1000})}\n" * 2000)
    return path


def test_a_long_file_shows_progress_to_a_terminal(tmp_path):
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "everbatch.cli.main", "trace", "inspect", "--json"]
    process = Popen(
        [*command, str(long_trace(tmp_path))],
        stdout=DEVNULL,
        stderr=end,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(end)
    shown = b""
    try:
        while piece := os.read(terminal, 4096):
            shown += piece
    except OSError:
        # Linux ends a terminal whose other side is closed with an error.
        pass
    os.close(terminal)

    assert process.wait() == 0
    assert b"reading" in shown


def test_a_long_file_shows_no_progress_to_a_pipe(tmp_path):
    answer = everbatch("trace", "inspect", long_trace(tmp_path), "--json")

    assert answer.err == ""


published = pytest.mark.skipif(not SHARED.is_dir(), reason="the published traces are not here")


def rounded(found: dict) -> tuple:
    return (round(found["mean"], 1), *(found[key] for key in ("p50", "p90", "p99", "max")))


@published
def test_the_azure_hour_is_as_published():
    found = figures(SHARED / "azure2023_AzureLLMInferenceTrace_conv.csv")

    assert (found["rows"], round(found["span_s"], 1)) == (19_366, 3501.7)
    assert (round(found["requests_per_s"], 3), round(found["arrival_cv"], 2)) == (5.530, 1.09)
    assert rounded(found["prompt_tokens"]) == (1154.7, 1020, 2735, 4142, 14050)
    assert rounded(found["output_tokens"]) == (211.1, 129, 424, 601, 1000)
    assert found["output_tokens"]["total"] == 4_088_665


@published
def test_the_mooncake_conversations_are_as_published():
    found = figures(SHARED / "mooncake_fast25_conversation_trace.jsonl")

    assert (found["rows"], round(found["span_s"], 1)) == (12_031, 3537.0)
    assert round(found["requests_per_s"], 3) == 3.401
    assert rounded(found["prompt_tokens"]) == (12035.1, 6909, 27367, 85401, 126195)
    assert rounded(found["output_tokens"]) == (342.6, 350, 597, 1120, 2000)
    assert round(found["prefix"]["hit_rate"], 3) == 0.366


@published
def test_the_vidur_lengths_are_as_published():
    found = figures(SHARED / "vidur_arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv")

    assert (found["rows"], found["arrivals"]) == (28_257, None)


@published
def test_the_recorded_vllm_run_shares_what_is_published():
    folder = SHARED / "llmservingsim_vllm_logs"
    found = figures(folder / "RTX4090_Llama-3.1-8B__vllm_requests.jsonl")

    assert (found["rows"], found["prefix"]["hit_tokens"]) == (300, 19_520)
