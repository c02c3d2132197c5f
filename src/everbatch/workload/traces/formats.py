"""Which formats of traces there are, and which of them a file has.

A file's columns (CSV) or the keys of its first object (JSON Lines) say what it is. If they fit
several formats or none, the file is refused until somebody says which it is.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from everbatch.base.errors import ConfigError
from everbatch.base.fields import did_you_mean, shown
from everbatch.workload.traces import own_formats, public_formats
from everbatch.workload.traces.lines import TraceFile, header_of, parse_object
from everbatch.workload.traces.order import in_order
from everbatch.workload.traces.rows import TraceRow

MAX_KEYS_SHOWN = 12

Reader = Callable[[TraceFile], Iterator[TraceRow]]


@dataclass(frozen=True, slots=True)
class _Format:
    """How a file of it is recognised, and read."""

    keys: tuple[str, ...]
    is_csv: bool
    read: Reader | None = None


_VIDUR = _Format(public_formats.VIDUR_COLUMNS, True)
_EVENT_LOG = _Format(("event", "version"), False)
_FORMATS = {
    "azure": _Format(public_formats.AZURE_COLUMNS, True, public_formats.read_azure),
    "mooncake": _Format(
        ("timestamp", "input_length", "output_length"), False, public_formats.read_mooncake
    ),
    "vidur": _VIDUR,
    "burstgpt": _Format(public_formats.BURSTGPT_COLUMNS, True, public_formats.read_burstgpt),
    "jsonl": _Format(own_formats.PLAIN_KEYS, False, own_formats.read_plain),
    "eventlog": _EVENT_LOG,
    "vllm": _Format(("arrival_time", "input_toks", "output_toks"), False, public_formats.read_vllm),
}
FORMATS = tuple(_FORMATS)


@dataclass(slots=True)
class Trace:
    """A trace file whose format is known. `rows` reads it and counts in `remarks` what it
    left out or changed."""

    file: TraceFile
    format: str
    is_detected: bool
    has_arrivals: bool
    remarks: dict[str, int] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Say which file this is, and as what it is read."""
        how = "detected" if self.is_detected else "as told"
        return f"{self.file.path.name}, format {self.format} ({how})"

    def rows(self) -> Iterator[tuple[int, TraceRow]]:
        """Give (number from 0, row) by arrival; one that is out of order by too much is an error.

        Without arrivals: as they stand.
        """
        try:
            rows = self._as_they_stand()
            yield from in_order(rows) if self.has_arrivals else enumerate(rows)
        except ConfigError as error:
            raise ConfigError(f"{self.file.path}: {error}") from error

    def _as_they_stand(self) -> Iterator[TraceRow]:
        known = _FORMATS[self.format]
        self.remarks.clear()
        if known.read is not None:
            return known.read(self.file)
        if known is _VIDUR:
            reader = public_formats.read_vidur
            return (reader if self.has_arrivals else public_formats.read_vidur_lengths)(self.file)
        log = own_formats.EventLogRows(self.file, self.remarks)
        return log.rows()


def open_trace(path: Path, format: str | None = None) -> Trace:
    """Find out what a trace file is; ConfigError if that is not clear, or not so."""
    file = TraceFile(path)
    if format is not None and format not in _FORMATS:
        raise ConfigError(
            f"{shown(format)} is no format of traces{did_you_mean(format, FORMATS)}; there are "
            f"{', '.join(FORMATS)}"
        )
    try:
        keys, is_csv = _first_keys(file)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    name = format or _detected(path, keys, is_csv)
    _check_keys(path, name, keys, is_csv)
    has_arrivals = name != "vidur" or public_formats.VIDUR_ARRIVAL in keys
    return Trace(file, name, format is None, has_arrivals)


def _first_keys(file: TraceFile) -> tuple[list[str], bool]:
    """Give the names of the first line, and whether they are columns of CSV."""
    number, line = next(file.lines(), (0, ""))
    if not number:
        raise ConfigError("the trace is empty")
    if line.lstrip().startswith("{"):
        return list(parse_object(line, number)), False
    return header_of(line), True


def _detected(path: Path, keys: list[str], is_csv: bool) -> str:
    fitting = [
        name
        for name, known in _FORMATS.items()
        if known.is_csv == is_csv and all(key in keys for key in known.keys)
    ]
    if len(fitting) == 1:
        return fitting[0]
    what = f"{'columns' if is_csv else 'keys'} {', '.join(map(shown, keys[:MAX_KEYS_SHOWN]))}"
    if fitting:
        raise ConfigError(
            f"{path} has the {what}, which fit the formats {' and '.join(fitting)}: say which it is"
        )
    wanted = "; ".join(
        f"{name} {', '.join(known.keys)}"
        for name, known in _FORMATS.items()
        if known.is_csv == is_csv
    )
    raise ConfigError(f"{path} has the {what}, which fit no format: {wanted}")


def _check_keys(path: Path, name: str, keys: list[str], is_csv: bool) -> None:
    known = _FORMATS[name]
    if known.is_csv != is_csv:
        wanted, found = ("CSV", "JSON Lines") if known.is_csv else ("JSON Lines", "CSV")
        raise ConfigError(f"{path} is {found}, but the format {name} is {wanted}")
    missing = [key for key in known.keys if key not in keys]
    if missing:
        raise ConfigError(
            f"{path} has no {', '.join(missing)}, which the format {name} needs; it has "
            f"{', '.join(map(shown, keys[:MAX_KEYS_SHOWN]))}"
        )
