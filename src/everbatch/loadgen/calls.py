"""Makes of each request of a workload the bytes that are sent, and what its client will do.

Belongs here: bodies, who cancels when. Not here: prompts (prompts.py), sending (run.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from everbatch.base.units import NS_PER_S, counted
from everbatch.loadgen.prompts import Prompt, Prompts, Told
from everbatch.loadgen.target import Target
from everbatch.workload.random_draws import stream
from everbatch.workload.requests import RequestSpec

Endpoint = Literal["completions", "chat"]
PATHS: dict[str, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class BodyOptions:
    """What all bodies have in common. `extra` goes before all of it; null leaves a field out."""

    endpoint: Endpoint
    model: str
    temperature: float | None = 0.0
    ignore_eos: bool = False
    extra: Mapping[str, Any] | None = None

    def body(self, prompt: Prompt, max_tokens: int, *, stream: bool) -> bytes:
        """Give the JSON of one request."""
        name = "messages" if self.endpoint == "chat" else "prompt"
        if self.endpoint == "chat" and isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        facts: dict[str, Any] = {"model": self.model, name: prompt, "max_tokens": max_tokens}
        if self.temperature is not None:
            facts["temperature"] = self.temperature
        if self.ignore_eos:
            facts["ignore_eos"] = True
        if stream:
            facts |= {"stream": True, "stream_options": {"include_usage": True}}
        facts |= dict(self.extra or {})
        return _encode({key: value for key, value in facts.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Call:
    """One request, ready to be sent.

    `cancel_after`: its client leaves when so many events had text; `leave_ns`: it leaves at that
    time of the run.
    """

    message: bytes
    prompt_tokens: int
    output_tokens: int
    cancel_after: int | None = None
    leave_ns: int | None = None


class Calls:
    """Makes the calls of a run, in the order of its requests."""

    def __init__(
        self,
        target: Target,
        options: BodyOptions,
        prompts: Prompts,
        cancel_share: float = 0.0,
        seed: int = 0,
    ) -> None:
        """`cancel_share` of the clients leave, each after a drawn number of its tokens."""
        self._target = target
        self._options = options
        self._prompts = prompts
        self._cancel_share = cancel_share
        self._draw = stream(seed, "cancelled requests").random
        self._changed: dict[str, int] = {}

    def make(self, spec: RequestSpec) -> Call:
        told = self._prompts.told(spec)
        body = self._options.body(told.prompt, told.output_tokens, stream=True)
        headers = self._headers(spec)
        if spec.num_samples > 1:
            self._count("of several samples one is asked for")
        if spec.priority:
            self._count("the priority is not sent")
        return Call(
            self._target.message("POST", PATHS[self._options.endpoint], body, headers),
            told.prompt_tokens,
            told.output_tokens,
            self._cancel_after(told),
            spec.abort_at,
        )

    def notes(self) -> list[str]:
        """Say in sentences what of the workload was changed."""
        return [f"{counted(count, 'request')}: {what}" for what, count in self._changed.items()]

    def _count(self, what: str) -> None:
        self._changed[what] = self._changed.get(what, 0) + 1

    def _cancel_after(self, told: Told) -> int | None:
        # Drawn for each, so that the share does not shift what the others draw.
        leaves, when = self._draw() < self._cancel_share, self._draw()
        # After the last token nobody can leave any more.
        return 1 + int(when * max(told.output_tokens - 1, 1)) if leaves else None

    def _headers(self, spec: RequestSpec) -> dict[str, str]:
        """Give what everbatch hears in headers, and other servers pass over."""
        headers: dict[str, str] = {}
        if spec.tenant and spec.tenant.isascii() and spec.tenant.isprintable():
            headers["X-Tenant"] = spec.tenant
        if spec.deadline is not None:
            headers["X-Max-Wait-S"] = f"{spec.deadline / NS_PER_S:.9f}"
        return headers
