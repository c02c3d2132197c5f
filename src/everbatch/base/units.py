"""Units and the few conversions everybody needs: nanoseconds, bytes, tokens per block.

Pure functions of their arguments. Used by every layer.
"""

import re

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000

MAX_BYTES = 1 << 60
"""More than any machine has; a number of hundreds of digits would be no finite float."""

_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "k": 1_000,
    "kb": 1_000,
    "kib": 1 << 10,
    "m": 1_000_000,
    "mb": 1_000_000,
    "mib": 1 << 20,
    "g": 1_000_000_000,
    "gb": 1_000_000_000,
    "gib": 1 << 30,
}


def div_ceil(value: int, divisor: int) -> int:
    """Divide two non-negative integers and round up."""
    return -(-value // divisor)


def counted(number: int, noun: str) -> str:
    """Write a number with its noun: "1 step", "1,024 steps"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def parse_bytes(text: str) -> int:
    """Read a size such as "512MiB", "2 GB" or "1000000"; ValueError says what is allowed."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    factor = _BYTE_UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(
            f"{text!r} is not a size: write a number with B, KB, MB, GB, KiB, MiB or GiB, "
            'for example "512MiB"'
        )
    size = float(match[1]) * factor
    if size > MAX_BYTES:
        raise ValueError(f"{text:.40} is more than {format_bytes(MAX_BYTES)}: write a smaller size")
    return int(size)


def format_bytes(count: int) -> str:
    """Write a number of bytes for people, in binary units: "93.8 MiB"."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    raise AssertionError("the last unit always returns")
