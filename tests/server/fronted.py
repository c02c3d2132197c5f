"""A front before a process that answers with given bytes."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from everbatch.server.connections import read_origin
from everbatch.server.front import Front

COMPLETIONS = "/v1/completions"
REQUEST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
RESPONSES_REQUEST = REQUEST.replace(b"/v1/completions", b"/v1/responses")
GET = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"
LAST = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\n"


def chunk(text: bytes) -> bytes:
    return b"%x\r\n" % len(text) + text + b"\r\n"


EVENT = chunk(b'data: {"sequence_number":4}\n\n')


class Process:
    """Listens as the engine's process does. Of each connection it takes the request, writes its
    script, and goes, or stays until the other side has gone."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.script = b""
        self.origins: list[tuple[str, int] | None] = []
        self.asked: list[bytes] = []
        self.stays = False
        self._writers: list[asyncio.StreamWriter] = []

    def say(self, more: bytes) -> None:
        """Write something more on every connection that is open."""
        for writer in self._writers:
            writer.write(more)

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.origins.append(read_origin((await reader.readline()).rstrip(b"\n")))
        if head := await reader.read(1 << 16):
            self.asked.append(head)
            writer.write(self.script)
            await writer.drain()
        self._writers.append(writer)
        while self.stays and await reader.read(1 << 16):
            pass
        writer.close()


@asynccontextmanager
async def fronted(*, is_up: bool = True) -> AsyncIterator[tuple[Front, Process, int]]:
    """A front before a scripted process; gives the port that clients reach."""
    with tempfile.TemporaryDirectory() as directory:
        process = Process(str(Path(directory) / "s"))
        front = Front(process.path)
        front.is_up = is_up
        loop = asyncio.get_running_loop()
        behind = await asyncio.start_unix_server(process.talk, process.path)
        accepting = await loop.create_server(front.new_client, "127.0.0.1", 0)
        async with behind, accepting:
            yield front, process, accepting.sockets[0].getsockname()[1]
            front.close()


async def exchange(port: int, *requests: bytes) -> bytes:
    """Send requests, one after another, and give all that comes until the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for request in requests:
        writer.write(request)
        await writer.drain()
    try:
        return await reader.read()
    except ConnectionResetError:
        return b"reset"
    finally:
        writer.close()


def error_of(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]
