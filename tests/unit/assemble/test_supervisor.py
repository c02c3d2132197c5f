"""How often a process may die, and what is told. The processes are small scripts, not servers."""

import errno
import json
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from everbatch.assemble import supervisor
from everbatch.assemble.supervised import MOVED, READY, STILL, VARIABLE, supervisor_of
from everbatch.assemble.supervisor import Patience, supervise
from everbatch.assemble.watchdog import DEFAULT_TIMEOUT_S, MIN_TIMEOUT_S, Limits
from everbatch.base.errors import ConfigError

IMPATIENT = Patience(quick_s=60.0, max_quick_deaths=3, first_wait_s=0.01, max_wait_s=0.02)
BEGINNING = f"""
import json, os, signal, socket, sys, time
READY, MOVED, STILL = {READY!r}, {MOVED!r}, {STILL!r}
told = json.loads(os.environ["{VARIABLE}"])
control = socket.socket(fileno=told["fd"])
starts = os.environ["STARTS"]
number = os.path.getsize(starts) if os.path.exists(starts) else 0
open(starts, "a").write("x")
"""


class Supervised:
    """What came of supervising a script: exit status, what was told, and how often it started."""

    def __init__(self, script: str, directory: Path, patience: Patience, limits: Limits) -> None:
        starts = directory / "starts"
        self.told: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STARTS", str(starts))
            command = [sys.executable, "-c", BEGINNING + textwrap.dedent(script)]
            listening = socket.create_server(("127.0.0.1", 0))
            self.status = supervise(
                command, listening, "http://x", self.told.append, limits, patience
            )
        self.num_starts = len(starts.read_text())


