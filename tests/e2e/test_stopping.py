"""Signals to a real server amid a stream: what runs, what is told, what is left on disk."""

import io
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from e2e.processes import WAIT_S, serving, start
from e2e.streams import streaming
from tiny_model import write_model

from everbatch.base.eventlog import read_events, read_header
from everbatch.base.events import Event, Finished, QuietSteps, StepRan

# Steps of the tiny model take less than a millisecond; this many take minutes.
ENDLESS = 200_000
NS_PER_S = 1_000_000_000
SECONDS_A_PRESS = 10
"""Between two presses of Ctrl-C."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    return write_model(directory, max_position_embeddings=ENDLESS + 1_000)


def events_in(text: str) -> list[Event]:
    return list(read_events(text.splitlines(keepends=True)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stream_ends_whole_within_the_grace_time(model: Path, number: signal.Signals) -> None:
    with serving(model) as server, streaming(server.url, 1_000) as stream:
        server.signal(number)
        stream.read_to_the_end()

        assert server.wait() == 0
        assert "Traceback" not in server.told.text
    assert (stream.finish_reason, stream.error, stream.ended) == ("length", None, True)
    assert stream.usage["completion_tokens"] == 1_000


def test_stream_beyond_the_grace_time_ends_with_a_reason(model: Path, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    with (
        serving(model, "--shutdown-grace", "0.5", "--event-log", log) as server,
        streaming(server.url, ENDLESS) as stream,
    ):
        server.signal(signal.SIGTERM)
        stream.read_to_the_end()

        assert server.wait() == 0
        assert "Traceback" not in server.told.text
    assert stream.finish_reason == "abort"
    assert stream.error is not None
    assert stream.error["code"] == "shutting_down"
    assert stream.ended
    [finished] = [event for event in events_in(log.read_text()) if isinstance(event, Finished)]
    assert finished.reason == "abort"


def test_second_signal_does_not_wait_for_anybody(model: Path, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    with (
        serving(model, "--shutdown-grace", "3600", "--event-log", log) as server,
        streaming(server.url, ENDLESS) as stream,
    ):
        server.signal(signal.SIGTERM)
        # The first has been taken once new requests are refused.
        while httpx.get(f"{server.url}/ready").status_code == 200:
            assert stream.read_chunk()
        server.signal(signal.SIGTERM)
        stream.read_to_the_end()

        assert server.wait() == 0
        assert "Traceback" not in server.told.text
    assert stream.error is not None or stream.cut
    assert events_in(log.read_text())


def test_killed_server_leaves_a_log_that_lacks_a_second_at_most(
    model: Path, tmp_path: Path
) -> None:
    log = tmp_path / "events.jsonl"
    with (
        serving(model, "--event-log", log) as server,
        streaming(server.url, ENDLESS) as stream,
    ):
        # Until a run of quiet steps is on disk: then the log is amid its work.
        longest_wait_ns, read_at = 0, time.monotonic_ns()
        while '"event":"steps"' not in log.read_text():
            assert stream.read_chunk()
            now = time.monotonic_ns()
            longest_wait_ns, read_at = max(longest_wait_ns, now - read_at), now
        server.signal(signal.SIGKILL)
        killed_at = time.monotonic_ns()

        assert server.wait() == -signal.SIGKILL
    text = log.read_text()
    events = events_in(text)

    assert read_header(text.splitlines(keepends=True)[0])["seed"] == 0
    assert [event.kind for event in events[:2]] == ["arrived", "admitted"]
    assert any(isinstance(event, QuietSteps) for event in events)
    # A line is written at the first step a second after the last one.
    missing_ns = killed_at - max(event.t for event in events)
    assert missing_ns < NS_PER_S + 2 * longest_wait_ns + NS_PER_S // 2
    # Torn as a crash of the machine may leave it, it still reads to the last whole line.
    assert events_in(text[:-5]) == events[:-1]


def test_log_of_a_stopped_server_agrees_with_its_metrics(model: Path, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    with serving(model, "--event-log", log, "--num-blocks", "64") as server:
        with httpx.Client(base_url=server.url) as client:
            for number in range(5):
                body = {"prompt": "x" * (40 + number), "max_tokens": 7 + number, "ignore_eos": True}
                assert client.post("/v1/completions", json=body).status_code == 200
            too_long = {"prompt": "x" * 2_000}
            assert client.post("/v1/completions", json=too_long).status_code == 400
            stopped = {"prompt": "hello", "temperature": 0, "logit_bias": {"257": 100}}
            assert client.post("/v1/completions", json=stopped).status_code == 200
        metrics = server.metrics()
        assert server.stop() == 0
    events = events_in(log.read_text())
    kinds = [event.kind for event in events]
    finished = [event for event in events if isinstance(event, Finished)]
    steps = [event for event in events if isinstance(event, StepRan)]
    quiet = [event for event in events if isinstance(event, QuietSteps)]
    emitted = sum(step.emitted for step in steps) + sum(run.count * run.decodes for run in quiet)

    assert kinds.count("arrived") == kinds.count("admitted") == 6
    assert kinds.count("rejected") == metrics["request_rejected_total"] == 1
    assert sorted(event.reason for event in finished) == ["length"] * 5 + ["stop"]
    assert metrics["request_success_total"] == 6
    assert emitted == metrics["generation_tokens_total"] == sum(range(7, 12)) + 1
    assert sum(event.output_tokens for event in finished) == emitted
    assert metrics["prompt_tokens_total"] == sum(range(40, 45)) + len("hello")
    cached = sum(event.cached_tokens for event in finished)
    assert cached == metrics["prefix_cache_hits_total"] > 0
    numbers = [n for step in steps for n in [step.step]]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["generate", "--prompts", "-"]])
def test_ctrl_c_while_a_model_loads_is_one_line(tmp_path: Path, command: list[str]) -> None:
    # Pipes in place of two files: opening the model waits for a writer that never comes, and who
    # has opened the event log is about to.
    model, log = tmp_path / "model.gguf", tmp_path / "log"
    for pipe in (model, log):
        os.mkfifo(pipe)
    with (tmp_path / "prompts").open("w+") as prompts, open_without_waiting(log) as reader:
        prompts.write("hello")
        prompts.seek(0)
        process = start(*command, model, "--event-log", log, stdin=prompts)
        # Empty means that nobody writes yet, None that somebody may.
        while reader.read() is not None:
            assert process.poll() is None
        told = interrupt(process)

    assert process.returncode == 130, told
    assert told.split("\n")[-2:] == ["everbatch: interrupted", ""]
    assert "Traceback" not in told


def interrupt(process: subprocess.Popen[str]) -> str:
    """Press Ctrl-C until the process ends; gives what it told.

    Once is enough but for a moment: a signal between Python's last look at signals and the call
    that opens the pipe is noticed when that call returns, which is with the next signal.
    """
    for _ in range(WAIT_S // SECONDS_A_PRESS):
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=SECONDS_A_PRESS)[1]
    process.kill()
    process.communicate()
    raise AssertionError("Ctrl-C ends nothing")


def open_without_waiting(path: Path) -> io.FileIO:
    return io.FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
