"""Files, functions and lines stay small enough to read; nothing is left unfinished or unused."""

import ast
import re
import tomllib
from pathlib import Path

from repository import ROOT, code_files, module_name, repository_files, shown, text_of, tree_of

from everbatch.cli.main import COMMANDS

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 70
MAX_LINE_COLUMNS = 100
MAX_FILE_BYTES = 200_000

# Spelt in two parts, so that this file does not find itself.
FIX_ME, TO_DO = "FIX" + "ME", "TO" + "DO"
# A linter's remark at the end of a line is not read with it.
REMARK = re.compile(r"\s+# (noqa|type: ignore).*$")
TO_DO_WITH_REFERENCE = re.compile(rf"{TO_DO}\(#\d+\)")


def test_files_are_short():
    too_long = {
        shown(path): lines
        for path in code_files()
        if (lines := len(text_of(path).splitlines())) > MAX_FILE_LINES
    }
    assert too_long == {}


def test_functions_are_short():
    too_long = {
        f"{shown(path)}:{node.lineno} {node.name}": lines
        for path in code_files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := node.end_lineno - node.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert too_long == {}


def test_lines_are_short():
    too_long = [
        f"{shown(path)}:{number}"
        for path in code_files()
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if len(REMARK.sub("", line)) > MAX_LINE_COLUMNS
    ]
    assert too_long == []


def test_nothing_is_left_to_fix():
    left = [
        f"{shown(path)}:{number}"
        for path in code_files()
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if FIX_ME in line or (TO_DO in line and not TO_DO_WITH_REFERENCE.search(line))
    ]
    assert left == []


def test_no_large_file_is_kept():
    large = {
        shown(path): size
        for path in repository_files()
        if (size := path.stat().st_size) > MAX_FILE_BYTES
    }
    assert large == {}


def test_every_module_has_a_docstring_or_is_empty():
    silent = [
        shown(path)
        for path in code_files()
        if not path.is_relative_to(ROOT / "tests")
        and text_of(path).strip()
        and ast.get_docstring(tree_of(path)) is None
    ]
    assert silent == []


def test_every_module_is_used():
    modules = {module_name(path) for path in code_files() if path.is_relative_to(ROOT / "src")}
    used = set().union(*map(_imports, code_files())) | _entry_points()
    packages = {name.rpartition(".")[0] for name in modules} | {"everbatch"}
    assert sorted(modules - used - packages) == []


def _imports(path: Path) -> set[str]:
    """Give the modules that a file imports, and `package.name` for each name it takes from one."""
    names: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def _entry_points() -> set[str]:
    """Give what the console script starts, and the commands that it loads by name."""
    scripts = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]["scripts"]
    started = {target.partition(":")[0] for target in scripts.values()}
    return started | {f"everbatch.cli.{command}" for command in COMMANDS}
