"""What is asked: requests of many kinds, well made and not, drawn from a seed."""

import json
import random
from dataclasses import dataclass

WORDS = ("the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "was", "on", "are", "as")
MALFORMED_SHARE = 0.05
LEAVING_SHARE = 1 / 3
TENANTS = ("", "", "a", "b", "c")
GREEDY = "greedy"
LONG = 300_000


@dataclass(frozen=True)
class Shape:
    """Sizes of requests: words of a prompt and tokens of an answer, from and to."""

    words: tuple[int, int] = (4, 24)
    tokens: tuple[int, int] = (16, 80)


@dataclass(frozen=True)
class Ask:
    """One request. `leaves`: how its client leaves, None: it stays; `status`: what is wrong with it
    must give this one, None: it is well made."""

    message: bytes
    num_choices: int = 1
    leaves: str | None = None
    status: int | None = None


class Asking:
    """Draws requests."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.draw = random.Random(seed)
        self._shape = shape
        self._num_made = 0

    def plain(self) -> Ask:
        """A request whose client stays and reads."""
        return self._well_made(leaves=None)

    def any(self) -> Ask:
        """A request of a bad day."""
        if self.draw.random() < MALFORMED_SHARE:
            return self.malformed()
        leaves = None
        if self.draw.random() < LEAVING_SHARE:
            leaves = self.draw.choice(["at once", "soon", "amid"])
        return self._well_made(leaves)

    def malformed(self) -> Ask:
        """A request that must be refused."""
        message, status = self.draw.choice(_MALFORMED)
        return Ask(message, status=status)

    def too_long(self) -> Ask:
        """A prompt that takes some memory to find out that it does not fit."""
        return Ask(_post({"prompt": "x" * LONG}), status=400)

    def long_stream(self) -> Ask:
        """A stream of large events, for who reads it slowly."""
        return Ask(_post({**self._body(), "max_tokens": 160, "logprobs": 20, "stream": True}))

    def _well_made(self, leaves: str | None) -> Ask:
        body, draw = self._body(), self.draw
        body["stream"] = leaves == "amid" or draw.random() < 0.75
        if draw.random() < 0.05:
            body["n"] = 2
        if leaves is None and draw.random() < 0.1:
            body["max_wait_s"] = draw.uniform(0.1, 3.0)
        if leaves is None and draw.random() < 0.1:
            body["max_total_s"] = draw.uniform(1.0, 20.0)
        headers = {"X-Tenant": GREEDY if draw.random() < 0.4 else draw.choice(TENANTS)}
        return Ask(_post(body, headers), int(body.get("n", 1)), leaves)

    def _body(self) -> dict[str, object]:
        draw, shape = self.draw, self._shape
        self._num_made += 1
        words = draw.choices(WORDS, k=draw.randint(*shape.words))
        return {
            "prompt": f"{self._num_made} {' '.join(words)}",
            "max_tokens": draw.randint(*shape.tokens),
            "temperature": draw.choice([0.0, 0.8]),
            "ignore_eos": True,
        }


def _post(
    body: dict[str, object], headers: dict[str, str] | None = None, path: str = "/v1/completions"
) -> bytes:
    return _raw("POST", path, json.dumps(body).encode(), headers)


def _raw(method: str, path: str, body: bytes, headers: dict[str, str] | None = None) -> bytes:
    named = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    lines = [f"{name}: {value}" for name, value in {**named, **(headers or {})}.items()]
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: soak", *lines, "", ""]).encode() + body


_MALFORMED = [
    (b"\x16\x03\x01\x02\x00garbage\r\n\r\n", 400),
    (b"GET /\xff HTTP/1.1\r\nHost: soak\r\n\r\n", 400),
    (_raw("POST", "/v1/completions", b'{"prompt": "x", '), 400),
    (_raw("POST", "/v1/completions", b"[" * 5_000), 400),
    (_raw("POST", "/v1/completions", b"\xff\xfe"), 400),
    (_post({"prompt": "x", "no_such_field": 1}), 400),
    (_post({"prompt": "x", "max_tokens": -1}), 400),
    (_post({"prompt": "x", "max_tokens": 10**12}), 400),
    (_post({"prompt": "x" * LONG}), 400),
    (_post({"messages": [{"role": "nobody", "content": "x"}]}, path="/v1/chat/completions"), 400),
    (_post({"prompt": "x", "max_wait_s": 1}, {"X-Max-Wait-S": "2"}), 400),
    (_post({"prompt": "x", "model": "another"}), 404),
    (_raw("GET", "/nothing-here", b""), 404),
    (_raw("DELETE", "/v1/completions", b""), 405),
    (_raw("POST", "/v1/completions", b"x", {"Content-Length": str(100 << 20)}), 413),
    (_raw("POST", "/v1/completions", b"prompt=x", {"Content-Type": "text/plain"}), 415),
    (b"GET /v1/models HTTP/1.1\r\nHost: soak\r\nX-Long: " + b"a" * 90_000 + b"\r\n\r\n", 431),
]
