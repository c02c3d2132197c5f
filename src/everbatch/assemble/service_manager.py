"""Telling a service manager, systemd, that the server is ready and that it lives.

Belongs here: the protocol of sd_notify(3), datagrams to the socket that NOTIFY_SOCKET names. Not
here: when a server is ready or well. Used by serve_engine. Without a manager nothing is told.

A manager that asks for signs of life (WatchdogSec=) restarts a server that has stopped giving
them: whose engine has died, whose engine stands still amid a step, or whose event loop does.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping

logger = logging.getLogger("everbatch.server")

_US_PER_S = 1_000_000
SIGNS_A_PERIOD = 4
"""One would do if it was on time."""


class ServiceManager:
    """Whoever started this process and wants to be told; `address` None: nobody.

    watchdog_s: within how many seconds a sign of life must come; None: none are wanted.
    """

    def __init__(self, address: str | None, watchdog_s: float | None = None) -> None:
        self._address = address
        self.watchdog_s = watchdog_s

    @classmethod
    def of(cls, environ: Mapping[str, str], pid: int | None = None) -> "ServiceManager":
        """Give who is named in an environment; what is meant for another process is passed over."""
        address = environ.get("NOTIFY_SOCKET", "")
        # "@" stands for the zero byte with which Linux's abstract addresses begin.
        address = f"\0{address[1:]}" if address.startswith("@") else address
        period_us, meant = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
        is_ours = meant in ("", str(os.getpid() if pid is None else pid))
        if not is_ours or not period_us.isdecimal() or int(period_us) == 0:
            return cls(address or None)
        return cls(address or None, int(period_us) / _US_PER_S)

    def tell(self, state: str) -> None:
        """Send a state such as READY=1; never waits and never fails."""
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
                sending.setblocking(False)
                sending.sendto(state.encode(), self._address)
        except OSError as error:
            logger.warning("the service manager cannot be told %s (%s)", state, error.strerror)

    def tell_ready(self) -> None:
        self.tell("READY=1")

    async def give_signs_of_life(self, is_well: Callable[[], bool]) -> None:
        """Send them, as long as `is_well` says so; runs until cancelled, or at once to its end."""
        if self._address is None or self.watchdog_s is None:
            return
        while True:
            if is_well():
                self.tell("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / SIGNS_A_PERIOD)
