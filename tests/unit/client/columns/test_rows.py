"""Conversion of rows to Arrow: parsing many at once gives the same result as one by one."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.client.columns.rows import ROWS, RowColumns, row_schema
from headwater.protocol.tables.escaping import Escape, escape
from headwater.protocol.tables.rows import Row, format_row, parse_row
from tests.table_servers import NOW, lines

FEW = row_schema(["record", "seqno"])
AT = datetime(2026, 1, 8, tzinfo=UTC)


def parse(text: bytes, after: int = 0, until: int = 100, *, escape: Escape = Escape.NONE):  # type: ignore[no-untyped-def]
    return RowColumns(ROWS, escape).parse(text, after, until)


def test_columns_and_types() -> None:
    batch, last = parse(lines(1, 2, 3))
    assert last == 3
    assert batch.schema.types == [pa.int64(), pa.timestamp("us", "UTC"), pa.string(), pa.string(), pa.string()]
    assert batch.to_pylist()[1] == {"seqno": 2, "timestamp": AT, "action": "+", "key": "k2", "record": "r"}
    parsed = RowColumns(FEW, Escape.NONE).parse(lines(1), 0, 1)
    assert parsed is not None
    assert parsed[0].to_pylist() == [{"record": "r", "seqno": 1}]


def test_rows_past_the_end_are_left_out() -> None:
    batch, last = parse(lines(1, 2, 3, 4), until=2)
    assert (batch.column("seqno").to_pylist(), last) == ([1, 2], 4)


@pytest.mark.parametrize(
    "text",
    [
        lines(2, 1),
        lines(1, 3),
        lines(2, 3),
        lines(1, 1),
        lines(0, 1),
        b"x\t" + lines(1),
        lines(1) + b"\n",
        lines(1).replace(b"\tr", b""),
        lines(1).replace(b"\tr", b"\tr\tmore"),
        lines(1).replace(b"\tr", b"\ta\rb"),
        lines(1).replace(b"+", b"*"),
        lines(1).replace(b"k1", b""),
        lines(1).replace(b"k1", b"\xff"),
        lines(1).replace(b"1", b"-1", 1),
        lines(1).replace(b"1", b"99999999999999999999", 1),
    ],
)
def test_rows_that_are_not_parsed_at_once(text: bytes) -> None:
    assert parse(text) is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from("+-"),
            st.text(st.characters(codec="utf-8"), min_size=1),
            st.text(st.characters(codec="utf-8")),
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(Escape),
)
def test_parsing_at_once_equals_parsing_one_by_one(changes: list[tuple[str, str, str]], escaping: Escape) -> None:
    """For any text, including quotes and nulls of CSV. Rows that Arrow would parse differently are rejected."""
    if escaping is Escape.NONE:
        changes = [(action, key.translate(_NO_ENDS), record.replace("\n", "")) for action, key, record in changes]
        changes = [(action, key or "k", record) for action, key, record in changes]
    rows = [Row(number, NOW, action, key, record) for number, (action, key, record) in enumerate(changes, 1)]  # type: ignore[arg-type]
    kept = rows
    if escaping is Escape.BACKSLASH:
        kept = [Row(row.seqno, NOW, row.action, escape(row.key), escape(row.record)) for row in rows]
    text = b"".join(map(format_row, kept))
    assert [parse_row(line.decode()) for line in text[:-1].split(b"\n")] == kept
    columns = RowColumns(ROWS, escaping)
    parsed = columns.parse(text, 0, 100)
    if parsed is None:
        assert escaping is Escape.NONE
        assert any("\r" in row.key + row.record or "\t" in row.record for row in kept)
    else:
        assert parsed[0].equals(columns.of_rows(rows))


_NO_ENDS = str.maketrans("", "", "\t\n")


def test_an_invalid_escape() -> None:
    assert parse(lines(1, record=r"a\x"), escape=Escape.BACKSLASH) is None
    batch, _ = parse(lines(1, record=r"a\\x\tb"), escape=Escape.BACKSLASH)
    assert batch.column("record").to_pylist() == ["a\\x\tb"]


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-08T00:00:00Z", AT),
        ("2026-01-08T00:00:00.123456Z", AT.replace(microsecond=123456)),
        ("2026-01-08t00:00:00.123456789z", AT.replace(microsecond=123000)),
        ("2026-01-08T00:00:00+00:00", AT),
        ("yesterday", None),
        ("", None),
    ],
)
def test_timestamps_are_informational(text: str, moment: datetime | None) -> None:
    batch, _ = parse((lines(1) + lines(2)).replace(NOW.encode(), text.encode()))
    assert batch.column("timestamp").to_pylist() == [moment, moment]


def test_the_columns_are_chosen_by_name() -> None:
    assert row_schema(["key", "seqno"]).names == ["key", "seqno"]
    with pytest.raises(ValueError, match="there is no column 'value'; the columns of a table are seqno, timestamp"):
        row_schema(["value"])
