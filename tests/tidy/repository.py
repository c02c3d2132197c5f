"""The repository's files and their syntax trees, read once for all tidy tests.

Files are found by walking, not through git: the tests also run from an unpacked archive. What a
build or a tool leaves behind is passed over.
"""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "everbatch"
CODE_FOLDERS = ("src", "tests", "benchmarks", "scripts")
CORE = ("base", "kv_cache", "scheduler", "engine")

_HIDDEN_BUT_OURS = (".ci", ".gitignore")
_LEFT_BEHIND = ("__pycache__", "build", "dist")
_BUILT = (".so", ".pyd")


@cache
def repository_files() -> tuple[Path, ...]:
    """Give every file that belongs to the repository, in order."""
    tops = [path for path in sorted(ROOT.iterdir()) if _is_ours(path)]
    files: list[Path] = []
    for top in tops:
        inside = sorted(top.rglob("*")) if top.is_dir() else [top]
        files += [path for path in inside if path.is_file() and _is_source(path)]
    return tuple(files)


@cache
def code_files() -> tuple[Path, ...]:
    """Give the Python files of the folders that hold code."""
    return tuple(
        path
        for path in repository_files()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in CODE_FOLDERS
    )


@cache
def core_files() -> tuple[Path, ...]:
    """Give the Python files of the core."""
    return tuple(
        path
        for path in code_files()
        if path.is_relative_to(PACKAGE) and path.relative_to(PACKAGE).parts[0] in CORE
    )


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path), str(path))


def shown(path: Path) -> str:
    """Give a path as messages show it."""
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    """Give the dotted name of a file of the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_ours(path: Path) -> bool:
    if path.name.startswith("."):
        return path.name in _HIDDEN_BUT_OURS
    return path.name not in _LEFT_BEHIND and path.suffix != ".log"


def _is_source(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    left_behind = any(part in _LEFT_BEHIND or part.endswith(".egg-info") for part in parts)
    return not left_behind and path.suffix not in _BUILT
