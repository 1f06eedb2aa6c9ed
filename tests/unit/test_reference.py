"""The reference has every route, query parameter, header, error, option, limit, command and metric, and no others."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tools import reference, reference_texts

from headwater import errors
from headwater.limits import Limits
from headwater.options import options_of
from headwater.protocol.streams import headers as stream_headers
from headwater.protocol.tables import headers as table_headers
from headwater.server.observing.metrics import METRICS
from headwater.server.routes import ROUTES, Route
from headwater.server.settings import Settings
from headwater.spark.options import StateReadOptions, StateWriteOptions, StreamReadOptions, StreamWriteOptions
from headwater.spark.tables.options import TableReadOptions, TableWriteOptions
from tests.command_line import app, command

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "reference"
SERVER = ROOT / "src" / "headwater" / "server"
PARAMETER = re.compile(r"[a-z_]{2,}")
HEADER = re.compile(r"[a-z]+(-[a-z]+)+")


def first_column(page: str) -> list[str]:
    """What the rows of the tables of a page begin with."""
    return re.findall(r"^\| `([^`]+)`", (PAGES / page).read_text(), re.MULTILINE)


def test_every_page_is_made_from_the_code() -> None:
    assert {path.name for path in PAGES.glob("*.md")} == {*reference.PAGES, "index.md"}


def test_the_index_has_every_page() -> None:
    assert {*re.findall(r"\]\((\w+\.md)\)", (PAGES / "index.md").read_text())} == {*reference.PAGES}


def test_routes() -> None:
    rows = re.findall(r"^\| `([A-Z]+)` \| `([^`]+)`", (PAGES / "routes.md").read_text(), re.MULTILINE)
    assert rows == [(route.method, route.template) for route in ROUTES]
    assert {*reference_texts.ROUTES} == {f"{route.method} {route.template}" for route in ROUTES}


# Query parameters: names that a handler, or what it calls, looks up in a query


def _functions(tree: ast.AST, scope: dict[str, Any]) -> Iterator[Callable[..., Any]]:
    """The functions of ours that are called, as `parse_read(…)` or `reads.read(…)`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called: Any = None
        if isinstance(node.func, ast.Name):
            called = scope.get(node.func.id)
        elif isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            module = scope.get(node.func.value.id)
            called = getattr(module, node.func.attr, None) if isinstance(module, ModuleType) else None
        if inspect.isfunction(called) and called.__module__.startswith(("headwater.server", "headwater.protocol")):
            yield called


def _is_query(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "parse_query"
    return isinstance(node, ast.Name) and node.id in ("query", "parameters")


def _keys(node: ast.AST) -> list[ast.AST]:
    """What is looked up in a query by an expression."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_query(node.func.value):
        return list(node.args[:1]) if node.func.attr == "get" else []
    if isinstance(node, ast.Call) and any(_is_query(argument) for argument in node.args):
        return list(node.args)
    if isinstance(node, ast.Subscript) and _is_query(node.value):
        return [node.slice]
    if isinstance(node, ast.Compare) and _is_query(node.comparators[0]):
        return [node.left]
    return []


def parameters_of(function: Callable[..., Any], seen: set[Any]) -> set[str]:
    if function in seen:
        return set()
    seen.add(function)
    scope = function.__globals__
    tree = ast.parse(inspect.getsource(function))
    values = [
        scope.get(key.id) if isinstance(key, ast.Name) else getattr(key, "value", None)
        for node in ast.walk(tree)
        for key in _keys(node)
    ]
    names = {value for value in values if isinstance(value, str) and PARAMETER.fullmatch(value)}
    return names.union(*(parameters_of(called, seen) for called in _functions(tree, scope)))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.template}")
def test_query_parameters(route: Route) -> None:
    handler = route.read or route.write
    assert handler is not None
    documented = reference_texts.PARAMETERS.get(f"{route.method} {route.template}", {})
    assert parameters_of(handler, set()) == {*documented}


# Headers


def test_headers_of_the_protocols() -> None:
    both = (stream_headers, table_headers)
    names = {name for module in both for name in module.REQUEST_HEADERS}
    answered = {name for module in both for name in module.RESPONSE_HEADERS}
    assert {*reference_texts.HEADERS} == names | answered
    for name, (written, way, _) in reference_texts.HEADERS.items():
        assert written.lower() == name
        assert way == ("both" if name in names & answered else "request" if name in names else "response"), name
        assert f"| `{written}` |" in (PAGES / "headers.md").read_text()


def _headers_read(node: ast.AST) -> ast.AST | None:
    """The name in `headers.get(name)`, `headers[name]` and `name in headers`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        return node.args[0] if _are_headers(node.func.value) else None
    if isinstance(node, ast.Subscript):
        return node.slice if _are_headers(node.value) else None
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
        return node.left if _are_headers(node.comparators[0]) else None
    return None


def _are_headers(node: ast.AST) -> bool:
    return ast.unparse(node) in ("fields", "headers", "request.headers", "self.headers")


def _headers_sent(node: ast.AST) -> ast.AST | None:
    """The name in a pair `("name", value)`, or what begins like one."""
    return node.elts[0] if isinstance(node, ast.Tuple) and len(node.elts) == 2 else None


def test_headers_of_http() -> None:
    requested: set[str] = set()
    sent: set[str] = set()
    for path in SERVER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            for names, name in ((requested, _headers_read(node)), (sent, _headers_sent(node))):
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    names.add(name.value)
    single = {
        "accept",
        "allow",
        "authorization",
        "connection",
        "etag",
        "forwarded",
        "host",
        "location",
        "origin",
        "vary",
    }
    families = {"x-forwarded"}  # not a header, but several
    named = {name for name in requested | sent if HEADER.fullmatch(name)} - families | ((requested | sent) & single)
    assert named - {*reference_texts.HTTP_HEADERS} == set()
    unnamed = {"traceparent", "x-request-id"}  # constants with a name of their own
    assert {*reference_texts.HTTP_HEADERS} - named == unnamed
    for lowered, (written, _, _) in reference_texts.HTTP_HEADERS.items():
        assert written.lower() == lowered
        assert f"| `{written}` |" in (PAGES / "headers.md").read_text()


# What is made from one list in the code


def test_errors() -> None:
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, Exception)]
    assert {*first_column("errors.md"), "HeadwaterError"} == {kind.__name__ for kind in kinds}


def test_options_and_limits() -> None:
    rows = first_column("options.md")
    options = {*Settings.__struct_fields__} - {"limits"}
    documented = {row.split()[0].removeprefix("--").replace("-", "_") for row in rows if row.startswith("--")}
    assert documented - {"limit"} == options
    assert [row for row in rows if not row.startswith("--")] == [*Limits.__struct_fields__]


def test_options_of_the_spark_formats() -> None:
    kinds = (
        StreamReadOptions,
        StateReadOptions,
        TableReadOptions,
        StreamWriteOptions,
        StateWriteOptions,
        TableWriteOptions,
    )
    assert {*first_column("spark.md")} == {option.name for kind in kinds for option in options_of(kind)}


def test_commands() -> None:
    page = (PAGES / "commands.md").read_text()
    names = [name for name, _ in reference.each_command()]
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == names
    groups = [group.name for group in app.registered_groups]
    assert {name.split()[1] for name in names} == {*groups, *(one.name for one in app.registered_commands)}
    assert command.name == "headwater"


def test_metrics() -> None:
    assert first_column("metrics.md") == [metric.name for metric in METRICS]
