from pathlib import Path

import pytest
from command_line import everbatch

from everbatch.base.duplicates import first_twice
from everbatch.base.paths import exists, is_file, is_folder

LONG = "x" * 300


def test_paths_are_looked_at(tmp_path):
    file = tmp_path / "file"
    file.touch()

    assert (exists(file), is_file(file), is_folder(file)) == (True, True, False)
    assert (exists(tmp_path), is_file(tmp_path), is_folder(tmp_path)) == (True, False, True)


@pytest.mark.parametrize("name", [LONG, "a\0b", "", "nowhere"])
def test_name_that_no_file_can_have_leads_nowhere(name):
    path = Path("nowhere") / name

    assert not (exists(path) or is_file(path) or is_folder(path))


@pytest.mark.parametrize(
    "arguments",
    [
        ("simulate", LONG),
        ("simulate", "lesson-static", "--events", LONG),
        ("compare", LONG, LONG),
        ("trace", "inspect", LONG),
        ("replay", LONG),
        ("explain", LONG, "1"),
        ("roofline", "--model", LONG, "--hardware", "h100-sxm", "--prefill", "1"),
        ("serve", LONG),
        ("chat", LONG),
    ],
    ids=lambda arguments: arguments[0],
)
def test_name_that_is_too_long_is_told_by_every_command(arguments):
    answer = everbatch(*arguments)

    assert answer.status == 2 or (answer.status == 1 and arguments[0] == "chat"), answer.err
    assert answer.err.startswith("everbatch: "), answer.err


def test_first_name_that_comes_twice_is_found():
    assert first_twice(["a", "b", "c", "b", "a"]) == "b"
    assert first_twice(["a", "b"]) is None
    assert first_twice([]) is None
