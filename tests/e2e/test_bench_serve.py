"""`everbatch bench serve` against a real server over a tiny model."""

import json
import os
import pty
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.processes import WAIT_S, Server, run, serving, start
from tiny_model import write_model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = write_model(tmp_path_factory.mktemp("model"))
    with serving(model, "--served-model-name", "tiny", "--threads", "1") as started:
        yield started
        assert started.stop() == 0
        assert "Traceback" not in started.told.text


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_every_request_is_answered_and_counted(
    server: Server, endpoint: str, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"

    done = run(
        *("bench", "serve", "--url", server.url, "--endpoint", endpoint, "--num-prompts", "12"),
        *("--request-rate", "200", "--input-len", "60-100", "--output-len", "5", "--ignore-eos"),
        *("--goodput", "ttft:60000", "--json", "-", "--html", page, "--detailed"),
    )
    summary = json.loads(done.stdout)

    assert done.returncode == 0, done.stderr
    assert (summary["model_id"], summary["completed"], summary["num_good"]) == ("tiny", 12, 12)
    assert summary["total_output_tokens"] == 12 * 5
    assert len(summary["requests"]) == 12
    # Words are five bytes here, and each byte is a token.
    assert all(58 <= one["input_tokens"] <= 103 for one in summary["requests"])
    # On a busy machine a whole answer may come in one piece.
    assert summary["mean_e2el_ms"] >= summary["mean_ttft_ms"] > 0
    assert "</html>" in page.read_text()


def test_clients_who_cancel_free_what_they_held(server: Server) -> None:
    done = run(
        *("bench", "serve", "--url", server.url, "--num-prompts", "8", "--ignore-eos"),
        *("--input-len", "20", "--output-len", "200", "--cancel-share", "1", "--json", "-"),
    )
    summary = json.loads(done.stdout)

    assert done.returncode == 0, done.stderr
    assert (summary["completed"], summary["failed"]) == (0, 0)
    assert summary["cancelled"] == 8
    server.wait_until_idle()


def test_refused_requests_are_told_and_end_with_status_1(server: Server) -> None:
    done = run(
        *("bench", "serve", "--url", server.url, "--num-prompts", "3"),
        *("--input-len", "100", "--output-len", "400"),
    )

    assert done.returncode == 1
    assert "3 requests failed: http 400" in done.stdout
    assert "3 failed" in done.stdout


def test_trace_is_sent_as_it_was(server: Server, tmp_path: Path) -> None:
    """Its second client leaves before its answer can end, its third has no output to wait for."""
    trace = tmp_path / "trace.jsonl"
    row = {"arrival_s": 0, "prompt_tokens": 30, "output_tokens": 4}
    rows = [row, {**row, "output_tokens": 200, "abort_s": 0.001}, {**row, "output_tokens": 0}]
    trace.write_text("".join(f"{json.dumps(one)}\n" for one in rows))

    done = run(
        *("bench", "serve", "--url", server.url, "--trace", trace, "--ignore-eos", "--json", "-"),
        "--detailed",
    )
    summary = json.loads(done.stdout)

    assert done.returncode == 0, done.stderr
    assert [one["outcome"] for one in summary["requests"]] == ["completed", "cancelled"]
    assert summary["requests"][0]["output_tokens"] == 4
    assert "trace.jsonl: 1 row left out: no output tokens" in done.stderr


def test_progress_is_shown_in_a_terminal_and_not_in_a_pipe(server: Server) -> None:
    flags = ("bench", "serve", "--url", server.url, "--num-prompts", "2", "--input-len", "20")
    terminal, end = pty.openpty()
    process = start(*flags, stderr=end)
    os.close(end)
    shown = b""
    try:
        while piece := os.read(terminal, 4096):
            shown += piece
    except OSError:
        # Linux ends a terminal whose other side is closed with an error.
        pass
    os.close(terminal)
    out, _ = process.communicate(timeout=WAIT_S)

    assert process.returncode == 0
    assert b" ended, " in shown
    assert "2 completed" in out
    assert " ended, " not in run(*flags).stderr


def test_ctrl_c_tells_the_figures_so_far(server: Server, tmp_path: Path) -> None:
    """Requests at a low rate for a long time; it is interrupted once the server has heard one."""
    result = tmp_path / "result.json"
    before = server.metrics()["generation_tokens_total"]
    process = start(
        *("bench", "serve", "--url", server.url, "--request-rate", "5", "--num-prompts", "9999"),
        *("--input-len", "20", "--output-len", "4", "--ignore-eos", "--json", result),
    )
    try:
        # Two tokens are those of the first contact.
        while server.metrics()["generation_tokens_total"] < before + 2 + 4:
            assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()
    summary = json.loads(result.read_text())

    assert process.returncode == 130, err
    assert "interrupted: " in err
    assert "Traceback" not in err
    assert summary["interrupted"] is True
    assert 1 <= summary["num_sent"] < 9999
    assert "time to first token" in out
