"""The documents are true: what they link to, name, promise and show is there."""

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path

import pytest
from repository import PACKAGE, ROOT, code_files, repository_files, shown, text_of, tree_of

from everbatch.base.event_lines import event_line
from everbatch.base.eventlog import read_events, read_header
from everbatch.base.events import EVENT_TYPES
from everbatch.scheduler.admission import RejectReason
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.plan import DeferReason
from everbatch.scheduler.request import FinishReason

DOCUMENTS = [path for path in repository_files() if path.suffix == ".md"]
README = ROOT / "README.md"
EVENTS = ROOT / "docs" / "events.md"
INVARIANTS = ROOT / "docs" / "invariants.md"

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# `Scheduler.rollback`, `LLM.generate(...)`; a class has a small letter somewhere.
NAMED_MEMBER = re.compile(r"`([A-Z]\w*[a-z]\w*|LLM)\.([a-z_]\w*)(?=[`(])")
NAMED_PATH = re.compile(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.(?:py|md|toml|json))`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=shown)
def test_links_lead_somewhere(document):
    broken = [
        target
        for target in LINK.findall(FENCE.sub("", text_of(document)))
        if "://" not in target and not _leads_somewhere(document, target)
    ]
    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=shown)
def test_files_that_are_named_exist(document):
    places = (ROOT, PACKAGE, document.parent, ROOT / "tests")
    missing = [
        name
        for name in NAMED_PATH.findall(text_of(document))
        if not any((place / name).exists() for place in places)
    ]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=shown)
def test_members_that_are_named_exist(document):
    missing = [
        f"{owner}.{member}"
        for owner, member in NAMED_MEMBER.findall(text_of(document))
        if member not in _members().get(owner, ())
    ]
    assert missing == []


def test_members_of_classes_are_found():
    assert NAMED_MEMBER.findall("`Scheduler.rollback(plan)`, `LLM.chat`, `README.md`") == [
        ("Scheduler", "rollback"),
        ("LLM", "chat"),
    ]
    assert {"rollback", "config"} <= _members()["Scheduler"]
    assert "replay" not in _members()["Scheduler"]


@pytest.mark.parametrize("name", ["README.md", "docs/architecture.md"])
def test_the_layers_are_those_that_are_checked(name):
    contracts = tomllib.loads(text_of(ROOT / "pyproject.toml"))["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["id"] == "layers"]
    words = " ".join(text_of(ROOT / name).replace("`", "").split())

    assert " → ".join(layers) in words


def test_the_commands_of_the_readme_are_in_the_makefile():
    commands = set(re.findall(r"^    make ([a-z-]+)", text_of(README), re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))

    assert commands >= {"serve", "test"}
    assert sorted(commands - targets) == []


def test_the_readme_s_tree_names_every_package():
    packages = [path.parent.name for path in sorted(PACKAGE.glob("*/__init__.py"))]
    tree = text_of(README).partition("## The tree")[2].partition("\n## ")[0]

    assert [name for name in packages if f"      {name}/ " not in tree] == []


def test_every_event_has_its_section_with_its_fields():
    sections = _sections(EVENTS)
    kinds = [title.strip("`") for title in sections if title.startswith("`")]

    assert sorted(kinds) == sorted(EVENT_TYPES)
    for kind, event_type in EVENT_TYPES.items():
        table = re.search(r"^\| field \|.*?\n\n", sections[f"`{kind}`"], re.M | re.S)[0]
        cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        named = re.findall(r"`(\w+)`", " ".join(cells))
        assert sorted(named) == sorted(field.name for field in fields(event_type))


def test_every_event_s_example_is_what_is_written():
    header, *lines = re.findall(r'^(\{"event".*\}\n)', text_of(EVENTS), re.MULTILINE)

    events = list(read_events([header, *lines]))

    assert read_header(header)["version"] == 1
    assert [event_line(event) for event in events] == lines
    assert sorted({event.kind for event in events}) == sorted(EVENT_TYPES)


def test_the_header_s_example_holds_every_option():
    [header] = re.findall(r'^\{"event":"header".*\}$', text_of(EVENTS), re.MULTILINE)
    told = read_header(header)["config"]

    assert list(told.items()) == list(asdict(SchedulerConfig(**told)).items())


def test_every_reason_is_explained():
    reasons = [
        reason.value for kind in (DeferReason, RejectReason, FinishReason) for reason in kind
    ]

    assert [reason for reason in reasons if f"`{reason}`" not in text_of(EVENTS)] == []


def test_invariants_have_the_numbers_of_the_verifiers():
    verifiers = sorted(PACKAGE.rglob("verify.py"))
    checked = [number for path in verifiers for number in re.findall(r"# (I\d+):", text_of(path))]
    described = re.findall(r"^## (I\d+):", text_of(INVARIANTS), re.MULTILINE)

    assert len(verifiers) > 1
    assert described == [f"I{number}" for number in range(1, len(described) + 1)]
    assert sorted(set(checked)) == sorted(described)


def test_invariants_name_verifiers_and_tests_that_exist():
    functions = {
        node.name
        for path in PACKAGE.rglob("verify.py")
        for node in ast.parse(text_of(path)).body
        if isinstance(node, ast.FunctionDef)
    }
    named = set(re.findall(r"`(verify_\w+)`", text_of(INVARIANTS)))
    without_tests = [
        title
        for title, section in _sections(INVARIANTS).items()
        if re.match(r"I\d+:", title) and "../tests/" not in section
    ]

    assert named == {name for name in functions if name.startswith("verify_")}
    assert without_tests == []


def test_every_dependency_has_its_reason():
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
    names = [re.match(r"[A-Za-z0-9_-]+", needed)[0] for needed in project["dependencies"]]
    reasons = re.findall(r"^\| `([\w-]+)` \|", text_of(ROOT / "docs" / "dependencies.md"), re.M)

    assert sorted(reasons) == sorted(names)


def test_every_decision_is_listed():
    folder = ROOT / "docs" / "decisions"
    files = sorted(path.name for path in folder.glob("[0-9]*.md"))
    listed = LINK.findall(text_of(folder / "README.md"))

    assert listed == files
    assert [name[:4] for name in files] == [f"{n:04}" for n in range(1, len(files) + 1)]


@cache
def _members() -> dict[str, set[str]]:
    """Give the methods, fields and attributes of each class of the code, by its name."""
    members: dict[str, set[str]] = {}
    for path in code_files():
        for owner in ast.walk(tree_of(path)):
            if isinstance(owner, ast.ClassDef):
                members.setdefault(owner.name, set()).update(_names_in(owner))
    return members


def _names_in(owner: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(owner):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def _leads_somewhere(document: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    path = (document.parent / name).resolve() if name else document
    if not path.exists() or not path.is_relative_to(ROOT):
        return False
    return not anchor or anchor in map(_anchor, _sections(path))


def _sections(document: Path) -> dict[str, str]:
    """Give the text under each heading, by its title."""
    parts = re.split(r"^#{1,6} (.+)$", FENCE.sub(_without_headings, text_of(document)), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _without_headings(fence: re.Match[str]) -> str:
    return fence[0].replace("\n#", "\n #")


def _anchor(title: str) -> str:
    """Give the anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
