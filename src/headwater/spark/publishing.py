"""Exactly-once writes to streams and tables: retries, replays and repartitioning never append a row twice.

Tasks append nothing to the targets. A task returns its rows to the driver or, if they are many, stores them in a
staging stream of its own and returns where they are. When all tasks are done the driver writes a list of what the batch
appends, and then appends it as the producer of the query, with the batch number as epoch: the server recognises what
was appended before as a duplicate, and an older run of the query is fenced.

The first list that is written for a batch is the one that counts. A retry of the batch finds the list and uses it, even
if its own rows are in another order or in other partitions. So every append of a batch has one content, and the server
recognises a repeated append by its number alone.

    _spark/{writer}/{batch}/list                     what a batch appends, and a mark when that is done
    _spark/{writer}/{batch}/{partition}-{attempt}    staged rows of a task
    _spark/{writer}/fence                            tells a run that a later batch has begun
"""

from __future__ import annotations

import contextlib
import enum
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater import limits
from headwater.client import Appended, Client, ProducerTuple, Stream
from headwater.errors import (
    BodyTooLargeError,
    ConflictError,
    DataLossError,
    HeadwaterError,
    InvalidChangeError,
    RequestError,
    SchemaError,
    SequenceGapError,
    StaleEpochError,
    StreamGoneError,
    StreamNotFoundError,
)
from headwater.log.content import ContentKind
from headwater.spark.options import JOURNAL_ROOT, WriteOptions
from headwater.spark.rows import join
from headwater.spark.targets import appended_as, open_target, prepare_target

_BYTES = "application/octet-stream"
_JSON = "application/json"
_BRACKETS = 2  # around the rows of an append of JSON
_LENGTH_BYTES = 8
_DONE = b"done"


class RowChunk(msgspec.Struct, frozen=True, array_like=True):
    """Rows for one target that are appended together: their bytes, or where those are stored."""

    target: str
    size: int
    data: bytes = b""
    stored_in: str = ""
    offset: str = ""
    until: str = ""


class Listed(msgspec.Struct, frozen=True):
    """What a batch appends, in this order; a target's chunks are numbered from 0.

    A list that is too long for one request is itself stored in pieces.
    """

    chunks: list[RowChunk]
    content_type: str
    pieces: list[RowChunk] = []
    done: bool = False


_lists = msgspec.msgpack.Decoder(Listed)


# The task's side


class Gatherer:
    """Collects the rows of one task, in order for each target, and stores them on the server if they are many."""

    def __init__(self, client: Client, kind: ContentKind, request_bytes: int, place: str) -> None:
        self._client = client
        self._between = b"," if kind is ContentKind.JSON else b""
        self._room = request_bytes - _BRACKETS
        self._place = place
        self._open: dict[str, tuple[list[pa.Array], int]] = {}
        self._held = 0
        self._chunks: list[RowChunk] = []
        self._storage: Storage | None = None

    def add(self, target: str, messages: pa.Array) -> None:
        arrays, size = self._open.get(target, ([], 0))
        for part in self._cut(messages, self._room - size):
            part_size = _size(part)
            if arrays and size + part_size > self._room:
                self._store(target, arrays)
                self._held -= size
                arrays, size = [], 0
            arrays.append(part)
            size += part_size
            self._held += part_size
        self._open[target] = (arrays, size)
        if self._held > limits.SPARK_GATHERED_BYTES:
            self._store_all()

    def _cut(self, messages: pa.Array, room: int) -> Iterator[pa.Array]:
        """The messages in runs that fit in a request, the first of them in what room there is."""
        if _size(messages) <= room:
            yield messages
            return
        ends = pc.cumulative_sum(pc.add(pc.binary_length(messages).cast(pa.int64()), 1)).to_numpy()
        first, before = 0, 0
        while first < len(messages):
            last = max(first + 1, int(ends.searchsorted(before + max(room, 0), side="right")))
            yield messages[first:last]
            first, before, room = last, int(ends[last - 1]), self._room

    def _store(self, target: str, arrays: list[pa.Array]) -> None:
        if self._storage is None:
            self._storage = Storage(self._client, self._place)
        self._chunks.append(self._storage.store(target, self._body(arrays)))

    def _store_all(self) -> None:
        for target, (arrays, _) in self._open.items():
            if arrays:
                self._store(target, arrays)
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


