"""What may be broken around a real process: files, sizes, disks. One line tells, or it goes on."""

import json
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from e2e.processes import (
    COMMAND,
    ENVIRON,
    READY,
    WAIT_S,
    assert_one_line_error,
    run,
    serving,
    start,
)
from tiny_model import write_gguf_model, write_model

from everbatch.base.eventlog import read_events

FULL_DEVICE = Path("/dev/full")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def serve(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a server that is not expected to become ready."""
    return run("serve", "--port", "0", *arguments)


# Files.


@pytest.mark.parametrize("num_bytes", [0, 7, 100, 50_000])
def test_truncated_safetensors_are_named(tmp_path: Path, num_bytes: int) -> None:
    weights = write_model(tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:num_bytes])

    assert_one_line_error(serve(tmp_path), str(weights))


@pytest.mark.parametrize("num_bytes", [0, 3, 20, 3_000, 50_000])
def test_truncated_gguf_is_named(tmp_path: Path, num_bytes: int) -> None:
    path = write_gguf_model(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:num_bytes])

    assert_one_line_error(serve(path), str(path))


def test_shard_that_is_missing_is_named(tmp_path: Path) -> None:
    write_model(tmp_path, num_shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()

    assert_one_line_error(serve(tmp_path), "model-00002-of-00003.safetensors")


@pytest.mark.parametrize("key", ["vocab_size", "num_hidden_layers"])
def test_key_that_is_missing_is_named(tmp_path: Path, key: str) -> None:
    assert_one_line_error(serve(write_model(tmp_path, without=(key,))), "config.json", key)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"architectures": ["BertModel"]}', "\xff"])
def test_config_that_is_none_is_named(tmp_path: Path, content: str) -> None:
    (write_model(tmp_path) / "config.json").write_text(content, encoding="latin-1")

    assert_one_line_error(serve(tmp_path), "config.json")


def test_tokenizer_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    tokenizer = write_model(tmp_path) / "tokenizer.json"
    tokenizer.write_text("{}")
    broken = serve(tmp_path)
    tokenizer.unlink()

    assert_one_line_error(broken, "tokenizer.json")
    assert_one_line_error(serve(tmp_path), "tokenizer.json")


def test_sizes_that_differ_from_the_weights_are_told(tmp_path: Path) -> None:
    done = serve(write_model(tmp_path, vocab_size=300))

    assert_one_line_error(done, "embed_tokens.weight", "[258, 32]", "[300, 32]")


# Sizes.


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--max-model-len", "257"], ["257", "256 tokens", "lower it"]),
        (["--max-model-len", "200", "--num-blocks", "4"], ["13 KV blocks", "4", "lower it to 65"]),
        (
            ["--kv-cache-memory", "1KB", "--kernels", "reference"],
            ["1,000 B holds no block", "4.0 KiB", "raise it"],
        ),
        (["--kv-cache-memory", "100000GiB"], ["100,000.0 GiB", "that are free", "ask for less"]),
        (["--num-blocks", "60000000"], ["--num-blocks 60,000,000", "ask for at most"]),
    ],
)
def test_size_that_model_or_machine_cannot_hold_is_told(
    model: Path, flags: list[str], words: list[str]
) -> None:
    assert_one_line_error(serve(model, *flags), *words)


def test_address_space_that_is_too_small_is_told(model: Path) -> None:
    # As `ulimit -v` sets it: memory is free, but this process may not have it.
    command = [*COMMAND, "serve", str(model), "--port", "0", "--kv-cache-memory", "8GiB"]
    done = subprocess.run(
        ["sh", "-c", f"ulimit -v 4000000; exec {shlex.join(command)}"],
        capture_output=True,
        text=True,
        env=ENVIRON,
        timeout=WAIT_S,
    )
    if "that are free" in done.stderr and "ask for less" in done.stderr:
        pytest.skip("this machine has less memory than the limit")

    assert_one_line_error(done, "8.0 GiB", "--kv-cache-memory")


@pytest.mark.parametrize(
    "flags",
    [
        ["--max-num-seqs", "65536"],
        ["--max-num-batched-tokens", "1000000000"],
        ["--block-size", "4096", "--num-blocks", "1"],
        ["--max-num-seqs", "1", "--max-num-batched-tokens", "1", "--num-blocks", "2"],
        ["--no-enable-chunked-prefill", "--no-enable-prefix-caching"],
        ["--watermark", "0.99", "--admission", "now"],
    ],
    ids=" ".join,
)
def test_extreme_but_possible_sizes_serve(model: Path, flags: list[str]) -> None:
    with serving(model, *flags) as server:
        answer = ask(server.url, "hello")

        assert answer == ask(server.url, "hello")
        assert len(answer) == 8
        assert server.stop() == 0


# Disks.


@pytest.mark.skipif(not FULL_DEVICE.exists(), reason="this system has no /dev/full")
def test_event_log_on_a_full_disk_is_told_and_serving_goes_on(model: Path) -> None:
    with serving(model, "--event-log", FULL_DEVICE) as server:
        told = server.told.wait_for(lambda line: "/dev/full" in line)

        assert "No space left on device" in told
        assert "serving goes on" in told
        assert len(ask(server.url, "hello")) == 8
        assert server.metrics()["log_lost"] == 1
        assert server.stop() == 0
        assert "Traceback" not in server.told.text


@pytest.mark.skipif(not FULL_DEVICE.exists(), reason="this system has no /dev/full")
def test_access_log_on_a_full_disk_is_told_once_and_serving_goes_on(model: Path) -> None:
    with serving(model, "--access-log", FULL_DEVICE) as server:
        before = server.metrics()["log_lost"]
        assert [len(ask(server.url, text)) for text in ("hello", "again", "more")] == [8, 8, 8]
        told = server.told.wait_for(lambda line: "/dev/full" in line)

        assert "No space left on device" in told
        assert server.told.text.count("serving goes on") == 1
        assert (before, server.metrics()["log_lost"]) == (0, 1)
        assert server.stop() == 0
        assert "Traceback" not in server.told.text


def test_disk_that_fills_up_ends_the_event_log_and_not_the_server(
    model: Path, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        log = disk / "events.jsonl"
        with serving(model, "--event-log", log) as server:
            first = ask(server.url, "hello")
            for number in range(1_000):
                ask(server.url, f"request {number}")
                if "serving goes on" in server.told.text:
                    break
            told = server.told.wait_for(lambda line: "serving goes on" in line)

            assert str(log) in told
            assert "No space left on device" in told
            assert ask(server.url, "hello") == first
            assert server.told.text.count("serving goes on") == 1
            assert server.stop() == 0
        with log.open(encoding="utf-8") as lines:
            kinds = [event.kind for event in read_events(lines)]
        assert kinds.count("finished") > 10


def test_output_on_a_full_disk_is_told(model: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4k") as disk:
        output = disk / "answers.jsonl"
        prompts = "\n".join(f"prompt {number} " + "x" * 150 for number in range(60))
        done = run(
            "generate", model, "--prompts", "-", "--output", output, "--max-tokens", "5",
            stdin=prompts,
        )  # fmt: skip
        whole = [json.loads(line) for line in output.read_text().split("\n")[:-1]]

    assert_one_line_error(done, "No space left on device", f"{len(whole)} of 60 are written")
    assert len(whole) > 5


# Readers.


def test_reader_of_the_server_s_lines_that_leaves_is_no_reason_to_stop(model: Path) -> None:
    process = start("serve", model, "--port", "0", "--status-interval", "0.01")
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    url = next(match[1] for line in lines if (match := READY.match(line)))
    process.stderr.close()

    texts = {ask(url, "hello") for _ in range(20)}
    process.terminate()
    process.stderr = None
    process.communicate(timeout=WAIT_S)

    assert len(texts) == 1
    assert process.returncode == 0


def ask(url: str, prompt: str) -> str:
    """Give eight greedy tokens."""
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0}
    response = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


@contextmanager
def small_disk(directory: Path, size: str) -> Iterator[Path]:
    """Mount a file system of this size; skips the test where that is not allowed."""
    directory.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]
    try:
        mounted = subprocess.run(options, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)
