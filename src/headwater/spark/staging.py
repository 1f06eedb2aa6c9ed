"""Staging: a task collects rows, and passes them to the driver or, if there are many, stores them on the server."""

from __future__ import annotations

import contextlib
import uuid
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater import limits
from headwater.client import Client, ProducerTuple
from headwater.client.columns.texts import join
from headwater.errors import (
    BodyTooLargeError,
    HeadwaterError,
    RequestError,
    StreamGoneError,
    StreamNotFoundError,
)
from headwater.log.content import ContentKind
from headwater.log.retention import KEEP_ALL
from headwater.protocol.streams.composing import ZSTD_TYPE
from headwater.spark.options import JOURNAL_ROOT

BYTES = "application/octet-stream"
BRACKETS = 2  # around the rows of an append of JSON


class RowChunk(msgspec.Struct, frozen=True, array_like=True):
    """Rows for one target: their bytes, or where they are staged. A staged piece may have rows for several targets."""

    target: str
    size: int
    data: bytes = b""
    stored_in: str = ""
    offset: str = ""
    until: str = ""
    skip: int = 0  # bytes of the piece before the rows
    goes_on: bool = False  # the target's next chunk is part of the same append
    unpacked: int = 0  # size of the piece before it was compressed; 0: it is not compressed
    codec: str = "lz4"
    messages: int = 0  # how many the rows are, if the server can append the piece to the target itself; 0: it cannot

    @property
    def piece(self) -> tuple[str, str, str]:
        return self.stored_in, self.offset, self.until


class Content(msgspec.Struct, frozen=True, array_like=True):
    """A fingerprint of rows that does not depend on order and partitions: their number and a sum of checksums."""

    rows: int = 0
    total: int = 0

    def __str__(self) -> str:
        return f"rows {self.rows} {self.total:016x}"

    def with_rows(self, target: str, messages: pa.Array) -> Content:
        checksums = map(zlib.crc32, messages.to_numpy(zero_copy_only=False))
        sums = np.fromiter(checksums, np.uint64, len(messages)) + np.uint64(_SPREAD ^ zlib.crc32(target.encode()))
        return Content(self.rows + len(messages), (self.total + int(np.sum(sums * sums))) & _SUM_MASK)


_SPREAD = 0x9E3779B97F4A7C15  # checksums are squared, because their plain sum would collide more often
_SUM_MASK = (1 << 64) - 1


def sum_of(contents: Iterable[Content]) -> Content:
    parts = list(contents)
    return Content(sum(one.rows for one in parts), sum(one.total for one in parts) & _SUM_MASK)


class Gatherer:
    """Collects the rows of one task, in order for each target, and stages them on the server if there are many."""

    def __init__(
        self, client: Client, kind: ContentKind, request_bytes: int, place: str, *, summed: bool = False
    ) -> None:
        self._client = client
        self.content = Content() if summed else None
        self._kind = kind
        self._between = b"," if kind is ContentKind.JSON else b""
        self._room = request_bytes - BRACKETS
        self._place = place
        self._open: dict[str, tuple[list[pa.Array], int]] = {}
        self._held = 0
        self._chunks: list[RowChunk] = []
        self._storage: Storage | None = None

    def add(self, target: str, messages: pa.Array) -> None:
        if self.content is not None:
            self.content = self.content.with_rows(target, messages)
        arrays, size = self._open.get(target, ([], 0))
        for part in self._cut(messages, self._room - size):
            part_size = _size(part)
            if arrays and size + part_size > self._room:
                self._store({target: arrays})
                self._held -= size
                arrays, size = [], 0
            arrays.append(part)
            size += part_size
            self._held += part_size
        self._open[target] = (arrays, size)
        if self._held > limits.SPARK_GATHERED_BYTES:
            self._store_all()

    def _cut(self, messages: pa.Array, room: int) -> Iterator[pa.Array]:
        """Split messages into runs that fit in a request. The first run fills the current one."""
        if _size(messages) <= room:
            yield messages
            return
        ends = pc.cumulative_sum(pc.add(pc.binary_length(messages).cast(pa.int64()), 1)).to_numpy()
        first, before = 0, 0
        while first < len(messages):
            last = max(first + 1, int(ends.searchsorted(before + max(room, 0), side="right")))
            yield messages[first:last]
            first, before, room = last, int(ends[last - 1]), self._room

    def _store(self, rows: dict[str, list[pa.Array]]) -> None:
        if self._storage is None:
            self._storage = Storage(self._client, self._place, self._kind)
        bodies = (
            StagedRows(target, self._body(arrays), sum(map(len, arrays))) for target, arrays in rows.items() if arrays
        )
        self._chunks += self._storage.store_all(bodies, self._room)

    def _store_all(self) -> None:
        self._store({target: arrays for target, (arrays, _) in self._open.items()})
        self._open.clear()
        self._held = 0

    def _body(self, arrays: list[pa.Array]) -> bytes:
        return join(arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays), self._between)

    def finish(self) -> list[RowChunk]:
        if self._held > limits.SPARK_INLINE_BYTES:
            self._store_all()
        for target, (arrays, _) in self._open.items():
            if arrays:
                body = self._body(arrays)
                self._chunks.append(RowChunk(target, len(body), body))
        return self._chunks


def _size(messages: pa.Array) -> int:
    total = pc.sum(pc.binary_length(messages)).as_py() or 0
    return int(total) + len(messages)


class StagedRows(NamedTuple):
    """Rows for one target: their bytes and their number."""

    target: str
    body: bytes
    number: int