class Storage:
    """A stream of one task's rows. It goes away by itself if nobody publishes and deletes it."""

    def __init__(self, client: Client, place: str) -> None:
        self._stream = client.stream(place, content_type=_BYTES)
        self._stream.create(content_type=_BYTES, ttl_s=limits.SPARK_STAGED_TTL_S)
        self._place = place
        self._offset = self._stream.head().tail_offset
        self._stored = 0

    def store(self, target: str, body: bytes) -> RowChunk:
        try:
            appended = self._stream.append_body(body, producer=ProducerTuple("task", 0, self._stored))
        except BodyTooLargeError as error:
            raise _too_large(error) from error
        self._stored += 1
        offset, self._offset = self._offset, appended.offset or self._stream.head().tail_offset
        return RowChunk(target, len(body), stored_in=self._place, offset=offset, until=self._offset)


def place_of(writer: str, batch: int, partition: int) -> str:
    """Where a task stores its rows: never where another attempt does."""
    return f"{_directory(writer, batch)}/{partition}-{uuid.uuid4().hex[:12]}"


def _directory(writer: str, batch: int) -> str:
    return f"{JOURNAL_ROOT}/{writer}/{batch:016d}"


# The driver's side


class Retention(enum.Enum):
    """How long the list of a batch is needed."""

    UNTIL_NEXT_BATCH = "a query replays its last batch, and no other"
    FOREVER = "a write with an id may be repeated at any time"
    NONE = "nothing can repeat it"


