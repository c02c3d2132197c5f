"""Who yields its blocks when they run out.

Pure choice among holders. Called by the planner.
"""

from collections.abc import Sequence

from everbatch.scheduler.request import Request


def choose_victim(holders: Sequence[Request]) -> Request | None:
    """Give the latest arrival, but never the most senior one; None if there is nobody else.

    The most senior always keeps what it has, and a request that was accepted fits the pool alone,
    so somebody always comes to an end (docs/invariants.md, progress).
    """
    if len(holders) < 2:
        return None
    return max(holders, key=lambda request: request.arrival_number)
