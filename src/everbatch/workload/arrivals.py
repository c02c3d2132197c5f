"""Synthetic requests: open loops, whose clients come whatever happens, and closed ones.

Open: poisson, gamma with a given coefficient of variation, uniform (evenly spaced) and burst (so
many at once, evenly spaced). Closed: so many users, each of whom sends, waits for the end, thinks,
and sends again. Request i has the same lengths and the same time to think in every run of a seed,
whatever the scheduler does. Belongs here: when they come and what they bring. Not here: reading
[workload] (workload_section).

Times are nanoseconds; the first request comes at 0.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from everbatch.base.units import NS_PER_S
from everbatch.workload.clients import AS_THEY_ARE, Clients
from everbatch.workload.lengths import Lengths
from everbatch.workload.random_draws import Draw, exponential, gamma, stream
from everbatch.workload.requests import Prompt, RequestSpec, Segment

GapDraw = Callable[[], float]
"""Draws a time in seconds."""


@dataclass(frozen=True, slots=True)
class Content:
    """What synthetic requests bring.

    The first `prefix_tokens` of a prompt, or all of a shorter one, are those of one of
    `num_prefixes` texts, each as likely as the others.
    """

    lengths: Lengths
    prefix_tokens: int = 0
    num_prefixes: int = 1
    clients: Clients = AS_THEY_ARE

    def maker(self, seed: int) -> "RequestMaker":
        """Give what makes the requests of one run."""
        return RequestMaker(self, seed)


class RequestMaker:
    """Makes the requests of one run, numbered from 0 in the order in which they arrive."""

    def __init__(self, content: Content, seed: int) -> None:
        self._content = content
        self._draw_lengths = content.lengths.drawer(seed)
        self._draw_prefix = stream(seed, "prefixes").random
        self._leaving = content.clients.leaving(seed)
        self.num_made = 0

    def make(self, arrival: int) -> RequestSpec:
        """Make the next request."""
        number = self.num_made
        self.num_made += 1
        num_tokens, output_tokens = self._draw_lengths()
        clients = self._content.clients
        return RequestSpec(
            str(number),
            number,
            arrival,
            Prompt(num_tokens, self._segments(num_tokens)),
            output_tokens,
            clients.max_tokens or output_tokens,
            abort_at=self._leaving(arrival, None),
            deadline=clients.deadline(),
        )

    def notes(self) -> list[str]:
        """Say as what files are read, and what of them is not drawn from."""
        return self._content.lengths.notes()

    def _segments(self, num_tokens: int) -> tuple[Segment, ...]:
        content = self._content
        if not content.prefix_tokens:
            return (Segment(None, num_tokens),)
        which = int(self._draw_prefix() * content.num_prefixes) if content.num_prefixes > 1 else 0
        shared = Segment(f"prefix {which}", min(content.prefix_tokens, num_tokens))
        own = num_tokens - shared.tokens
        return (shared, Segment(None, own)) if own else (shared,)


class OpenRequests:
    """Requests at given times, whatever becomes of those before."""

    def __init__(
        self, times: Iterator[int], maker: RequestMaker, limit: int | None, end: int | None
    ) -> None:
        """Take the first `limit` of the times, and of those the ones before `end`."""
        self._times = times
        self._maker = maker
        self._limit = limit
        self._end = end
        self.num_requests = limit if end is None else None
        self._next = self._next_time()

    def peek(self) -> int | None:
        return self._next

    def pop(self) -> RequestSpec:
        assert self._next is not None
        spec = self._maker.make(self._next)
        self._next = self._next_time()
        return spec

    def ended(self, request_id: str, now_ns: int, *, served: bool = True) -> None:
        """Clients of an open loop do not wait for each other."""

    def notes(self) -> list[str]:
        return self._maker.notes()

    def _next_time(self) -> int | None:
        if self._limit is not None and self._maker.num_made >= self._limit:
            return None
        time = next(self._times)
        return time if self._end is None or time < self._end else None


class ClosedRequests:
    """Users who send one request at a time: all at 0, then each some time after its end.

    Whoever would send at `end` or later, or after `limit` requests, stays silent.
    """

    def __init__(
        self,
        num_users: int,
        think: GapDraw,
        maker: RequestMaker,
        limit: int,
        end: int | None,
    ) -> None:
        self._think = think
        self._maker = maker
        self._limit = limit
        self._end = end
        self.num_requests = limit if end is None else None
        self._num_sends = count(num_users)
        # (time, number): of those who send at the same time the first to have decided is first.
        self._sends = [(0, number) for number in range(num_users)]
        self._thinks: dict[str, int] = {}
        """How long the user of each live request will think."""

    def peek(self) -> int | None:
        if not self._sends or self._maker.num_made >= self._limit:
            return None
        return self._sends[0][0]

    def pop(self) -> RequestSpec:
        time, _ = heappop(self._sends)
        spec = self._maker.make(time)
        self._thinks[spec.id] = round(self._think() * NS_PER_S)
        return spec

    def ended(self, request_id: str, now_ns: int, *, served: bool = True) -> None:
        """Let the user of a request think, then send; who has not sent it yet is not told twice."""
        think = self._thinks.pop(request_id, None)
        if think is None:
            return
        time = now_ns + think
        if self._end is None or time < self._end:
            heappush(self._sends, (time, next(self._num_sends)))

    def notes(self) -> list[str]:
        return self._maker.notes()


def evenly(rate: float, at_once: int = 1) -> Iterator[int]:
    """Give times of `at_once` requests together, evenly spaced, of `rate` a second in all.

    Each is computed from its number in integers, so that nothing adds up.
    """
    over, under = rate.as_integer_ratio()
    for number in count():
        yield number * at_once * NS_PER_S * under // over
        for _ in range(at_once - 1):
            yield number * at_once * NS_PER_S * under // over


def all_at_once() -> Iterator[int]:
    """Give time 0 for ever."""
    while True:
        yield 0


def renewals(draw_gap: GapDraw) -> Iterator[int]:
    """Give 0, and then times with drawn gaps between them, each rounded to a nanosecond."""
    time = 0
    while True:
        yield time
        time += round(draw_gap() * NS_PER_S)


def gaps(draw: Draw, mean: float, cv: float) -> GapDraw:
    """Give what draws times of this mean and coefficient of variation.

    Gamma distributed; with cv 1 that is exponential, with 0 constant.
    """
    if cv == 0:
        return lambda: mean
    if cv == 1:
        return lambda: exponential(draw) * mean
    shape = 1 / (cv * cv)
    scale = mean / shape
    return lambda: gamma(draw, shape) * scale
