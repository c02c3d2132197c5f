"""What the clients of a whole workload do alike, beside sending: their limits and their patience.

Belongs here: laying that over requests as their source makes them. Called by the sources.
"""

from collections.abc import Callable
from dataclasses import dataclass

from everbatch.workload.random_draws import stream

Leaving = Callable[[int, int | None], int | None]
"""Gives when the client of a request leaves, by its arrival and what the request itself says."""


@dataclass(frozen=True, slots=True)
class Clients:
    """Limits of all clients of a workload; None: each request's own, or none."""

    max_tokens: int | None = None
    patience_ns: int | None = None
    """After so long an impatient client leaves, whatever it got."""
    impatient: float = 1.0
    """The share of clients that are impatient, drawn by chance; the others stay to the end."""
    deadline_ns: int | None = None
    """So long a client waits for the first step."""

    def leaving(self, seed: int) -> Leaving:
        """Give who leaves when, to be asked once a request in their order."""
        patience, share = self.patience_ns, self.impatient
        if patience is None:
            return lambda arrival, own: own
        if share == 1:
            return lambda arrival, own: arrival + patience
        draw = stream(seed, "impatient clients").random
        return lambda arrival, own: arrival + patience if draw() < share else own

    def deadline(self, own: int | None = None) -> int | None:
        """Give how long the client of a request waits for its first step."""
        return own if self.deadline_ns is None else self.deadline_ns


AS_THEY_ARE = Clients()
