"""What a supervised process knows of its supervisor.

Belongs here: the process's side of supervisor.py. Called by `everbatch serve`.
"""

import asyncio
import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from socket import MSG_DONTWAIT, socket

from everbatch.server.run import bind_path

VARIABLE = "EVERBATCH_SUPERVISED"
"""In the process's environment: the facts below, as JSON."""
READY, MOVED, STILL = b"!", b"+", b"-"
"""What it tells: that it is ready, then each SIGN_S whether its engine has moved since."""
SIGN_S = 0.5
TELL_STACKS = signal.SIGQUIT
"""Has the process write to standard error where each of its threads stands."""


@dataclass(frozen=True, slots=True)
class Supervisor:
    """`url`: where clients reach its front. `control`: ends when it does. `num_restarts`: how often
    it has started another process before this one, by cause."""

    url: str
    control: socket
    listening: socket
    num_restarts: dict[str, int]

    def tell_ready(self) -> None:
        self.control.sendall(READY)

    async def give_signs_of_life(self, is_well: Callable[[], bool]) -> None:
        """Send one again and again, until cancelled: from the event loop, so that they stop when it
        does."""
        while True:
            # It may be gone, which is learnt elsewhere, or not read for a while: it need not all.
            with suppress(OSError):
                self.control.send(MOVED if is_well() else STILL, MSG_DONTWAIT)
            await asyncio.sleep(SIGN_S)


@contextmanager
def supervisor_of(environ: dict[str, str] | None = None) -> Iterator[Supervisor | None]:
    """Give the supervisor of this process, if it has one, and forget where that stood."""
    told = (os.environ if environ is None else environ).pop(VARIABLE, None)
    if told is None:
        yield None
        return
    facts = json.loads(told)
    with socket(fileno=facts["fd"]) as control, bind_path(facts["path"]) as listening:
        control.set_inheritable(False)
        # In C, so that a thread that never gives up Python's lock is told as well.
        if sys.stderr is not None:
            faulthandler.register(TELL_STACKS)
        yield Supervisor(facts["url"], control, listening, facts["num_restarts"])
