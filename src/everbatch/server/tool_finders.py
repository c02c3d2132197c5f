"""Finding calls of tools in the text of an answer, as it comes.

Belongs here: what is a call, what is text, and how much of a text must be held back until that is
known. Not here: the ways in which calls are written (tool_calls.py). Used where answers are told.

What looks like a call and is none, broken JSON or a tool that was not offered, is text.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec

from everbatch.server.tool_calls import CLOSE, OPEN, Call, Tool, ToolStyle
from everbatch.server.tool_markup import FunctionEndSearch, FunctionReader

_ESCAPED = re.compile(r"\\.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Found:
    """What a piece of text brought: texts for the client and calls, in their order."""

    parts: tuple[str | Call, ...] = ()

    @property
    def text(self) -> str:
        return "".join(one for one in self.parts if isinstance(one, str))

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(one for one in self.parts if isinstance(one, Call))


class CallFinder(Protocol):
    """Watches one answer."""

    def push(self, text: str) -> Found: ...

    def finish(self) -> Found:
        """Give what was held back."""
        ...


class TagSearch(Protocol):
    """Looks for the tag that closes a call."""

    def partition(self, text: str) -> tuple[str, str, str]:
        """Partition at that tag; `text` begins with what was given before."""
        ...


FinderMaker = Callable[[], CallFinder]


def finder_of(style: ToolStyle, tools: Sequence[Tool]) -> CallFinder:
    names = frozenset(tool.name for tool in tools)
    match style:
        case ToolStyle.TAGGED:
            return TaggedFinder(CloseSearch, partial(_call, style.arguments_key, names))
        case ToolStyle.MARKUP:
            return TaggedFinder(FunctionEndSearch, FunctionReader(tools).read)
        case _:
            return WholeFinder(style, names)


class TaggedFinder:
    """Finds calls between tags. Spaces before a tag, and after the last one, are not text: models
    put calls on lines. `read` reads what stands between; None: that is no call."""

    def __init__(
        self, new_search: Callable[[], TagSearch], read: Callable[[str], Call | None]
    ) -> None:
        self._new_search = new_search
        self._read = read
        self._held = ""
        self._close: TagSearch | None = None
        """For the end of the call that has begun; None: none has."""
        self._was_call = False
        """Whether a call was the last thing that came."""

    def push(self, text: str) -> Found:
        self._held += text
        parts: list[str | Call] = []
        while self._step(parts):
            pass
        return Found(tuple(parts))

    def finish(self) -> Found:
        held, self._held = self._held, ""
        if self._close is not None:
            held = OPEN + held
        elif self._was_call:
            held = held if held.strip() else ""
        return Found((held,) if held else ())

    def _step(self, parts: list[str | Call]) -> bool:
        """Go on to the next tag; gives whether there was one."""
        close = self._close
        before, tag, after = (
            self._held.partition(OPEN) if close is None else close.partition(self._held)
        )
        if not tag:
            if close is None:
                cut = _end_of_text(before)
                self._tell(parts, before[:cut])
                self._held = before[cut:]
            return False
        self._held = after
        if close is None:
            self._tell(parts, before.rstrip())
            self._close = self._new_search()
            return True
        self._close = None
        call = self._read(before)
        if call is None:
            self._tell(parts, f"{OPEN}{before}{CLOSE}")
        else:
            parts.append(call)
            self._was_call = True
        return True

    def _tell(self, parts: list[str | Call], text: str) -> None:
        if text:
            parts.append(text)
            self._was_call = False


class WholeFinder:
    """Takes an answer that begins as one with calls does for such, and looks when it has ended."""

    def __init__(self, style: ToolStyle, names: frozenset[str]) -> None:
        self._style = style
        self._opening = "[" if style is ToolStyle.LISTED else "{"
        self._names = names
        self._held: list[str] = []
        self._may_be_calls: bool | None = None
        """None while only spaces have come."""

    def push(self, text: str) -> Found:
        if self._may_be_calls is None and text.strip():
            self._may_be_calls = text.lstrip().startswith(self._opening)
        if self._may_be_calls is False:
            return Found((self._take() + text,))
        self._held.append(text)
        return Found()

    def finish(self) -> Found:
        held = self._take()
        calls = self._calls(held)
        if calls is not None:
            return Found(calls)
        return Found((held,) if held else ())

    def _take(self) -> str:
        held = "".join(self._held)
        self._held.clear()
        return held

    def _calls(self, text: str) -> tuple[Call, ...] | None:
        """Give the calls that the text consists of; None if it is anything else."""
        decoder, calls, place = json.JSONDecoder(), [], 0
        text = text.strip()
        if self._style is ToolStyle.LISTED:
            if not text.endswith("]"):
                return None
            text = text[1:-1].strip()
        while place < len(text):
            try:
                _, end = decoder.raw_decode(text, place)
            except (ValueError, RecursionError):
                return None
            call = _call(self._style.arguments_key, self._names, text[place:end])
            if call is None:
                return None
            calls.append(call)
            rest = text[end:]
            separators = ", \n" if self._style is ToolStyle.LISTED else "; \n"
            place = len(text) - len(rest.lstrip(separators))
        return tuple(calls) or None


class CloseSearch:
    """Looks in a text that grows for the first closing tag that stands in no JSON string.

    Each character is looked at once, however many tags stand in strings: a model may repeat one.
    """

    def __init__(self) -> None:
        self._searched = 0
        """Where the next tag may begin."""
        self._counted = 0
        """So far quotes are counted."""
        self._is_in_string = False

    def partition(self, text: str) -> tuple[str, str, str]:
        """Partition at that tag; `text` begins with what was given before."""
        while (place := text.find(CLOSE, self._searched)) >= 0:
            self._searched = place + 1
            self._count_quotes(text, place)
            if not self._is_in_string:
                return text[:place], CLOSE, text[place + len(CLOSE) :]
        self._searched = max(self._searched, len(text) - len(CLOSE) + 1)
        return text, "", ""

    def _count_quotes(self, text: str, end: int) -> None:
        plain = _ESCAPED.sub("", text[self._counted : end])
        self._is_in_string ^= plain.count('"') % 2 == 1
        # A backslash at the end belongs to what follows.
        self._counted = end - plain.endswith("\\")


def _end_of_text(text: str) -> int:
    """Give where what may be spaces before a tag, or the beginning of one, begins."""
    end = len(text)
    for length in range(min(len(OPEN) - 1, len(text)), 0, -1):
        if OPEN.startswith(text[-length:]):
            end -= length
            break
    return len(text[:end].rstrip())


def _call(arguments_key: str, names: frozenset[str], text: str) -> Call | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    name = value.get("name")
    if not isinstance(name, str) or name not in names:
        return None
    arguments = value.get(arguments_key, {})
    if not isinstance(arguments, dict):
        return None
    return Call(name, msgspec.json.encode(arguments).decode())
