"""Clients of a server: a thousand that stay connected, and some that read slowly."""

import asyncio
import socket
import time
from collections import Counter
from contextlib import suppress

from load.asking import Ask, Asking
from load.wire import Answer, Cut, Wire, connect

ANSWER_LIMIT_S = 180.0
"""A request without an end for so long has none."""
MOST_IDLE_S = 40.0
LEAVE_WITHIN_S = 1.5
SLOW_READ_BYTES = 512
SLOW_PAUSE_S = 0.25
SLOW_LIMIT_S = 60.0
MAX_FAULTS_KEPT = 20


class Tally:
    """What became of all requests."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.outcomes: Counter[str] = Counter()
        self.faults: list[str] = []
        self.num_without_client = 0
        """Arrivals for which nobody of the crowd was free."""

    def note(self, outcome: str) -> None:
        self.outcomes[outcome] += 1

    def blame(self, fault: str) -> None:
        self.outcomes["fault"] += 1
        if len(self.faults) < MAX_FAULTS_KEPT:
            self.faults.append(fault)

    @property
    def num_ended(self) -> int:
        return sum(self.outcomes.values())


class Crowd:
    """Clients with a connection each, which they open anew when it was closed."""

    def __init__(self, port: int, asking: Asking, tally: Tally) -> None:
        self._port = port
        self._asking = asking
        self._tally = tally
        self._idle: list[Wire] = []
        self._busy: set[asyncio.Task[None]] = set()

    async def connect(self, count: int) -> None:
        self._idle = [await connect(self._port) for _ in range(count)]

    @property
    def num_busy(self) -> int:
        return len(self._busy)

    def send(self, ask: Ask) -> None:
        """Have a free client ask; nobody free: that is counted."""
        if not self._idle:
            self._tally.num_without_client += 1
            return
        draw = self._asking.draw
        index = draw.randrange(len(self._idle))
        self._idle[index], self._idle[-1] = self._idle[-1], self._idle[index]
        self._tally.num_asked += 1
        task = asyncio.create_task(self._one(self._idle.pop(), ask))
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)

    async def keep_asking(self, count: int, until: "asyncio.Event") -> None:
        """Have so many clients ask one request after another, all of them plain."""

        async def one() -> None:
            while not until.is_set():
                self._tally.num_asked += 1
                await self._one(self._idle.pop(), self._asking.plain())

        await asyncio.gather(*(one() for _ in range(count)))

    async def wait(self) -> None:
        """Return when every request has ended."""
        while self._busy:
            await asyncio.wait(self._busy)

    def close(self) -> None:
        for wire in self._idle:
            if wire.num_unasked:
                self._tally.blame(f"{wire.num_unasked} bytes that nobody had asked for")
            wire.close()

    async def _one(self, wire: Wire, ask: Ask) -> None:
        try:
            # As clients do it: what was idle for long may be closed just when it is used.
            if not wire.is_open or time.monotonic() - wire.used_s > MOST_IDLE_S:
                wire = await self._anew(wire)
            await self._ask(wire, ask)
        except OSError as error:
            self._tally.blame(f"no connection: {error}")
        wire.used_s = time.monotonic()
        self._idle.append(wire)

    async def _ask(self, wire: Wire, ask: Ask) -> None:
        leave_after = self._asking.draw.randint(1, 20) if ask.leaves == "amid" else None
        answer = Answer(ask.num_choices, leave_after)
        limit_s = ANSWER_LIMIT_S
        if ask.leaves in ("at once", "soon"):
            limit_s = 0.0 if ask.leaves == "at once" else self._leaving_s()
        try:
            async with asyncio.timeout(limit_s):
                is_whole = await wire.ask(ask.message, answer)
        except TimeoutError:
            wire.close()
            if ask.leaves is None:
                self._tally.blame(f"no end after {ANSWER_LIMIT_S:g} s: {ask.message[-120:]!r}")
            else:
                self._tally.note(f"left {ask.leaves}")
        except Cut:
            told = f"{answer.status} and {len(answer.body)} bytes: {ask.message[:120]!r}"
            self._tally.blame(f"cut after status {told}")
        else:
            if not is_whole:
                wire.close()
            self._judge(ask, answer, is_whole)

    async def _anew(self, wire: Wire) -> Wire:
        if wire.num_unasked:
            self._tally.blame(f"{wire.num_unasked} bytes that nobody had asked for")
        wire.close()
        return await connect(self._port)

    def _leaving_s(self) -> float:
        return self._asking.draw.uniform(0.0, LEAVE_WITHIN_S)

    def _judge(self, ask: Ask, answer: Answer, is_whole: bool) -> None:
        # A full server does not look at what it refuses.
        fits = ask.status is None or answer.status in (ask.status, 429)
        if answer.fault is None and is_whole and not fits:
            answer.blame(f"status {answer.status} in place of {ask.status}: {ask.message[:80]!r}")
        if answer.fault is not None:
            self._tally.blame(answer.fault)
        elif is_whole:
            self._tally.note(answer.outcome)
        else:
            self._tally.note(f"left {ask.leaves}")


async def read_slowly(port: int, asking: Asking, tally: Tally, until: asyncio.Event) -> None:
    """Ask for long streams, one after another, and read each a few bytes at a time."""
    while not until.is_set():
        tally.num_asked += 1
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(connection, ("127.0.0.1", port))
            await loop.sock_sendall(connection, asking.long_stream().message)
            tally.note(await _slow_end(connection, until))


async def _slow_end(connection: socket.socket, until: asyncio.Event) -> str:
    """Read to the end, or leave when there was enough time for it; gives how it ended."""
    loop, tail = asyncio.get_running_loop(), b""
    give_up = time.monotonic() + SLOW_LIMIT_S
    while time.monotonic() < give_up and not until.is_set():
        # The more there is, the more patience it would take: first slowly, then to see the end.
        piece = await loop.sock_recv(connection, SLOW_READ_BYTES)
        tail = (tail + piece)[-600:]
        if b"[DONE]" in tail:
            return "slow: " + ("error event" if b'"error"' in tail else "answered")
        if not piece or b"HTTP/1.1 429" in tail:
            return "slow: refused or closed"
        with suppress(TimeoutError):
            await asyncio.wait_for(until.wait(), SLOW_PAUSE_S)
    return "slow: left"
