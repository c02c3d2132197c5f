"""The repository speaks of itself alone: no path of a machine it was made on, no package mirror."""

import re

from repository import repository_files, shown

# Put together here, so that this file does not find itself.
MACHINE_PATHS = "|".join(("work", "farm", "root", "home/[a-z]+", "Users/[A-Za-z]+"))
MACHINE_PATH = re.compile(rf"(?<![\w.~-])/(?:{MACHINE_PATHS})/")
HOSTS = ("python" + "hosted.org", "py" + "pi.org", "arti" + "factory", "dev" + "pi", "nexus" + ".")
TEXT_SUFFIXES = ("", ".py", ".md", ".toml", ".txt", ".json", ".jsonl", ".yml", ".yaml", ".cfg")


def test_no_path_of_a_machine():
    assert _lines_with(MACHINE_PATH) == []


def test_no_package_host():
    assert _lines_with(re.compile("|".join(map(re.escape, HOSTS)))) == []


def test_a_path_of_a_machine_is_seen():
    assert MACHINE_PATH.search("see " + "/" + "root/models")
    assert not MACHINE_PATH.search("the square root/models, ~" + "/" + "root/x")


def _lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{shown(path)}:{number}"
        for path in repository_files()
        if path.suffix in TEXT_SUFFIXES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
