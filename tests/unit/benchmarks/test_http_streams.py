"""A server that is started for a benchmark: where it listens, or why it ended."""

import subprocess
import sys

import pytest
from http_streams import wait_until_ready


def started(*lines: str) -> subprocess.Popen[str]:
    """Start a process that prints these lines as a server does, and ends."""
    code = f"import sys; print({chr(10).join(lines)!r}, file=sys.stderr)"
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)


def test_the_line_that_says_ready_says_where():
    with started("kernels native", "ready at http://127.0.0.1:4321 after 1.8 s") as server:
        assert wait_until_ready(server) == ("127.0.0.1", 4321)


def test_a_server_that_ends_before_says_why():
    printed = "before it was ready:\nloading\nno such model"
    with (
        started("loading", "no such model") as server,
        pytest.raises(RuntimeError, match=printed),
    ):
        wait_until_ready(server)
