"""Converts rows of a DataFrame, with the columns `action`, `key` and `record`, to changes of a table."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StringType, StructType

from headwater import limits
from headwater.client.columns.texts import join
from headwater.errors import InvalidChangeError, SchemaError
from headwater.protocol.tables.changes import check_changes, count_lines
from headwater.protocol.tables.escaping import Escape
from headwater.protocol.tables.rows import ADD, DELETE
from headwater.spark.tables.columns import COLUMNS

_WRITTEN = ("action", "key", "record")  # the sink ignores the other columns of a table that was read
_ESCAPES = (("\\", r"\\"), ("\t", r"\t"), ("\n", r"\n"), ("\r", r"\r"))


def check_change_columns(schema: StructType) -> None:
    fields = {field.name: field.dataType for field in schema.fields}
    for name in fields:
        if name not in COLUMNS:
            raise SchemaError(
                f"a table has no column {name}; put all values of a key into record: to_json(struct(...)) AS record"
            )
    for name in ("key", "record", "action"):
        if name not in fields and name != "action":
            raise SchemaError(f"the column {name} is missing; a table needs key and record, and may have action")
        if name in fields and not isinstance(fields[name], StringType):
            raise SchemaError(f"the column {name} is {fields[name].simpleString()}; it must be a string")


class ChangeEncoder:
    """Converts batches of a schema to lines of changes. A row without a record deletes its key."""

    def __init__(self, schema: StructType, target: str, escape: Escape) -> None:
        check_change_columns(schema)
        self._target = target
        self._escape = escape

    def encode(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
        if not batch.num_rows:
            return
        # Texts have another type in a session with large ones (spark.sql.execution.arrow.useLargeVarTypes).
        columns = {name: batch.column(name).cast(pa.string()) for name in batch.schema.names if name in _WRITTEN}
        keys, records = columns["key"], columns["record"]
        if keys.null_count:
            raise SchemaError("a row has no key: the column key is null")
        actions = self._actions(columns.get("action"), keys, records)
        if self._escape is Escape.BACKSLASH:
            keys, records = _escaped(keys), _escaped(records)
        lines = pc.binary_join_element_wise(actions, keys, pc.fill_null(records, ""), "\t")
        lines = pc.binary_join_element_wise(lines, "", "\n").cast(pa.binary())
        body = join(lines, b"")
        if not self._are_valid(actions, keys, lines, body):
            self._refuse(lines, body, batch)
        yield self._target, lines

    def _actions(self, column: pa.Array | None, keys: pa.Array, records: pa.Array) -> pa.Array:
        meant = pc.if_else(pc.is_null(records), DELETE, ADD)
        if column is None:
            return meant
        actions = pc.coalesce(column, meant)
        lacking = pc.and_(pc.equal(actions, ADD), pc.is_null(records))
        if (number := pc.index(lacking, True).as_py()) >= 0:
            shown = keys[number].as_py()[:80]
            raise SchemaError(f"the row with key {shown!r} has the action + but no record; an empty record is allowed")
        return actions

    def _are_valid(self, actions: pa.Array, keys: pa.Array, lines: pa.Array, body: bytes) -> bool:
        """Whether `check_changes` accepts the lines, by the lengths of their fields and the text as a whole."""
        key_bytes = pc.min_max(pc.binary_length(keys))
        known = pc.or_(pc.equal(actions, ADD), pc.equal(actions, DELETE))
        return (
            pc.all(known).as_py()
            and 0 < key_bytes["min"].as_py() <= key_bytes["max"].as_py() <= limits.KEY_BYTES_MAX
            and pc.max(pc.binary_length(lines)).as_py() - len(b"\n") <= limits.CHANGE_BYTES_MAX
            and count_lines(body[:-1], self._escape) == len(lines)
        )

    def _refuse(self, lines: pa.Array, body: bytes, batch: pa.RecordBatch) -> None:
        """Refuse invalid changes before the list of the batch is written, because retries would repeat it."""
        try:
            if body.count(b"\n") != len(lines):
                number = pc.index(pc.greater(pc.count_substring(lines, "\n"), 1), True).as_py()
                fault = "there is a newline in the key or record; remove it, or create the table with escape=backslash"
                raise InvalidChangeError(fault, line=number + 1)
            check_changes(body, len(lines), self._escape)
        except InvalidChangeError as error:
            key = batch.column("key")[(error.line or 1) - 1].as_py()[:80]
            fault = error.detail.partition(": ")[2] if error.detail.startswith("line ") else error.detail
            raise SchemaError(f"the row with key {key!r} cannot be appended to {self._target}: {fault}") from None


def _escaped(column: pa.Array) -> pa.Array:
    for plain, escaped in _ESCAPES:
        column = pc.replace_substring(column, plain, escaped)
    return column
