"""The front of a supervised server: it holds the clients' connections while the process that
serves them, the engine's, may die and come back.

Belongs here: carrying bytes both ways, and ending what a dead process left open. Not here: the
process, and whether it lives (assemble), what an answer says. A connection of a client has one of
its own to the process, over a Unix socket; bytes go through as they are, and a parser in C only
follows where answers begin and end. Neither side is read while the other does not take what came.
"""

import asyncio
from collections import deque
from math import ceil
from typing import cast

import httptools

from everbatch.server.connections import origin_line, raw_answer
from everbatch.server.errors import unavailable
from everbatch.server.front_words import Answered, stream_end
from everbatch.server.request_parser import RequestParser
from everbatch.server.service_rate import MAX_RETRY_S

SILENT_S = 30.0
"""For a client to ask for something while nobody serves."""
MAX_UNSENT_BYTES = 1 << 20
LINGER_S = 10.0
"""For a client to read its last words and to stop sending; closing at once could lose them."""
ALIVE = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Front:
    """All clients' connections. Belongs to one event loop."""

    def __init__(self, path: str) -> None:
        """`path`: of the socket on which the process listens while it serves."""
        self.path = path
        self.is_up = False
        """Whether the process is ready; then it has the say, also while it stops."""
        self.silent_s: float | None = None
        """For how long the process has given no sign, if that is too long; None: it is not."""
        self.is_stopping = False
        self.retry_after_s = 1
        self.clients: set[ClientSide] = set()

    @property
    def takes_requests(self) -> bool:
        """Whether whoever asks now is passed on to the process."""
        return self.is_up and self.silent_s is None

    def new_client(self) -> "ClientSide":
        return ClientSide(self)

    def leave_process(self) -> None:
        """Go on as if the process had died: its clients are told, and nobody is passed on to it."""
        self.is_up = False
        for client in list(self.clients):
            client.leave_process()

    def close(self) -> None:
        """Close what is open, once what was written has gone out."""
        self.is_stopping = True
        for client in list(self.clients):
            client.close()

    def last_words(self, path: str) -> bytes:
        """Give the answer to who asked for `path` while nobody serves."""
        if self.is_stopping:
            error = unavailable("the server is shutting down", "shutting_down")
        elif path.partition("?")[0] == "/health":
            # The probe of whoever restarts processes: that is being done.
            return ALIVE
        elif self.is_up and self.silent_s is not None:
            error = unavailable(
                f"the engine's process has given no sign of life for {self.silent_s:.1f} s",
                "engine_hangs",
                retry_after_s=min(ceil(self.silent_s), MAX_RETRY_S),
            )
        else:
            error = unavailable(
                "the engine's process has ended and is being started again: ask again in a moment",
                "engine_restarts",
                retry_after_s=self.retry_after_s,
            )
        return raw_answer(error)


