"""Keeps a server served: starts its process, again when it dies or hangs, and stops with it.

Belongs here: the process, its signals, how often it may die. Not here: what clients see of it
(server.front), when it hangs (watchdog.py), what the process does (server.py). Called by
`everbatch serve --supervise`.

The process has one socket pair with this one: over it it tells that it is ready and that it lives,
and sees by its end that nobody is in front of it any more. It is in a process group of its own, so
that Ctrl-C comes to it once.
"""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from everbatch.assemble.service_manager import ServiceManager
from everbatch.assemble.supervised import READY, TELL_STACKS, VARIABLE
from everbatch.assemble.watchdog import LOOK_S, Limits, Watchdog
from everbatch.base.errors import ConfigError
from everbatch.base.units import counted
from everbatch.server.front import Front
from everbatch.server.metrics import RESTARTS
from everbatch.server.open_files import allow_connections
from everbatch.server.run import more_of

logger = logging.getLogger("everbatch.supervisor")

EXIT_GIVEN_UP = 1
FLUSH_S = 5.0
END_GRACE_S = 5.0
"""For a process that hangs to end in order; its clients have been told by then."""
MAX_SIGNS = 1_024
"""Read at once, a byte each."""
MAX_PATH_BYTES = 100
"""Linux takes 107."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait before a start, and when to give up.

    A process that dies within `quick_s` of being ready, or before it is, has died quickly; so often
    in a row it may. Waits double from `first_wait_s` to `max_wait_s`.
    """

    quick_s: float = 60.0
    max_quick_deaths: int = 5
    first_wait_s: float = 0.5
    max_wait_s: float = 30.0

    def wait_s(self, num_quick_deaths: int) -> float:
        """Give the wait after so many quick deaths in a row; after none it is the shortest."""
        return min(self.first_wait_s * 2.0 ** max(0, num_quick_deaths - 1), self.max_wait_s)


@dataclass(frozen=True, slots=True)
class _Life:
    """What became of one process. ready_s: for how long it was ready; None: it never was."""

    ready_s: float | None
    status: int
    hung: bool = False


