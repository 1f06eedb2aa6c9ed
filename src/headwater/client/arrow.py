"""Imports pyarrow, which is in the extra `sql`, where columns are asked for, with an error that names the extra."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater.errors import MissingExtraError
from headwater.protocol.tables.escaping import Escape

if TYPE_CHECKING:
    from headwater.client.columns.messages import MessageColumns
    from headwater.client.columns.rows import RowColumns


def message_columns(columns: Sequence[str] | None, content_type: str) -> MessageColumns:
    """What makes Arrow batches of a stream; the default columns are `offset` and `value`."""
    require_pyarrow()
    from headwater.client.columns.messages import DEFAULT_COLUMNS, MessageColumns
    from headwater.log.content import kind_of

    return MessageColumns(DEFAULT_COLUMNS if columns is None else _checked(columns), kind_of(content_type))


def row_columns(columns: Sequence[str] | None, escape: Escape) -> RowColumns:
    """What makes Arrow batches of a table; the default is all columns."""
    require_pyarrow()
    from headwater.client.columns.rows import ROWS, RowColumns, row_schema

    return RowColumns(ROWS if columns is None else row_schema(_checked(columns)), escape)


def _checked(columns: Sequence[str]) -> list[str]:
    if isinstance(columns, str) or not columns or len(set(columns)) < len(columns):
        raise ValueError(f"columns are a list of different names, such as ['offset', 'value'], got {columns!r:.80}")
    return list(columns)


def require_pyarrow() -> None:
    try:
        import numpy
        import pyarrow
    except ImportError as error:
        raise MissingExtraError(f"Arrow needs {error.name}, which is not installed") from None
    del numpy, pyarrow
