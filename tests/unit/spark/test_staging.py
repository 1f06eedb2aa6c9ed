"""Staged rows are compressed if that makes them smaller, and are read back unchanged."""

from __future__ import annotations

import random
from collections.abc import Iterator

import httpx
import msgspec
import pytest

from headwater.client import Client
from headwater.spark.staging import RowChunk, StagedRows, Storage, StoredRowsGoneError, place_of, read_stored
from tests.servers import Server

ROWS = b",".join(b'{"id":%d,"name":"customer %d"}' % (n, n) for n in range(1000))
NOISE = random.Random(1).randbytes(10_000)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with httpx.Client(transport=httpx.HTTPTransport(verify=False)) as http:
        yield Client(server.url, http=http)


def stored_bytes(client: Client, chunk: RowChunk) -> bytes:
    return b"".join(client.stream(chunk.stored_in).read(type=bytes).all())


def test_rows_are_compressed(client: Client) -> None:
    chunk = Storage(client, place_of("packed", 0, 0)).store("target", ROWS)
    assert len(stored_bytes(client, chunk)) < len(ROWS) / 3
    assert (chunk.size, chunk.unpacked) == (len(ROWS), len(ROWS))
    assert read_stored(client, chunk) == ROWS


def test_rows_that_do_not_compress_are_stored_unchanged(client: Client) -> None:
    chunk = Storage(client, place_of("noise", 0, 0)).store("target", NOISE)
    assert stored_bytes(client, chunk) == NOISE
    assert chunk.unpacked == 0
    assert read_stored(client, chunk) == NOISE


def test_chunks_of_one_compressed_piece(client: Client) -> None:
    storage = Storage(client, place_of("pieces", 0, 0))
    bodies = [(f"target-{n}", ROWS[n * 100 : n * 100 + 2000]) for n in range(5)]
    chunks = list(storage.store_all([StagedRows(*one, 1) for one in bodies], 1 << 20))
    assert len({chunk.piece for chunk in chunks}) == 1
    assert [(chunk.target, read_stored(client, chunk)) for chunk in chunks] == bodies


def test_the_chunks_of_an_older_version_are_read(client: Client) -> None:
    """Lists of older versions have no uncompressed size, and their rows are not compressed."""
    chunk = Storage(client, place_of("older", 0, 0)).store("target", NOISE)
    older = msgspec.msgpack.decode(msgspec.msgpack.encode(chunk))[:-1]
    assert read_stored(client, msgspec.convert(older, RowChunk)) == NOISE


def test_a_piece_with_other_bytes_is_an_error(client: Client) -> None:
    storage = Storage(client, place_of("damaged", 0, 0))
    good, other = storage.store("target", ROWS), storage.store("target", NOISE)
    with pytest.raises(StoredRowsGoneError, match="target"):
        read_stored(client, msgspec.structs.replace(good, offset=other.offset, until=other.until))
