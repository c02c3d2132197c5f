"""Where the generations of one HTTP request leave what its writer sends.

Belongs here: bytes, the count of open generations, one waiter. Not here: what the bytes say. All
on the event loop: the bridge's calls fill it, one coroutine empties it.

A client that reads slowly is waited for by the writer, while the engine goes on; bytes that piled
up go out as one write. When more than `max_bytes` have piled up while the writer was writing the
client is too slow: they are dropped, the channel fails, and `on_overflow` lets the engine go. What
comes while the writer waits has no such limit: however much it is, no client could have read it.
"""

import asyncio
from collections.abc import Callable

from everbatch.server.errors import ApiError, unavailable


class Channel:
    """Bytes on their way to one client, until all its generations have ended or one failed."""

    __slots__ = (
        "_chunks",
        "_is_writing",
        "_max_bytes",
        "_num_bytes",
        "_num_open",
        "_waiter",
        "error",
        "has_client",
        "on_overflow",
    )

    def __init__(self, num_generations: int, max_bytes: int) -> None:
        self._chunks: list[bytes] = []
        self._num_bytes = 0
        self._is_writing = False
        self._max_bytes = max_bytes
        self._num_open = num_generations
        self.on_overflow: Callable[[], None] = _nothing
        self._waiter: asyncio.Future[None] | None = None
        self.error: ApiError | None = None
        self.has_client = True

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self._num_open == 0 or self.error is not None or not self.has_client

    def put(self, chunk: bytes) -> None:
        if self.error is not None:
            return
        if self._is_writing:
            self._num_bytes += len(chunk)
            if self._num_bytes > self._max_bytes:
                self._overflow()
                return
        self._chunks.append(chunk)
        self._wake()

    def end_one(self) -> None:
        """Say that one generation has come to its end."""
        self._num_open -= 1
        if self._num_open == 0:
            self._wake()

    def fail(self, error: ApiError) -> None:
        """Say that the request as a whole has failed; the first error is kept."""
        if self.error is None:
            self.error = error
        self._wake()

    def client_left(self) -> None:
        self.has_client = False
        self._wake()

    async def wait(self) -> None:
        """Return when there are bytes or all is over. One coroutine may wait: the writer, which has
        written all that it took."""
        self._is_writing = False
        if self._chunks or self.is_over:
            return
        assert self._waiter is None
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def take(self) -> bytes:
        """Take what there is, possibly nothing, to write it."""
        self._is_writing = True
        chunks = self._chunks
        self._num_bytes = 0
        if len(chunks) == 1:
            return chunks.pop()
        joined = b"".join(chunks)
        chunks.clear()
        return joined

    def _overflow(self) -> None:
        self._chunks.clear()
        self.fail(
            unavailable(
                f"the client has left more than {self._max_bytes:,} bytes of its stream unread: "
                "read faster, ask for less or raise --max-client-buffer",
                "slow_client",
            )
        )
        self.on_overflow()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _nothing() -> None:
    pass
