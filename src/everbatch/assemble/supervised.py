"""What a supervised process knows of its supervisor.

Belongs here: the process's side of supervisor.py. Called by `everbatch serve`.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from socket import socket

from everbatch.server.run import bind_path

VARIABLE = "EVERBATCH_SUPERVISED"
"""In the process's environment: the facts below, as JSON."""
READY = b"ready\n"


@dataclass(frozen=True, slots=True)
class Supervisor:
    """`url`: where clients reach its front. `control`: ends when it does."""

    url: str
    control: socket
    listening: socket

    def tell_ready(self) -> None:
        self.control.sendall(READY)


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
        yield Supervisor(facts["url"], control, listening)
