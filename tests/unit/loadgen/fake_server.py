"""A server that answers as a test says, on loopback, and a clock that is wound by hand.

The server speaks HTTP/1.1 by itself, so that it can break off anywhere. `FakeClock` stands still
but for those who sleep and for the script of the server, so latencies are exact.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import uvloop

TEST_TIMEOUT_S = 60
NS_PER_MS = 1_000_000


class FakeClock:
    """Sleeping sets it forward; `to_ms` too. Nobody waits for real."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        return self._now_ns

    def cpu_ns(self) -> int:
        return 0

    async def sleep_until(self, time_ns: int) -> None:
        # Who was to run before has run.
        await asyncio.sleep(0)
        self._now_ns = max(self._now_ns, time_ns)
        await asyncio.sleep(0)

    def to_ms(self, time_ms: float) -> None:
        self._now_ns = max(self._now_ns, round(time_ms * NS_PER_MS))


@dataclass(slots=True)
class Asked:
    """One request that came."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def is_stream(self) -> bool:
        return bool(self.body.get("stream"))


@dataclass(slots=True)
class Reply:
    """What a script answers with."""

    writer: asyncio.StreamWriter
    keeps_open: bool = True
    is_cut: bool = False

    async def whole(self, status: int, facts: object, **headers: str) -> None:
        body = json.dumps(facts).encode()
        lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
        head = f"HTTP/1.1 {status} X\r\n{''.join(lines)}Content-Length: {len(body)}\r\n\r\n"
        await self.raw(head.encode() + body)

    async def begin(self) -> None:
        await self.raw(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )

    async def event(self, facts: object) -> None:
        data = facts if isinstance(facts, str) else json.dumps(facts)
        await self.chunk(f"data: {data}\n\n".encode())

    async def text(self, text: str, finish_reason: str | None = None) -> None:
        await self.event({"choices": [{"text": text, "finish_reason": finish_reason}]})

    async def usage(self, prompt_tokens: int, completion_tokens: int) -> None:
        counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
        await self.event({"choices": [], "usage": counts})

    async def chunk(self, data: bytes) -> None:
        await self.raw(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def end(self) -> None:
        await self.event("[DONE]")
        await self.raw(b"0\r\n\r\n")

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def cut(self) -> None:
        self.is_cut = True


Script = Callable[[Asked, Reply], Awaitable[None]]


async def count_words(asked: Asked, reply: Reply) -> None:
    """Answer what comes before a run: the models, and the tokens of a prompt (a word is two)."""
    if asked.path.endswith("/models"):
        await reply.whole(200, {"data": [{"id": "toy"}]})
        return
    prompt = asked.body.get("prompt") or asked.body["messages"][0]["content"]
    usage = {"prompt_tokens": 10 + 2 * len(prompt.split()), "completion_tokens": 1}
    await reply.whole(200, {"choices": [{"text": "x"}], "usage": usage})


@dataclass
class FakeServer:
    """`script` answers the requests that want a stream, `first` all others."""

    script: Script
    first: Script = count_words
    asked: list[Asked] = field(default_factory=list)
    num_connections: int = 0
    num_left: int = 0
    """Clients that closed while the script was still speaking."""
    url: str = ""
    stop: Callable[[], None] = lambda: None
    """Listens no more; who is connected stays so."""

    @property
    def streams(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.is_stream]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while (asked := await _read(reader)) is not None:
                self.asked.append(asked)
                reply = Reply(writer)
                try:
                    await (self.script if asked.is_stream else self.first)(asked, reply)
                except ConnectionError:
                    self.num_left += 1
                    return
                if reply.is_cut:
                    return
        except ConnectionError:
            return
        finally:
            writer.transport.abort()


@asynccontextmanager
async def listening(script: Script, **more: Any) -> AsyncIterator[FakeServer]:
    """A fake server on a free port of the loopback interface."""
    fake = FakeServer(script, **more)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    fake.stop = server.close
    fake.url = f"http://127.0.0.1:{port}"
    try:
        yield fake
    finally:
        server.close()


def async_test(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a coroutine as a test, on the loop that measurements use."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(*arguments, **named), TEST_TIMEOUT_S))

    return run


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    """Read one request; None where the client has closed."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(method, path, headers, json.loads(body) if body else {})
