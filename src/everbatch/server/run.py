"""Listening, and stopping in order.

Belongs here: the socket, uvicorn, signals. Not here: the application. `everbatch serve` binds the
socket before it loads a model, so a port in use is known at once; assemble then serves on it.

The first SIGTERM or SIGINT: new requests get 503, running ones have the grace time to finish, what
is left then ends with finish_reason "abort" and an error. The second: the server stops at once.
"""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import uvicorn
from fastapi import FastAPI

from everbatch.base.errors import ConfigError, EverbatchError
from everbatch.base.units import counted
from everbatch.server.bridge import AsyncEngine, EngineState
from everbatch.server.connections import ClientConnection, RelayedConnection
from everbatch.server.open_files import allow_connections

logger = logging.getLogger("everbatch.server")

MAX_PORT = 65_535
BACKLOG = 2_048
# The loop accepts one connection a turn from each socket that listens, and a turn of a busy server
# takes milliseconds: probes would wait for seconds behind a thousand clients that come at once.
ACCEPTS_A_TURN = 16
# Clients of a benchmark reuse connections after pauses; OpenAI's keeps them for a minute.
KEEP_ALIVE_S = 75
# Engine requests have ended by then; this is for clients that do not read their answers.
FLUSH_S = 5


def bind_socket(host: str, port: int) -> socket.socket:
    """Listen on host and port; port 0 takes a free one. Raises ConfigError.

    It listens at once, because two sockets may be bound to one port as long as neither does.
    Clients that connect before `serve` wait in the backlog.
    """
    if not 0 <= port <= MAX_PORT:
        raise ConfigError(f"--port must lie in [0, {MAX_PORT}], got {port}")
    try:
        [family, kind, protocol, _, address] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"the host {host!r} is not known ({error}): check --host") from error
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigError(_bind_problem(host, port, error)) from error
    return listening


def bind_path(path: str) -> socket.socket:
    """Listen on a Unix socket of this path, in place of one that is there."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(path)
    listening.listen(BACKLOG)
    return listening


@contextmanager
def more_of(listening: socket.socket) -> Iterator[list[socket.socket]]:
    """Give as many sockets as a turn shall accept connections, all of them this one; they are
    closed at the end."""
    all_listening = [listening]
    try:
        for _ in range(ACCEPTS_A_TURN - 1):
            all_listening.append(listening.dup())
        yield all_listening
    finally:
        for one in all_listening:
            one.close()


async def serve(
    app: FastAPI,
    engine: AsyncEngine,
    listening: socket.socket,
    grace_s: float,
    on_ready: Callable[[], None] = lambda: None,
    supervisor: socket.socket | None = None,
) -> None:
    """Serve until a signal comes; `on_ready` is called once requests are answered.

    Closes the socket. Run it in a loop of uvloop; signals need the main thread. With a `supervisor`
    clients come by its front (front.py); the server stops at once when that socket ends, and raises
    EngineDied when its engine has died, to be started anew.
    """
    allow_connections()
    config = uvicorn.Config(
        app,
        http=ClientConnection if supervisor is None else RelayedConnection,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=FLUSH_S,
    )
    server = _Server(config, engine, grace_s, on_ready, supervisor)
    with more_of(listening) as all_listening:
        await server.serve(sockets=all_listening)
    if server.engine_died:
        raise EngineDied("the engine has failed, this process ends: why is in the lines above")


class EngineDied(EverbatchError):
    """Only a new process can serve."""


class _Server(uvicorn.Server):
    """uvicorn with the engine's own way to stop; these methods are its seams."""

    def __init__(
        self,
        config: uvicorn.Config,
        engine: AsyncEngine,
        grace_s: float,
        on_ready: Callable[[], None],
        supervisor: socket.socket | None,
    ) -> None:
        super().__init__(config)
        self._supervisor = supervisor
        self.engine_died = False
        self._engine = engine
        self._grace_s = grace_s
        self._on_ready = on_ready
        self._drain: asyncio.Task[None] | None = None
        self._num_signals = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self._supervisor is not None:
            self._loop.add_reader(self._supervisor, self._supervisor_gone)
        self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        if self._supervisor is not None and self._engine.state is EngineState.DEAD:
            self.engine_died = self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self.force_exit:
            # uvicorn would leave it to be cancelled, and log that as an error. It is quick: the
            # engine was abandoned.
            await self.lifespan.shutdown()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal; uvicorn installs this as the handler while it serves."""
        self._loop.call_soon_threadsafe(self._stop_step)

    def _stop_step(self) -> None:
        self._num_signals += 1
        if self._num_signals == 1:
            self._say_that_it_stops()
            self._engine.begin_drain()
            self._drain = asyncio.create_task(self._finish_within_grace())
        else:
            logger.warning("a second signal: stopping at once")
            # uvicorn still gives the answers of those who run a tenth of a second to go out.
            self._engine.abandon()
            self.should_exit = self.force_exit = True

    def _supervisor_gone(self) -> None:
        assert self._supervisor is not None
        self._loop.remove_reader(self._supervisor)
        logger.error("the supervisor has ended, and with it all connections: stopping at once")
        self._engine.abandon()
        self.should_exit = self.force_exit = True

    def _say_that_it_stops(self) -> None:
        stats = self._engine.stats
        unfinished = stats.num_running + stats.num_waiting
        if unfinished:
            logger.info(
                "stopping: %s may still finish within %g s; a second signal ends all at once",
                counted(unfinished, "request"),
                self._grace_s,
            )
        else:
            logger.info("stopping")

    async def _finish_within_grace(self) -> None:
        try:
            await asyncio.wait_for(self._engine.wait_idle(), self._grace_s)
        except TimeoutError:
            logger.warning("requests still run after %g s: ending them", self._grace_s)
            self._engine.abort_all()
        self.should_exit = True


def _bind_problem(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"port {port} on {host} is in use: stop what listens there or choose another "
                "with --port (0: any free one)"
            )
        case errno.EACCES:
            return f"port {port} needs privileges: choose one above 1023 with --port"
        case errno.EADDRNOTAVAIL:
            return f"{host} is no address of this machine: choose another with --host"
        case _:
            return f"cannot listen on {host} port {port} ({error}): check --host and --port"
