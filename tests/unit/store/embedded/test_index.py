"""The index while the fold writes to it."""

from __future__ import annotations

import os
import sqlite3
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from headwater.errors import DamagedDataError
from headwater.log.content import ContentKind
from headwater.log.producers import ProducerState
from headwater.log.state import Document, StreamState
from headwater.store.embedded.index import IndexReader, Meta, connect, create
from headwater.store.embedded.index_writer import IndexWriter

SIZE = 20_000


class Interrupted:
    """A connection during whose reads the fold commits, between a row and its blob."""

    def __init__(self, connection: sqlite3.Connection, writer: IndexWriter) -> None:
        self._connection = connection
        self._writer = writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def blobopen(self, *arguments: Any, **options: Any) -> sqlite3.Blob:
        self._writer.begin()
        put(self._writer, SIZE, os.urandom(SIZE))  # merged with the chunk before, whose row is used again
        self._writer.commit(Meta(2, 2))
        return self._connection.blobopen(*arguments, **options)


def put(writer: IndexWriter, start: int, data: bytes) -> None:
    writer.put_bytes(1, start, array("I", [len(data)]), array("Q", [1]), data)


def test_a_chunk_that_is_merged_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    create(path)
    writer = IndexWriter(connect(path, write=True))
    writer.begin()
    writer._connection.execute("INSERT INTO streams VALUES (1, 'a', 0, NULL, 0, x'00', 0)")
    data = os.urandom(SIZE)
    put(writer, 0, data)
    writer.commit(Meta(1, 1))
    connection = connect(path, write=False)
    reader = IndexReader(cast(sqlite3.Connection, Interrupted(connection, writer)))
    assert reader.read(1, 0, SIZE, 1 << 20).data == data
    connection.close()
    writer._connection.close()


def test_what_was_trimmed_while_it_was_read_is_no_damage(tmp_path: Path) -> None:
    """Also if a fork keeps what is before it. The reader was told of the position before the trim."""
    path = tmp_path / "index.db"
    create(path)
    connection = connect(path, write=True)
    writer = IndexWriter(connection)
    writer.begin()
    state = StreamState(
        id=1,
        path="a",
        content_type="text/plain",
        kind=ContentKind.BINARY,
        created_ms=0,
        accessed_ms=0,
        appended_ms=0,
        tail=3 * SIZE,
    )
    writer.put_states([msgspec.structs.replace(state, first=2 * SIZE, forks=1, inherited_end=SIZE)])
    for start in (0, 2 * SIZE):
        put(writer, start, os.urandom(SIZE))
    writer.commit(Meta(1, 1))
    reader = IndexReader(connection)
    for position in (SIZE + 1, 2 * SIZE - 1):
        for ask in (reader.read, reader.records):
            with pytest.raises(LookupError, match="was trimmed"):
                ask(1, position, 2 * SIZE, SIZE)
        with pytest.raises(LookupError, match="was trimmed"):
            reader.boundary(1, position)
    connection.execute("DELETE FROM chunks WHERE start > 0")
    with pytest.raises(DamagedDataError, match=f"at {2 * SIZE} are missing"):
        reader.read(1, 2 * SIZE, 3 * SIZE, SIZE)
    connection.close()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    create(tmp_path / "index.db")
    connection = connect(tmp_path / "index.db", write=True)
    yield connection
    connection.close()


def test_a_producer_whose_damaged_id_is_that_of_another_is_missed(index: sqlite3.Connection) -> None:
    """The retry of an append of it would be stored a second time."""
    reader, writer = IndexReader(index), IndexWriter(index)
    writer.put_states([state(1, "a", producers={"w0": ProducerState(0, 2, 1)})])
    index.execute("UPDATE producers SET producer = 'w1'")
    writer.put_states([state(1, "a", producers={"w1": ProducerState(0, 0, 2)})])
    with pytest.raises(DamagedDataError, match="producers of stream 1"):
        reader.by_id(1)