class Publisher:
    """Publishes batches of one writer."""

    def __init__(
        self, client: Client, options: WriteOptions, writer: str, keep: Retention = Retention.UNTIL_NEXT_BATCH
    ) -> None:
        self._client = client
        self._options = options
        self._writer = writer
        self._keep = keep

    def publish(self, batch: int, parts: Sequence[Sequence[RowChunk]]) -> None:
        """Append what tasks gathered, in the order of their partitions."""
        chunks = self._together(batch, parts)
        if chunks:
            self._check_targets(chunks)
            listed = self._agree(batch, chunks)
        else:  # a replay that has no rows still finishes what another attempt began
            found = self._found(batch)
            if found is None:
                return
            listed = found
        if not listed.done:
            self._pass_fence(batch, listed)
            self._append(batch, listed)
        self._discard({chunk.stored_in for chunk in (*chunks, *listed.chunks, *listed.pieces)})
        self._forget(batch)

    def abandon(self, batch: int, parts: Sequence[Sequence[RowChunk]]) -> None:
        """Delete what tasks stored for a batch that failed, unless it is listed: then a replay goes on with it."""
        listed = self._found(batch)
        needed = {chunk.stored_in for chunk in (*listed.chunks, *listed.pieces)} if listed is not None else set()
        self._discard({chunk.stored_in for part in parts for chunk in part} - needed)

    # What a batch appends

    def _together(self, batch: int, parts: Sequence[Sequence[RowChunk]]) -> list[RowChunk]:
        """The chunks of all tasks, target by target; small ones that follow each other become one."""
        by_target: dict[str, list[RowChunk]] = {}
        for part in parts:
            for chunk in part:
                self._add(by_target.setdefault(chunk.target, []), chunk)
        chunks = [chunk for of_target in by_target.values() for chunk in of_target]
        inline = sum(len(chunk.data) for chunk in chunks)
        if not inline or (self._keep is not Retention.FOREVER and inline <= self._options.request_bytes // 2):
            return chunks
        storage = Storage(self._client, place_of(self._writer, batch, 0))
        return [storage.store(chunk.target, chunk.data) if chunk.data else chunk for chunk in chunks]

    def _add(self, chunks: list[RowChunk], chunk: RowChunk) -> None:
        between = b"," if appended_as(self._options) is ContentKind.JSON else b""
        last = chunks[-1] if chunks else None
        fits = last is not None and last.size + chunk.size + 1 + _BRACKETS <= self._options.request_bytes
        if last is not None and last.data and chunk.data and fits:
            data = last.data + between + chunk.data
            chunks[-1] = RowChunk(chunk.target, len(data), data)
        else:
            chunks.append(chunk)

    def _agree(self, batch: int, chunks: list[RowChunk]) -> Listed:
        """Write down what the batch appends, or find what someone wrote before. The first append to the list counts."""
        ours = Listed(chunks, self._options.content_type or _JSON)
        text = msgspec.msgpack.encode(ours)
        if len(text) > self._options.request_bytes // 2 + limits.SPARK_INLINE_BYTES:
            ours = msgspec.structs.replace(ours, pieces=self._in_pieces(batch, text))
            text = msgspec.msgpack.encode(msgspec.structs.replace(ours, chunks=[]))
        framed = len(text).to_bytes(_LENGTH_BYTES, "big") + text
        try:
            first = not self._append_to(self._list(batch), framed, ProducerTuple("list", 0, 0)).duplicate
        except BodyTooLargeError as error:
            raise _too_large(error) from error
        found = ours if first else self._found(batch)
        if found is None:
            raise DataLossError(f"{self._list(batch).url} was deleted by someone else")
        self._discard({piece.stored_in for piece in ours.pieces} if not first else set())
        return found

    def _in_pieces(self, batch: int, text: bytes) -> list[RowChunk]:
        storage, size = Storage(self._client, place_of(self._writer, batch, 0)), self._options.request_bytes
        return [storage.store("", text[start : start + size]) for start in range(0, len(text), size)]

    def _append_to(self, stream: Stream, body: bytes, producer: ProducerTuple) -> Appended:
        """Append to a stream of our own, which is made if it is missing."""
        try:
            return stream.append_body(body, producer=producer)
        except StreamNotFoundError:
            ttl_s = limits.SPARK_STAGED_TTL_S if self._keep is Retention.NONE else None
            stream.create(content_type=_BYTES, ttl_s=ttl_s)
            return stream.append_body(body, producer=producer)

    def _pass_fence(self, batch: int, listed: Listed) -> None:
        """Find out whether a later batch was begun; what that deleted of this one must not be made again."""
        if self._keep is not Retention.NONE:
            fence = self._client.stream(f"{JOURNAL_ROOT}/{self._writer}/fence", content_type=_BYTES)
            try:
                self._append_to(fence, b".", ProducerTuple("batch", batch, 0))
            except StaleEpochError as error:
                raise _behind(", ".join(sorted({chunk.target for chunk in listed.chunks})), batch, error) from error

    def _check_targets(self, chunks: list[RowChunk]) -> None:
        """Refuse a batch that a target will not take, while nothing of it is written down."""
        if self._options.target is None:
            for target in dict.fromkeys(chunk.target for chunk in chunks):
                prepare_target(self._client, msgspec.structs.replace(self._options, target=target))

    def _found(self, batch: int) -> Listed | None:
        try:
            text = b"".join(self._list(batch).read(type=bytes).all())
        except (StreamNotFoundError, StreamGoneError):
            return None
        length = _LENGTH_BYTES + int.from_bytes(text[:_LENGTH_BYTES], "big")
        if len(text) < max(length, _LENGTH_BYTES + 1):
            return None  # made, and not yet written to
        listed = _lists.decode(text[_LENGTH_BYTES:length])
        done = len(text) > length
        if listed.pieces and not done:
            try:
                whole = _lists.decode(b"".join(map(self._fetch, listed.pieces)))
            except _StoredRowsGoneError as error:
                raise DataLossError(str(error)) from error
            listed = msgspec.structs.replace(whole, pieces=listed.pieces)
        return msgspec.structs.replace(listed, done=done)

    def _list(self, batch: int) -> Stream:
        return self._client.stream(f"{_directory(self._writer, batch)}/list", content_type=_BYTES)

    # Appending it

    def _append(self, batch: int, listed: Listed) -> None:
        appenders: dict[str, _Appender] = {}
        try:
            for chunk, body in zip(listed.chunks, self._bodies(listed), strict=True):
                if chunk.target not in appenders:
                    options = msgspec.structs.replace(self._options, content_type=listed.content_type)
                    appenders[chunk.target] = _Appender(self._client, options, self._writer, batch, chunk.target)
                appenders[chunk.target].append(body)
        except SchemaError as error:
            way_out = f"The batch is written down in {self._list(batch).url}: without that stream it is made anew"
            raise SchemaError(f"{error}. {way_out}, and what was appended of it stays.") from error
        except _StoredRowsGoneError as error:
            found = self._found(batch)
            if found is None or not found.done:  # else another driver was faster
                raise DataLossError(str(error)) from error
            return
        self._list(batch).append_body(_DONE, producer=ProducerTuple("done", 0, 0))

    def _bodies(self, listed: Listed) -> Iterator[bytes]:
        """What a list names, the next one on its way while one is appended."""
        with ThreadPoolExecutor(1, thread_name_prefix="headwater-publish") as reading:
            ahead: list[Future[bytes]] = []
            for chunk in listed.chunks:
                ahead.append(reading.submit(self._fetch, chunk))
                if len(ahead) > 1:
                    yield ahead.pop(0).result()
            if ahead:
                yield ahead.pop(0).result()

    def _fetch(self, chunk: RowChunk) -> bytes:
        if not chunk.stored_in:
            return chunk.data
        stream = self._client.stream(chunk.stored_in, content_type=_BYTES)
        told = f"{chunk.target or 'the list of a batch'}: what was to be published from {chunk.stored_in} is gone"
        try:
            body = b"".join(stream.read(type=bytes, offset=chunk.offset, until=chunk.until).all())
        except (StreamNotFoundError, StreamGoneError) as error:
            raise _StoredRowsGoneError(f"{told}: {error}") from error
        if len(body) != chunk.size:
            raise _StoredRowsGoneError(f"{told}: {len(body)} bytes where {chunk.size} were stored")
        return body

    # Tidying up. What is not deleted now goes away by itself.

    def _discard(self, places: set[str]) -> None:
        with contextlib.suppress(HeadwaterError):
            for place in sorted(places - {""}):
                with contextlib.suppress(RequestError):
                    self._client.stream(place).delete()

    def _forget(self, batch: int) -> None:
        """Lists, and whatever tasks left behind, that nobody can need any more."""
        if self._keep is Retention.NONE:
            self._discard({f"{_directory(self._writer, batch)}/list"})
        with contextlib.suppress(HeadwaterError):  # a server without a list of streams: then by and by
            current = f"{_directory(self._writer, batch)}/"
            found = [info.path for info in self._client.list(f"{JOURNAL_ROOT}/{self._writer}/")]
            self._discard({path for path in found if path < current})


class _StoredRowsGoneError(Exception):
    """Unless another driver was done with them."""


class _Appender:
    """Appends to one target as the producer of one batch."""

    def __init__(self, client: Client, options: WriteOptions, writer: str, batch: int, target: str) -> None:
        self._options = options
        self._writer = writer
        self._batch = batch
        self._name = target
        self._target = open_target(client, options, target)
        self._seq = 0

    def append(self, rows: bytes) -> None:
        for body in self._target.bodies(rows):
            producer = ProducerTuple(f"spark-{self._writer}", self._batch, self._seq)
            self._seq += 1
            try:
                self._append(body, producer)
            except StaleEpochError as error:
                raise _behind(self._name, self._batch, error) from error
            except BodyTooLargeError as error:
                raise _too_large(error) from error
            except SequenceGapError:
                raise
            except (ConflictError, InvalidChangeError) as error:  # closed, of another type, a mirror or a view
                raise SchemaError(f"{self._name} does not take the rows: {error}") from error

    def _append(self, body: bytes, producer: ProducerTuple) -> None:
        try:
            self._target.append(body, producer)
        except StreamNotFoundError:
            if not self._options.create_target:
                raise
            self._target.create()
            self._target.append(body, producer)


def _behind(target: str, batch: int, error: StaleEpochError) -> StaleEpochError:
    told = f"{target} has rows of a later batch than {batch} of this query: another run of it is ahead of this one"
    return StaleEpochError(f"{told}, or the checkpoint was set back ({error})")


def _too_large(error: BodyTooLargeError) -> BodyTooLargeError:
    return BodyTooLargeError(f"{error}; set maxRequestBytes to what the server takes, or raise its body_bytes_max")
