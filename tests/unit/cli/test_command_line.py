"""The command line before any model is loaded: help, errors, and what is not imported."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest
from command_line import everbatch

from everbatch import __version__
from everbatch.assemble.options import EngineOptions
from everbatch.cli.main import COMMANDS
from everbatch.cli.options import engine_options, pop_engine_options
from everbatch.scheduler.config import TenantConfig

TIMEOUT_S = 60


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "everbatch.cli.main", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S)


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The same within this process, which saves the time to start one; for what ends early."""
    answer = everbatch(*arguments)
    return subprocess.CompletedProcess(arguments, answer.status, answer.out, answer.err)


def assert_one_line_error(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("everbatch: ")
    for word in words:
        assert word in done.stderr


def modules_after(*arguments: str) -> set[str]:
    """What is imported once a command line has run."""
    code = (
        "import sys, json\n"
        "from everbatch.cli.main import main\n"
        f"sys.argv = ['everbatch', *{list(arguments)!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('\\n' + json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_alone_it_says_what_to_try() -> None:
    done = run()

    assert done.returncode == 0
    for command in ("everbatch serve", "everbatch chat", "everbatch generate", "--help"):
        assert command in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", [(), ("--help",), ("--version",)])
def test_saying_so_loads_nothing_heavy(arguments: tuple[str, ...]) -> None:
    heavy = {"numpy", "tokenizers", "fastapi", "uvicorn", "httpx", "rich", "jinja2", "asyncio"}

    assert heavy & modules_after(*arguments) == set()


def test_talking_to_a_server_loads_no_model_code() -> None:
    assert {"numpy", "tokenizers", "fastapi"} & modules_after("chat", "--help") == set()


def test_version_and_help() -> None:
    assert run("--version").stdout == f"everbatch, version {__version__}\n"
    told = run("--help").stdout
    for command in COMMANDS:
        assert command in told
        assert call(command, "--help").stdout.startswith(f"Usage: everbatch {command} [OPTIONS]")


def test_unknown_command_and_flag_name_themselves_and_the_help() -> None:
    assert_one_line_error(run("frobnicate"), "frobnicate", "`everbatch --help`")
    for command in COMMANDS:
        done = call(command, "--frobnicate")
        assert_one_line_error(done, "--frobnicate", f"`everbatch {command} --help`")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--max-num-seqs", "0"], ["max_num_seqs", "[1, 65536]", "got 0"]),
        (["--max-num-seqs", "-1"], ["max_num_seqs", "got -1"]),
        (["--max-num-seqs", "1000000000"], ["max_num_seqs", "got 1000000000"]),
        (["--max-num-seqs", "many"], ["--max-num-seqs", "'many'"]),
        (["--max-num-batched-tokens", "1000000000000"], ["max_num_batched_tokens", "1073741824"]),
        (["--block-size", "0"], ["block_size", "[1, 4096]", "got 0"]),
        (["--watermark", "nan"], ["watermark", "[0, 1)", "got nan"]),
        (["--watermark", "2"], ["watermark", "got 2.0"]),
        (["--seed", "-1"], ["seed must be at least 0", "got -1"]),
        (["--max-model-len", "-5"], ["max_model_len must be at least 2", "got -5"]),
        (["--kv-cache-memory", "10XB"], ["--kv-cache-memory", "'10XB'", "MiB"]),
        (["--kv-cache-memory", "-1"], ["--kv-cache-memory", "'-1'"]),
        (["--kv-cache-memory", "0"], ["kv_cache_memory must be at least 1 byte"]),
        (
            ["--admission", "never"],
            ["--admission", "'never'", "'now', 'prompt', 'peak', 'reserve'"],
        ),
        (["--policy", "lifo"], ["--policy", "'lifo'", "'vtc'"]),
        (["--scheduling-policy", "lifo"], ["'lifo'"]),
        (["--preemption-mode", "swap"], ["host tier", "--host-cache-memory"]),
        (["--num-host-blocks", "-1"], ["num_host_blocks", "got -1"]),
        (["--swap-space", "nan"], ["--swap-space", "nan"]),
        (["--swap-space", "1", "--host-cache-memory", "1GB"], ["--swap-space", "give one"]),
        (["--tenant", "a"], ["--tenant", "'a' is no NAME=WEIGHT", "float"]),
        (["--tenant", "=1"], ["--tenant", "'=1' names no tenant"]),
        (["--tenant", "a=0"], ["--tenant", "above 0, got 0.0"]),
        (["--tenant", "a=1:x"], ["--tenant", "'a=1:x'"]),
        (["--tenant", "a=1:-1"], ["max_requests_per_minute", "got -1"]),
        (["--tenant", "a=1", "--tenant", "a=2"], ["--tenant a is given twice"]),
    ],
)
def test_impossible_engine_option_is_known_without_a_model(
    flags: list[str], words: list[str]
) -> None:
    assert_one_line_error(call("serve", "no/model", "--port", "0", *flags), *words)


