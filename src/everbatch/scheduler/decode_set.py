"""The requests that decode in every step, and a calendar of what falls due when.

A decode step changes nothing that the scheduler must look at, except at two moments that are known
in advance: when a request's last block is full, and when it reaches its length limit. So the set
keeps a count, the step at which each member joined, and the two calendars. Advancing by a step
costs what falls due in it; a member that only decodes costs nothing.

Knows no pool and no queue. Changes no request. Called by the scheduler alone.
"""

from collections.abc import Iterable, Iterator, KeysView, Mapping

from everbatch.scheduler.request import Request

_Calendar = dict[int, dict[Request, None]]


class DecodeSet:
    """Members by the step after which they joined. Order of iteration: order of joining."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._joined_at: dict[Request, int] = {}
        self.members: Mapping[Request, int] = self._joined_at
        """For others to read: what is `in` it is found without a call in Python."""
        self._full_at: _Calendar = {}
        self._ends_at: _Calendar = {}
        self._first_end: int | None = None
        """The first step of `_ends_at`, where it is known."""
        self.num_steps = 0
        """Steps completed."""

    def __len__(self) -> int:
        return len(self._joined_at)

    def __contains__(self, request: Request) -> bool:
        return request in self._joined_at

    def __iter__(self) -> Iterator[Request]:
        return iter(self._joined_at)

    def progress(self, request: Request) -> int:
        """Give the tokens a member has consumed, and emitted, since it joined; 0 for others."""
        joined_at = self._joined_at.get(request)
        return 0 if joined_at is None else self.num_steps - joined_at

    def computed_tokens(self, request: Request) -> int:
        """Give the tokens of a request, member or not, that have KV entries."""
        return request.num_computed_tokens + self.progress(request)

    def join(self, request: Request) -> None:
        """Let `request`, its counters up to date, decode from the next step on."""
        assert request not in self._joined_at
        assert request.num_output_tokens < request.max_tokens
        self._joined_at[request] = self.num_steps
        self._full_at.setdefault(self._next_full(request), {})[request] = None
        end = self._end(request)
        self._ends_at.setdefault(end, {})[request] = None
        if self._first_end is not None and end < self._first_end:
            self._first_end = end

    def leave(self, request: Request) -> int:
        """Take a member out; gives what `progress` gave."""
        end, next_full = self._end(request), self._next_full(request)
        progress = self.num_steps - self._joined_at.pop(request)
        _strike_out(self._full_at, next_full, request)
        _strike_out(self._ends_at, end, request)
        self._first_end = None
        return progress

    def filling(self) -> Iterable[Request]:
        """Give the members whose last blocks the next step fills."""
        return self._full_at.get(self.num_steps + 1, ())

    def next_full(self) -> int:
        """Give the next step that fills somebody's block. There must be a member."""
        return min(self._full_at)

    def fills_before(self, last: int) -> list[tuple[int, KeysView[Request]]]:
        """Complete the steps before `last`, in none of which anybody ends; gives who filled blocks.

        As (step, whose), in order of steps: the views of whom are as `advance` gives them.
        """
        fills: list[tuple[int, KeysView[Request]]] = []
        calendar = self._full_at
        # What a round fills is full again in the next one, all of it later than what is left.
        while steps := sorted([step for step in calendar if step < last]):
            for step in steps:
                full = calendar[step + self.block_size] = calendar.pop(step)
                fills.append((step, full.keys()))
        self.num_steps = last - 1
        return fills

    def next_end(self) -> int:
        """Give the next step that is somebody's last, at most. There must be a member.

        O(1) but for the first question after somebody left.
        """
        if self._first_end is None:
            self._first_end = min(self._ends_at)
        return self._first_end

    def advance(self) -> tuple[KeysView[Request], KeysView[Request]]:
        """Complete a step: each member consumed and emitted a token.

        Gives whose blocks are full now and who has emitted its last token; the first is a view that
        `leave` keeps up to date. O(1), whatever the number of members.
        """
        self.num_steps += 1
        ended = self._ends_at.pop(self.num_steps, {})
        full = self._full_at.pop(self.num_steps, {})
        if full:
            # Nobody can have joined for that step: joining looks at most one block ahead.
            later = self.num_steps + self.block_size
            assert later not in self._full_at
            self._full_at[later] = full
        return full.keys(), ended.keys()

    def _next_full(self, request: Request) -> int:
        computed = self.computed_tokens(request)
        return self.num_steps + self.block_size - computed % self.block_size

    def _end(self, request: Request) -> int:
        return self._joined_at[request] + request.max_tokens - request.num_output_tokens


def _strike_out(calendar: _Calendar, step: int, request: Request) -> None:
    """Take a request out of what falls due with a step, if it is still to come."""
    due = calendar.get(step)
    if due is not None:
        due.pop(request, None)
        if not due:
            del calendar[step]
