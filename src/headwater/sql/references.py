"""What a query refers to: tables, the functions that stand for streams, states and tables, and columns.

DuckDB parses the query and returns the tree as JSON, so quotes, comments and subqueries are its concern. The functions
are replaced by names of views at the places where the parser found them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import duckdb
import msgspec

from headwater.errors import SqlError

FUNCTIONS = ("stream", "state", "table", "delta")
HIDDEN = ("_stream", "_offset", "_time", "_value")
_EXPLAIN = re.compile(r"\s*explain(?:\s+analyze)?(?=\s)", re.IGNORECASE)
_SHOW = re.compile(r"\s*show\s+(?:all\s+tables|tables|databases|schemas)\b", re.IGNORECASE)
_TABLE = re.compile(rb"table(?=\s*\()", re.IGNORECASE)


class FunctionCall(NamedTuple):
    """A call of one of our functions in FROM."""

    function: str
    arguments: tuple[Any, ...]
    named: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        arguments = [_quoted(one) for one in self.arguments]
        return f"{self.function}({', '.join([*arguments, *(f'{k} := {_quoted(v)}' for k, v in self.named)])})"


class _Place(NamedTuple):
    start: int
    end: int
    call: FunctionCall
    alias: str  # with the names of columns, if the query gives them


class References(msgspec.Struct):
    """The query with the names of views in place of calls, and what it refers to."""

    text: str
    names: list[str]
    views: dict[FunctionCall, str]
    columns: frozenset[str] | None  # in lower case; None: any column may be used

    def uses(self, column: str) -> bool:
        return self.columns is None or column.lower() in self.columns


def references_of(connection: duckdb.DuckDBPyConnection, query: str) -> References:
    """Parse a query. SqlError if it is not one, or not one query."""
    text = _with_quoted_function(query.strip().rstrip(";").rstrip())
    if _SHOW.match(text):
        raise SqlError("streams and tables are not tables of DuckDB: headwater list and headwater table list show them")
    explain = _EXPLAIN.match(text)
    head, text = (explain[0], text[explain.end() :]) if explain else ("", text)
    tree = _tree(connection, text)
    ours = {name.lower() for name in _common_names(tree)}
    names = [name for name in dict.fromkeys(_table_names(tree)) if name.lower() not in ours]
    places = list(_places(tree))
    views = _views([place.call for place in places])
    return References(head + _replaced(text, places, views), names, views, _columns(tree))


def _views(calls: list[FunctionCall]) -> dict[FunctionCall, str]:
    """The names of the views that stand for calls, which differ by more than case."""
    views: dict[FunctionCall, str] = {}
    for call in calls:
        name = str(call)
        taken = {view.lower() for other, view in views.items() if other != call}
        views[call] = f"{name} #{len(views)}" if name.lower() in taken else name
    return views


def _tree(connection: duckdb.DuckDBPyConnection, text: str) -> Any:
    if not text:
        raise SqlError("the query is empty; give one such as: SELECT count(*) FROM 'orders'")
    ((answer,),) = connection.execute("SELECT json_serialize_sql(?)", [text]).fetchall()
    parsed = json.loads(answer)
    if not parsed.get("error"):
        if len(parsed["statements"]) != 1:
            raise SqlError("give one query at a time")
        return parsed["statements"][0]
    if "Only SELECT" in parsed["error_message"]:
        raise SqlError(
            "only queries are run: SELECT, FROM, WITH, VALUES, SUMMARIZE, DESCRIBE and EXPLAIN; "
            "--output writes a result"
        )
    near = text.encode()[int(parsed.get("position") or 0) :].decode(errors="replace").strip().splitlines()
    at = f": {near[0][:40]}" if near else ""
    raise SqlError(f"{parsed['error_message']}{at}")


def _with_quoted_function(text: str) -> str:
    """`table(` is a word of SQL, so that its parser needs quotes around our function."""
    data, pieces, last = text.encode(), [], 0
    for start, kind in duckdb.tokenize(text):
        match = _TABLE.match(data, start) if kind == duckdb.token_type.keyword else None
        if match is not None:
            pieces += [data[last:start], b'"table"']
            last = match.end()
    return b"".join([*pieces, data[last:]]).decode()


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All nodes of the tree, without recursion: queries may be nested deeply."""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            yield node
            left += reversed(node.values())
        elif isinstance(node, list):
            left += reversed(node)


