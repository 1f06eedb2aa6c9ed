"""The fields of JSON messages as typed columns.

Types come from a sample. DuckDB parses a whole response at once and takes only the fields that a query uses: scalars as
text, which is then cast. A value that does not fit its type is an error that names the field and the value, because a
rounded number or a null would be a wrong answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from headwater.sql.references import quoted_name

TEXT, WHOLE, HUGE, REAL, TRUTH, TREE = "VARCHAR", "BIGINT", "HUGEINT", "DOUBLE", "BOOLEAN", "JSON"
_INT64, _HUGE = 2**63, 10**38  # of a HUGEINT as Arrow and Parquet have it: 38 digits
_NESTED = ("STRUCT", "MAP", "JSON", "[")


class SampledField(msgspec.Struct, frozen=True):
    """A field of JSON objects: its name there, its column, and the type of the column, which the query may give."""

    key: str
    column: str
    type: str
    is_given: bool = False


def sampled_types(messages: Iterable[Any]) -> dict[str, str | None]:
    """The fields of the objects among messages, in the order in which they appear; None for what was always null."""
    types: dict[str, str | None] = {}
    for message in messages:
        if isinstance(message, dict):
            for key, value in message.items():
                types[key] = _common(types.get(key), _type_of(value))
    return types


def merged(first: dict[str, str | None], second: Mapping[str, str | None]) -> dict[str, str | None]:
    """The fields of two samples."""
    for key, kind in second.items():
        first[key] = _common(first.get(key), kind)
    return first


def _type_of(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return TRUTH
    if isinstance(value, int):
        return WHOLE if -_INT64 <= value < _INT64 else HUGE if -_HUGE < value < _HUGE else TEXT
    if isinstance(value, float):
        return REAL if math.isfinite(value) else TEXT  # 1e400 is a number of JSON, and of no type
    return TEXT if isinstance(value, str) else TREE


def _common(first: str | None, second: str | None) -> str | None:
    """The type that holds the values of both."""
    if first is None or second is None or first == second:
        return first or second
    if {first, second} == {WHOLE, HUGE}:
        return HUGE
    if {first, second} == {WHOLE, REAL}:
        return REAL
    return TREE if TREE in (first, second) else TEXT  # text of any scalar, such as 12345678901234567890 and 0.5


def as_columns(
    types: Mapping[str, str | None], taken: Sequence[str] = (), given: Collection[str] = ()
) -> list[SampledField]:
    """A column for each field that can have one. SQL ignores case, so a name that is taken gets a number."""
    used = {name.lower() for name in taken}
    fields = []
    for key, kind in types.items():
        if not key or "\0" in key:  # no column of SQL can have such a name
            continue
        column, number = key, 0
        while column.lower() in used:
            number += 1
            column = f"{key}_{number}"
        used.add(column.lower())
        fields.append(SampledField(key, column, kind or TREE, key in given))
    return fields


def parsed(fields: Sequence[SampledField], body: str) -> tuple[list[str], list[str]]:
    """Expressions of lists with the used fields of each message of a JSON array, and those of the columns over an
    element of each list, which is called `u0`, `u1` and so on. Fields of one list differ by more than case."""
    groups: list[dict[str, SampledField]] = []
    for field in fields:
        group = next((group for group in groups if field.key.lower() not in group), None)
        if group is None:
            groups.append(group := {})
        group[field.key.lower()] = field
    lists: list[str] = []
    columns: dict[str, str] = {}
    for number, group in enumerate(groups):
        shape = {field.key: TREE if _is_nested(field.type) else TEXT for field in group.values()}
        lists.append(f"from_json({body}, {quoted_text(json.dumps([shape]))})")
        for field in group.values():
            text = f"struct_extract(u{number}, {quoted_text(field.key)})"
            columns[field.column] = f"{_cast(field, text)} AS {quoted_name(field.column)}"
    return lists, [columns[field.column] for field in fields]


def _is_nested(kind: str) -> bool:
    return any(word in kind.upper() for word in _NESTED)


def _cast(field: SampledField, text: str) -> str:
    """The value of a field in its type; an error for one that does not fit."""
    kind = field.type
    if kind in (TEXT, TREE):
        return text
    cast = f"TRY_CAST({text} AS {kind})"
    fits = _fits_given(text, cast, kind) if field.is_given else _fits_sampled(text, cast, kind)
    says = f"the field {field.key} is {kind} in the sample, and a message has "
    way = f"; give its type: stream('PATH', types := '{quoted_name(field.key)} VARCHAR')"
    failure = f"error({quoted_text(says)} || {text}[:80] || {quoted_text(way)})"
    return f"CASE WHEN {fits} THEN {cast} WHEN {text} IS NULL THEN NULL ELSE {failure}::{kind} END"


def _fits_given(text: str, cast: str, kind: str) -> str:
    """Whether a value fits a type that the query gives. A cast to a whole number would round 1.5 and 1e-05."""
    if kind.upper() not in _INTEGERS:
        return f"{cast} IS NOT NULL"
    return (
        f"{cast} IS NOT NULL AND NOT contains({text}, 'e-') AND (NOT contains({text}, '.') OR ends_with({text}, '.0'))"
    )


def _fits_sampled(text: str, cast: str, kind: str) -> str:
    """Whether a value is one of the sampled type. A cast takes more: the texts 007, 0x1F, 1_000, yes and nan, and
    numbers that it rounds or makes infinite. Tests are in the order that is fastest for values that fit."""
    if kind == TRUTH:
        return f"{text} IN ('true', 'false')"
    if kind == REAL:
        zeros = " AND ".join(
            f"NOT ({text} >= '{sign}00' AND {text} < '{sign}0:')" for sign in ("", "-")
        )  # : is after 9
        return f"isfinite({cast}) AND NOT contains({text}, '_') AND {zeros}"
    digits = f"{cast}::VARCHAR"
    same = f"({digits} = {text} OR {digits} || '.0' = {text})"
    return same if kind == WHOLE else f"{same} AND abs({cast}) < {_HUGE}"


_INTEGERS = (
    *("BIGINT", "HUGEINT", "INTEGER", "INT", "SMALLINT", "TINYINT", "UBIGINT", "UINTEGER", "USMALLINT", "UTINYINT"),
    *("INT8", "INT4", "INT2", "INT1", "LONG", "SIGNED", "UHUGEINT"),
)


def quoted_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
