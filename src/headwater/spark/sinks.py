"""The writers of all formats: the work of the tasks, and the commit or abort in the driver."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headwater.errors import HeadwaterError, OptionError
from headwater.protocol.tables.paths import surl_path
from headwater.spark.ledger import ListLifetime
from headwater.spark.options import WriteOptions
from headwater.spark.publishing import Publisher
from headwater.spark.staging import Content, Gatherer, RowChunk, place_of, sum_of
from headwater.spark.targets import appended_as, check_target_type
from headwater.spark.workers import freeze_imports, keep_memory


class RowEncoder(Protocol):
    """Converts rows to messages. Pickled for the tasks."""

    def encode(self, batch: pa.RecordBatch, /) -> Iterator[tuple[str, pa.Array]]: ...


MakeEncoder: TypeAlias = Callable[[StructType, WriteOptions], RowEncoder]  # the options have a content type


class TaskResult(WriterCommitMessage):
    """The result of one task."""

    def __init__(self, writer: str, partition: int, chunks: list[RowChunk], content: Content | None) -> None:
        self.writer = writer
        self.partition = partition
        self.chunks = chunks
        self.content = content


class _Writing:
    """Common part of both writers. It is pickled for the tasks, so it holds settings and no open resources."""

    _keep = ListLifetime.UNTIL_NEXT_BATCH
    _patient = False
    _summed = False  # whether a repeated write is recognised by its rows

    def __init__(self, options: WriteOptions, schema: StructType, encoder: MakeEncoder, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("streams and tables are append-only: use mode append")
        with options.open(patient=self._patient) as client:
            content_type = check_target_type(client, options)
        self._options = msgspec.structs.replace(options, content_type=content_type)
        self._encoder = encoder(schema, self._options)

    def _gather(self, iterator: Iterator[pa.RecordBatch], writer: str, batch: int) -> TaskResult:
        keep_memory()
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        options = self._options
        with options.open() as client:
            place = place_of(writer, batch, partition)
            gatherer = Gatherer(client, appended_as(options), options.max_request_bytes, place, summed=self._summed)
            for rows in iterator:
                for target, messages in self._encoder.encode(rows):
                    gatherer.add(target, messages)
            gathered = TaskResult(writer, partition, gatherer.finish(), gatherer.content)
        freeze_imports()
        return gathered

    def _publish(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        gathered = _in_order(messages)
        if gathered:
            keep_memory()
            with self._options.open() as client:
                publisher = Publisher(client, self._options, gathered[0].writer, self._keep)
                made_from = self._made_from(gathered, batch)
                publisher.publish(batch, [message.chunks for message in gathered], made_from)

    def _made_from(self, gathered: list[TaskResult], batch: int) -> str:
        contents = [message.content for message in gathered if message.content is not None]
        return str(sum_of(contents)) if len(contents) == len(gathered) else ""

    def _abandon(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        gathered = _in_order(messages)
        if any(message.chunks for message in gathered):
            with self._options.open(patient=False) as client:
                try:
                    publisher = Publisher(client, self._options, gathered[0].writer, self._keep)
                    publisher.abandon(batch, [message.chunks for message in gathered])
                except HeadwaterError:
                    return  # the server may not be reachable; the staged rows expire by themselves


def _in_order(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    results = [message for message in messages if isinstance(message, TaskResult)]
    return sorted(results, key=lambda message: message.partition)


def _id_for(write_id: str, options: WriteOptions) -> str:
    """The same id with another target is another write. A stream and a table of one name are two targets."""
    target = surl_path(options.target or "") if options.is_table else options.target or ""
    return f"{write_id}-{hashlib.sha256(target.encode()).hexdigest()[:12]}"


def offsets_directory(checkpoint: str | None) -> Path | None:
    """The directory with the offsets of a query's batches, if this machine can read it."""
    parts = urlsplit(checkpoint or "")
    directory = Path(unquote(parts.path) if parts.scheme == "file" else checkpoint or "", "offsets")
    return directory if checkpoint and parts.scheme in ("", "file") and directory.is_dir() else None


def offsets_of(directory: Path, batch: int) -> str:
    """A hash of the offsets of a batch. The file has a version, a line about the batch, and a line per source."""
    try:
        lines = (directory / str(batch)).read_bytes().splitlines()
    except OSError:
        return ""
    return f"offsets {hashlib.sha256(b'.'.join(lines[2:])).hexdigest()}"


class BatchWriter(_Writing, DataSourceArrowWriter):
    """A batch write is one batch. With a writeId a repeated write is recognised; without it, each write is new."""

    def __init__(self, options: WriteOptions, schema: StructType, encoder: MakeEncoder, *, overwrite: bool) -> None:
        super().__init__(options, schema, encoder, overwrite=overwrite)
        self._id = uuid.uuid4().hex if options.write_id is None else _id_for(options.write_id, options)
        self._keep = ListLifetime.NONE if options.write_id is None else ListLifetime.FOREVER
        self._summed = options.write_id is not None and options.check_repeats
        self._version = options.write_version

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._gather(iterator, self._id, self._version)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._publish(messages, self._version)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abandon(messages, self._version)


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """A streaming query has an id in its checkpoint, and numbers its batches."""

    _patient = True  # Spark creates a writer for every batch, and the server may be down for a moment

    def __init__(self, options: WriteOptions, schema: StructType, encoder: MakeEncoder, *, overwrite: bool) -> None:
        if options.write_id is not None:
            raise OptionError("writeId is for batch writes: a streaming query has an id in its checkpoint")
        super().__init__(options, schema, encoder, overwrite=overwrite)
        self._offsets = offsets_directory(options.checkpoint_location)
        self._summed = self._offsets is None and options.check_repeats

    def _made_from(self, gathered: list[TaskResult], batch: int) -> str:
        """Prefer offsets to rows, because a query that is not deterministic has other rows in every attempt."""
        if self._offsets is None:
            return super()._made_from(gathered, batch)
        return offsets_of(self._offsets, batch) if self._options.check_repeats else ""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        if not query or not batch:
            raise RuntimeError("Spark does not say which query and batch this task belongs to")
        return self._gather(iterator, query, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._publish(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._abandon(messages, batchId)