def run(
    script: str,
    directory: Path,
    patience: Patience = IMPATIENT,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Supervised:
    return Supervised(script, directory, patience, Limits(timeout_s))


def test_waits_double_up_to_the_longest() -> None:
    patience = Patience(first_wait_s=0.5, max_wait_s=3.0)

    assert [patience.wait_s(number) for number in range(6)] == [0.5, 0.5, 1.0, 2.0, 3.0, 3.0]


def test_it_gives_up_after_so_many_quick_deaths_in_a_row(tmp_path: Path) -> None:
    done = run("control.sendall(READY); os.kill(os.getpid(), signal.SIGKILL)", tmp_path)

    assert (done.status, done.num_starts) == (1, 3)
    [told] = done.told
    assert "ended 3 times in a row within 60 s of its start" in told
    assert "killed by SIGKILL: giving up" in told


def test_death_before_it_is_ready_again_counts_as_quick(tmp_path: Path) -> None:
    done = run("if number == 0: control.sendall(READY)\nsys.exit(3)", tmp_path)

    assert (done.status, done.num_starts) == (1, 3)
    assert "ended with status 3: giving up" in done.told[0]


def test_process_that_cannot_be_started_again_has_died_quickly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = subprocess.Popen
    starts = iter([start])

    def once(*arguments: Any, **options: Any) -> Any:
        for real in starts:
            return real(*arguments, **options)
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(supervisor.subprocess, "Popen", once)
    done = run("control.sendall(READY); os.kill(os.getpid(), signal.SIGKILL)", tmp_path)

    assert (done.status, done.num_starts) == (1, 1)
    assert "ended 3 times in a row" in done.told[0]


def test_deaths_after_a_long_life_do_not_add_up(tmp_path: Path) -> None:
    script = """
        control.sendall(READY)
        if number == 7:
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(60)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = run(script, tmp_path, Patience(0.0, 3, 0.01, 0.02))

    assert (done.status, done.num_starts, done.told) == (0, 8, [])


@pytest.mark.parametrize(
    ("end", "status", "told"),
    [
        ("sys.exit(2)", 2, []),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            1,
            ["the server was killed by SIGKILL before it was ready"],
        ),
    ],
)
def test_a_start_that_fails_is_not_tried_again(
    tmp_path: Path, end: str, status: int, told: list[str]
) -> None:
    done = run(end, tmp_path)

    assert (done.status, done.num_starts, done.told) == (status, 1, told)


def test_a_signal_while_it_waits_to_start_again_ends_it(tmp_path: Path) -> None:
    # The process leaves a child that presses Ctrl-C once nobody serves.
    script = """
        control.sendall(READY)
        parent = os.getppid()
        if os.fork() == 0:
            control.close()
            while os.getppid() != 1 and os.getppid() == parent:
                time.sleep(0.01)
            time.sleep(0.3)
            os.kill(parent, signal.SIGINT)
            os._exit(0)
        os._exit(1)
    """
    done = run(script, tmp_path, Patience(60.0, 3, 3_600.0, 3_600.0))

    assert (done.status, done.num_starts, done.told) == (0, 1, [])


HANGS = """
    def hang(then=lambda: None):
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        control.sendall(READY)
        then()
        time.sleep(600)
"""


def in_turn(*lives: str) -> str:
    """A script that lives its first life when it is started first, and so on."""
    parts = [f"    if number == {number}:\n        {life}\n" for number, life in enumerate(lives)]
    return HANGS + "".join(parts)


def test_process_that_gives_no_sign_is_ended_and_another_one_learns_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "END_GRACE_S", 0.1)
    told = tmp_path / "told"
    script = in_turn("hang()", f"open({str(told)!r}, 'w').write(json.dumps(told))", "hang()")
    done = run(script, tmp_path, timeout_s=MIN_TIMEOUT_S)

    assert (done.status, done.num_starts) == (1, 3)
    assert json.loads(told.read_text())["num_restarts"] == {"died": 0, "hung": 1}
    [hangs, killed] = caplog.messages[:2]
    assert hangs.startswith("the engine's process has not moved for 2.5 s (--watchdog-timeout)")
    assert killed == "the engine's process was killed by SIGKILL: starting it in 0.01 s"


def test_process_that_says_it_stands_still_is_ended(tmp_path: Path) -> None:
    script = """
        control.sendall(READY)
        for _ in range(600):
            control.sendall(STILL)
            time.sleep(0.1)
    """
    done = run(script, tmp_path, Patience(max_quick_deaths=1), timeout_s=MIN_TIMEOUT_S)

    assert (done.status, done.num_starts) == (1, 1)
    assert "the last time it was killed by SIG" in done.told[0]


def test_process_that_moves_is_let_be_and_so_is_one_that_loads(tmp_path: Path) -> None:
    script = """
        time.sleep(3)
        control.sendall(READY)
        for _ in range(10):
            control.sendall(MOVED)
            time.sleep(0.3)
        os.kill(os.getppid(), signal.SIGTERM)
        sys.exit(0)
    """
    done = run(script, tmp_path, timeout_s=MIN_TIMEOUT_S)

    assert (done.status, done.num_starts, done.told) == (0, 1, [])


def test_process_that_hangs_when_it_is_to_stop_is_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "END_GRACE_S", 0.1)
    script = in_turn("hang(lambda: os.kill(os.getppid(), signal.SIGTERM))")
    done = run(script, tmp_path, timeout_s=MIN_TIMEOUT_S)

    assert (done.num_starts, done.told) == (1, [])
    assert "has not moved for 2.5 s" in caplog.text


def test_a_process_of_its_own_has_no_supervisor() -> None:
    with supervisor_of({}) as supervisor:
        assert supervisor is None


def test_a_place_for_temporary_files_that_is_too_long_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    listening = socket.create_server(("127.0.0.1", 0))
    with listening, pytest.raises(ConfigError, match="TMPDIR"):
        supervise([sys.executable, "-c", ""], listening, "http://x", lambda line: None, Limits())


def test_signals_are_as_before_afterwards(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    run("sys.exit(2)", tmp_path)

    assert signal.getsignal(signal.SIGTERM) is before
