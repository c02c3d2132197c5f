"""Reads the tables of a user's file key by key, strictly.

An unknown key, a wrong type or an impossible value is a ConfigError that names the key, the value
and what is allowed. Belongs here: checking one value, naming one key. Not here: what a table means.
Called by the readers of scenarios, devices and models.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from everbatch.base.errors import ConfigError

MAX_SHOWN_CHARACTERS = 60
MAX_SHOWN_BITS = 128
MAX_SHOWN_ITEMS = 20
MAX_INTEGER = (1 << 53) - 1
"""The largest integer that every reader of JSON keeps exactly."""
LARGEST_NUMBER = sys.float_info.max
"""Integers of a file can be larger, and are no floats then."""


class Fields:
    """One table of a file; `where` names it in messages ("[engine]", "requests[3]")."""

    def __init__(self, table: object, where: str, known: Sequence[str]) -> None:
        if not isinstance(table, Mapping):
            raise ConfigError(f"{where} must be a table, not {shown(table)}")
        for key in table:
            if key not in known:
                raise ConfigError(
                    f"{where} has no key {shown(key)}{did_you_mean(key, known)}; "
                    f"its keys are {', '.join(known)}"
                )
        self._table: Mapping[str, object] = table
        self.where = where

    def __contains__(self, key: str) -> bool:
        return key in self._table

    def get(self, key: str) -> object:
        """Give a value unchecked; the key must be there."""
        return self._table[key]

    def required(self, key: str, what: str) -> None:
        """Refuse a table without `key`; `what` says what it is for."""
        if key not in self._table:
            raise ConfigError(f"{self.where} lacks {key}: {what}")

    def integer(
        self, key: str, default: int | None, low: int = 0, high: int = MAX_INTEGER
    ) -> int | None:
        """Read an integer in [low, high]."""
        if key not in self._table:
            return default
        value = self._table[key]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(key, f"an integer from {low:,} to {high:,}")
        return value

    def integer_or(self, key: str, default: int, low: int = 0, high: int = MAX_INTEGER) -> int:
        """Read an integer in [low, high] that always has a value."""
        value = self.integer(key, default, low, high)
        assert value is not None
        return value

    def number(
        self,
        key: str,
        default: float,
        low: float,
        high: float = LARGEST_NUMBER,
        *,
        above_low: bool = False,
    ) -> float:
        """Read a finite number of at least `low`, or above it, and at most `high`."""
        if key not in self._table:
            return default
        value = self._table[key]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not low <= value <= high or (above_low and value == low):  # type: ignore[operator]
            raise self.wrong(key, _numbers_allowed(low, high, above_low=above_low))
        return float(value)  # type: ignore[arg-type]

    def text(self, key: str, default: str, *, may_be_empty: bool = True) -> str:
        """Read a string."""
        if key not in self._table:
            return default
        value = self._table[key]
        if not isinstance(value, str) or not (value or may_be_empty):
            raise self.wrong(key, "a string" if may_be_empty else "a string that is not empty")
        if not is_writable(value):
            raise self.wrong(key, "a string without lone surrogates")
        return value

    def one_of(self, key: str, default: str, allowed: Sequence[str]) -> str:
        """Read one of some words."""
        value = self._table.get(key, default)
        if value not in allowed:
            hint = did_you_mean(value, allowed)
            raise self.wrong(key, f"one of {', '.join(allowed)}{hint}")
        assert isinstance(value, str)
        return value

    def wrong(self, key: str, allowed: str) -> ConfigError:
        """Make the error of a value that is not allowed."""
        value = self._table[key]
        return ConfigError(f"{self.where} {key} is {shown(value)}, it must be {allowed}")


def _numbers_allowed(low: float, high: float, *, above_low: bool) -> str:
    """Say all that is allowed: who corrects a value is not to be refused for another bound."""
    if high == LARGEST_NUMBER:
        return f"a number {'above' if above_low else 'of at least'} {low:g}"
    most = f"{high:,.0f}" if float(high).is_integer() else f"{high:g}"
    if above_low:
        return f"a number above {low:g}, up to {most}"
    return f"a number from {low:g} to {most}"


def is_writable(text: str) -> bool:
    """Whether a text can be written as UTF-8: JSON can hold halves of characters."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def shown(value: object) -> str:
    """Give a value as it can stand in a message, whatever its size and depth."""
    try:
        text = _text_of(value)
    except RecursionError:
        # What the reader of JSON has just had the stack for may be too deep here.
        return "a value that is nested too deeply"
    if len(text) > MAX_SHOWN_CHARACTERS:
        return f"{text[:MAX_SHOWN_CHARACTERS]}…"
    return text


def _text_of(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > MAX_SHOWN_BITS:
        # Beyond thousands of digits Python refuses to write them at all.
        return f"an integer of {value.bit_length():,} bits"
    if value is None:
        return "null"
    if isinstance(value, str):
        return f'"{value}"' if value.isprintable() else ascii(value)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list):
        # The first ones fill a message; the list may be long.
        items = ", ".join(map(shown, value[:MAX_SHOWN_ITEMS]))
        return f"[{items}]" if len(value) <= MAX_SHOWN_ITEMS else f"[{items}, …]"
    return repr(value)


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Give ' (did you mean "x"?)' if a known word is close, else nothing."""
    if not isinstance(word, str):
        return ""
    # Imported for an error only: starting fast matters more.
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), n=1)
    return f' (did you mean "{close[0]}"?)' if close else ""
