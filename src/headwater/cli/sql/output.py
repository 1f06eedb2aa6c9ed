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
import numpy as np
import pyarrow as pa
import typer
from rich.console import Console

from headwater.cli.failing import WRONG_CALL, fail
from headwater.cli.layout import table_lines
from headwater.cli.output import say, shown, write
from headwater.errors import SqlError

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
    return list(zip(*map(values_of, batch.columns), strict=True))


def values_of(column: pa.Array) -> list[Any]:
    """The values of a column in Python. Dates and times that Python does not have, such as those of the year 20000, are
    text."""
    try:
        values: list[Any] = column.to_pylist()
    except OverflowError:
        values = list(map(_value_of, column))
    return values


def _value_of(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except OverflowError:
        kind = scalar.type
        if pa.types.is_struct(kind):
            return {name: _value_of(one) for name, one in scalar.items()}
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            return _distant(scalar.value, "D" if pa.types.is_date(kind) else kind.unit, kind)
        return list(map(_value_of, scalar.values))


def _distant(number: int, unit: str, kind: pa.DataType) -> str:
    """A date or a time that Python does not have, as text."""
    if abs(number) == 2 ** (31 if unit == "D" else 63) - 1:
        return "infinity" if number > 0 else "-infinity"
    text = str(np.array(number).astype(f"datetime64[{unit}]"))
    text = text.rstrip("0").removesuffix(".") if "." in text else text
    return text if getattr(kind, "tz", None) is None else f"{text}Z"


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
    if isinstance(value, pa.MonthDayNano):
        return _interval(value)
    return [plain_of(one) for one in value] if isinstance(value, list | tuple) else value


def _interval(value: pa.MonthDayNano) -> str:
    """An interval as DuckDB writes it: `1 year 2 months 3 days 04:05:06.7`."""
    years, months = int(value.months / 12), abs(value.months) % 12 * (1 if value.months > 0 else -1)
    counts = ((years, "year"), (months, "month"), (value.days, "day"))
    words = [f"{count} {unit}{'' if abs(count) == 1 else 's'}" for count, unit in counts if count]
    seconds, nanos = divmod(abs(value.nanoseconds), 10**9)
    if value.nanoseconds or not words:
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        fraction = f".{nanos:09}".rstrip("0") if nanos else ""
        words.append(f"{'-' if value.nanoseconds < 0 else ''}{clock}{fraction}")
    return " ".join(words)


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
    cells = values_of(column)
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
    is_plain = _is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)
    return kind if is_plain else pa.string()


def _csv_column(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    return pa.array([None if value is None else text_of(value) for value in values_of(column)], pa.string())


def write_parquet(answer: Result, file: Any) -> None:
    from pyarrow import parquet

    try:
        writer = parquet.ParquetWriter(file, answer.schema)
    except pa.ArrowNotImplementedError as error:
        raise SqlError(f"Parquet cannot hold a column of the result; cast it to VARCHAR ({error})") from None
    with writer:
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
