"""The repository speaks of itself alone: no path of a machine it was made on, no package mirror.

Nor does it name a rule by the number that it has in another document.
"""

import re
from collections.abc import Callable

from repository import repository_files, shown

# What every Linux has, what our own server answers, and names made up for tests: any other path
# from the root is one of a machine.
SYSTEM = ("bin", "dev", "etc", "mnt", "opt", "proc", "sys", "tmp", "usr", "var")
SERVED = ("debug", "v1")
MADE_UP = ("b", "models")
FROM_THE_ROOT = re.compile(r"(?<![\w.~/:)\]}>*<-])/([A-Za-z][\w.-]*)/[\w.-]")
# Put together here, so that this file does not find itself.
HOSTS = ("python" + "hosted.org", "py" + "pi.org", "arti" + "factory", "dev" + "pi", "nexus" + ".")
RULE_NUMBER = re.compile(r"\bR\d+\b")
TEXT_SUFFIXES = ("", ".py", ".md", ".toml", ".txt", ".json", ".jsonl", ".yml", ".yaml", ".cfg")


def test_no_path_of_a_machine():
    assert _lines_with(_machine_path) == []


def test_no_package_host():
    assert _lines_with(re.compile("|".join(map(re.escape, HOSTS))).search) == []


def test_no_rule_is_named_by_a_number():
    assert _lines_with(RULE_NUMBER.search) == []


def test_a_rule_number_is_seen():
    assert RULE_NUMBER.search("the whole life (" + "R" + "9)")
    assert not RULE_NUMBER.search("KR9, R, R9x")


def test_a_path_of_a_machine_is_seen():
    assert _machine_path("see " + "/" + "somewhere/models")
    assert not _machine_path("the square root/models, ~/somewhere/x, http://host/somewhere/x")
    assert not _machine_path("GET /v1/models, /proc/meminfo")


def _machine_path(line: str) -> bool:
    return any(top not in (*SYSTEM, *SERVED, *MADE_UP) for top in FROM_THE_ROOT.findall(line))


def _lines_with(is_found: Callable[[str], object]) -> list[str]:
    return [
        f"{shown(path)}:{number}"
        for path in repository_files()
        if path.suffix in TEXT_SUFFIXES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if is_found(line)
    ]
