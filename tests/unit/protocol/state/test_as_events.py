"""Rows of a table as state events."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headwater import limits
from headwater.log.row_framing import format_rows
from headwater.protocol.state.as_events import RESET_EVENT, RecordFormat, RowsAsEvents
from headwater.protocol.state.events import ChangeEvent, decode_events, is_control_event
from headwater.protocol.tables.escaping import Escape, escape

STAMP = "2026-01-08T00:00:00.123Z"


def rows(*changes: bytes) -> bytes:
    return format_rows(changes, 7, STAMP)


def test_the_event_of_each_action_to_the_byte() -> None:
    converter = RowsAsEvents("price", Escape.NONE, RecordFormat.JSON)
    (batch,) = converter.convert(rows(b'+\ta"b\t{"eur": 1e999}', b"-\ta\tgone"), 0)
    assert batch.records == [
        b'{"type":"price","key":"a\\"b","value":{"eur": 1e999},'
        b'"headers":{"operation":"upsert","timestamp":"2026-01-08T00:00:00.123Z","seqno":"7"}}',
        b'{"type":"price","key":"a",'
        b'"headers":{"operation":"delete","timestamp":"2026-01-08T00:00:00.123Z","seqno":"8"}}',
    ]
    assert (batch.taken, batch.last, batch.last_seqno, batch.skipped) == (2, True, 8, 0)


def test_a_record_as_text() -> None:
    converter = RowsAsEvents("price", Escape.NONE, RecordFormat.TEXT)
    (batch,) = converter.convert(rows(b'+\ta\tfree form, "quoted"'), 0)
    (event,) = decode_events(b"[%b]" % b",".join(batch.records))
    assert isinstance(event, ChangeEvent)
    assert event.value == {"record": 'free form, "quoted"'}


def test_records_that_are_not_json_are_counted_and_left_out() -> None:
    converter = RowsAsEvents("price", Escape.NONE, RecordFormat.JSON)
    deep = b"[" * 9000 + b"]" * 9000
    (batch,) = converter.convert(rows(b"+\ta\tfree form", b"+\tb\t", b"+\tc\t" + deep, b"+\td\t1", b"-\te\tx"), 0)
    assert [msgspec.json.decode(record)["key"] for record in batch.records] == ["d", "e"]
    assert batch.skipped == 3
    assert str(batch.reason).startswith("row 9: ")


def test_a_reset_is_a_control_event() -> None:
    (event,) = decode_events(b"[%b]" % RESET_EVENT)
    assert is_control_event(event)
    assert event.headers.control == "reset"


def test_many_rows_become_several_batches_and_the_first_can_be_skipped() -> None:
    data = rows(*[b"+\tk%d\t%d" % (number, number) for number in range(25_000)])
    batches = list(RowsAsEvents("n", Escape.NONE, RecordFormat.JSON).convert(data, 5))
    values = [msgspec.json.decode(record)["value"] for batch in batches for record in batch.records]
    assert values == list(range(5, 25_000))
    assert all(len(batch.records) <= limits.VIEW_BATCH_RECORDS for batch in batches)
    assert [batch.last for batch in batches] == [False] * (len(batches) - 1) + [True]
    assert (batches[-1].taken, batches[-1].last_seqno) == (25_000, 25_006)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="".join(map(chr, (*range(9), *range(11, 32), 127)))))


@given(st.lists(st.tuples(TEXT.filter(bool), TEXT), min_size=1, max_size=5))
def test_escaped_keys_and_records_round_trip(fields: list[tuple[str, str]]) -> None:
    changes = [f"+\t{escape(key)}\t{escape(record)}".encode() for key, record in fields]
    converter = RowsAsEvents("é", Escape.BACKSLASH, RecordFormat.TEXT)
    (batch,) = converter.convert(rows(*changes), 0)
    events = decode_events(b"[%b]" % b",".join(batch.records))
    assert all(isinstance(event, ChangeEvent) and event.type == "é" for event in events)
    values = [(event.key, event.value) for event in events if isinstance(event, ChangeEvent)]
    assert [(key, isinstance(value, dict) and value["record"]) for key, value in values] == fields