class Storage:
    """A stream with the rows of one task. It expires if it is not published and deleted.

    If the server composes appends from other streams, a piece with rows of one target is stored as the body of an
    append, so that the driver does not have to read and send it again.
    """

    def __init__(self, client: Client, place: str, kind: ContentKind = ContentKind.BINARY) -> None:
        self._stream = client.stream(place, content_type=ZSTD_TYPE)
        self._stream.create(content_type=ZSTD_TYPE, ttl_s=limits.SPARK_STAGED_TTL_S, retention=KEEP_ALL)
        self._place = place
        info = self._stream.head()
        self._offset = info.tail_offset
        self._composes = info.composes
        self._around = (b"[", b"]") if kind is ContentKind.JSON else (b"", b"")
        self._stored = 0

    def store_all(self, bodies: Iterable[StagedRows], piece_bytes: int) -> Iterator[RowChunk]:
        """Store rows of several targets together, in pieces of this size. A larger row is a piece by itself."""
        piece: list[StagedRows] = []
        size = 0
        for rows in bodies:
            if piece and size + len(rows.body) > piece_bytes:
                yield from self._store_piece(piece)
                piece, size = [], 0
            piece.append(rows)
            size += len(rows.body)
        if piece:
            yield from self._store_piece(piece)

    def _store_piece(self, piece: list[StagedRows]) -> Iterator[RowChunk]:
        if len(piece) == 1:
            yield self._store_whole(piece[0])
            return
        stored, skip = self.store("", b"".join([rows.body for rows in piece])), 0
        for rows in piece:
            yield msgspec.structs.replace(stored, target=rows.target, size=len(rows.body), skip=skip)
            skip += len(rows.body)

    def _store_whole(self, rows: StagedRows) -> RowChunk:
        """Store rows of one target as the body of an append."""
        if not self._composes:
            return self.store(rows.target, rows.body)
        before, after = self._around
        stored = self.store(rows.target, b"%b%b%b" % (before, rows.body, after), is_packed=True)
        return msgspec.structs.replace(stored, size=len(rows.body), skip=len(before), messages=rows.number)

    def store(self, target: str, body: bytes, *, is_packed: bool = False) -> RowChunk:
        """Store a piece, compressed if that makes it smaller, or always."""
        packed = pa.Codec(_CODEC).compress(body, asbytes=True)
        is_packed = is_packed or len(packed) < len(body) * limits.SPARK_PACKED_RATIO_MAX
        piece, unpacked = (packed, len(body)) if is_packed else (body, 0)
        try:
            appended = self._stream.append_body(piece, producer=ProducerTuple("task", 0, self._stored))
        except BodyTooLargeError as error:
            raise too_large(error) from error
        self._stored += 1
        offset, self._offset = self._offset, appended.offset or self._stream.head().tail_offset
        return RowChunk(
            target, len(body), stored_in=self._place, offset=offset, until=self._offset, unpacked=unpacked, codec=_CODEC
        )


_CODEC = "zstd"  # takes less time than it saves, because staged bytes are sent, synced and read; before, it was lz4


class StoredRowsGoneError(Exception):
    """Staged rows do not exist any more: they expired, or another driver has published and deleted them."""


def read_stored(client: Client, chunk: RowChunk) -> bytes:
    return rows_in(read_piece(client, chunk), chunk)


def read_piece(client: Client, chunk: RowChunk) -> bytes:
    """The staged piece with the rows of a chunk; nothing if the chunk holds its rows itself."""
    if not chunk.stored_in:
        return b""
    stream = client.stream(chunk.stored_in, content_type=ZSTD_TYPE)
    try:
        piece = b"".join(stream.read(type=bytes, offset=chunk.offset, until=chunk.until).all())
    except (StreamNotFoundError, StreamGoneError) as error:
        raise _gone(chunk, str(error)) from error
    try:
        return pa.Codec(chunk.codec).decompress(piece, chunk.unpacked, asbytes=True) if chunk.unpacked else piece
    except OSError as error:
        raise _gone(chunk, str(error)) from error


def rows_in(piece: bytes, chunk: RowChunk) -> bytes:
    """The rows of a chunk, given its piece."""
    rows = piece[chunk.skip : chunk.skip + chunk.size] if chunk.stored_in else chunk.data
    if len(rows) != chunk.size:
        raise _gone(chunk, f"{len(rows)} bytes instead of {chunk.size}")
    return rows


def _gone(chunk: RowChunk, why: str) -> StoredRowsGoneError:
    whose = chunk.target or "the list of a batch"
    return StoredRowsGoneError(f"{whose}: the staged rows in {chunk.stored_in} do not exist any more: {why}")


def discard(client: Client, places: set[str]) -> None:
    """Delete internal streams. Those that cannot be deleted now expire, or are deleted after a later batch."""
    with contextlib.suppress(HeadwaterError):
        for place in sorted(places - {""}):
            with contextlib.suppress(RequestError):
                client.stream(place).delete()


def place_of(writer: str, batch: int, partition: int) -> str:
    """The path of the staging stream of a task. Every attempt has its own."""
    return f"{directory(writer, batch)}/{partition}-{uuid.uuid4().hex[:12]}"


def directory(writer: str, batch: int) -> str:
    return f"{JOURNAL_ROOT}/{writer}/{batch:016d}"


def too_large(error: BodyTooLargeError) -> BodyTooLargeError:
    return BodyTooLargeError(f"{error}; lower maxRequestBytes, or raise body_bytes_max of the server")
