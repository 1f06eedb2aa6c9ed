"""The boundaries of the layers, and the size of classes and modules."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from headwater import errors
from headwater.protocol.streams import headers
from tests.unit.test_errors import tree

SOURCE = Path(__file__).resolve().parents[2] / "src" / "headwater"
CORE = sorted(path for name in ("log", "store", "engine") for path in (SOURCE / name).rglob("*.py"))
HTTP_HEADERS = {
    *headers.REQUEST_HEADERS,
    *headers.RESPONSE_HEADERS,
    *("accept", "authorization", "cache-control", "content-encoding", "content-length", "content-type", "etag"),
    *("host", "if-match", "if-none-match", "location", "retry-after", "transfer-encoding", "vary"),
}
STATUSES = {kind.status for kind in tree(errors.HeadwaterError) if kind.status} | {200, 201, 204, 304}
OFFSET_TEXT = re.compile(r"[0-9]{16}_|016d\}_|zfill")


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(SOURCE)) for path in paths]


def constants(path: Path) -> Iterator[ast.Constant]:
    """All constants except docstrings."""
    module = ast.parse(path.read_text())
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(module)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield node


@pytest.mark.parametrize("path", CORE, ids=names(CORE))
def test_the_core_has_no_http_terms(path: Path) -> None:
    for node in constants(path):
        where = f"{path.name}:{node.lineno}: {node.value!r}"
        if isinstance(node.value, str):
            words = set(re.findall(r"[a-z]+(?:-[a-z]+)*", node.value.lower()))
            if "-" in node.value or node.value.lower() in HTTP_HEADERS:
                assert not words & HTTP_HEADERS, where
            assert "http" not in words, where
        elif type(node.value) is int:
            assert node.value not in STATUSES, where
    assert ".status" not in path.read_text().replace("result.status != ExecStatus", "")  # of libpq, not of HTTP


@pytest.mark.parametrize("path", CORE, ids=names(CORE))
def test_the_core_has_no_offsets_as_text(path: Path) -> None:
    assert not OFFSET_TEXT.search(path.read_text()), path


def test_every_limit_is_defined_once() -> None:
    defined_in = Counter(
        node.id
        for path in (SOURCE / "limits").glob("*.py")
        for node in nodes_of(path)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id.isupper()
    )
    assert [name for name, times in defined_in.items() if times > 1] == []


def test_no_two_classes_have_the_same_public_name() -> None:
    """A client of a table and a table of a state in one module of an application would need another name."""
    modules: dict[str, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules.setdefault(node.name, []).append(path)
    assert {name: names(paths) for name, paths in modules.items() if len(paths) > 1} == {}


def private_names(nodes: list[ast.AST], *, of_itself: bool) -> set[str]:
    """The private names that are used as `self._name`, or of any other object."""
    return {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr) and _is_itself(node.value) == of_itself
    }


def _is_itself(value: ast.expr) -> bool:
    return ast.unparse(value) in ("self", "cls", "super()")


def defined(nodes: list[ast.AST]) -> set[str]:
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_itself(node.value):
            names.add(node.attr)
    return names | {"_asdict", "_fields", "_replace"}  # of named tuples


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def nodes_in(paths: Iterable[Path]) -> list[ast.AST]:
    return [node for path in paths for node in nodes_of(path)]


def test_private_names_are_used_in_the_module_that_defines_them() -> None:
    """The modules of a shell of the client may share private names."""
    shells = [SOURCE / "client" / name for name in ("aio", "sync")]
    groups = [[path] for path in sorted(SOURCE.rglob("*.py")) if path.parent not in shells]
    for group in [*groups, *(list(shell.glob("*.py")) for shell in shells)]:
        nodes = nodes_in(group)
        assert private_names(nodes, of_itself=False) <= defined(nodes), names(group)


def test_no_class_uses_a_private_name_of_a_base_in_another_package() -> None:
    for package in SOURCE.iterdir():
        nodes = nodes_in(package.rglob("*.py"))
        assert private_names(nodes, of_itself=True) <= defined(nodes), package.name
