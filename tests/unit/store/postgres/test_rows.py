"""Rows, arrays and notifications as they are encoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import DamagedDataError
from headwater.store.contract import Moved
from headwater.store.pieces import list_runs
from headwater.store.postgres.arrays import bigints, byteas, ints, register
from headwater.store.postgres.rows import ByteRow, cut, decode_run, encode_run
from headwater.store.postgres.watching import decode_announcement, encode_announcements
from tests.postgres import postgres

records = st.lists(st.tuples(st.binary(min_size=1, max_size=50), st.integers(0, 2**40)), min_size=1, max_size=30)


def joined(some: list[tuple[bytes, int]]) -> tuple[list[int], list[int], bytes]:
    data, ends, times = b"", [], []
    for record, at_ms in some:
        data += record
        ends.append(len(data))
        times.append(at_ms)
    return ends, times, data


@given(records, st.integers(0, 2**50))
def test_rows_keep_the_ends_and_times_of_records(some: list[tuple[bytes, int]], start: int) -> None:
    ends, times, data = joined(some)
    run = decode_run(encode_run(7, start, ends, times, data))
    assert (run.start, run.data, list(run.ends)) == (start, data, ends)
    assert [run.time(index) for index in range(len(ends))] == times


@given(records, st.data())
def test_a_changed_bit_is_noticed(some: list[tuple[bytes, int]], choice: st.DataObject) -> None:
    row = encode_run(7, 100, *joined(some))
    columns = [row.outline, row.data]
    which = choice.draw(st.integers(0, 1))
    index = choice.draw(st.integers(0, 8 * len(columns[which]) - 1))
    changed = bytearray(columns[which])
    changed[index // 8] ^= 1 << index % 8
    columns[which] = bytes(changed)
    with pytest.raises(DamagedDataError):
        decode_run(ByteRow(*row[:4], *columns))
    others: list[dict[str, Any]] = [
        {"stream_id": 8},
        {"start": 101},
        {"size": row.size + 1},
        {"last_ms": row.last_ms + 1},
    ]
    for changes in others:
        with pytest.raises(DamagedDataError):
            decode_run(row._replace(**changes))


def test_long_data_is_cut_between_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.limits.POSTGRES_CHUNK_BYTES", 100)
    ends, times, data = joined([(bytes([number]) * (number % 60 + 1), number) for number in range(60)])
    rows = list(cut(1, 1_000, ends, times, data))
    assert b"".join(row.data for row in rows) == data
    assert max(row.size for row in rows) <= 100
    listed = list_runs([decode_run(row) for row in rows], 1_000, 1_000 + len(data), 1_000)
    assert listed == [(1_000 + end, at_ms) for end, at_ms in zip(ends, times, strict=True)]


@given(st.lists(st.integers(-(2**31), 2**31 - 1)), st.lists(st.integers(-(2**63), 2**63 - 1)), st.lists(st.binary()))
def test_arrays_arrive_as_they_are(some: list[int], large: list[int], texts: list[bytes]) -> None:
    arguments = (ints(some), bigints(large), byteas(texts))
    row = _connection().execute("SELECT %s, %s, %s", arguments, binary=True).fetchone()
    assert row == (some, large, texts)


def _connection() -> psycopg.Connection[tuple[object, ...]]:
    if not _connections:
        connection = psycopg.connect(postgres().url("postgres"), autocommit=True)
        register(connection.adapters)
        _connections.append(connection)
    return _connections[0]


_connections: list[psycopg.Connection[tuple[object, ...]]] = []


@pytest.fixture(autouse=True, scope="module")
def _closed() -> Iterator[None]:
    yield
    for connection in _connections:
        connection.close()
    _connections.clear()


def test_announcements_fit_into_notifications() -> None:
    moved = [Moved(number, f"streams/{'é' * 400}/{number}", number) for number in range(50)]
    payloads = list(encode_announcements(3, moved))
    assert max(map(len, payloads)) < 8_000
    decoded = [decode_announcement(payload.decode()) for payload in payloads]
    assert [one.server for one in decoded if one is not None] == [3] * len(payloads)
    streams = [stream for one in decoded if one is not None for stream in one.streams]
    assert [(number, path.decode(), version) for number, path, version in streams] == moved


@pytest.mark.parametrize("payload", ["", "x", "[1]", '{"server": 1}', '[1, [["a", "b", "c"]]]'])
def test_what_somebody_else_sends_is_ignored(payload: str) -> None:
    assert decode_announcement(payload) is None
