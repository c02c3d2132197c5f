"""What import contracts cannot see in the core: order, identity, hidden imports and float time.

Two runs of one seed must give the same bytes in two processes. A set's order depends on the hash
seed, `hash` and `id` on the process, and floats of seconds on how they were added up.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from repository import core_files, shown, tree_of

FORBIDDEN_CALLS = ("__import__", "hash", "id", "eval", "exec")
SET_MAKERS = ("set", "frozenset")
# Their results are the same in whatever order they are handed the items.
ORDER_BLIND = (*SET_MAKERS, "sorted", "len", "sum", "any", "all", "min", "max", "Counter")
# Their results, or what they do, follow the order of the items.
ORDER_KEEPING = ("list", "tuple", "enumerate", "iter", "zip", "map", "filter", "fromkeys", "join")
TIME_NAME = re.compile(r"^(t|now|start|deadline|arrival)$|_ns$|_s$|_seconds$|time")
NS_NAME = re.compile(r"_ns$|^NS_PER_")


def test_the_core_is_found():
    assert len(core_files()) > 20


def test_no_hidden_imports_and_no_identity():
    found = [
        f"{shown(path)}:{node.lineno} {node.func.id}()"
        for path in core_files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in FORBIDDEN_CALLS
    ]
    assert found == []


def test_no_set_is_walked_through_in_its_own_order():
    found = [f"{shown(path)}:{line}" for path in core_files() for line in set_walks(tree_of(path))]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "for x in {1, 2}: pass",
        "for x in set(y): pass",
        "z = [x for x in {1, 2}]",
        "z = list({x for x in y})",
        "gone = set(y)\nfor x in gone: pass",
        "gone = set(y) - {1}\nz = [x for x in gone]",
        "gone: set[int] = set()\nz = (*gone,)",
        "def f(gone: set[int]):\n    return dict.fromkeys(gone)",
    ],
)
def test_walking_through_a_set_is_seen(source):
    assert set_walks(ast.parse(source)) != []


@pytest.mark.parametrize(
    "source",
    [
        "z = sorted({1, 2})",
        "gone = set(y)\nz = [x for x in y if x not in gone]",
        "gone = set(y)\nz = sorted(x for x in gone)",
        "for x in [1, 2]: pass",
        "z = len(set(y))",
    ],
)
def test_what_has_no_order_is_no_walk(source):
    assert set_walks(ast.parse(source)) == []


def test_time_is_an_integer_of_nanoseconds():
    found = [
        f"{shown(path)}:{line}" for path in core_files() for line in float_times(tree_of(path))
    ]
    assert found == []


@pytest.mark.parametrize("source", ["now: float = 0", "x = start_ns / 2", "def f(t: float): ..."])
def test_float_time_is_seen(source):
    assert float_times(ast.parse(source)) != []


@pytest.mark.parametrize("module", ["everbatch.scheduler.scheduler", "everbatch.engine.engine"])
def test_the_core_loads_without_tensors(module):
    heavy = ("torch", "numpy", "transformers", "tokenizers")
    code = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout.strip() == "[]"


def set_walks(tree: ast.Module) -> list[int]:
    """Give the lines where the order of a set decides something."""
    names = set(_set_names(tree))
    blind = {
        argument
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _called(node) in ORDER_BLIND
        for argument in node.args
    }
    lines: list[int] = []
    for node in ast.walk(tree):
        walked: list[ast.expr] = []
        if isinstance(node, ast.For):
            walked = [node.iter]
        elif isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp) and node not in blind:
            walked = [generator.iter for generator in node.generators]
        elif isinstance(node, ast.Call) and _called(node) in ORDER_KEEPING and node not in blind:
            walked = node.args
        elif isinstance(node, ast.Starred) and isinstance(node.ctx, ast.Load):
            walked = [node.value]
        lines += [node.lineno for expression in walked if _is_set(expression, names)]
    return lines


def float_times(tree: ast.Module) -> list[int]:
    """Give the lines where a time is declared as a float or divided into one."""
    lines: list[int] = []
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind):
                declared = [(name, kind)]
            case ast.arg(arg=name, annotation=kind):
                declared = [(name, kind)]
            case ast.BinOp(op=ast.Div(), left=left, right=right):
                if any(NS_NAME.search(_last_name(side)) for side in (left, right)):
                    lines.append(node.lineno)
                continue
            case _:
                continue
        lines += [
            node.lineno
            for name, kind in declared
            if kind is not None and "float" in ast.unparse(kind) and TIME_NAME.search(name)
        ]
    return lines


def _set_names(tree: ast.Module) -> Iterator[str]:
    """Give the names that hold sets somewhere in a file."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_set(value, set()):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind) if _declares_set(kind):
                yield name
            case ast.arg(arg=name, annotation=kind) if kind is not None and _declares_set(kind):
                yield name


def _is_set(node: ast.expr, names: set[str]) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call():
            return _called(node) in SET_MAKERS
        case ast.Name(id=name):
            return name in names
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd() | ast.BitXor() | ast.Sub()):
            return _is_set(node.left, names) or _is_set(node.right, names)
        case _:
            return False


def _declares_set(kind: ast.expr) -> bool:
    return re.match(r"(set|frozenset)\b", ast.unparse(kind)) is not None


def _called(node: ast.Call) -> str:
    return _last_name(node.func)


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""
