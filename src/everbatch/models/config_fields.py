"""Reads single values out of an untrusted mapping, with errors that name file, key and range.

Belongs here: types and ranges of one value. Not here: which keys there are. Called by hf_config.py
and gguf_config.py.
"""

import math
from collections.abc import Mapping
from typing import NoReturn

from everbatch.base.errors import ModelLoadError, UnsupportedModel
from everbatch.base.fields import shown

# Sizes are int32 in the packed batch; nothing larger can be a real model's.
MAX_INTEGER = 2**31 - 1
# The largest number that float32 holds, rounded down.
MAX_NUMBER = 3.4e38


class Fields:
    """The keys of one file (or of one object inside of it). A key that is null counts as absent."""

    def __init__(self, values: Mapping[str, object], source: str, prefix: str = "") -> None:
        self.source = source
        self._values = values
        self._prefix = prefix

    def fail(self, problem: str) -> NoReturn:
        raise ModelLoadError(f"{self.source}: {problem}")

    def refuse(self, problem: str) -> NoReturn:
        raise UnsupportedModel(f"{self.source}: {problem}")

    def name(self, key: str) -> str:
        """The key as an error shows it, with the object it is in."""
        return f"{self._prefix}{key}"

    def peek(self, key: str) -> object | None:
        return self._values.get(key)

    def has(self, key: str) -> bool:
        """Whether the key is there, be it null."""
        return key in self._values

    def integer(self, key: str, *, minimum: int = 1) -> int:
        """The integer at `key`; ModelLoadError if absent or out of [minimum, 2**31)."""
        return self._integer(key, self._required(key), minimum)

    def integer_or(self, key: str, default: int, *, minimum: int = 1) -> int:
        value = self.peek(key)
        return default if value is None else self._integer(key, value, minimum)

    def optional_integer(self, key: str, *, minimum: int = 0) -> int | None:
        value = self.peek(key)
        return None if value is None else self._integer(key, value, minimum)

    def number(self, key: str) -> float:
        """The number at `key`, finite and above 0; ModelLoadError if absent or anything else."""
        return self._number(key, self._required(key))

    def number_or(self, key: str, default: float) -> float:
        value = self.peek(key)
        return default if value is None else self._number(key, value)

    def optional_number(self, key: str) -> float | None:
        value = self.peek(key)
        return None if value is None else self._number(key, value)

    def flag_or(self, key: str, default: bool) -> bool:
        value = self.peek(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(f"{self.name(key)} is {shown(value)}, expected true or false")
        return value

    def text(self, key: str) -> str:
        return self._text(key, self._required(key))

    def text_or(self, key: str, default: str) -> str:
        value = self.peek(key)
        return default if value is None else self._text(key, value)

    def token_ids(self, key: str) -> tuple[int, ...]:
        """An id or a list of ids, without repetitions; () if absent."""
        value = self.peek(key)
        if value is None:
            return ()
        items = value if isinstance(value, list) else [value]
        return tuple(dict.fromkeys(self._integer(key, item, 0) for item in items))

    def inner(self, key: str) -> "Fields | None":
        """The object at `key`; None if absent or empty."""
        value = self.peek(key)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            self.fail(f"{self.name(key)} is {shown(value)}, expected an object")
        return Fields(value, self.source, f"{self.name(key)}.")

    def _required(self, key: str) -> object:
        value = self.peek(key)
        if value is None:
            self.fail(f"the key {self.name(key)} is missing")
        return value

    def _integer(self, key: str, value: object, minimum: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            self.fail(f"{self.name(key)} is {shown(value)}, expected an integer")
        if not minimum <= value <= MAX_INTEGER:
            self.fail(f"{self.name(key)} is {shown(value)}, expected {minimum} to {MAX_INTEGER:,}")
        return value

    def _number(self, key: str, value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.fail(f"{self.name(key)} is {shown(value)}, expected a number")
        # An integer may be too large for a float, so it is compared before it is converted.
        if not 0 < value <= MAX_NUMBER or not math.isfinite(value):
            self.fail(f"{self.name(key)} is {shown(value)}, expected a finite number above 0")
        return float(value)

    def _text(self, key: str, value: object) -> str:
        if not isinstance(value, str):
            self.fail(f"{self.name(key)} is {shown(value)}, expected a string")
        return value
