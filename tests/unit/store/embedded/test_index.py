"""The index while the fold writes to it."""

from __future__ import annotations

import os
import sqlite3
from array import array
from pathlib import Path
from typing import Any, cast

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
