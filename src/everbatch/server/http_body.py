"""The HTTP side of one request: its body within a limit, and whether its client is still there.

Belongs here: ASGI messages in. Not here: what the body says.
"""

import asyncio
import contextlib
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from everbatch.server.channel import Channel
from everbatch.server.errors import ApiError

Made = TypeVar("Made")

MAX_BODY_S = 60
"""From the headers to the end of a body: whoever is slower keeps memory for nothing."""
MAX_INLINE_BYTES = 1 << 16
"""Longer bodies are made into values on another thread: 4 MiB of messages take a second or two, and
the streams would wait for it."""
MAX_DISCARDED_BYTES = 16 << 20
MAX_DISCARD_S = 10


class ClientLeft(Exception):
    """The client closed the connection before its answer; there is nobody to tell."""


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Read the body; raises ApiError 413 as soon as it is known to be above `max_bytes`, 408 if it
    has not come in MAX_BODY_S."""
    try:
        async with asyncio.timeout(MAX_BODY_S):
            return await _read(request, max_bytes)
    except TimeoutError:
        raise ApiError(
            HTTPStatus.REQUEST_TIMEOUT,
            f"the body had not come after {MAX_BODY_S} s: send it at once",
            code="request_timeout",
            headers={"Connection": "close"},
        ) from None


async def beside_loop(num_bytes: int, work: Callable[[], Made]) -> Made:
    """Give what `work` makes of a body of this size, on another thread if it is long."""
    return work() if num_bytes <= MAX_INLINE_BYTES else await asyncio.to_thread(work)


async def _read(request: Request, max_bytes: int) -> bytes:
    _check_kind(request)
    length = request.headers.get("content-length")
    if length is not None and int(length) > max_bytes:
        raise _too_large(f"{int(length):,}", max_bytes, leaves_body=True)
    parts: list[bytes] = []
    num_bytes = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        part = message.get("body", b"")
        num_bytes += len(part)
        has_more = message.get("more_body", False)
        if num_bytes > max_bytes:
            raise _too_large(f"more than {max_bytes:,}", max_bytes, leaves_body=has_more)
        parts.append(part)
        if not has_more:
            return b"".join(parts)


async def watch_client(receive: Receive, channel: Channel) -> None:
    """Wait until the client is gone and tell the channel. Runs beside the answer, then cancelled.

    Call it once the body has been read. Servers report a disconnect also after a whole answer.
    """
    while (await receive())["type"] != "http.disconnect":
        pass
    channel.client_left()


def respond(error: ApiError) -> Response:
    """Make the answer that tells an error."""
    kind = LastWords if error.leaves_body else Response
    return kind(error.body(), error.status, headers=error.headers, media_type="application/json")


class LastWords(Response):
    """An answer to a client that is still sending. What it sends is thrown away, within bounds,
    before the connection is closed: closing at once would reset it, and the answer be lost."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [*self.raw_headers, (b"connection", b"close")]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MAX_DISCARD_S):
                await _discard(receive)
        await send({"type": "http.response.body", "body": b""})


async def _discard(receive: Receive) -> None:
    num_bytes = 0
    while num_bytes < MAX_DISCARDED_BYTES:
        message = await receive()
        num_bytes += len(message.get("body", b""))
        if not message.get("more_body", False):
            return


def _check_kind(request: Request) -> None:
    given = request.headers.get("content-type")
    # A web page may post a form, plain text, or what has no type to a server on localhost unasked,
    # but not JSON. Its browser says where it is from; programs may leave the type out.
    is_json = given is not None and given.partition(";")[0].strip().lower() == "application/json"
    if not is_json and (given is not None or "origin" in request.headers):
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"the body's Content-Type is {given!r}: send application/json",
            code="unsupported_media_type",
            leaves_body=True,
        )
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"the body's Content-Encoding is {encoding!r}: send it as it is",
            code="unsupported_media_type",
            leaves_body=True,
        )


def _too_large(size: str, max_bytes: int, *, leaves_body: bool) -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body has {size} bytes, the limit is {max_bytes:,}: send less",
        code="body_too_large",
        leaves_body=leaves_body,
    )