def test_help_of_serve_has_sections_in_which_every_flag_stands_once() -> None:
    told = run("serve", "--help").stdout
    sections = ["Options", "Sizes", "Batching and order", "Admission", "Preemption"]

    assert [line[:-1] for line in told.splitlines() if line[:-1] in sections] == sections
    for flag in ("--port", "--num-host-blocks", "--policy", "--backfill", "--preemption-mode"):
        assert len(re.findall(rf"^  {flag}[, ]", told, re.MULTILINE)) == 1


def test_engine_options_become_what_they_say() -> None:
    given: dict[str, object] = {}

    @click.command()
    @engine_options
    def command(**flags: object) -> None:
        given.update(flags)

    flags = [
        "--tenant",
        "a=2:30",
        "--tenant",
        "b=.5",
        "--swap-space",
        "0.5",
        "--scheduling-policy",
        "vtc",
    ]
    command.main(flags, standalone_mode=False)
    options = pop_engine_options(given)

    assert options.tenants == {"a": TenantConfig(2.0, 30), "b": TenantConfig(0.5)}
    assert (options.host_cache_bytes, options.policy) == (512 << 20, "vtc")
    assert given == {}


def test_without_flags_every_engine_option_has_its_own_default() -> None:
    given: dict[str, object] = {}

    @click.command()
    @engine_options
    def command(**flags: object) -> None:
        given.update(flags)

    command.main([], standalone_mode=False)

    assert set(given) == {item.name for item in fields(EngineOptions)}
    assert pop_engine_options(given) == EngineOptions()


def test_impossible_engine_option_is_known_to_generate_too() -> None:
    done = run("generate", "no/model", "--prompts", "-", "--max-num-seqs", "0", stdin="x")

    assert_one_line_error(done, "max_num_seqs", "got 0")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--port", "70000"], ["--port must lie in [0, 65535]", "70000"]),
        (["--host", "203.0.113.1", "--port", "0"], ["203.0.113.1", "--host"]),
        (["--shutdown-grace", "-1"], ["--shutdown-grace", "[0, 86400] seconds", "-1"]),
        (["--shutdown-grace", "nan"], ["--shutdown-grace", "nan"]),
        (["--shutdown-grace", "inf"], ["--shutdown-grace", "inf"]),
        (["--status-interval", "0"], ["--status-interval must lie in (0, 86400]", "got 0"]),
        (["--status-interval", "inf"], ["--status-interval", "inf"]),
        (["--served-model-name", ""], ["--served-model-name"]),
    ],
)
def test_impossible_server_option_is_known_without_a_model(
    flags: list[str], words: list[str]
) -> None:
    assert_one_line_error(call("serve", "no/model", *flags), *words)


