"""A storm of a thousand clients over a server. Usage: python -m load.run [SECONDS] [MODEL FLAGS]

Without a model the default one is served. Exit status 1 if a promise is broken. The server has one
core less than there are, for its own event loop and these clients.
"""

import asyncio
import os
import resource
import sys
import time

import uvloop
from e2e.processes import Server, serving
from load.storm import SERVER_FLAGS, Plan, weather
from load.verdict import Check, judge

STORM_S = 600.0
CALM_SHARE, SETTLE_SHARE = 0.1, 0.1
MOST_CALM_S, MOST_SETTLE_S = 60.0, 60.0


def seconds(text: str) -> float:
    """Read how long a storm lasts; ValueError if it is no time."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"a storm of {text!r} seconds is none: give a whole number of at least 1")
    return float(text)


def plan_of(storm_s: float) -> Plan:
    """Give a plan whose storm has this length."""
    calm_s = min(max(10.0, storm_s * CALM_SHARE), MOST_CALM_S)
    settle_s = min(max(10.0, storm_s * SETTLE_SHARE), MOST_SETTLE_S)
    return Plan(warm_s=calm_s / 2, calm_s=calm_s, settle_s=settle_s, storm_s=storm_s)


def soak(server: Server, plan: Plan, *, with_times: bool) -> list[Check]:
    """Run it, stop the server, and judge."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        course = runner.run(weather(server, plan, _tell))
    status = server.stop()
    checks = judge(course, server.told.text, with_times=with_times)
    return [*checks, Check("it stops when it is told to", status == 0, f"status {status}")]


def main() -> int:
    try:
        storm_s = seconds(sys.argv[1]) if len(sys.argv) > 1 else STORM_S
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    threads = max(1, len(os.sched_getaffinity(0)) - 1)
    with serving(*sys.argv[2:], *SERVER_FLAGS, "--threads", str(threads)) as server:
        checks = soak(server, plan_of(storm_s), with_times=True)
    for check in checks:
        print(check.line())
    return int(any(check.is_kept is False for check in checks))


def _tell(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
