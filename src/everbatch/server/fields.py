"""Reading a JSON body field by field, strictly.

Belongs here: decoding, types, and the refusal of what nobody asked for. Not here: what a field
means. `Fields` hands out each field once; what is left at `end` is refused by name. null means
absent, as in OpenAI's API.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import msgspec

from everbatch.server.errors import ApiError, bad_request

# Wide enough for a seed of 64 bits; what lies beyond cannot be a float or an int of any model.
MAX_NUMBER = 2**64
MAX_DEPTH = 128
"""Of arrays and objects in each other, the body itself counted. Far from what a stack holds: the
answer does not depend on how many calls deep a body is read."""
MAX_SHOWN_LENGTH = 80
"""Of a value that a message quotes: a schema may have thousands of characters."""

# What other APIs, and other servers, call what a body may have under one of these names. What is
# spelt alike may mean the opposite: min_tokens is close to max_tokens.
_LIMITS = ("max_tokens", "max_output_tokens")
OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), _LIMITS),
    **dict.fromkeys(("max_new_tokens", "max_length", "n_predict"), _LIMITS),
    **dict.fromkeys(("messages", "prompt", "input"), ("messages", "prompt", "input")),
    "grammar": ("structured_outputs",),
    "json_schema": ("text", "response_format"),
    "n_probs": ("top_logprobs", "logprobs"),
    "system": ("instructions", "messages"),
}

Json = Any

_decoder = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class IsNeutral:
    """Values of a field that is not supported which ask for what happens anyway."""

    values: tuple[Json, ...]

    def __call__(self, value: Json) -> bool:
        return any(type(value) is type(one) and value == one for one in self.values)


def only(*values: Json) -> IsNeutral:
    return IsNeutral(values)


nothing = IsNeutral(())


def decode_object(body: bytes) -> dict[str, Json]:
    """Decode a body that must be one JSON object.

    msgspec refuses NaN, Infinity, invalid UTF-8, lone surrogates and trailing characters.
    """
    try:
        value = decode_json(body)
    except NestedTooDeeply as error:
        raise bad_request(f"the body is {error}", code="invalid_json") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise bad_request(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise bad_request(
            f"the body must be a JSON object, not {name_type(value)}", code="invalid_json"
        )
    return value


class NestedTooDeeply(ValueError):
    """JSON in which more than MAX_DEPTH arrays and objects stand in each other."""

    def __init__(self) -> None:
        super().__init__(
            f"nested too deeply: at most {MAX_DEPTH} arrays and objects may stand in each other"
        )


def decode_json(written: bytes | str) -> Json:
    """Decode JSON; raises NestedTooDeeply, or MsgspecError where it is none."""
    try:
        value = _decoder.decode(written)
    except RecursionError:
        raise NestedTooDeeply from None
    opening: tuple[Any, Any] = (b"[", b"{") if isinstance(written, bytes) else ("[", "{")
    # Counting takes a hundredth of the time of walking; hardly a body has so many.
    if sum(map(written.count, opening)) > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        raise NestedTooDeeply
    return value


def _is_deeper(value: Json, depth: int) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(depth):
        inner: list[Json] = []
        for one in level:
            items = one.values() if isinstance(one, dict) else one
            inner += [item for item in items if isinstance(item, dict | list)]
        level = inner
    return bool(level)


class Fields:
    """The fields of one object; `path` is where it stands in the body, for messages."""

    def __init__(self, values: Mapping[str, Json], path: str = "") -> None:
        self._left = dict(values)
        self._path = path
        self.known: list[str] = []
        """What was asked for, which is what somebody may have meant."""

    def name(self, field: str) -> str:
        return f"{self._path}.{field}" if self._path else field

    def take(self, field: str) -> Json:
        """Take a field's value as it is; None if absent or null."""
        self.known.append(field)
        return self._left.pop(field, None)

    def has(self, field: str) -> bool:
        """Whether a field is there that is not null and that nobody took."""
        return self._left.get(field) is not None

    def boolean(self, field: str, default: bool = False) -> bool:
        value = self.take(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong_type(field, "true or false", value)
        return value

    def integer(self, field: str, low: int, high: int) -> int | None:
        value = self.take(field)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong_type(field, "an integer", value)
        if not low <= value <= high:
            raise self.bad(field, f"must lie in [{low}, {high}], got {value}")
        return value

    def number(self, field: str) -> int | float | None:
        """Take a number that a float can hold; its own range is checked by whoever uses it."""
        value = self.take(field)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong_type(field, "a number", value)
        if not -MAX_NUMBER <= value <= MAX_NUMBER:
            raise self.bad(field, f"is out of range: {value}")
        return value

    def text(self, field: str, max_length: int) -> str | None:
        value = self.take(field)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.wrong_type(field, "a string", value)
        if len(value) > max_length:
            raise self.bad(field, f"has {len(value):,} characters, at most {max_length:,} go")
        return value

    def object(self, field: str) -> "Fields | None":
        value = self.take(field)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong_type(field, "an object", value)
        return Fields(value, self.name(field))

    def object_value(self, field: str) -> dict[str, Json] | None:
        """Take an object as it is, whatever it holds."""
        value = self.take(field)
        if value is not None and not isinstance(value, dict):
            raise self.wrong_type(field, "an object", value)
        return value

    def refuse(self, unsupported: Mapping[str, IsNeutral]) -> None:
        """Refuse what we know but do not support, unless it is null or asks for what we do."""
        for field, is_neutral in unsupported.items():
            value = self._left.get(field)
            if value is None or is_neutral(value):
                self._left.pop(field, None)
                continue
            raise bad_request(
                f"{self.name(field)}={shown(value)} is not supported by this server: leave it out",
                self.name(field),
                "unsupported_parameter",
            )

    def end(self) -> None:
        """Refuse whatever nobody took."""
        for field in self._left:
            meant = [name for name in OTHER_NAMES.get(field, ()) if name in self.known]
            close = meant or get_close_matches(field, self.known, 1)
            way_out = f"did you mean {close[0]}?" if close else "check its spelling or leave it out"
            raise bad_request(
                f"unknown field {self.name(field)!r}: {way_out}",
                self.name(field),
                "unknown_parameter",
            )

    def wrong_type(self, field: str, wanted: str, value: Json) -> ApiError:
        return self.bad(field, f"must be {wanted}, not {name_type(value)}")

    def bad(self, field: str, what: str) -> ApiError:
        return bad_request(f"{self.name(field)} {what}", self.name(field), "invalid_value")


def shown(value: Json) -> str:
    """Write a value as JSON does, cut where it is long."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_SHOWN_LENGTH else f"{text[:MAX_SHOWN_LENGTH]}…"


def name_type(value: Json) -> str:
    """Name a JSON value's type as JSON does."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value!r}"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"