def test_port_in_use_is_known_without_a_model() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        done = run("serve", "no/model", "--port", str(port))

    assert_one_line_error(done, f"port {port} on 127.0.0.1 is in use", "--port")


def test_event_log_that_cannot_be_written_is_known_without_a_model(tmp_path: Path) -> None:
    absent = tmp_path / "absent" / "log"

    done = run("serve", "no/model", "--port", "0", "--event-log", str(absent))
    directory = run("serve", "no/model", "--port", "0", "--event-log", str(tmp_path))

    assert_one_line_error(done, str(absent), "No such file or directory", "--event-log")
    assert_one_line_error(directory, str(tmp_path), "--event-log", "is a directory")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("no such model", ["'no such model' is not a model", "config.json", ".gguf", "org/name"]),
        ("./absent", ["there is no file or directory ./absent", "org/name", "default model"]),
        ("{directory}", ["{directory} has no config.json", "org/name", "default model"]),
        ("{file}", ["{file} is neither a .gguf file nor a directory"]),
    ],
)
def test_what_is_no_model_is_told(tmp_path: Path, model: str, words: list[str]) -> None:
    file = tmp_path / "weights.bin"
    file.write_text("x")
    places = {"directory": str(tmp_path), "file": str(file)}

    done = run("serve", model.format(**places), "--port", "0")

    assert_one_line_error(done, *(word.format(**places) for word in words))


def test_output_that_cannot_be_written_is_known_without_a_model(tmp_path: Path) -> None:
    absent = tmp_path / "absent" / "answers"

    done = run("generate", "no/model", "--prompts", "-", "--output", str(absent), stdin="x")

    assert_one_line_error(done, str(absent), "No such file or directory", "--output")


def test_bad_prompt_line_is_known_without_a_model() -> None:
    done = run("generate", "no/model", "--prompts", "-", stdin='fine\n{"prompt": 5}\n')

    assert_one_line_error(done, "line 2", "prompt must be text")


def test_priority_that_nobody_looks_at_is_known_without_a_model() -> None:
    line = '{"prompt": "x", "priority": 3}'

    done = run("generate", "no/model", "--prompts", "-", stdin=f"fine\n{line}\n")

    assert_one_line_error(done, "line 2", "priority is 3", "--policy priority")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["http://127.0.0.1:1"], ["no server answers at http://127.0.0.1:1", "everbatch serve"]),
        (["127.0.0.1:1/v1"], ["no server answers"]),
        (["http://[::1"], ["'http://[::1' is no URL"]),
        (["ftp://localhost"], ["no server answers at ftp://localhost"]),
        (["--temperature", "nan"], ["--temperature", "nan"]),
    ],
)
def test_chat_without_a_server_says_what_to_do(arguments: list[str], words: list[str]) -> None:
    assert_one_line_error(run("chat", *arguments, stdin="hi\n"), *words)


def test_answers_are_not_written_over_their_prompts(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts"
    prompts.write_text("hello\n")
    (tmp_path / "same").symlink_to(prompts)
    done = run("generate", "--prompts", str(prompts), "--output", str(tmp_path / "same"))

    assert_one_line_error(done, "is the file of --prompts", "give another file")
    assert prompts.read_text() == "hello\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("simulate", "lesson-static"), ("simulate", "lesson-static", "--json")],
)
def test_output_that_cannot_be_written_is_one_line(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "everbatch.cli.main", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
        )

    assert done.returncode == 2
    assert done.stderr.startswith("everbatch: cannot write the output (No space left on device)")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["scenario", "trace"])
def test_a_group_without_its_command_tells_its_help(command: str) -> None:
    done = run(command)

    assert done.returncode == 2
    assert done.stderr.startswith(f"Usage: everbatch {command} ")


def test_reader_that_leaves_is_no_traceback(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "everbatch.cli.main", "serve", "--help"],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
        )

    assert done.returncode in (1, -signal.SIGPIPE)
    assert "Traceback" not in done.stderr
