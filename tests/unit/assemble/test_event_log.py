"""The event log as a file: when it is written, what is kept, and what becomes of a full disk."""

import logging
import os
from itertools import chain
from pathlib import Path

import pytest

from everbatch.assemble.event_log import EventLogFile
from everbatch.base.clock import VirtualClock
from everbatch.base.errors import EventLogError
from everbatch.base.eventlog import read_events, read_header
from everbatch.base.events import Arrived, Event
from everbatch.base.units import NS_PER_S

FULL_DEVICE = Path("/dev/full")


def arrived(number: int) -> Event:
    return Arrived(number, f"request-{number}", 1, 1, 0, "")


def opened(path: Path, clock: VirtualClock | None = None) -> EventLogFile:
    log = EventLogFile(path, clock or VirtualClock())
    log.begin({"seed": 7})
    return log


def events_in(path: Path) -> list[Event]:
    with path.open(encoding="utf-8") as lines:
        return list(read_events(lines))


def test_header_is_there_at_once_and_events_within_a_second(tmp_path: Path) -> None:
    path, clock = tmp_path / "log", VirtualClock()
    log = opened(path, clock)
    header = read_header(path.read_text())

    log.write([arrived(1)], is_idle=False)
    clock.advance(NS_PER_S - 1)
    log.write([arrived(2)], is_idle=False)
    before = events_in(path)
    clock.advance(1)
    log.write([arrived(3)], is_idle=False)

    assert header["seed"] == 7
    assert before == []
    assert events_in(path) == [arrived(1), arrived(2), arrived(3)]
    log.close()


def test_nothing_stays_in_memory_while_nothing_happens(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")

    log.write([arrived(1)], is_idle=True)

    assert events_in(tmp_path / "log") == [arrived(1)]
    log.close()


def test_closing_writes_the_rest_and_what_comes_later_is_passed_over(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    log.write([arrived(1)], is_idle=False)

    log.close()
    log.write([arrived(2)], is_idle=True)
    log.close()

    assert events_in(tmp_path / "log") == [arrived(1)]


def test_older_logs_are_kept_under_the_next_number(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for number in range(3):
        log = opened(path)
        log.write([arrived(number)], is_idle=True)
        log.close()

    names = ["log.1", "log.2", "log"]
    assert [events_in(tmp_path / name) for name in names] == [[arrived(n)] for n in range(3)]
    assert len(list(tmp_path.iterdir())) == 3


def test_who_deletes_the_oldest_logs_leaves_the_order_of_the_others(tmp_path: Path) -> None:
    path = tmp_path / "log"
    # Nobody's, or no numbers.
    others = ["log.12.gz", "log.x", "log.007", "log.1e9", f"log.{'9' * 5_000}"[:200], "a.77", "78"]
    for name in ["log.4", "log.9", *others]:
        (tmp_path / name).write_text("older")
    opened(path).close()
    opened(path).close()
    made = {one.name for one in tmp_path.iterdir()} - {*others}

    assert made == {"log.4", "log.9", "log.10", "log"}


def test_log_that_is_long_enough_goes_on_in_a_new_file(tmp_path: Path) -> None:
    path, clock = tmp_path / "log", VirtualClock()
    log = EventLogFile(path, clock, max_bytes=400)
    log.begin({"seed": 7})
    for number in range(12):
        log.write([arrived(number)], is_idle=True)
    log.close()
    files = [tmp_path / name for name in ("log.1", "log.2", "log.3", "log")]
    headers = [read_header(file.read_text().splitlines(keepends=True)[0]) for file in files]
    events = [events_in(file) for file in files]
    counts = [len(some) for some in events]

    assert list(chain(*events)) == [arrived(number) for number in range(12)]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert all(header["seed"] == 7 for header in headers)
    assert [header.get("dropped", 0) for header in headers] == [
        0, counts[0], sum(counts[:2]), sum(counts[:3])
    ]  # fmt: skip
    # Each went on until it was long enough, and no longer.
    for file in files[:-1]:
        *before, last = file.read_bytes().splitlines(keepends=True)
        assert len(b"".join(before)) < 400 <= len(b"".join(before) + last)


def test_log_goes_on_within_a_second_of_its_size(tmp_path: Path) -> None:
    path, clock = tmp_path / "log", VirtualClock()
    log = EventLogFile(path, clock, max_bytes=400)
    log.begin({})
    log.write([arrived(number) for number in range(50)], is_idle=False)
    before = len(list(tmp_path.iterdir()))
    clock.advance(NS_PER_S)
    log.write([arrived(50)], is_idle=False)

    assert (before, len(list(tmp_path.iterdir()))) == (1, 2)
    assert len(events_in(tmp_path / "log.1")) == 51
    log.close()


def test_log_whose_folder_has_gone_ends_and_serving_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = EventLogFile(folder / "log", VirtualClock(), max_bytes=100)
    log.begin({})
    (folder / "log").unlink()
    folder.rmdir()
    with caplog.at_level(logging.ERROR):
        for number in range(3):
            log.write([arrived(number)], is_idle=True)

    assert caplog.text.count("serving goes on") == 1
    log.close()


def test_empty_file_of_that_name_is_used(tmp_path: Path) -> None:
    path = tmp_path / "log"
    EventLogFile(path, VirtualClock()).close()

    opened(path).close()

    assert [file.name for file in tmp_path.iterdir()] == ["log"]


def test_name_that_is_no_unicode_can_be_read_back(tmp_path: Path) -> None:
    log = EventLogFile(tmp_path / "log", VirtualClock())
    log.begin({"model": {"name": os.fsdecode(b"caf\xe9")}})
    log.close()

    header = read_header((tmp_path / "log").read_text(encoding="utf-8"))
    assert header["model"] == {"name": os.fsdecode(b"caf\xe9")}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (".", "Is a directory"),
        ("absent/log", "No such file"),
        ("file/log", "Not a directory"),
        ("x" * 300, "name too long"),
    ],
)
def test_path_that_cannot_be_written_is_told_with_the_option(
    tmp_path: Path, name: str, words: str
) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(EventLogError, match=rf"{words}.*--event-log"):
        EventLogFile(tmp_path / name, VirtualClock())


@pytest.mark.skipif(not FULL_DEVICE.exists(), reason="this system has no /dev/full")
def test_full_disk_ends_the_log_with_one_message(caplog: pytest.LogCaptureFixture) -> None:
    log = opened(FULL_DEVICE)

    log.write([arrived(1)], is_idle=True)
    log.close()

    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "/dev/full" in record.getMessage()
    assert "No space left" in record.getMessage()


def test_failure_later_on_ends_the_log_with_one_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log = opened(path)
    os.close(reader)

    for number in range(3):
        log.write([arrived(number)], is_idle=True)
    log.close()

    [record] = caplog.records
    assert "Broken pipe" in record.getMessage()
    assert "serving goes on" in record.getMessage()
