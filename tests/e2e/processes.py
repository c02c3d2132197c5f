"""Real processes of the command line: started, listened to, stopped.

`serving` gives a server that printed its ready line, and ends it whatever the test does. Waiting is
for a line or for the end of a process, never for a time; the limits are for what is broken.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

WAIT_S = 120
COMMAND = [sys.executable, "-m", "everbatch.cli.main"]
ENVIRON = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "TERM": "xterm"}
READY = re.compile(r"^ready at (http://\S+)")


class Lines:
    """Lines of a stream as they come, read by a thread of its own."""

    def __init__(self, stream: object) -> None:
        self._stream = stream
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def text(self) -> str:
        with self._changed:
            return "".join(self._lines)

    def wait_for(self, is_wanted: Callable[[str], object]) -> str:
        """Give the first line that is wanted; AssertionError with all lines if none comes."""

        def found() -> str | None:
            return next((line for line in self._lines if is_wanted(line)), None)

        with self._changed:
            self._changed.wait_for(lambda: found() is not None or self._ended, WAIT_S)
            line = found()
        assert line is not None, f"the line did not come:\n{self.text}"
        return line

    def join(self) -> None:
        self._thread.join(WAIT_S)

    def _read(self) -> None:
        for line in self._stream:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class Server:
    """A process of `everbatch serve` that is ready."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.told = Lines(process.stderr)
        ready = READY.match(self.told.wait_for(READY.match))
        assert ready is not None
        self.url = ready[1]
        self.pid = process.pid

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end; gives the exit status."""
        status = self._process.wait(WAIT_S)
        self.told.join()
        return status

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def metrics(self) -> dict[str, float]:
        """Give the samples by name, those with labels of their own summed."""
        text = httpx.get(f"{self.url}/metrics", timeout=WAIT_S).text
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removeprefix("everbatch:")
                sums[name] = sums.get(name, 0.0) + sample.value
        return sums

    def is_idle(self) -> bool:
        """Whether nobody runs, waits or holds blocks."""
        metrics = self.metrics()
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return all(metrics[name] == 0 for name in names)

    def wait_until_idle(self) -> None:
        """Ask again and again; each question is a turn of the server's loop."""
        for _ in range(2_000):
            if self.is_idle():
                return
        raise AssertionError(f"still busy: {self.metrics()}")


@contextmanager
def serving(*arguments: str | Path, command: Sequence[str] = COMMAND) -> Iterator[Server]:
    process = start("serve", "--port", "0", *arguments, command=command)
    try:
        yield Server(process)
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def start(
    *arguments: str | Path, command: Sequence[str] = COMMAND, **options: object
) -> subprocess.Popen[str]:
    """Start a command with its outputs in pipes; `options` are Popen's."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    whole = [*command, *map(str, arguments)]
    return subprocess.Popen(whole, text=True, env=ENVIRON, **{**pipes, **options})


def run(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        env=ENVIRON,
        timeout=WAIT_S,
    )


def assert_one_line_error(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("everbatch: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr
