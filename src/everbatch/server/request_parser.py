"""httptools' parser of requests, for clients that would go on in another protocol.

Belongs here: reading such a request as any other. Not here: what a request says. Used by whatever
holds a client's connection.

A client that knows HTTP/2 may say so in a request of HTTP/1.1, body and all: Java's HttpClient does
unless it is told not to, and so does `curl --http2`. A server may pass over it (RFC 9110, 7.8). To
llhttp what follows such a head is another protocol and no body, so the head is given to it again,
without the wish.
"""

from typing import Protocol

import httptools

# Of a head, what says where its request ends and whether another may follow.
_FRAMING = (b"content-length", b"transfer-encoding", b"connection")


class RequestListener(Protocol):
    """Whoever is told of a request, each part once."""

    def on_message_begin(self) -> None: ...

    def on_url(self, url: bytes) -> None: ...

    def on_header(self, name: bytes, value: bytes) -> None: ...

    def on_headers_complete(self) -> None: ...

    def on_body(self, body: bytes) -> None: ...

    def on_message_complete(self) -> None: ...


class RequestParser:
    """Has what somebody may ask of httptools.HttpRequestParser; no request asks for an upgrade."""

    def __init__(self, listener: RequestListener) -> None:
        self._listener = listener
        self._framing: list[tuple[bytes, bytes]] = []
        """Of the head that is read."""
        self._method = b""
        self._is_again = False
        """Whether the listener knows this head already, but for its end."""
        self._parser = self._new_parser()

    def feed_data(self, data: bytes) -> None:
        """Parse what came; raises HttpParserError."""
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                [length] = upgrade.args
                data = data[length:]
                self._read_head_again()
            else:
                return

    def get_method(self) -> bytes:
        return self._method

    def get_http_version(self) -> str:
        return self._parser.get_http_version()

    def should_keep_alive(self) -> bool:
        return self._parser.should_keep_alive()

    def should_upgrade(self) -> bool:
        return False

    # What the parser calls.

    def on_message_begin(self) -> None:
        if not self._is_again:
            self._framing.clear()
            self._listener.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._is_again:
            self._listener.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_again:
            return
        if name.lower() in _FRAMING:
            self._framing.append((name.lower(), value))
        self._listener.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._parser.should_upgrade():
            return
        if not self._is_again:
            self._method = self._parser.get_method()
        self._is_again = False
        self._listener.on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._listener.on_body(body)

    def on_message_complete(self) -> None:
        if not self._parser.should_upgrade():
            self._listener.on_message_complete()

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # As uvicorn has it: what is sent after the last request is not worth an error.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _read_head_again(self) -> None:
        """Read a head that asked for another protocol as if it had not."""
        self._method, version = self._parser.get_method(), self._parser.get_http_version()
        self._parser, self._is_again = self._new_parser(), True
        # Neither method nor path changes where a request ends; CONNECT would be an upgrade.
        lines = [f"POST / HTTP/{version}".encode()]
        lines += [
            b"%s: %s" % (name, _without_upgrade(name, value)) for name, value in self._framing
        ]
        self._parser.feed_data(b"\r\n".join(lines) + b"\r\n\r\n")


def _without_upgrade(name: bytes, value: bytes) -> bytes:
    if name != b"connection":
        return value
    options = [one.strip() for one in value.split(b",")]
    return b", ".join(one for one in options if one.lower() != b"upgrade")
