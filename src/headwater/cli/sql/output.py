"""The results of queries: a table for people, CSV, JSON lines, Parquet and Arrow."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec
import pyarrow as pa
import typer
from rich.console import Console

from headwater.cli.failing import WRONG_CALL, fail
from headwater.cli.layout import table_lines
from headwater.cli.output import say, shown, write

BINARY = ("parquet", "arrow")
_FOLDED_COLUMN_MIN = 8
_encoder = msgspec.json.Encoder()
_EXPLAINED = ["explain_key", "explain_value"]


class Result(Protocol):
    """Rows with a schema, as an `SqlAnswer` has them."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def json_columns(self) -> frozenset[str]: ...

    def batches(self) -> Iterable[pa.RecordBatch]: ...


class ResultSink(msgspec.Struct, frozen=True):
    """Where results go, and in which format."""

    format: str
    output: Path | None = None
    rows_max: int = 0  # of a table; 0: all

    def write(self, answer: Result) -> None:
        """Write a result. A file appears under its name when it is complete."""
        if self.format == "table" and self.output is None:
            print_rows(answer, self.rows_max)
        elif self.output is None:
            WRITERS[self.format](answer, _Unclosed())
        else:
            with _appearing(self.output) as file:
                WRITERS[self.format](answer, file)


def check_sink(sink: ResultSink, *, is_followed: bool) -> None:
    """Refuse what cannot work before a query runs."""
    if is_followed and (sink.output is not None or sink.format in BINARY):
        fail("--follow prints table, csv or json", "Leave out --output and choose one of these.", code=WRONG_CALL)
    if sink.format in BINARY and sink.output is None and sys.stdout.isatty():
        fail(f"{sink.format} is not for a terminal", "Give --output FILE, or a pipe.", code=WRONG_CALL)


class _Unclosed(io.RawIOBase):
    """Standard output, which writers must not close. Text for a terminal is escaped."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        write(bytes(data))
        return len(data)


@contextlib.contextmanager
def _appearing(path: Path) -> Iterator[IO[bytes]]:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


# A table


def print_rows(answer: Result, rows_max: int) -> None:
    """Print a table within the width of the terminal. The last line says how many rows there are, or are shown."""
    rows, is_cut = _first_rows(answer, rows_max)
    names = answer.schema.names
    if names == _EXPLAINED:
        write("".join(f"{plan}\n" for _, plan in rows).encode())
        return
    is_terminal = sys.stdout.isatty()
    lines = table_lines(
        [shown(name) for name in names],
        [[shown(text_of(value)) for value in row] for row in rows],
        width=Console().width if is_terminal else None,
        folding=dict.fromkeys(range(len(names)), _FOLDED_COLUMN_MIN),
        right={number for number, field in enumerate(answer.schema) if _is_number(field.type)},
    )
    is_styled = is_terminal and os.environ.get("TERM") != "dumb"
    for line, is_heading in lines:
        typer.echo(typer.style(line, bold=True) if is_heading and is_styled else line)
    if is_cut:
        say(f"headwater: only the first {len(rows):,} rows are shown; see --rows and --format", err=True)
    elif is_terminal:
        say(f"({len(rows):,} row{'' if len(rows) == 1 else 's'})")


def _first_rows(answer: Result, rows_max: int) -> tuple[list[tuple[Any, ...]], bool]:
    rows: list[tuple[Any, ...]] = []
    for batch in answer.batches():
        rows += rows_of(batch)
        if rows_max and len(rows) > rows_max:
            return rows[:rows_max], True
    return rows, False


def rows_of(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _is_number(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal))


def text_of(value: Any) -> str:
    """A cell for people."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.isoformat(" ").replace("+00:00", "Z")
    if isinstance(value, float | Decimal):
        return str(value)
    plain = plain_of(value)
    if isinstance(plain, dict | list):
        return msgspec.json.encode(plain).decode()
    return str(msgspec.to_builtins(plain)) if not isinstance(plain, bool) else str(plain).lower()


def plain_of(value: Any) -> Any:
    """A value as JSON has it: whole decimals are numbers, others too; bytes are text in base 64."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else _number(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, float) and value - value != 0:
        return None if value != value else str(value)  # JSON has no NaN and no infinities
    if isinstance(value, dict):
        return {str(key): plain_of(one) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # an interval
        return f"{value[0]} months {value[1]} days {value[2] / 1e9:g} s"
    return [plain_of(one) for one in value] if isinstance(value, list | tuple) else value


def _number(value: Decimal) -> msgspec.Raw:
    return msgspec.Raw(str(value).encode())


# Formats for programs


def write_json(answer: Result, file: Any) -> None:
    for batch in answer.batches():
        file.write(json_lines(answer, batch))


def json_lines(answer: Result, batch: pa.RecordBatch) -> bytes:
    """JSON objects, with the values of JSON columns as they are."""
    names = answer.schema.names
    columns = [
        _json_cells(column, is_json=name in answer.json_columns)
        for name, column in zip(names, batch.columns, strict=True)
    ]
    return _encoder.encode_lines([dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)])


def _json_cells(column: pa.Array, *, is_json: bool) -> list[Any]:
    cells: list[Any] = column.to_pylist()
    kind = column.type
    if is_json:
        return [None if cell is None else msgspec.Raw(cell.encode()) for cell in cells]
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind):
        return cells
    return list(map(plain_of, cells))


def write_csv(answer: Result, file: Any, *, has_header: bool = True) -> None:
    from pyarrow import csv

    fields = [pa.field(field.name, _in_csv(field.type)) for field in answer.schema]
    schema = pa.schema(fields)
    with csv.CSVWriter(file, schema, write_options=csv.WriteOptions(include_header=has_header)) as writer:
        for batch in answer.batches():
            arrays = [_csv_column(column, field) for column, field in zip(batch.columns, fields, strict=True)]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _in_csv(kind: pa.DataType) -> pa.DataType:
    """Types that the writer does not know become text."""
    is_plain = _is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_date(kind) or pa.types.is_null(kind)
    return kind if is_plain else pa.string()


def _csv_column(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    return pa.array([None if value is None else text_of(value) for value in column.to_pylist()], pa.string())


def write_parquet(answer: Result, file: Any) -> None:
    from pyarrow import parquet

    with parquet.ParquetWriter(file, answer.schema) as writer:
        for batch in answer.batches():
            writer.write_batch(batch)


def write_arrow(answer: Result, file: Any) -> None:
    with pa.ipc.new_stream(file, answer.schema) as writer:
        for batch in answer.batches():
            writer.write_batch(batch)


def write_table(answer: Result, file: Any) -> None:
    """A table in a file: all rows, one line each."""
    rows, _ = _first_rows(answer, 0)
    cells = [[shown(text_of(value)) for value in row] for row in rows]
    for line, _ in table_lines([shown(name) for name in answer.schema.names], cells):
        file.write(line.encode() + b"\n")


WRITERS: dict[str, Callable[[Result, Any], None]] = {
    "table": write_table,
    "csv": write_csv,
    "json": write_json,
    "parquet": write_parquet,
    "arrow": write_arrow,
}
