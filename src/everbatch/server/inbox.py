"""What the event loop leaves for the engine thread, and how far that one may run ahead.

Belongs here: the lock, the condition, the bounds. Not here: what is done with it. Used by the
bridge alone: `put_*`, `batch_read` and `close` on the loop, `take*` on the thread.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from everbatch.engine.engine import EngineRequest
from everbatch.scheduler.request import FinishReason

Abort = tuple[str, FinishReason]


@dataclass(frozen=True, slots=True)
class Mail:
    """What was taken: aborts go first, they make room."""

    aborts: list[Abort]
    adds: list[EngineRequest]


class Inbox:
    """Requests and aborts on their way to the engine.

    At most `max_adds` requests wait; aborts are bounded by what the engine has, one a request. An
    abort of a request that still waits here takes it out, so that the engine never sees it. The
    thread sleeps while `max_batches` of its batches have not been read.
    """

    def __init__(self, max_adds: int, max_batches: int) -> None:
        self.max_adds = max_adds
        self._max_batches = max_batches
        self._adds: dict[str, EngineRequest] = {}
        self._aborts: list[Abort] = []
        self._num_unread = 0
        self._is_closed = False
        self._changed = threading.Condition()

    def put_adds(self, requests: Sequence[EngineRequest]) -> bool:
        """Queue all of them, or none if they would be too many; says which."""
        with self._changed:
            if len(self._adds) + len(requests) > self.max_adds:
                return False
            self._adds.update((request.id, request) for request in requests)
            self._changed.notify()
            return True

    def put_abort(self, request_id: str, reason: FinishReason) -> None:
        with self._changed:
            if self._adds.pop(request_id, None) is None:
                self._aborts.append((request_id, reason))
                self._changed.notify()

    def batch_read(self) -> None:
        """Say that one batch that the thread sent has been read."""
        with self._changed:
            self._num_unread -= 1
            self._changed.notify()

    def close(self) -> None:
        """Make `take` give None from now on."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def take(self, *, wait: bool) -> Mail | None:
        """Take all; with `wait`, sleep until there is something. None: closed.

        Whoever takes must answer with one batch.
        """
        with self._changed:
            while not self._is_closed and not self._may_go(wait):
                self._changed.wait()
            if self._is_closed:
                return None
            mail = Mail(self._aborts, list(self._adds.values()))
            self._aborts = []
            self._adds.clear()
            self._num_unread += 1
            return mail

    def take_aborts(self) -> list[Abort]:
        """Take the aborts that came since, for a step that runs."""
        with self._changed:
            aborts, self._aborts = self._aborts, []
            return aborts

    def _may_go(self, wait: bool) -> bool:
        if self._num_unread >= self._max_batches:
            return False
        return bool(self._adds or self._aborts) or not wait