class ClientSide(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._requests = RequestParser(self)
        self._answers = Answered()
        self._url = b""
        self._has_head = False
        self._asked: deque[str] = deque()
        """Paths of requests that have begun and whose answers have not ended."""
        self._is_followed = True
        """Whether the parsers know where requests and answers begin and end."""
        self._server: _ServerSide | None = None
        self._unsent: list[bytes] = []
        """What came before there was a connection to the process."""
        self._connecting: asyncio.Task[None] | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        """From the last words on."""
        self.transport: asyncio.Transport

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._front.clients.add(self)
        if self._front.takes_requests:
            # At once, so that the process's limits on slow requests count from here.
            self._begin_connecting()
        else:
            self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._front.clients.discard(self)
        for timer in (self._silence, self._linger):
            if timer is not None:
                timer.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._server is not None:
            self._server.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._linger is not None:
            return
        is_first = self._is_followed and not self._asked
        self._follow_requests(data)
        if is_first and self._front.silent_s is not None:
            # The process would not read it.
            self._forget_server()
        if self._server is not None:
            self._server.transport.write(data)
            return
        self._unsent.append(data)
        if self._connecting is None and self._front.takes_requests:
            self._begin_connecting()
        if self._connecting is not None:
            self.transport.pause_reading()
            return
        is_much = sum(map(len, self._unsent)) > MAX_UNSENT_BYTES
        if self._has_head or is_much or not self._is_followed:
            self._say_last_words()

    def pause_writing(self) -> None:
        if self._server is not None:
            self._server.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._server is not None:
            self._server.transport.resume_reading()

    # What the parser of requests calls.

    def on_message_begin(self) -> None:
        self._url, self._has_head = b"", False
        self._asked.append("")

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None: ...

    def on_headers_complete(self) -> None:
        self._has_head = True
        self._asked[-1] = self._url.decode("latin-1")
        if self._requests.get_method() == b"HEAD":
            # Its answer tells a length and has no body.
            self._is_followed = False

    def on_body(self, body: bytes) -> None: ...

    def on_message_complete(self) -> None: ...

    # What the connection to the process calls.

    def answer_received(self, data: bytes) -> None:
        """Hand on what the process answers."""
        if self._is_followed:
            try:
                for _ in range(self._answers.feed(data)):
                    self._asked.popleft()
            except (httptools.HttpParserError, IndexError):
                self._is_followed = False
        self.transport.write(data)

    def server_lost(self, server: "_ServerSide") -> None:
        """Learn that the process, or this connection to it, is gone."""
        if server is not self._server:
            return
        self._server = None
        if self.transport.is_closing() or self._linger is not None:
            return
        if not self._is_followed or self._answers.closes:
            # It has said why it closes.
            self.close()
        elif self._asked:
            self._say_last_words()
        elif self._front.is_stopping:
            self.close()
        else:
            # Who asks next may be on its way; there will be another process for it.
            self._wait_for_request()

    def leave_process(self) -> None:
        """Do without the process from now on."""
        if (server := self._server) is not None:
            server.transport.abort()
            self.server_lost(server)

    def close(self) -> None:
        """Close when what was written has gone out."""
        if self._linger is None:
            self.transport.close()

    def _forget_server(self) -> None:
        if self._server is not None:
            self._server.transport.abort()
            self._server = None

    def _follow_requests(self, data: bytes) -> None:
        if not self._is_followed:
            return
        try:
            self._requests.feed_data(data)
        except httptools.HttpParserError:
            # The process says what is wrong with it.
            self._is_followed = False

    def _wait_for_request(self) -> None:
        self._silence = asyncio.get_running_loop().call_later(SILENT_S, self.transport.abort)

    def _begin_connecting(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
        self._connecting = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_unix_connection(lambda: _ServerSide(self), self._front.path)
        except OSError:
            self._connecting = None
            if self._unsent:
                self._say_last_words()
        else:
            self._connecting = None
        self.transport.resume_reading()

    def server_made(self, server: "_ServerSide") -> None:
        """Send what has come so far over a new connection to the process."""
        self._server = server
        host, port = (*(self.transport.get_extra_info("peername") or ("", 0)), 0)[:2]
        is_ip = isinstance(host, str) and host != ""
        server.transport.write(origin_line((host, port) if is_ip else None))
        server.transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def _say_last_words(self) -> None:
        """End the answer that is under way as well as it can be ended."""
        if not self._answers.has_begun:
            self.transport.write(self._front.last_words(self._asked[0] if self._asked else ""))
        elif self._answers.is_stream and self._answers.is_between_chunks:
            self.transport.write(stream_end(self._asked[0], self._answers.last_chunk))
        else:
            # Half an answer that cannot be made whole: its client must see that it is cut.
            self.transport.abort()
            return
        self._linger_on()

    def _linger_on(self) -> None:
        if self.transport.can_write_eof():
            self.transport.write_eof()
        # A client that sends on is no longer heard, but read.
        self.transport.resume_reading()
        self._linger = asyncio.get_running_loop().call_later(LINGER_S, self.transport.abort)


class _ServerSide(asyncio.Protocol):
    """A client's connection to the process."""

    def __init__(self, client: ClientSide) -> None:
        self._client = client
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._client.server_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.server_lost(self)

    def data_received(self, data: bytes) -> None:
        self._client.answer_received(data)

    def pause_writing(self) -> None:
        self._client.transport.pause_reading()

    def resume_writing(self) -> None:
        self._client.transport.resume_reading()
