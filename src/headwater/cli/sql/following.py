"""A query that is repeated as data arrives: tables are printed again, CSV and JSON continue with new rows."""

from __future__ import annotations

import io
import math
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from headwater import limits
from headwater.cli.output import say, write
from headwater.cli.sql.output import ResultSink, json_lines, print_rows, rows_of, write_csv
from headwater.errors import SqlError

if TYPE_CHECKING:
    from headwater.sql import SqlAnswer, SqlSession


class _Whole:
    """A result that is in memory, so that it can be compared with the next one."""

    def __init__(self, answer: SqlAnswer) -> None:
        self.answer = answer
        self.schema, self.json_columns = answer.schema, answer.json_columns
        self._batches: list[pa.RecordBatch] = []
        count = 0
        for batch in answer.batches():
            self._batches.append(batch)
            count += batch.num_rows
            if count > limits.SQL_FOLLOW_ROWS_MAX:
                raise SqlError(
                    f"a result that is followed is kept in memory, and may have {limits.SQL_FOLLOW_ROWS_MAX:,} rows; "
                    "aggregate it, or read newer data only: stream('PATH', since := '1h')"
                )

    def batches(self) -> list[pa.RecordBatch]:
        return self._batches

    def rows(self) -> list[tuple[Any, ...]]:
        return [row for batch in self._batches for row in rows_of(batch)]


def follow(session: SqlSession, text: str, sink: ResultSink) -> None:
    """Print a result, and again what is new in it, until the process is interrupted."""
    before: _Whole | None = None
    known: Counter[str] = Counter()
    while True:
        result = _Whole(session.query(text))
        if not result.answer.streams and not result.answer.tables:
            raise SqlError("the query reads no stream and no table, so there is nothing to follow")
        if before is not None and sink.format != "table" and before.schema.names != result.schema.names:
            raise SqlError(
                f"the columns were {', '.join(before.schema.names)} and are now {', '.join(result.schema.names)}: new "
                "messages have other fields; name the columns in the query"
            )
        if sink.format == "table":
            if before is None or before.rows() != result.rows():
                if sys.stdout.isatty() or before is not None:
                    say(f"-- {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
                print_rows(result, sink.rows_max)
                sys.stdout.flush()
            before = result
        else:
            known = _print_new(result, known, sink.format, is_first=before is None)
            before = result
        time.sleep(limits.SQL_FOLLOW_S)
        while not session.has_new_data(result.answer):
            time.sleep(limits.SQL_FOLLOW_S)


def _print_new(result: _Whole, known: Counter[str], form: str, *, is_first: bool) -> Counter[str]:
    """Print the rows that the last result did not have, and return those of this one."""
    now: Counter[str] = Counter()
    new: list[pa.RecordBatch] = []
    are_json = [name in result.json_columns for name in result.schema.names]
    for batch in result.batches():
        are_new = []
        for row in rows_of(batch):
            key = repr([_comparable(value, is_json=one) for value, one in zip(row, are_json, strict=True)])
            now[key] += 1
            are_new.append(now[key] > known[key])
        new.append(batch.filter(pa.array(are_new, pa.bool_())))
    if form == "json":
        for batch in new:
            write(json_lines(result, batch))
    else:
        text = io.BytesIO()
        write_csv(_Part(result, new), text, has_header=is_first)
        write(text.getvalue())
    return now


def _comparable(value: Any, *, is_json: bool) -> Any:
    """The text of a scalar, which stays the same if new messages make its column wider: 1 becomes 1.0, "1" or JSON."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float | Decimal) and math.isfinite(value) and value == int(value):
        return str(int(value))
    if isinstance(value, int | float | Decimal):
        return str(value)
    if is_json and isinstance(value, str) and value.startswith('"'):
        value = msgspec.json.decode(value)
    return value.removesuffix(".0") if isinstance(value, str) else value


class _Part:
    """Some rows of a result."""

    def __init__(self, result: _Whole, batches: list[pa.RecordBatch]) -> None:
        self.schema, self.json_columns, self._batches = result.schema, result.json_columns, batches

    def batches(self) -> list[pa.RecordBatch]:
        return self._batches
