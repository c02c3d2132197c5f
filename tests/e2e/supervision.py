"""A supervised server in two processes, and which of them is which."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from e2e.processes import READY, WAIT_S, Server


def children_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(one) for one in children.read_text().split()]


def engine_process(server: Server) -> int:
    """Give the process that the supervisor has started."""
    [pid] = children_of(server.pid)
    return pid


def wait_for(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < give_up, "it did not come about"
        time.sleep(0.01)


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # Without a parent that asks for its status it may stay as a name.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def ask(server: Server) -> str:
    body = {"prompt": "hello", "max_tokens": 8, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=WAIT_S)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def num_ready(server: Server) -> int:
    """How often a process of this server has said that it is ready."""
    return sum(READY.match(line) is not None for line in server.told.text.splitlines())
