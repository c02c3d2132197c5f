"""Who is live on the event loop's side: requests, their samples, and who listens to each.

Belongs here: the records, and finding them by the ids under which the engine speaks of them. Not
here: what happens to them (bridge.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Protocol

from everbatch.base.units import NS_PER_S
from everbatch.engine.engine import TokenOutput
from everbatch.scheduler.admission import Rejection
from everbatch.scheduler.request import FinishReason
from everbatch.server.spans import RequestTrace

MIN_LIMITS_KEPT = 64
"""Of requests that have ended: a day's limits would be millions."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The request ended in the engine's own way."""

    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine would not take the request. `retry_after_s`: another time it might."""

    rejection: Rejection
    retry_after_s: int | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine broke; `message` is for the client."""

    message: str


@dataclass(frozen=True, slots=True)
class TimedOut:
    """It took longer than its client allowed, all in all."""

    limit_s: float


@dataclass(frozen=True, slots=True)
class Unserved:
    """It waited for an engine that does not go on; another time, or elsewhere, it might be."""

    message: str
    code: str


Ending = Finished | Refused | Failed | TimedOut | Unserved


class EndCause(Enum):
    """Who ended a request before its end."""

    CLIENT = "client"
    SLOW_CLIENT = "slow_client"
    DEADLINE = "deadline"
    HANG = "hang"
    SHUTDOWN = "shutdown"


class Receiver(Protocol):
    """Whoever waits for a sample's tokens. Called on the event loop, in order; must not block."""

    def admitted(self, num_cached_tokens: int) -> None:
        """Learn how much of the prompt was cached. Called once, of a request's samples for one."""
        ...

    def push(self, output: TokenOutput, *, is_stop_token: bool) -> None:
        """Take one token; `is_stop_token`: it ended the sample and is no text."""
        ...

    def end(self, ending: Ending) -> None:
        """Learn how it ended. Called once, and last, unless the receiver aborted."""
        ...


@dataclass(slots=True)
class LiveRequest:
    """A request between submission and its end, with what the metrics need."""

    id: str
    num_prompt_tokens: int
    arrival_ns: int
    tenant: str = ""
    num_samples: int = 1
    max_tokens: int | None = None
    """As asked for."""
    admitted_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    num_cached_tokens: int = 0
    """Of its prompt, found in the prefix cache."""
    num_output_tokens: int = 0
    """Of all its samples."""
    longest_sample_tokens: int = 0
    """Output tokens of the longest sample that has ended."""
    reason: FinishReason | None = None
    """How its samples ended so far: the first one that was cut, if any was."""
    cause: EndCause | None = None
    """Why that one was, if it was aborted."""
    trace: RequestTrace | None = None
    """For its span, if somebody wants one."""
    samples: "dict[str, LiveSample]" = field(default_factory=dict)
    """Those that are live."""

    def note_token(self, now_ns: int) -> None:
        """One of its samples has got a token."""
        if self.first_token_ns is None:
            self.first_token_ns = now_ns
        self.last_token_ns = now_ns
        self.num_output_tokens += 1


@dataclass(slots=True)
class LiveSample:
    """One sample of a request, or the whole of it if n is 1."""

    id: str
    request: LiveRequest
    receiver: Receiver
    last_token_ns: int | None = None
    num_output_tokens: int = 0

    def note_token(self, now_ns: int) -> None:
        """It has got a token."""
        self.last_token_ns = now_ns
        self.num_output_tokens += 1
        self.request.note_token(now_ns)


class LiveRequests:
    """All of them, by the ids of requests and of samples."""

    def __init__(self) -> None:
        self._requests: dict[str, LiveRequest] = {}
        self._samples: dict[str, LiveSample] = {}
        self._of_tenants: dict[str, int] = {}
        self._limits: list[tuple[int, str, float]] = []
        """A heap of (last moment, id, seconds from arrival); some have ended before."""

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    def num_of_tenant(self, tenant: str) -> int:
        """Give how many requests of a tenant are live."""
        return self._of_tenants.get(tenant, 0)

    def requests(self) -> list[LiveRequest]:
        return list(self._requests.values())

    def samples(self) -> list[LiveSample]:
        return list(self._samples.values())

    def sample(self, sample_id: str) -> LiveSample | None:
        """Give the sample whose tokens come under this id."""
        return self._samples.get(sample_id)

    def named(self, some_id: str) -> list[LiveSample]:
        """Give all samples of a request, or the one sample of that id."""
        request = self._requests.get(some_id)
        if request is not None:
            return list(request.samples.values())
        sample = self._samples.get(some_id)
        return [] if sample is None else [sample]

    def add(self, request: LiveRequest, receivers: Iterable[tuple[str, Receiver]]) -> None:
        """Take in a new request with the receiver of each of its samples, by id."""
        assert request.id not in self._requests
        self._requests[request.id] = request
        self._of_tenants[request.tenant] = self.num_of_tenant(request.tenant) + 1
        for sample_id, receiver in receivers:
            sample = LiveSample(sample_id, request, receiver)
            self._samples[sample_id] = request.samples[sample_id] = sample

    def limit(self, request: LiveRequest, seconds: float) -> None:
        """Let a request live for so long."""
        if len(self._limits) >= 2 * len(self._requests) + MIN_LIMITS_KEPT:
            self._limits = [limit for limit in self._limits if limit[1] in self._requests]
            heapify(self._limits)
        last_ns = request.arrival_ns + int(seconds * NS_PER_S)
        heappush(self._limits, (last_ns, request.id, seconds))

    @property
    def num_limits(self) -> int:
        """Limits that are kept: at most some more than twice as many as there are requests."""
        return len(self._limits)

    def take_overdue(self, now_ns: int) -> list[tuple[LiveRequest, float]]:
        """Take out those whose limit has passed and who live still, with their limits."""
        found: list[tuple[LiveRequest, float]] = []
        while self._limits and self._limits[0][0] < now_ns:
            _, request_id, seconds = heappop(self._limits)
            if request_id in self._requests:
                found.append((self._requests[request_id], seconds))
        return found

    def remove(self, sample: LiveSample) -> bool:
        """Take a sample out; gives whether its request went with it."""
        del self._samples[sample.id]
        request = sample.request
        longest = max(request.longest_sample_tokens, sample.num_output_tokens)
        request.longest_sample_tokens = longest
        del request.samples[sample.id]
        if request.samples:
            return False
        del self._requests[request.id]
        self._of_tenants[request.tenant] -= 1
        if not self._of_tenants[request.tenant]:
            del self._of_tenants[request.tenant]
        return True
