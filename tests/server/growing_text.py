"""How much of a text that grows is looked at by a search for the tag that closes a call."""

from typing import Any

from everbatch.server.tool_calls import CLOSE
from everbatch.server.tool_finders import TagSearch


def looked_at_in(search: TagSearch, begin: str, num_tags: int) -> int:
    """Let a text grow by closing tags, none of which ends the call; give how many characters of it
    were looked at."""
    looked_at = 0

    class Counted(str):
        """A text that counts what is looked at of it; its sums count, too."""

        def __add__(self, other: str) -> "Counted":
            return Counted(str.__add__(self, other))

        def __getitem__(self, key: Any) -> str:
            nonlocal looked_at
            part = str.__getitem__(self, key)
            looked_at += len(part)
            return part

    text = Counted(begin)
    for _ in range(num_tags):
        text = text + CLOSE
        assert search.partition(text) == (text, "", "")
    return looked_at