def supervise(
    command: Sequence[str],
    listening: socket.socket,
    url: str,
    tell: Callable[[str], None],
    limits: Limits,
    patience: Patience | None = None,
) -> int:
    """Serve with a process of this command until a signal comes; gives the exit status.

    `url`: where clients reach `listening`, which is closed at the end. `tell` gets what must be
    said to whoever started it. Raises ConfigError if there is no place for a socket.
    """
    allow_connections()
    with (
        TemporaryDirectory(prefix="everbatch-") as directory,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        path = str(Path(directory) / "engine.sock")
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise ConfigError(
                f"the path of a Unix socket may have {MAX_PATH_BYTES} bytes, {path} has more: set "
                "TMPDIR to a shorter one"
            )
        kept = _Supervisor(command, path, url, tell, limits, patience or Patience())
        return runner.run(kept.run(listening))


class _Supervisor:
    def __init__(
        self,
        command: Sequence[str],
        path: str,
        url: str,
        tell: Callable[[str], None],
        limits: Limits,
        patience: Patience,
    ) -> None:
        self._command = command
        self._url = url
        self._tell = tell
        self._patience = patience
        self._limits = limits
        self._num_restarts = dict.fromkeys(RESTARTS, 0)
        self._front = Front(path)
        self._manager = ServiceManager.of(os.environ)
        self._process: subprocess.Popen[bytes] | None = None
        self._accepting: list[asyncio.Server] = []
        self._stop = asyncio.Event()

    async def run(self, listening: socket.socket) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        # A process that dies is our matter: as long as this one runs, all is well.
        signs = asyncio.create_task(self._manager.give_signs_of_life(lambda: True))
        try:
            with more_of(listening) as all_listening:
                return await self._keep_serving(all_listening)
        finally:
            signs.cancel()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            for server in self._accepting:
                server.close()
            await self._flush()

    async def _keep_serving(self, listening: Sequence[socket.socket]) -> int:
        num_quick, status = 0, 0
        while not self._stop.is_set():
            life = await self._serve_once(listening)
            status = life.status
            self._front.is_up = False
            if self._stop.is_set():
                break
            if not self._accepting:
                # It has said why, if it could.
                if status < 0:
                    self._tell(f"the server {_how(status)} before it was ready")
                return status if status > 0 else EXIT_GIVEN_UP
            is_quick = life.ready_s is None or life.ready_s < self._patience.quick_s
            num_quick = num_quick + 1 if is_quick else 0
            if num_quick >= self._patience.max_quick_deaths:
                self._tell(self._farewell(num_quick, status))
                return EXIT_GIVEN_UP
            wait_s = self._patience.wait_s(num_quick)
            logger.error("the engine's process %s: starting it in %g s", _how(status), wait_s)
            self._num_restarts["hung" if life.hung else "died"] += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), wait_s)
                return 0
        return max(status, 0)

    def _farewell(self, num_quick: int, status: int) -> str:
        return (
            f"the engine's process ended {counted(num_quick, 'time')} in a row within "
            f"{self._patience.quick_s:g} s of its start, the last time it {_how(status)}: giving "
            "up; why is in the messages above, or in the system's log if it was killed"
        )

    async def _serve_once(self, listening: Sequence[socket.socket]) -> _Life:
        """Run a process to its end; one that cannot be started, as there is no memory for it, has
        died at once."""
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            with theirs:
                try:
                    process = self._process = self._start(theirs)
                except OSError as error:
                    logger.error("the engine's process cannot be started: %s", error)
                    return _Life(None, EXIT_GIVEN_UP)
            began_s = time.monotonic()
            if not await _becomes_ready(ours):
                return _Life(None, await asyncio.to_thread(process.wait))
            ready_s = time.monotonic()
            self._front.retry_after_s = max(1, round(ready_s - began_s))
            await self._open(listening)
            status, hung = await self._watch(ours, process)
        self._process = None
        return _Life(time.monotonic() - ready_s, status, hung)

    async def _open(self, listening: Sequence[socket.socket]) -> None:
        """Pass clients on to the process."""
        self._front.is_up = True
        if self._accepting:
            return
        loop = asyncio.get_running_loop()
        for one in listening:
            self._accepting.append(await loop.create_server(self._front.new_client, sock=one))
        self._manager.tell_ready()

    async def _watch(
        self, control: socket.socket, process: subprocess.Popen[bytes]
    ) -> tuple[int, bool]:
        """Wait for the end of a process that is ready; end it if it hangs. Gives its status and
        whether it hung."""
        ended = asyncio.create_task(asyncio.to_thread(process.wait))
        hangs = asyncio.create_task(self._wait_until_it_hangs(control))
        await asyncio.wait((ended, hangs), return_when=asyncio.FIRST_COMPLETED)
        hung = not ended.done()
        if hung:
            logger.error(
                "the engine's process has not moved for %g s (--watchdog-timeout): ending it; "
                "where it stands:",
                hangs.result(),
            )
            self._front.leave_process()
            process.send_signal(TELL_STACKS)
            process.terminate()
            await asyncio.wait((ended,), timeout=END_GRACE_S)
            process.kill()
        hangs.cancel()
        with suppress(asyncio.CancelledError):
            await hangs
        return await ended, hung

    async def _wait_until_it_hangs(self, control: socket.socket) -> float:
        """Take in signs of life until they have been lacking for too long; gives how long."""
        watchdog = Watchdog(self._limits)
        loop = asyncio.get_running_loop()

        def hear() -> None:
            with suppress(OSError):
                if signs := control.recv(MAX_SIGNS):
                    watchdog.heard(signs)
                    return
            loop.remove_reader(control)

        loop.add_reader(control, hear)
        try:
            while (still_s := watchdog.still_s) is None:
                await asyncio.sleep(LOOK_S)
                watchdog.look()
                self._note_silence(watchdog.silent_s)
            return still_s
        finally:
            loop.remove_reader(control)
            self._front.silent_s = None

    def _note_silence(self, silent_s: float | None) -> None:
        if silent_s is not None and self._front.silent_s is None:
            logger.error(
                "the engine's process has given no sign of life for %g s: new requests get 503",
                silent_s,
            )
        if silent_s is None and self._front.silent_s is not None:
            logger.warning("the engine's process gives signs of life again")
        self._front.silent_s = silent_s

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        told = {
            "fd": theirs.fileno(),
            "path": self._front.path,
            "url": self._url,
            "num_restarts": self._num_restarts,
        }
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            env={**os.environ, VARIABLE: json.dumps(told)},
            pass_fds=(theirs.fileno(),),
            process_group=0,
        )

    def _signalled(self, number: signal.Signals) -> None:
        self._stop.set()
        self._front.is_stopping = True
        if self._process is not None:
            self._process.send_signal(number)

    async def _flush(self) -> None:
        """Give the last bytes some time to go out."""
        self._front.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                while self._front.clients:
                    await asyncio.sleep(0.01)


async def _becomes_ready(control: socket.socket) -> bool:
    """Wait until the process is ready; False: it has ended before."""
    loop = asyncio.get_running_loop()
    while told := await loop.sock_recv(control, MAX_SIGNS):
        if READY in told:
            return True
    return False


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    return f"was killed by {signal.Signals(-status).name}"
