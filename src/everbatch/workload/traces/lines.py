"""The lines of a trace file, compressed or not, one at a time.

Belongs here: opening, decompressing, decoding, limits, and how much is read. Not here: what a line
says. The file is read once a call of `lines`; nothing of it is kept.
"""

import csv
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from decimal import Decimal
from io import BufferedReader, RawIOBase
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

from everbatch.base.duplicates import first_twice
from everbatch.base.errors import ConfigError
from everbatch.base.fields import shown
from everbatch.base.paths import exists, is_file
from everbatch.workload.traces.rows import broken

MAX_LINE_BYTES = 16 << 20
"""A prompt of 100 million tokens has 3 MB of hash ids; a longer line is no row."""
_GZIP_MAGIC = b"\x1f\x8b"
_BUFFER_BYTES = 1 << 18


class TraceFile:
    """A file of lines in UTF-8, perhaps compressed by gzip (its first bytes tell)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not is_file(path):
            what = "is not a file" if exists(path) else "does not exist"
            raise ConfigError(f"the trace {path} {what}")
        self.num_bytes = path.stat().st_size
        self.num_bytes_read = 0
        """Of the file as it is stored; for progress."""

    def lines(self, *, as_they_are: bool = False) -> Iterator[tuple[int, str]]:
        """Give (number from 1, line without its end), but for blank ones. ConfigError if broken.

        `as_they_are`: with their ends, blank ones too.
        """
        number = 0
        try:
            with self.path.open("rb", buffering=0) as raw:
                reader = _uncompressed(raw)
                while line := reader.readline(MAX_LINE_BYTES):
                    number += 1
                    if number % 256 == 1:
                        self.num_bytes_read = raw.tell()
                    # Decoded one by one, so that the error names the right line.
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                    if len(line) == MAX_LINE_BYTES:
                        raise broken(number, f"it has {len(line):,} bytes or more: no row has")
                    if as_they_are:
                        yield number, text
                    elif not text.isspace():
                        yield number, text.rstrip("\r\n")
                self.num_bytes_read = self.num_bytes
        except UnicodeDecodeError as error:
            raise broken(number, f"it is not UTF-8 (byte {error.start + 1})") from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise broken(number + 1, f"the compressed file is damaged there ({error})") from error
        except OSError as error:
            raise ConfigError(f"it cannot be read ({error.strerror})") from error

    def csv_rows(self, columns: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Give (line, cells of these columns, at least two) for each row after the header."""
        lines = self.lines()
        header = header_of(next(lines, (1, ""))[1])
        for column in columns:
            if column not in header:
                raise broken(1, f"it has no column {column}; its columns are {', '.join(header)}")
        chosen = itemgetter(*(header.index(column) for column in columns))
        for number, line in lines:
            cells = line.split(",") if '"' not in line else _quoted(line, number)
            if len(cells) != len(header):
                raise broken(
                    number,
                    f"it has {len(cells)} cells, the header has {len(header)}: {shown(line)}",
                )
            yield number, chosen(cells)

    def json_rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Give (line, object) for each line; numbers with a fraction are decimals."""
        for number, line in self.lines():
            yield number, parse_object(line, number)


def header_of(line: str) -> list[str]:
    """Give the names in a CSV file's first line; ConfigError if one comes twice."""
    names = _quoted(line, 1)
    twice = first_twice(names)
    if twice is not None:
        raise broken(1, f"the column {shown(twice)} comes twice")
    return names


def parse_object(line: str, number: int) -> dict[str, Any]:
    """Read a line of a JSON Lines file."""
    try:
        found = _DECODER.decode(line)
    except ValueError as error:
        raise broken(number, f"it is not JSON ({error}): {shown(line)}") from error
    except ArithmeticError as error:
        # Decimals have exponents of 18 digits at most.
        raise broken(number, f"it has an exponent that is too large: {shown(line)}") from error
    except RecursionError as error:
        raise broken(number, "it is nested too deeply") from error
    if not isinstance(found, dict):
        raise broken(number, f"it is not a JSON object: {shown(line)}")
    return found


def _uncompressed(raw: RawIOBase) -> BufferedReader:
    reader: BufferedReader = BufferedReader(cast(Any, raw), _BUFFER_BYTES)
    if reader.peek(2)[:2] != _GZIP_MAGIC:
        return reader
    return BufferedReader(cast(Any, gzip.GzipFile(fileobj=reader)), _BUFFER_BYTES)


def _quoted(line: str, number: int) -> list[str]:
    try:
        [cells] = csv.reader([line], strict=True)
    except (ValueError, csv.Error) as error:
        what = "a carriage return alone ends no line" if "\r" in line else "its quotes do not end"
        raise broken(number, f"{what}: {shown(line)}") from error
    return cells


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is no number of JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object; which of two values of one key is meant nobody can tell."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"the key {shown(first_twice(key for key, _ in pairs))} comes twice")
    return found


# Made once: json.loads makes a decoder a call whenever it is told how to read numbers.
_DECODER = json.JSONDecoder(
    parse_float=Decimal, parse_constant=_no_constant, object_pairs_hook=_unique
)
