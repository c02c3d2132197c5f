"""What systemd is told: that the server is ready, and that it lives, as long as it is well."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from everbatch.assemble.service_manager import ServiceManager

PID = 7


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(10)
        yield listening


def told(manager: socket.socket) -> str:
    return manager.recv(1_000).decode()


def of(manager: socket.socket, **more: str) -> ServiceManager:
    return ServiceManager.of({"NOTIFY_SOCKET": manager.getsockname(), **more}, PID)


def test_states_are_datagrams(manager):
    server = of(manager)
    server.tell("READY=1")
    server.tell("STOPPING=1")

    assert (told(manager), told(manager)) == ("READY=1", "STOPPING=1")


def test_an_abstract_address_begins_with_a_zero_byte(tmp_path):
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        name = f"everbatch-{tmp_path.name}-{id(listening)}"
        listening.bind(f"\0{name}")
        listening.settimeout(10)
        ServiceManager.of({"NOTIFY_SOCKET": f"@{name}"}).tell("READY=1")

        assert told(listening) == "READY=1"


def test_without_a_manager_nothing_is_told_and_nothing_fails(tmp_path, caplog):
    ServiceManager.of({}).tell("READY=1")
    assert caplog.text == ""

    ServiceManager.of({"NOTIFY_SOCKET": str(tmp_path / "gone")}).tell("READY=1")
    assert "cannot be told READY=1 (No such file or directory)" in caplog.text


@pytest.mark.parametrize(
    ("environment", "watchdog_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "2500000"}, 2.5),
        ({"WATCHDOG_USEC": "2500000", "WATCHDOG_PID": str(PID)}, 2.5),
        ({"WATCHDOG_USEC": "2500000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_signs_of_life_are_given_to_whom_asks_this_process(manager, environment, watchdog_s):
    assert of(manager, **environment).watchdog_s == watchdog_s


def test_signs_of_life_come_while_it_is_well_and_stop_when_it_is_not(manager):
    looks = iter([True, False, True])

    async def give() -> None:
        server = of(manager, WATCHDOG_USEC="4000")
        # It ends when nobody knows any more whether it is well.
        with pytest.raises(RuntimeError, match="StopIteration"):
            await server.give_signs_of_life(lambda: next(looks))

    asyncio.run(give())
    manager.setblocking(False)

    assert [told(manager), told(manager)] == ["WATCHDOG=1", "WATCHDOG=1"]
    with pytest.raises(BlockingIOError):
        told(manager)


@pytest.mark.parametrize("environment", [{}, {"WATCHDOG_USEC": "1", "WATCHDOG_PID": "8"}])
def test_who_asks_for_no_signs_of_life_gets_none(manager, environment):
    asyncio.run(of(manager, **environment).give_signs_of_life(lambda: True))
    manager.setblocking(False)

    with pytest.raises(BlockingIOError):
        told(manager)
