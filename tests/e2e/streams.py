"""Clients that read a stream of completions chunk by chunk and know how it ended."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from e2e.processes import WAIT_S


@dataclass
class Stream:
    """One streamed completion. `ended`: the last line was [DONE]; `cut`: the connection broke."""

    lines: Iterator[str]
    num_chunks: int = 0
    finish_reason: str | None = None
    error: dict[str, Any] | None = None
    ended: bool = False
    cut: bool = False
    usage: dict[str, int] = field(default_factory=dict)

    def read_chunk(self) -> bool:
        """Take the next event; gives whether there was one."""
        try:
            data = next((line for line in self.lines if line.startswith("data: ")), None)
        except httpx.HTTPError:
            self.cut = True
            return False
        if data is None:
            return False
        if data == "data: [DONE]":
            self.ended = True
            return True
        facts = json.loads(data.removeprefix("data: "))
        self.error = facts.get("error", self.error)
        self.usage = facts.get("usage") or self.usage
        for choice in facts.get("choices", ()):
            self.num_chunks += 1
            self.finish_reason = choice["finish_reason"] or self.finish_reason
        return True

    def read_to_the_end(self) -> None:
        while self.read_chunk():
            pass


@contextmanager
def streaming(url: str, max_tokens: int, **options: Any) -> Iterator[Stream]:
    """Ask for exactly `max_tokens` tokens; the first of them has been read when it begins."""
    body = {
        "prompt": "hello",
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **options,
    }
    with (
        httpx.Client(base_url=url, timeout=WAIT_S) as client,
        client.stream("POST", "/v1/completions", json=body) as response,
    ):
        stream = Stream(response.iter_lines())
        assert stream.read_chunk()
        yield stream
