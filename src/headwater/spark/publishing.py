"""Exactly once into a stream, whatever is retried, replayed, repartitioned or run twice.

Tasks publish nothing. A task hands its rows to the driver, or, where they are many, stores them in a stream of its own
and hands over where they are. The driver appends them to the target when all tasks are done, as the producer of the
query, in the epoch of the batch: a batch that was published before is a duplicate, an older run is fenced.

A batch that fits in one request is one append, all of it or nothing, so it does not matter how a replay orders or
partitions it. A larger one needs several, and a replay must send the same ones: so before the first, the list of
them is appended to the query's journal. Whoever finds the list there publishes what it names and nothing else.

    _spark/{writer}                                  the journal: lists, and which of them are done
    _spark/{writer}/{batch}/{partition}-{attempt}    rows that a task stored
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater import limits
from headwater.client import Appended, Client, Stream
from headwater.errors import (
    BodyTooLargeError,
    ContentTypeError,
    DataLossError,
    HeadwaterError,
    SchemaError,
    StaleEpochError,
    StreamClosedError,
    StreamGoneError,
    StreamNotFoundError,
)
from headwater.protocol.content import kind_of
from headwater.spark.options import JOURNAL_ROOT, WriteOptions
from headwater.spark.rows import join
from headwater.types import ContentKind, Producer

_BYTES = "application/octet-stream"
_JSON = "application/json"


class Chunk(msgspec.Struct, frozen=True):
    """Rows for one target that are appended together: their bytes, or where those are stored."""

    target: str
    size: int
    data: bytes = b""
    stored_in: str = ""
    offset: str = ""
    until: str = ""


class Listed(msgspec.Struct, frozen=True):
    """An entry of the journal: what a batch appends to a target, or that it has."""

    batch: int
    target: str
    chunks: list[Chunk] = []
    done: bool = False


# The task's side


class Gatherer:
    """Collects the rows of one task, in order for each target, and stores them on the server if they are many."""

    def __init__(self, client: Client, kind: ContentKind, request_bytes: int, place: str) -> None:
        self._client = client
        self._between = b"," if kind is ContentKind.JSON else b""
        self._request_bytes = request_bytes
        self._place = place
        self._open: dict[str, tuple[list[pa.Array], int]] = {}
        self._chunks: list[Chunk] = []
        self._storage: Storage | None = None

    def add(self, target: str, messages: pa.Array) -> None:
        arrays, size = self._open.get(target, ([], 0))
        for part in self._cut(messages, self._request_bytes - size):
            part_size = _size(part)
            if arrays and size + part_size > self._request_bytes:
                self._store(target, arrays)
                arrays, size = [], 0
            arrays.append(part)
            size += part_size
        self._open[target] = (arrays, size)

    def _cut(self, messages: pa.Array, room: int) -> Iterator[pa.Array]:
        """The messages in runs that fit in a request, the first of them in what room there is."""
        if _size(messages) <= room:
            yield messages
            return
        ends = pc.cumulative_sum(pc.add(pc.binary_length(messages).cast(pa.int64()), len(self._between))).to_numpy()
        first, before = 0, 0
        while first < len(messages):
            last = max(first + 1, int(ends.searchsorted(before + max(room, 0), side="right")))
            yield messages[first:last]
            first, before, room = last, int(ends[last - 1]), self._request_bytes

    def _store(self, target: str, arrays: list[pa.Array]) -> None:
        if self._storage is None:
            self._storage = Storage(self._client, self._place)
        self._chunks.append(self._storage.store(target, self._body(arrays)))

    def _body(self, arrays: list[pa.Array]) -> bytes:
        return join(arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays), self._between)

    def finish(self) -> list[Chunk]:
        left = {target: arrays for target, (arrays, _) in self._open.items() if arrays}
        inline = sum(size for _, size in self._open.values()) <= limits.SPARK_INLINE_BYTES
        for target, arrays in left.items():
            if inline:
                body = self._body(arrays)
                self._chunks.append(Chunk(target, len(body), body))
            else:
                self._store(target, arrays)
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

    def store(self, target: str, body: bytes) -> Chunk:
        try:
            appended = self._stream.append_body(body, producer=Producer("task", 0, self._stored))
        except BodyTooLargeError as error:
            raise _too_large(error) from error
        self._stored += 1
        offset, self._offset = self._offset, appended.offset or self._stream.head().tail_offset
        return Chunk(target, len(body), stored_in=self._place, offset=offset, until=self._offset)


def place_of(writer: str, batch: int, partition: int) -> str:
    """Where a task stores its rows: never where another attempt does."""
    return f"{JOURNAL_ROOT}/{writer}/{batch}/{partition}-{uuid.uuid4().hex[:12]}"


# The driver's side


class Publisher:
    """Publishes batches of one writer."""

    def __init__(self, client: Client, options: WriteOptions, writer: str) -> None:
        self._client = client
        self._options = options
        self._writer = writer
        self._journal = client.stream(f"{JOURNAL_ROOT}/{writer}", content_type=_JSON)

    def publish(self, batch: int, parts: Sequence[Sequence[Chunk]]) -> None:
        """Append what tasks gathered, in the order of their partitions."""
        by_target: dict[str, list[Chunk]] = {}
        for part in parts:
            for chunk in part:
                by_target.setdefault(chunk.target, []).append(chunk)
        for target, chunks in by_target.items():
            whole = sum(chunk.size + 1 for chunk in chunks) <= self._options.request_bytes
            if whole and not any(chunk.stored_in for chunk in chunks):
                self._publish_whole(batch, target, chunks)
            else:
                self._publish_listed(batch, target, chunks)
        self._discard(chunk.stored_in for part in parts for chunk in part)

    def abandon(self, batch: int, parts: Sequence[Sequence[Chunk]]) -> None:
        """Delete what tasks stored for a batch that failed, unless it is listed: then a replay goes on with it."""
        places = {chunk.stored_in for part in parts for chunk in part if chunk.stored_in}
        if places:
            listed = {chunk.stored_in for entry in self._entries(batch) for chunk in entry.chunks}
            self._discard(places - listed)

    def _publish_whole(self, batch: int, target: str, chunks: list[Chunk]) -> None:
        appender = _Appender(self._client, self._options, self._writer, batch, target)
        if appender.append(0, [chunk.data for chunk in chunks]).duplicate:
            listed = self._listed(batch, target)  # another attempt may have found it too large, and not finished
            if listed is not None:
                self._append_listed(batch, target, listed, appender)

    def _publish_listed(self, batch: int, target: str, chunks: list[Chunk]) -> None:
        listed = Listed(batch, target, self._stored(batch, chunks))
        appender = _Appender(self._client, self._options, self._writer, batch, target)
        first = self._note(listed, 0)
        found = listed if first else self._listed(batch, target)
        if found is None:
            raise DataLossError(f"the journal {self._journal.url} does not have what it said of batch {batch}")
        self._append_listed(batch, target, found, appender, ours=first)
        if not first:
            self._discard(chunk.stored_in for chunk in listed.chunks)

    def _append_listed(
        self, batch: int, target: str, listed: Listed, appender: _Appender, *, ours: bool = False
    ) -> None:
        if any(entry.done for entry in self._entries(batch) if entry.target == target) and not ours:
            return
        for number, body in enumerate(self._bodies(listed)):
            if appender.append(number, [body]).duplicate and ours and number == 0:
                break  # it was published whole before; this attempt is not the one that counts
        self._note(Listed(batch, target, done=True), 1)
        self._discard(chunk.stored_in for chunk in listed.chunks)

    def _stored(self, batch: int, chunks: list[Chunk]) -> list[Chunk]:
        """All chunks stored: what tasks handed over is put together and stored too, since a list only names places."""
        storage: Storage | None = None
        found: list[Chunk] = []
        held: list[Chunk] = []
        between = b"," if appended_as(self._options) is ContentKind.JSON else b""

        def store_held() -> None:
            nonlocal storage
            if held:
                storage = storage or Storage(self._client, place_of(self._writer, batch, 0))
                found.append(storage.store(held[0].target, between.join(chunk.data for chunk in held)))
                held.clear()

        for chunk in chunks:
            if chunk.stored_in or sum(one.size + 1 for one in held) + chunk.size > self._options.request_bytes:
                store_held()
            if chunk.stored_in:
                found.append(chunk)
            else:
                held.append(chunk)
        store_held()
        return found

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

    def _fetch(self, chunk: Chunk) -> bytes:
        stream = self._client.stream(chunk.stored_in, content_type=_BYTES)
        try:
            body = b"".join(stream.read(type=bytes, offset=chunk.offset, until=chunk.until).all())
        except (StreamNotFoundError, StreamGoneError) as error:
            told = f"rows for {chunk.target} that were to be published from {chunk.stored_in} are gone"
            raise DataLossError(f"{told}: {error}") from error
        if len(body) != chunk.size:
            raise DataLossError(f"{chunk.stored_in} has {len(body)} bytes where {chunk.size} were stored")
        return body

    # The journal

    def _note(self, entry: Listed, seq: int) -> bool:
        """Put an entry into the journal; False if it was there already."""
        producer = Producer(f"{self._writer}>{entry.target}", entry.batch, seq)
        try:
            try:
                return not self._journal.append(entry, producer=producer).duplicate
            except StreamNotFoundError:
                self._journal.create(content_type=_JSON)
                return not self._journal.append(entry, producer=producer).duplicate
        except StaleEpochError as error:
            raise _behind(entry.target, entry.batch, error) from error

    def _entries(self, batch: int) -> list[Listed]:
        try:
            entries = self._journal.read(type=Listed).all()
        except (StreamNotFoundError, StreamGoneError):
            return []
        return [entry for entry in entries if entry.batch == batch]

    def _listed(self, batch: int, target: str) -> Listed | None:
        found = [entry for entry in self._entries(batch) if entry.target == target and not entry.done]
        return found[0] if found else None

    def _discard(self, places: Iterator[str] | set[str]) -> None:
        """Stored rows that nobody needs any more. What is not deleted now goes away by itself."""
        for place in sorted({place for place in places if place}):
            with contextlib.suppress(HeadwaterError):
                self._client.stream(place).delete()


class _Appender:
    """Appends to one target as the producer of one batch."""

    def __init__(self, client: Client, options: WriteOptions, writer: str, batch: int, target: str) -> None:
        self._options = options
        self._writer = writer
        self._batch = batch
        self._target = target
        self._content_type = options.content_type or _JSON
        self._stream = client.stream(target, content_type=self._content_type)

    def append(self, seq: int, bodies: list[bytes]) -> Appended:
        is_json = kind_of(self._content_type) is ContentKind.JSON
        body = b"[" + b",".join(bodies) + b"]" if is_json else b"".join(bodies)
        producer = Producer(f"spark-{self._writer}", self._batch, seq)
        try:
            return self._append(body, producer)
        except StaleEpochError as error:
            raise _behind(self._target, self._batch, error) from error
        except BodyTooLargeError as error:
            raise _too_large(error) from error
        except (StreamClosedError, ContentTypeError) as error:
            raise SchemaError(f"{self._target} does not take the rows: {error}") from error

    def _append(self, body: bytes, producer: Producer) -> Appended:
        try:
            return self._stream.append_body(body, producer=producer)
        except StreamNotFoundError:
            if not self._options.create_target:
                raise
        self._stream.create(content_type=self._content_type)
        return self._stream.append_body(body, producer=producer)


def prepare_target(client: Client, options: WriteOptions) -> str:
    """The content type of a target that an option names; it is made if it is missing and may be."""
    if options.stream is None:
        return options.content_type or _JSON
    stream: Stream = client.stream(options.stream)
    try:
        found = stream.head()
    except StreamNotFoundError as error:
        if not options.create_target:
            raise StreamNotFoundError(f"the target {options.stream} is missing and createTarget is false") from error
        stream.create(content_type=options.content_type or _JSON)
        return options.content_type or _JSON
    if found.closed:
        raise StreamClosedError(f"the target {options.stream} is closed")
    if options.content_type is not None and kind_of(options.content_type) is not kind_of(found.content_type):
        raise ContentTypeError(f"the target {options.stream} is {found.content_type}, not {options.content_type}")
    return found.content_type


def appended_as(options: WriteOptions) -> ContentKind:
    return kind_of(options.content_type or _JSON)


def _behind(target: str, batch: int, error: StaleEpochError) -> StaleEpochError:
    told = f"{target} has rows of a later batch than {batch} of this query: another run of it is ahead of this one"
    return StaleEpochError(f"{told}, or the checkpoint was set back ({error})")


def _too_large(error: BodyTooLargeError) -> BodyTooLargeError:
    return BodyTooLargeError(f"{error}; set maxRequestBytes to what the server takes, or raise its body_bytes_max")
