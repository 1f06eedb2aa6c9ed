"""Conversion of rows to changes of a table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, IntegerType, StringType, StructField, StructType

from headwater import limits
from headwater.client.columns.texts import join
from headwater.errors import SchemaError
from headwater.protocol.tables.changes import format_changes
from headwater.protocol.tables.escaping import Escape
from headwater.spark.tables.changes import ChangeEncoder, check_change_columns
from headwater.spark.tables.columns import SCHEMA

TEXT = StringType()


def schema(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def encode(escape: Escape = Escape.NONE, /, **columns: list[Any]) -> bytes:
    batch = pa.RecordBatch.from_pydict({name: pa.array(cells, pa.string()) for name, cells in columns.items()})
    [(target, messages)] = ChangeEncoder(schema(**dict.fromkeys(columns, TEXT)), "prices", escape).encode(batch)
    assert target == "prices"
    return join(messages, b"")


def test_a_row_without_a_record_is_a_delete() -> None:
    assert encode(key=["a", "é", "c"], record=["1", None, ""]) == "+\ta\t1\n-\té\t\n+\tc\t\n".encode()


@pytest.mark.parametrize("escape", Escape)
def test_the_texts_of_a_session_with_large_ones(escape: Escape) -> None:
    """Its texts have another type (spark.sql.execution.arrow.useLargeVarTypes)."""
    cells: dict[str, list[Any]] = {"action": [None, None, "-"], "key": ["a", "é", "c"], "record": ["1", None, "why"]}
    batch = pa.RecordBatch.from_pydict({name: pa.array(column, pa.large_string()) for name, column in cells.items()})
    [(_, messages)] = ChangeEncoder(schema(**dict.fromkeys(cells, TEXT)), "prices", escape).encode(batch)
    assert join(messages, b"") == encode(escape, **cells) == "+\ta\t1\n-\té\t\n-\tc\twhy\n".encode()


def test_the_column_action_decides() -> None:
    lines = encode(action=["+", "-", "-", None, None], key=list("abcde"), record=["1", "why", None, "2", None])
    assert lines == b"+\ta\t1\n-\tb\twhy\n-\tc\t\n+\td\t2\n-\te\t\n"


def test_the_longest_key_and_the_longest_change() -> None:
    assert encode(key=["k" * limits.KEY_BYTES_MAX], record=["r"]) == b"+\t%b\tr\n" % (b"k" * limits.KEY_BYTES_MAX)
    record = "r" * (limits.CHANGE_BYTES_MAX - len("+\tk\t"))
    assert encode(key=["k"], record=[record]) == f"+\tk\t{record}\n".encode()
    with pytest.raises(SchemaError, match="the change is longer"):
        encode(key=["k", "l"], record=["r", f"{record}r"])


def test_escapes() -> None:
    hard = "a\tb\nc\rd\\e\\t"
    lines = encode(Escape.BACKSLASH, key=[hard], record=[hard])
    assert lines == format_changes([("+", hard, hard)], Escape.BACKSLASH)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": [None], "record": ["1"]}, "a row has no key"),
        (
            {"key": ["x", ""], "record": ["1", "1"]},
            "the row with key '' cannot be appended to prices: the key is empty",
        ),
        (
            {"key": ["x", "y"], "record": ["1", "a\tb"]},
            "the row with key 'y' cannot be appended to prices: there is a tab",
        ),
        ({"key": ["x\ty"], "record": ["1"]}, "there is a tab"),
        ({"key": ["x", "y"], "record": ["1", "a\n+\tz\t1"]}, "the row with key 'y' .*there is a newline"),
        ({"key": ["x\n+\ty"], "record": ["1"]}, "there is a newline"),
        ({"key": ["x"], "record": ["a\x00"]}, "control character"),
        ({"key": ["x" * (limits.KEY_BYTES_MAX + 1)], "record": [""]}, "the key is longer"),
        ({"key": ["x"], "record": ["1"], "action": ["*"]}, r"begins with \+ or -"),
        ({"key": ["x"], "record": ["1"], "action": ["+\ta\tb\n-"]}, "newline"),
        ({"key": ["x"], "record": [None], "action": ["+"]}, r"the row with key 'x' has the action \+ but no record"),
    ],
)
def test_rows_that_a_table_refuses(columns: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        encode(**columns)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"key": TEXT}, "the column record is missing"),
        ({"record": TEXT}, "the column key is missing"),
        ({"key": IntegerType(), "record": TEXT}, "the column key is int"),
        ({"key": TEXT, "record": StructType()}, "the column record is struct"),
        ({"key": TEXT, "record": TEXT, "price": IntegerType()}, "a table has no column price"),
    ],
)
def test_columns(fields: dict[str, DataType], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        check_change_columns(schema(**fields))


def test_columns_set_by_the_server_are_ignored() -> None:
    check_change_columns(SCHEMA)
