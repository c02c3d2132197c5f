"""Keeps a server served: starts its process, brings it back when it dies, and stops with it.

Belongs here: the process, its signals, how often it may die. Not here: what clients see of it
(server.front), what the process does (server.py). Called by `everbatch serve --supervise`.

The process has one socket pair with this one: over it it tells that it is ready, and sees by its
end that nobody is in front of it any more. It is in a process group of its own, so that Ctrl-C
comes to it once.
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
from everbatch.assemble.supervised import READY, VARIABLE
from everbatch.base.errors import ConfigError
from everbatch.base.units import counted
from everbatch.server.front import Front
from everbatch.server.open_files import allow_connections
from everbatch.server.run import more_of

logger = logging.getLogger("everbatch.supervisor")

EXIT_GIVEN_UP = 1
FLUSH_S = 5.0
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


def supervise(
    command: Sequence[str],
    listening: socket.socket,
    url: str,
    tell: Callable[[str], None],
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
        kept = _Supervisor(command, path, url, tell, patience or Patience())
        return runner.run(kept.run(listening))


class _Supervisor:
    def __init__(
        self,
        command: Sequence[str],
        path: str,
        url: str,
        tell: Callable[[str], None],
        patience: Patience,
    ) -> None:
        self._command = command
        self._url = url
        self._tell = tell
        self._patience = patience
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
            lived_s, status = await self._serve_once(listening)
            self._front.is_up = False
            if self._stop.is_set():
                break
            if not self._accepting:
                # It has said why, if it could.
                if status < 0:
                    self._tell(f"the server {_how(status)} before it was ready")
                return status if status > 0 else EXIT_GIVEN_UP
            is_quick = lived_s is None or lived_s < self._patience.quick_s
            num_quick = num_quick + 1 if is_quick else 0
            if num_quick >= self._patience.max_quick_deaths:
                self._tell(self._farewell(num_quick, status))
                return EXIT_GIVEN_UP
            wait_s = self._patience.wait_s(num_quick)
            logger.error("the engine's process %s: starting it in %g s", _how(status), wait_s)
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

    async def _serve_once(self, listening: Sequence[socket.socket]) -> tuple[float | None, int]:
        """Run the process to its end; gives for how many seconds it was ready, and its status.

        One that cannot be started, as there is no memory for it, has died at once.
        """
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            with theirs:
                try:
                    process = self._process = self._start(theirs)
                except OSError as error:
                    logger.error("the engine's process cannot be started: %s", error)
                    return None, EXIT_GIVEN_UP
            began_s = time.monotonic()
            is_ready = await loop.sock_recv(ours, len(READY)) == READY
            ready_s = time.monotonic()
            if is_ready:
                self._front.retry_after_s = max(1, round(ready_s - began_s))
                self._front.is_up = True
                if not self._accepting:
                    self._accepting = [
                        await loop.create_server(self._front.new_client, sock=one)
                        for one in listening
                    ]
                    self._manager.tell("READY=1")
            status = await asyncio.to_thread(process.wait)
        self._process = None
        return (time.monotonic() - ready_s if is_ready else None), status

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        told = {"fd": theirs.fileno(), "path": self._front.path, "url": self._url}
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


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    return f"was killed by {signal.Signals(-status).name}"
