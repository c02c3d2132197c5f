"""Connections to one server: a request out, its answer in, byte by byte as it comes.

Belongs here: sockets, HTTP/1.1, which connection is used again. Not here: what the bytes of an
answer mean (answer.py). A token costs one call of the event loop and one of the parser in C; no
task is woken for it.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from httptools import HttpParserError, HttpResponseParser

from everbatch.base.errors import EverbatchError
from everbatch.loadgen.target import Target

CONNECT_TIMEOUT_S = 30.0
MAX_COLLECTED_BYTES = 1 << 20


class AnswerCut(EverbatchError):
    """A connection broke, or what came over it is no HTTP, before the answer was whole."""


class Exchange(Protocol):
    """Hears what the server answers to one request."""

    def begun(self, status: int, headers: Mapping[str, str]) -> None:
        """Hear status and headers; their names are in lower case."""
        ...

    def received(self, data: bytes, now_ns: int) -> bool:
        """Hear a piece of the body; False leaves: the connection is closed at once."""
        ...


class Connection(asyncio.Protocol):
    """One connection; it carries one exchange at a time."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._transport: asyncio.Transport | None = None
        self._parser = HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._done: asyncio.Future[None] | None = None
        self._headers: dict[str, str] = {}
        self._time = 0
        self._is_left = False
        self._has_head = False
        self.has_answered = False
        """Whether anything of the present answer has come."""
        self.is_usable = False
        """Whether the next exchange may use it."""

    async def carry(self, message: bytes, exchange: Exchange) -> None:
        """Send a request and return when its answer is over. AnswerCut if it broke.

        Whoever cancels this leaves: the connection is closed.
        """
        assert self._transport is not None
        self._parser = HttpResponseParser(self)
        self._exchange = exchange
        self._headers = {}
        self._has_head = self.has_answered = self.is_usable = False
        self._done = asyncio.get_running_loop().create_future()
        if self._transport.is_closing():
            raise AnswerCut("the connection is closed")
        self._transport.write(message)
        try:
            await self._done
        finally:
            self._exchange = None
            if not self.is_usable:
                self.close()

    def close(self) -> None:
        self.is_usable = False
        if self._transport is not None:
            self._transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are of a class of their own.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._time = self._now_ns()
        if self._exchange is None:
            # Nobody asked for anything.
            self.close()
            return
        self.has_answered = True
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._end(AnswerCut(f"what came is no HTTP ({error})"))
        if self._is_left:
            self.close()
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_usable = False
        is_whole = self._has_head and self._lasts_until_close()
        told = "the server closed the connection" if exc is None else str(exc)
        self._end(None if is_whole else AnswerCut(told or type(exc).__name__))

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._has_head = True
        assert self._exchange is not None
        self._exchange.begun(self._parser.get_status_code(), self._headers)

    def on_body(self, body: bytes) -> None:
        if not self._is_left and self._exchange is not None:
            self._is_left = not self._exchange.received(body, self._time)

    def on_message_complete(self) -> None:
        self.is_usable = not self._is_left and self._parser.should_keep_alive()
        self._end()

    def _lasts_until_close(self) -> bool:
        return not {"content-length", "transfer-encoding"} & self._headers.keys()

    def _end(self, error: AnswerCut | None = None) -> None:
        if self._done is None or self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)


class ConnectionPool:
    """Opens connections as they are needed, and uses again what the server keeps open."""

    def __init__(self, target: Target, now_ns: Callable[[], int]) -> None:
        self._target = target
        self._now_ns = now_ns
        self._tls = ssl.create_default_context() if target.is_tls else None
        self._idle: list[Connection] = []
        """The one used last is the last: it is the least likely to be closed already."""

    async def carry(self, message: bytes, exchange: Exchange) -> None:
        """Carry out one exchange. OSError if no connection is made, AnswerCut if it breaks."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_usable:
                continue
            try:
                await connection.carry(message, exchange)
            except AnswerCut:
                if connection.has_answered:
                    raise
                # The server had closed it, having waited too long for a request.
                continue
            self._keep(connection)
            return
        connection = await self._connect()
        await connection.carry(message, exchange)
        self._keep(connection)

    def close(self) -> None:
        """Close what is kept open."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _keep(self, connection: Connection) -> None:
        if connection.is_usable:
            self._idle.append(connection)

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        target = self._target
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await loop.create_connection(
                lambda: Connection(self._now_ns), target.host, target.port, ssl=self._tls
            )
        return connection


class Collected:
    """An exchange that keeps status and body, at most so many bytes of it."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.body = b""

    def begun(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, headers

    def received(self, data: bytes, now_ns: int) -> bool:
        self.body += data
        return len(self.body) <= MAX_COLLECTED_BYTES
