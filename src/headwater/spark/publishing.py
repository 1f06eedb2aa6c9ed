"""Exactly-once writes to streams and tables: retries, replays and repartitioning never append a row twice.

Tasks append nothing to the targets. A task returns its rows to the driver or, if they are many, stores them in a
staging stream of its own and returns where they are (`staging`). When all tasks are done the driver writes a list of
what the batch appends (`ledger`), and then appends it as the producer of the query, with the batch number as epoch: the
server recognises what was appended before as a duplicate, and an older run of the query is fenced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from headwater.client import Client, ProducerTuple
from headwater.errors import (
    BatchReusedError,
    BodyTooLargeError,
    ConflictError,
    DataLossError,
    HeadwaterError,
    InvalidChangeError,
    RequestError,
    SchemaError,
    SequenceGapError,
    StaleEpochError,
    StreamNotFoundError,
)
from headwater.log.content import ContentKind
from headwater.spark.ledger import Ledger, Listed, Retention, behind
from headwater.spark.options import WriteOptions
from headwater.spark.staging import (
    BRACKETS,
    RowChunk,
    Storage,
    StoredRowsGoneError,
    discard,
    place_of,
    read_stored,
    too_large,
)
from headwater.spark.targets import appended_as, check_target_type, make_target, open_target, target_name

_JSON = "application/json"


class Publisher:
    """Publishes batches of one writer."""

    def __init__(
        self, client: Client, options: WriteOptions, writer: str, keep: Retention = Retention.UNTIL_NEXT_BATCH
    ) -> None:
        self._client = client
        self._options = options
        self._writer = writer
        self._keep = keep
        self._ledger = Ledger(client, writer, keep, options.request_bytes)

    def publish(self, batch: int, parts: Sequence[Sequence[RowChunk]], made_from: str = "") -> None:
        """Append what tasks gathered, in the order of their partitions.

        `made_from` tells batches with the same number apart: "offsets …" or "rows …", empty if unknown.
        """
        chunks = self._together(batch, parts)
        target = target_name(self._options)
        if chunks:
            self._check_targets(chunks)
            content_type = self._options.content_type or _JSON
            listed = self._ledger.agree(batch, Listed(chunks, content_type, target=target, made_from=made_from))
        else:  # a replay that has no rows still finishes what another attempt began
            found = self._ledger.found(batch)
            if found is None:
                make_target(self._client, self._options)
                return
            listed = found
        try:
            self._ledger.check_same(batch, listed, target, made_from)
        except BatchReusedError:
            discard(self._client, {chunk.stored_in for chunk in chunks} - listed.places)
            raise
        if not listed.done:
            self._ledger.pass_fence(batch, listed)
            self._append(batch, listed)
        discard(self._client, {chunk.stored_in for chunk in chunks} | listed.places)
        self._ledger.forget(batch)

    def abandon(self, batch: int, parts: Sequence[Sequence[RowChunk]]) -> None:
        """Delete what tasks stored for a batch that failed, unless it is listed: then a replay goes on with it."""
        listed = self._ledger.found(batch)
        needed = listed.places if listed is not None else set()
        discard(self._client, {chunk.stored_in for part in parts for chunk in part} - needed)

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
        fits = last is not None and last.size + chunk.size + 1 + BRACKETS <= self._options.request_bytes
        if last is not None and last.data and chunk.data and fits:
            data = last.data + between + chunk.data
            chunks[-1] = RowChunk(chunk.target, len(data), data)
        else:
            chunks.append(chunk)

    def _check_targets(self, chunks: list[RowChunk]) -> None:
        """Refuse a batch that a target will not take, while nothing of it is written down."""
        if self._options.target is None:
            for target in dict.fromkeys(chunk.target for chunk in chunks):
                check_target_type(self._client, msgspec.structs.replace(self._options, target=target))

    def _append(self, batch: int, listed: Listed) -> None:
        appenders: dict[str, _Appender] = {}
        try:
            for chunk, body in zip(listed.chunks, self._bodies(listed), strict=True):
                if chunk.target not in appenders:
                    options = msgspec.structs.replace(self._options, content_type=listed.content_type)
                    appenders[chunk.target] = _Appender(self._client, options, self._writer, batch, chunk.target)
                appenders[chunk.target].append(body)
        except (StaleEpochError, SequenceGapError):
            raise
        except (SchemaError, RequestError) as error:
            if _is_final(error) and not any(appender.appended for appender in appenders.values()):
                self._ledger.withdraw(batch, listed)
                raise
            told = f"{error}. Some of the batch may be appended, and all of it is written down in"
            way_out = "it goes on when the target takes the rest"
            raise SchemaError(f"{told} {self._ledger.list_of(batch).url}: {way_out}") from error
        except StoredRowsGoneError as error:
            found = self._ledger.found(batch)
            if found is None or not found.done:  # else another driver was faster
                raise DataLossError(str(error)) from error
            return
        self._ledger.mark_done(batch)

    def _bodies(self, listed: Listed) -> Iterator[bytes]:
        """What a list names, the next one on its way while one is appended."""
        with ThreadPoolExecutor(1, thread_name_prefix="headwater-publish") as reading:
            ahead: list[Future[bytes]] = []
            for chunk in listed.chunks:
                ahead.append(reading.submit(read_stored, self._client, chunk))
                if len(ahead) > 1:
                    yield ahead.pop(0).result()
            if ahead:
                yield ahead.pop(0).result()


def _is_final(error: HeadwaterError) -> bool:
    """Whether a target has refused rows at the only attempt: after a lost answer, it may have taken them before."""
    cause = error.__cause__ if isinstance(error.__cause__, RequestError) else error
    return cause.attempts == 1 and not cause.retryable


class _Appender:
    """Appends to one target as the producer of one batch."""

    def __init__(self, client: Client, options: WriteOptions, writer: str, batch: int, target: str) -> None:
        self._options = options
        self._writer = writer
        self._batch = batch
        self._name = target
        self._target = open_target(client, options, target)
        self.appended = 0

    def append(self, rows: bytes) -> None:
        for body in self._target.bodies(rows):
            producer = ProducerTuple(f"spark-{self._writer}", self._batch, self.appended)
            try:
                self._append(body, producer)
            except StaleEpochError as error:
                raise behind(self._name, self._batch, error) from error
            except BodyTooLargeError as error:
                raise too_large(error) from error
            except SequenceGapError:
                raise
            except (ConflictError, InvalidChangeError) as error:  # closed, of another type, a mirror or a view
                raise SchemaError(f"{self._name} does not take the rows: {error}") from error
            self.appended += 1

    def _append(self, body: bytes, producer: ProducerTuple) -> None:
        try:
            self._target.append(body, producer)
        except StreamNotFoundError:
            if not self._options.create_target:
                raise
            self._target.create()
            self._target.append(body, producer)
