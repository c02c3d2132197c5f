"""What the clients of a whole workload do alike, beside sending: their limits and their patience.

Belongs here: laying that over requests as their source makes them. Called by the sources.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clients:
    """Limits of all clients of a workload; None: each request's own, or none."""

    max_tokens: int | None = None
    patience_ns: int | None = None
    """After so long a client leaves, whatever it got."""
    deadline_ns: int | None = None
    """So long it waits for the first step."""

    def abort_at(self, arrival: int, own: int | None = None) -> int | None:
        """Give when the client of a request leaves; `own` is what the request itself says."""
        return own if self.patience_ns is None else arrival + self.patience_ns

    def deadline(self, own: int | None = None) -> int | None:
        """Give how long the client of a request waits for its first step."""
        return own if self.deadline_ns is None else self.deadline_ns


AS_THEY_ARE = Clients()
