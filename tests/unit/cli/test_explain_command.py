"""`everbatch explain`: sources, errors and exit status."""

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path

import click
import pytest
from command_line import everbatch
from unit.diagnose.logs import log_of, request


class Terminal(StringIO):
    """Somebody looks at it."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def log(tmp_path) -> Path:
    path = tmp_path / "events.jsonl"
    lines = log_of(request("a", 4, 5), request("b", 4, 2, arrival=1), max_num_seqs=1)
    path.write_text("".join(lines), encoding="utf-8")
    return path


def test_alone_a_log_gives_an_overview_and_what_to_type(log):
    out = everbatch("explain", log).out

    assert f"{log}: 14 events, clock of steps" in out
    assert "  engine    1 slot, 512 tokens a step, 64 blocks of 4 tokens\n" in out
    assert "sequence_budget 4" in out
    assert out.endswith(f"ask: everbatch explain {log} b\n")


def test_an_overview_as_json(log):
    facts = json.loads(everbatch("explain", log, "--json").out)

    assert facts["steps_waited"] == {"sequence_budget": 4}
    assert [one["id"] for one in facts["worst"]["longest wait"]] == ["b"]


def test_worst_and_a_request_exclude_each_other(log):
    answer = everbatch("explain", log, "b", "--worst", 3)

    assert (answer.status, answer.out) == (2, "")
    assert "--worst" in answer.err


def test_an_unknown_request_is_an_error_with_a_suggestion(tmp_path):
    path = tmp_path / "log"
    path.write_text("".join(log_of(request("chat-17"))), encoding="utf-8")
    answer = everbatch("explain", path, "chat-71")

    assert (answer.status, answer.out) == (2, "")
    assert answer.err == ("everbatch: the log names no request 'chat-71': did you mean chat-17?\n")


def test_the_beginning_of_an_id_suggests_the_whole(tmp_path):
    path = tmp_path / "log"
    path.write_text("".join(log_of(request("cmpl-1f9c"), request("cmpl-77"))), encoding="utf-8")

    assert everbatch("explain", path, "cmpl-1").err.endswith("did you mean cmpl-1f9c?\n")


def test_the_id_of_a_completion_tells_each_of_its_prompts(tmp_path):
    path = tmp_path / "log"
    requests = [request(id) for id in ("cmpl-1-0", "cmpl-1-1", "cmpl-1-x", "cmpl-2-0")]
    path.write_text("".join(log_of(*requests)), encoding="utf-8")
    answer = everbatch("explain", path, "cmpl-1")
    headings = [line for line in answer.out.splitlines() if line.startswith("request ")]

    assert [heading.partition(":")[0] for heading in headings] == [
        "request cmpl-1-0",
        "request cmpl-1-1",
    ]


@pytest.mark.parametrize("shown", [["b"], []])
def test_a_narrow_terminal_gets_whole_words(log, shown, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.chdir(log.parent)
    monkeypatch.setattr("command_line.StringIO", Terminal)
    told = click.unstyle(everbatch("explain", log.name, *shown).out)

    assert "sequence_budget" in told
    assert max(map(len, told.splitlines())) <= 40


def test_a_torn_last_line_is_told_and_no_failure(log):
    log.write_bytes(log.read_bytes()[:-20])
    answer = everbatch("explain", log, "a")

    assert answer.status == 0
    assert answer.out.startswith("request a")
    assert answer.err == (
        f"everbatch: {log}: line 15 is torn, as a process that is killed leaves it: not read\n"
    )


def test_a_broken_line_is_told_and_what_comes_before_is_explained(log):
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    log.write_text("".join([*lines[:6], "{\n", *lines[6:]]), encoding="utf-8")
    answer = everbatch("explain", log, "a")

    assert answer.status == 1
    assert answer.out.startswith("request a")
    assert f"{log}: line 7 is not JSON" in answer.err


@pytest.mark.parametrize("content", [b"", b"# a scenario\n", b"\xff\xfe\x00\n", b"[]\n", b"1\n"])
def test_what_is_no_log_is_an_error_of_one_line(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    answer = everbatch("explain", path, "a")

    assert (answer.status, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    assert f"everbatch: {path}: line 1" in answer.err
    assert "give what --event-log or --events wrote" in answer.err


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    answer = everbatch("explain", tmp_path / "none", "a")

    assert answer.status == 2
    assert "No such file" in answer.err and "--event-log" in answer.err


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1/v1"])
def test_a_server_that_does_not_answer_is_an_error(url):
    answer = everbatch("explain", url, "a")

    assert (answer.status, answer.out) == (2, "")
    assert "everbatch serve" in answer.err


def test_a_log_may_come_by_standard_input(log):
    command = [sys.executable, "-m", "everbatch.cli.main", "explain", "-", "b"]
    done = subprocess.run(command, input=log.read_bytes(), capture_output=True, timeout=60)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"request b")


def test_a_reader_that_leaves_is_no_error_about_the_log(log):
    code = f"{sys.executable} -m everbatch.cli.main explain {log} b | true"
    done = subprocess.run(code, shell=True, capture_output=True, text=True, timeout=60)

    assert "cannot read" not in done.stderr


def test_explaining_loads_nothing_heavy(log):
    code = (
        "import sys\n"
        "from everbatch.cli.main import main\n"
        f"sys.argv = ['everbatch', 'explain', {str(log)!r}, 'b']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(' '.join(sorted(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    modules = set(done.stdout.splitlines()[-1].split())

    heavy = {"numpy", "tokenizers", "fastapi", "uvicorn", "httpx", "rich", "jinja2", "asyncio"}
    assert heavy & modules == set()
    assert not any(name.startswith(("everbatch.models", "everbatch.server")) for name in modules)
