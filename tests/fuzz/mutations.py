"""Breaks inputs in ways that readers may not expect: the same ways for the same random numbers.

Bytes: flipped, cut, doubled, spliced, lengths and counts put to the edges of their types. Text:
numbers, strings and brackets of JSON and TOML put in each other's place.
"""

import random
import re
import struct
from collections.abc import Sequence

MAX_INPUT_BYTES = 1 << 17
EDGES = (
    0,
    1,
    2,
    7,
    127,
    128,
    255,
    256,
    32_767,
    65_535,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63,
    2**64 - 1,
)
SCALAR = re.compile(rb'"(?:[^"\\\n]|\\.)*"|-?\d[\d_.eE+-]*|\btrue\b|\bfalse\b|\bnull\b|\[\]|\{\}')
VALUES = (
    *(b"null", b"true", b"false", b"[]", b"{}", b"0", b"-1", b"1", b"0.5", b"-0.0", b"1e999"),
    *(b"1e-999", b"1e18", b"NaN", b"Infinity", b"inf", b"nan", b"2147483648", b"4294967296"),
    *(b"9223372036854775808", b"18446744073709551616", b"9" * 400, b"9" * 5_000, b"1e4000"),
    *(b'""', b'"\\ud800"', b'"\\u0000"', b'"x"', b'"' + b"x" * 700 + b'"', b'"\xf0\x9f\x99\x82"'),
    *(b"[[]]", b"[null]", b'{"":{}}', b"[0,0]", b"[1,-1]", b"[" * 200 + b"]" * 200),
    *(b"[" * 5_000 + b"]" * 5_000, b'{"a":' * 2_000 + b"1" + b"}" * 2_000, b"1979-05-27", b"00"),
)


def mutated(
    data: bytes, draw: random.Random, others: Sequence[bytes], words: Sequence[bytes]
) -> bytes:
    """Break an input in one to four places; `others` are what it may be spliced with."""
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 4))):
        change = draw.choice(_CHANGES)
        data = change(data, draw, others, words)[:MAX_INPUT_BYTES]
    return data


def _place(data: bytes, draw: random.Random) -> int:
    """Give a position, more often near the start: headers stand there."""
    return int(len(data) * draw.random() ** draw.choice((1, 3)))


def _flip(data: bytes, draw: random.Random, *_: object) -> bytes:
    if not data:
        return b"\0"
    place = min(_place(data, draw), len(data) - 1)
    return data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :]


def _byte(data: bytes, draw: random.Random, *_: object) -> bytes:
    place = _place(data, draw)
    return data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :]


def _number(data: bytes, draw: random.Random, *_: object) -> bytes:
    """Put a little-endian integer at the edge of a type, or near to it."""
    place = _place(data, draw)
    code, num_bytes = draw.choice((("<B", 1), ("<H", 2), ("<I", 4), ("<Q", 8), ("<Q", 8)))
    value = (draw.choice(EDGES) + draw.choice((0, 0, -1, 1))) % (1 << 8 * num_bytes)
    return data[:place] + struct.pack(code, value) + data[place + num_bytes :]


def _cut(data: bytes, draw: random.Random, *_: object) -> bytes:
    start, length = _place(data, draw), draw.choice((1, 2, 4, 8, 16, 64, 1024))
    return data[:start] + data[start + length :]


def _end(data: bytes, draw: random.Random, *_: object) -> bytes:
    return data[: _place(data, draw)]


def _double(data: bytes, draw: random.Random, *_: object) -> bytes:
    start, length = _place(data, draw), draw.choice((1, 4, 8, 40, 200))
    piece = data[start : start + length]
    return data[: start + length] + piece * draw.choice((1, 1, 2, 50)) + data[start + length :]


def _splice(data: bytes, draw: random.Random, others: Sequence[bytes], *_: object) -> bytes:
    other = draw.choice(others) if others else data
    return data[: _place(data, draw)] + other[_place(other, draw) :]


def _word(data: bytes, draw: random.Random, _: object, words: Sequence[bytes]) -> bytes:
    place, length = _place(data, draw), draw.choice((0, 0, 1, 4))
    word = draw.choice(words) if words else b"\n"
    return data[:place] + word + data[place + length :]


def _value(data: bytes, draw: random.Random, _: object, words: Sequence[bytes]) -> bytes:
    """Put another value in the place of one that is written out."""
    found = list(SCALAR.finditer(data, 0, 1 << 16))
    if not found:
        return _flip(data, draw)
    match = draw.choice(found)
    quoted = [b'"' + word + b'"' for word in words[:50] if b'"' not in word]
    value = draw.choice((*VALUES, *quoted, draw.choice(found).group()))
    return data[: match.start()] + value + data[match.end() :]


def _line(data: bytes, draw: random.Random, *_: object) -> bytes:
    """Leave out a line, write it twice, or put it elsewhere."""
    lines = data.splitlines(keepends=True)
    if len(lines) < 2:
        return _value(data, draw, (), ())
    taken = lines.pop(draw.randrange(len(lines)))
    for _ in range(draw.choice((0, 1, 2))):
        lines.insert(draw.randrange(len(lines) + 1), taken)
    return b"".join(lines)


_CHANGES = (
    *(_flip, _byte, _number, _number, _cut, _end, _double, _splice),
    *(_word, _value, _value, _value, _line),
)
