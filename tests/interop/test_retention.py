"""Retention and trims by the client in both shells, and the errors of readers whose data was trimmed."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from headwater.client import Client, Put, Retention, Stream, Table
from headwater.errors import InvalidHeaderError, OffsetTrimmedError, ProtocolError


@pytest.fixture
def stream(client: Client) -> Stream:
    return client.stream(f"retention/{uuid.uuid4().hex}")


@pytest.fixture
def table(client: Client) -> Table:
    return client.table(f"retention/{uuid.uuid4().hex}")


def test_the_retention_of_a_stream(client: Client, stream: Stream) -> None:
    kept = Retention(seconds=60, messages=10, compact=True, compact_after_s=5)
    stream.create(retention=kept)
    assert stream.head().retention == kept
    offsets = [stream.append(n).offset for n in range(4)]
    (listed,) = client.list(stream.path or "")
    assert (listed.retention, listed.first_offset) == (kept, stream.head().first_offset)
    assert stream.retain(messages=2, compact=False, compact_after_s=None) == Retention(seconds=60, messages=2)
    assert stream.head().first_offset == offsets[1]
    assert stream.read().all() == [2, 3]
    assert stream.retain(seconds=None, messages=None) is None
    assert stream.head().retention is None
    assert not stream.create()
    assert stream.fork(f"{stream.path}-fork", retention=Retention(bytes=5)).head().retention == Retention(bytes=5)
    with pytest.raises(ValueError, match="nothing to change"):
        stream.retain()
    with pytest.raises(InvalidHeaderError, match="Stream-Retain-Bytes"):
        stream.retain(bytes=0)


def test_a_reader_of_trimmed_data_is_told_where_the_stream_begins(client: Client, stream: Stream) -> None:
    stream.create()
    offsets = [stream.append(n).offset for n in range(4)]
    assert stream.trim(offsets[1]) == stream.trim(offsets[0]) == offsets[1]
    for live in (False, "sse", "long-poll"):
        with pytest.raises(OffsetTrimmedError) as error:
            stream.read(offset=offsets[0], live=live).all()
        assert (error.value.first_offset, error.value.status) == (offsets[1], 410)
    assert stream.read(offset=error.value.first_offset).all() == [2, 3]
    with pytest.raises(OffsetTrimmedError) as error, client.follow({stream.path or "": offsets[0]}) as follow:
        next(iter(follow))
    assert (error.value.first_offset, error.value.stream) == (offsets[1], stream.path)
    assert stream.trim(datetime.now(UTC) - timedelta(days=1)) == offsets[1]
    assert stream.trim("now") == offsets[3]
    assert stream.read().all() == []
    with pytest.raises(ValueError, match="time zone"):
        stream.trim(datetime(2030, 1, 1))


def test_the_retention_of_a_table(client: Client, table: Table) -> None:
    table.create(retention=Retention(messages=3))
    for n in range(5):
        table.append([Put(f"k{n}", str(n))])
    assert table.retain(messages=2, seconds=60) == Retention(seconds=60, messages=2)
    info = table.info()
    assert (info.first_seqno, info.last_seqno, info.retention) == (4, 5, Retention(seconds=60, messages=2))
    (listed,) = client.tables(info.name)
    assert (listed.first_seqno, listed.retention) == (4, info.retention)
    assert [row.seqno for row in table.rows(since_id=3)] == [4, 5]
    with pytest.raises(OffsetTrimmedError) as error:
        table.rows(since_id=1).all()
    assert error.value.first_seqno == 4
    assert table.trim(5) == table.trim(3) == 5
    assert list(table.active()) == ["k4"]
    assert table.trim(datetime.now(UTC) + timedelta(days=1)) == 6


def test_a_server_without_retention_is_named(client: Client) -> None:
    elsewhere = client.stream("http://127.0.0.1:1/v1/stream/x")
    with pytest.raises(ValueError, match="not a stream of this client's server"):
        elsewhere.trim("now")
    notify = client.table("a").nurl
    with pytest.raises(ProtocolError, match="has no retention"):
        client.stream(notify).retain(bytes=5)


def test_a_compacted_table_is_read_and_followed(client: Client) -> None:
    """Its SeqNos have gaps, which are no rows that are missing."""
    table = client.table(f"compacted-{uuid.uuid4().hex}")
    table.create()
    for number in range(5):
        table.append([Put("k", f"{number}{'x' * 50}")])
    table.append([Put("other", "1")])
    assert table.rows().all()[0].seqno == 1
    assert table.compact().compacted
    assert not table.info().gapless
    assert [row.seqno for row in table.rows()] == [row.seqno for row in table.rows(until_id=6)] == [5, 6]
    assert table.arrow()["seqno"].to_pylist() == [5, 6]
    seqnos = []
    with table.follow() as rows:
        for row in rows:
            seqnos.append(row.seqno)
            if row.seqno == 6:
                break
    assert seqnos == [5, 6]
