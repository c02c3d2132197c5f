"""The answers that are being made, by the ids under which a client may name them.

Belongs here: finding an answer for POST /abort. Not here: ending it (answer.py). On the event loop.
"""

from collections.abc import Iterable
from typing import Protocol


class Abortable(Protocol):
    """An answer under way."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Its own id, then the one that its client gave, if any; others may have that, too."""
        ...

    @property
    def tenant(self) -> str | None:
        """Whose it is."""
        ...

    def abort(self) -> bool:
        """End it; gives whether there was anything left to end."""
        ...


class LiveAnswers:
    """All answers between their submission and their end."""

    def __init__(self) -> None:
        self._by_id: dict[str, list[Abortable]] = {}

    def add(self, answer: Abortable) -> None:
        for one in answer.ids:
            self._by_id.setdefault(one, []).append(answer)

    def remove(self, answer: Abortable) -> None:
        """Forget an answer; one that is not known is left alone."""
        for one in answer.ids:
            left = [other for other in self._by_id.get(one, ()) if other is not answer]
            if left:
                self._by_id[one] = left
            else:
                self._by_id.pop(one, None)

    def abort(self, ids: Iterable[str], tenant: str | None = None) -> list[str]:
        """End the answers of these ids; gives the ids under which something was ended.

        Those of others than `tenant` are left alone; None: all may be ended.
        """
        return [one for one in dict.fromkeys(ids) if self._abort(one, tenant)]

    def _abort(self, answer_id: str, tenant: str | None) -> bool:
        found = self._by_id.get(answer_id, ())
        # All of them, not any of them: `any` would stop at the first.
        ended = [answer.abort() for answer in found if tenant in (None, answer.tenant)]
        return any(ended)
