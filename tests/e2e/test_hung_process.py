"""A supervised server whose process hangs: clients are told, and another takes its place."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from e2e import processes
from e2e.processes import WAIT_S, Server, run, serving
from e2e.streams import streaming
from e2e.supervision import ask, engine_process, num_ready, wait_for
from tiny_model import write_model

ENDLESS = 200_000
TIMEOUT_S = 4
# Python runs this module first in each of its processes. What is asked for in a file happens in the
# last layer of the next step, once.
FAULTS = f"""
import ctypes, os, pathlib, threading, time

if "EVERBATCH_SUPERVISED" in os.environ:
    from everbatch.kernels.reference import ReferenceStep

    wish = pathlib.Path(os.environ["FAULT"])
    run_layer = ReferenceStep.norm_mlp_add

    def hang_in(layer):
        fault = wish.read_text() if wish.exists() else ""
        if fault == "takes long":
            time.sleep({TIMEOUT_S} * 0.75)
        if not fault or layer == 0:
            return
        wish.unlink()
        if fault == "waits":
            threading.Event().wait()
        if fault == "keeps the lock":
            # A thread waits for itself, in C, and PyDLL does not let go of Python's lock.
            library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
            library.pthread_mutex_lock(mutex)
            library.pthread_mutex_lock(mutex)

    def norm_mlp_add(self, layer, hidden):
        hang_in(layer)
        return run_layer(self, layer, hidden)

    ReferenceStep.norm_mlp_add = norm_mlp_add
"""


class Faulty:
    """A supervised server with a file of wishes."""

    def __init__(self, server: Server, wish: Path) -> None:
        self.server = server
        self._wish = wish

    def wish(self, fault: str) -> None:
        written = self._wish.with_suffix(".new")
        written.write_text(fault)
        written.rename(self._wish)

    def is_wished(self) -> bool:
        return self._wish.exists()

    def status_of(
        self, path: str, get: Callable[..., httpx.Response] = httpx.get
    ) -> tuple[int, str]:
        """Ask over a connection of its own, or over one that is there."""
        answer = get(f"{self.server.url}{path}", timeout=WAIT_S)
        return answer.status_code, answer.json()["error"]["code"] if answer.content else ""

    def is_known_to_hang(self) -> bool:
        # Who asks before it is known may get no answer.
        with suppress(httpx.ReadTimeout):
            return httpx.get(f"{self.server.url}/ready", timeout=0.3).status_code == 503
        return False


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    return write_model(directory, max_position_embeddings=ENDLESS + 1_000)


@contextmanager
def faulty(model: Path, directory: Path, *flags: str) -> Iterator[Faulty]:
    (directory / "sitecustomize.py").write_text(FAULTS)
    path = os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(processes.ENVIRON, "PYTHONPATH", path)
        patch.setitem(processes.ENVIRON, "FAULT", str(directory / "wish"))
        command = ("--supervise", "--step-timeout", "0.6", "--kernels", "reference", *flags)
        with serving(model, *command) as server:
            yield Faulty(server, directory / "wish")
            assert server.stop() == 0


@pytest.mark.parametrize("fault", ["waits", "keeps the lock"])
def test_process_that_hangs_is_replaced_and_all_are_told(
    model: Path, tmp_path: Path, fault: str
) -> None:
    with faulty(model, tmp_path, "--watchdog-timeout", str(TIMEOUT_S)) as one:
        server = one.server
        text, process = ask(server), engine_process(server)
        with httpx.Client() as known, streaming(server.url, ENDLESS) as stream:
            ready = one.status_of("/ready", known.get)
            one.wish(fault)
            wait_for(one.is_known_to_hang)
            hangs = [one.status_of("/ready"), one.status_of("/ready", known.get)]
            health = one.status_of("/health")
            stream.read_to_the_end()
            # Its clients are told before it has ended.
            restarts = one.status_of("/ready")
        wait_for(lambda: num_ready(server) == 2)
        again, samples = ask(server), httpx.get(f"{server.url}/metrics", timeout=WAIT_S).text
        told = server.told.text

        assert engine_process(server) != process
    assert (ready, health) == ((200, ""), (200, ""))
    assert hangs == [(503, "engine_hangs")] * 2
    assert restarts == (503, "engine_restarts")
    assert stream.error is not None
    assert (stream.error["code"], stream.ended, stream.cut) == ("engine_died", True, False)
    assert again == text
    assert 'process_restarts_total{cause="hung",model_name=' in samples
    assert server_restarts(samples) == {"died": 0.0, "hung": 1.0}
    assert "has not moved for 4.5 s (--watchdog-timeout): ending it; where it stands:" in told
    if fault == "keeps the lock":
        assert "has given no sign of life for 1 s: new requests get 503" in told
    # The stack of the thread that hangs, down to the fault.
    assert " in hang_in\n" in told
    assert "the engine's process was killed by SIGKILL: starting it in 0.5 s" in told


def server_restarts(samples: str) -> dict[str, float]:
    lines = [line for line in samples.splitlines() if "process_restarts_total{" in line]
    return {line.split('cause="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}


def test_step_that_takes_longer_than_the_limit_and_moves_is_let_be(
    model: Path, tmp_path: Path
) -> None:
    with faulty(model, tmp_path, "--watchdog-timeout", str(TIMEOUT_S)) as one:
        with streaming(one.server.url, ENDLESS) as stream:
            # Each of the two layers takes three quarters of the limit.
            one.wish("takes long")
            while one.is_wished():
                assert stream.read_chunk()
            assert stream.read_chunk()
        told = one.server.told.text

        assert num_ready(one.server) == 1
    assert "the engine has been in one step for" in told
    assert "has not moved" not in told


def test_watchdog_without_a_process_to_watch_is_refused(model: Path) -> None:
    done = run("serve", model, "--port", "0", "--watchdog-timeout", "60")

    processes.assert_one_line_error(done, "--watchdog-timeout", "--supervise")
