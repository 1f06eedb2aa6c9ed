"""What the core must not know, and how large its parts may be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater import errors
from headwater.protocol.streams import headers
from tests.unit.test_errors import tree

SOURCE = Path(__file__).resolve().parents[2] / "src" / "headwater"
CORE = sorted(path for name in ("log", "store", "engine") for path in (SOURCE / name).rglob("*.py"))
SERVER_SIDE = sorted(
    {*CORE, *(path for name in ("server", "outbound", "protocol") for path in (SOURCE / name).rglob("*.py"))}
)

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
    """Every constant but docstrings."""
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
def test_the_core_holds_no_word_of_http(path: Path) -> None:
    for node in constants(path):
        where = f"{path.name}:{node.lineno}: {node.value!r}"
        if isinstance(node.value, str):
            words = set(re.findall(r"[a-z]+(?:-[a-z]+)*", node.value.lower()))
            if "-" in node.value or node.value.lower() in HTTP_HEADERS:
                assert not words & HTTP_HEADERS, where
            assert "http" not in words, where
        elif type(node.value) is int:
            assert node.value not in STATUSES, where
    assert ".status" not in path.read_text()


@pytest.mark.parametrize("path", CORE, ids=names(CORE))
def test_the_core_holds_no_offset_as_text(path: Path) -> None:
    assert not OFFSET_TEXT.search(path.read_text()), path


@pytest.mark.parametrize("path", SERVER_SIDE, ids=names(SERVER_SIDE))
def test_modules_and_classes_stay_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 450
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
            if len(methods) > 20:
                assert "methods" in (ast.get_docstring(node) or ""), f"{node.name} has {len(methods)} methods"


def test_state_uses_no_private_attribute_of_another_package() -> None:
    modules = [ast.parse(path.read_text()) for path in (SOURCE / "state").rglob("*.py")]
    nodes = [node for module in modules for node in ast.walk(module)]
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    own |= {node.target.id for node in nodes if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    attributes = [node for node in nodes if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr)]
    own |= {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
    own |= {"_replace"}  # of a named tuple
    assert {node.attr for node in attributes} <= own