def test_an_expired_producer_whose_damaged_hash_is_that_of_another_is_missed(index: sqlite3.Connection) -> None:
    reader, writer = IndexReader(index), IndexWriter(index)
    writer.put_states([state(1, "a", expired_producers={6: 1})])
    index.execute("UPDATE expired_producers SET hash = 7")
    writer.put_states([state(1, "a", expired_producers={7: 1})])
    with pytest.raises(DamagedDataError, match="producers of stream 1"):
        reader.by_id(1)


def test_a_stream_whose_damaged_path_is_that_of_another_is_missed(index: sqlite3.Connection) -> None:
    reader, writer = IndexReader(index), IndexWriter(index)
    writer.put_states([state(1, "a")])
    index.execute("UPDATE streams SET path = 'c'")
    writer.put_states([state(2, "c")])
    for _ in range(2):
        assert cast(StreamState, reader.by_path("c")).id == 2
        with pytest.raises(DamagedDataError, match="the row of 'a' in streams"):
            reader.by_path("a")
        writer.put_states([state(2, "c")])


@pytest.mark.parametrize("other", [Document("c", b"x"), None], ids=["written", "deleted"])
def test_a_document_whose_damaged_key_is_that_of_another_is_missed(
    index: sqlite3.Connection, other: Document | None
) -> None:
    reader, writer = IndexReader(index), IndexWriter(index)
    writer.put_documents({"a": Document("a", b"")})
    index.execute("UPDATE documents SET key = 'c'")
    for _ in range(2):
        writer.put_documents({"c": other})
        assert reader.document("c") == other
        with pytest.raises(DamagedDataError, match="the row of 'a' in documents"):
            reader.document("a")


COUNT = 5_000


def steps(connection: sqlite3.Connection, ask: Callable[[], object]) -> int:
    """The instructions of SQLite's virtual machine that a query takes, in units of ten."""
    taken = 0

    def step() -> int:
        nonlocal taken
        taken += 1
        return 0

    connection.set_progress_handler(step, 10)
    ask()
    connection.set_progress_handler(None, 10)
    return taken


def test_a_page_is_found_without_a_scan(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    create(path)
    connection = connect(path, write=True)
    reader, writer = IndexReader(connection), IndexWriter(connection)
    writer.begin()
    writer.put_states([state(number, f"m/{number:06}", expires_ms=5) for number in range(1, COUNT + 1)])
    writer.put_documents({f"m/{number:06}": Document(f"m/{number:06}", b"") for number in range(1, COUNT + 1)})
    writer.commit(Meta(1, 1, COUNT + 1, COUNT))
    last = f"m/{COUNT - 10:06}"
    for ask in (reader.page, reader.documents):
        first_steps = steps(connection, lambda ask=ask: ask("", "", 10))  # type: ignore[misc]
        assert [len(ask("", after, 10)) for after in ("", last)] == [10, 10]
        assert steps(connection, lambda ask=ask: ask("", last, 10)) <= first_steps + 2  # type: ignore[misc]
        assert steps(connection, lambda ask=ask: ask("m/", last, 10)) <= first_steps + 2  # type: ignore[misc]
        assert steps(connection, lambda ask=ask: ask("a", "", 10)) <= first_steps  # type: ignore[misc]
    first_steps = steps(connection, lambda: reader.due((-1, 0), 9, 10))
    assert steps(connection, lambda: reader.due((5, COUNT - 10), 9, 10)) <= first_steps + 2
    assert [len(reader.due(after, 9, 10)) for after in ((-1, 0), (5, COUNT - 10), (5, COUNT))] == [10, 10, 0]
    connection.close()


def state(number: int, path: str, **more: Any) -> StreamState:
    kind = ContentKind.TEXT
    return StreamState(
        id=number, path=path, content_type="text/plain", kind=kind, created_ms=1, accessed_ms=1, tail=0, **more
    )