def _common_names(tree: Any) -> Iterator[str]:
    for node in _nodes(tree):
        for entry in (node.get("cte_map") or {}).get("map", ()):
            yield entry["key"]


def _table_names(tree: Any) -> Iterator[str]:
    for node in _nodes(tree):
        if node.get("type") == "BASE_TABLE" and not (node.get("schema_name") or node.get("catalog_name")):
            yield node["table_name"]


def _places(tree: Any) -> Iterator[_Place]:
    for node in _nodes(tree):
        if node.get("type") != "TABLE_FUNCTION":
            continue
        function = node["function"]["function_name"].lower()
        if function in FUNCTIONS:
            start = node["query_location"]
            alias = quoted_name(node["alias"] or function)
            if node["column_name_alias"]:
                alias += f"({', '.join(map(quoted_name, node['column_name_alias']))})"
            yield _Place(start, start + node["query_location_length"], _call(function, node), alias)


def _call(function: str, node: dict[str, Any]) -> FunctionCall:
    plain, named = [], []
    for argument in node["function"]["arguments"]:
        value = _constant(function, argument["expression"])
        if argument["name"]:
            named.append((argument["name"].lower(), value))
        else:
            plain.append(value)
    return FunctionCall(function, tuple(plain), tuple(named))


def _constant(function: str, expression: dict[str, Any]) -> Any:
    literal = expression.get("literal")
    if expression.get("class") != "CONSTANT" or not isinstance(literal, dict) or "text" not in literal:
        raise SqlError(f"the arguments of {function}() are texts, numbers and true or false")
    return literal["text"] == "true" if literal["kind"] == "BOOLEAN" else literal["text"]


def _replaced(text: str, places: list[_Place], views: dict[FunctionCall, str]) -> str:
    """The query with views in place of calls. The place of a call includes its alias."""
    data = text.encode()
    for place in sorted(places, reverse=True):
        if place.end > len(data):
            raise SqlError(f"{place.call.function}() cannot be used here")
        view = f"{quoted_name(views[place.call])} AS {place.alias}"
        data = data[: place.start] + view.encode() + data[place.end :]
    return data.decode()


def _columns(tree: Any) -> frozenset[str] | None:
    """Every name that may be one of a column; None if a star, a whole row, `#1` or a natural join may use any."""
    names: set[str] = set()
    alone: set[str] = set()  # names that may be those of whole rows
    tables: set[str] = set()
    for node in _nodes(tree):
        kind = node.get("type")
        if kind == "COLUMN_REF":
            parts = [name.lower() for name in node["column_names"]]
            names |= set(parts)
            alone |= {parts[0]} if len(parts) == 1 else set()
        elif kind in ("STAR", "PIVOT", "POSITIONAL_REFERENCE") or node.get("ref_type") == "NATURAL":
            return None
        elif kind in ("BASE_TABLE", "TABLE_FUNCTION", "SUBQUERY"):
            tables |= {str(name).lower() for name in (node.get("alias"), node.get("table_name")) if name}
            tables |= {kind.lower() for kind in FUNCTIONS} & {(node.get("function") or {}).get("function_name", "")}
        names |= {name.lower() for name in node.get("using_columns") or ()}
        if node.get("column_name_alias"):
            return None  # FROM x AS t(a, b) names columns by their order
    return None if alone & tables else frozenset(names)


def hidden_names(tree_columns: frozenset[str] | None, text: str) -> list[str]:
    """The hidden columns that a query names. A star does not include them."""
    if tree_columns is not None:
        return [name for name in HIDDEN if name in tree_columns]
    return [name for name in HIDDEN if re.search(rf"\b{name}\b", text, re.IGNORECASE)]


def quoted_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quoted(value: Any) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value).lower()
