"""Appends the chunks in the list of a batch: to many targets concurrently, to each in order, with bounded memory.

Chunks are processed in runs of some mebibytes. While one run is appended, the next one is read. No more than these two
are in memory, however large the batch is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import msgspec

from headwater import limits
from headwater.client import Client, ProducerTuple, SourceRange
from headwater.errors import (
    BodyTooLargeError,
    ComposeSourceGoneError,
    ComposeSourceNotFoundError,
    ConflictError,
    ContentTypeError,
    HeadwaterError,
    InvalidChangeError,
    RequestError,
    SchemaError,
    SequenceGapError,
    StaleEpochError,
    StreamNotFoundError,
)
from headwater.log.content import ContentKind
from headwater.spark.ledger import Listed, behind
from headwater.spark.options import WriteOptions
from headwater.spark.parallel import in_parallel
from headwater.spark.staging import BRACKETS, RowChunk, StoredRowsGoneError, read_piece, read_stored, rows_in, too_large
from headwater.spark.targets import appended_as, open_target


def runs_of(chunks: Iterable[RowChunk]) -> Iterator[list[RowChunk]]:
    """Chunks that are read and appended together. Chunks of one staged piece are always in the same run."""
    run: list[RowChunk] = []
    size = 0
    for _, of_piece in itertools.groupby(chunks, lambda chunk: chunk.piece):
        piece = list(of_piece)
        piece_bytes = sum(chunk.size for chunk in piece)
        if run and size + piece_bytes > limits.SPARK_PUBLISHED_BYTES:
            yield run
            run, size = [], 0
        run += piece
        size += piece_bytes
    if run:
        yield run


def joined(chunks: Iterable[RowChunk], request_bytes: int) -> list[RowChunk]:
    """Group chunks into appends: those of one target and one run that fit in a request."""
    appends: list[RowChunk] = []
    for run in runs_of(chunks):
        last: dict[str, tuple[int, int]] = {}  # by target: index of its last chunk, size of the append so far
        for chunk in run:
            at, size = last.get(chunk.target, (-1, request_bytes))
            size += 1 + chunk.size
            if size + BRACKETS <= request_bytes:
                appends[at] = msgspec.structs.replace(appends[at], goes_on=True)
            else:
                size = chunk.size
            last[chunk.target] = (len(appends), size)
            appends.append(chunk)
    return appends


class Appending:
    """Appends one batch, as the producer of its query."""

    def __init__(
        self, client: Client, options: WriteOptions, writer: str, batch: int, missing: Collection[str] = ()
    ) -> None:
        self._client = client
        self._options = options
        self._writer = writer
        self._batch = batch
        self._missing = missing
        self._between = b"," if appended_as(options) is ContentKind.JSON else b""
        self._appenders: dict[str, _Appender] = {}
        self._begun: dict[str, list[RowChunk]] = {}  # chunks of appends that are not complete yet

    @property
    def may_have_appended(self) -> bool:
        return any(appender.appended or appender.unsure for appender in self._appenders.values())

    def append(self, listed: Listed) -> None:
        with ThreadPoolExecutor(1, thread_name_prefix="headwater-publish") as reading:
            ahead: Future[dict[str, list[AppendContent]]] | None = None
            for run in runs_of(listed.chunks):
                following = reading.submit(self._read, run)
                if ahead is not None:
                    self._append_run(ahead.result())
                ahead = following
            if ahead is not None:
                self._append_run(ahead.result())

    def _read(self, run: list[RowChunk]) -> dict[str, list[AppendContent]]:
        """What is appended to each target, in order. What the server can compose is not read."""
        appends = self._appends_in(run)
        composed = [self._is_composable(append) for append in appends]
        wanted = {
            chunk.piece: chunk
            for append, is_composed in zip(appends, composed, strict=True)
            for chunk in append
            if not is_composed
        }
        read = in_parallel(lambda chunk: read_piece(self._client, chunk), wanted.values())
        pieces = dict(zip(wanted, read, strict=True))
        contents: dict[str, list[AppendContent]] = {}
        for append, is_composed in zip(appends, composed, strict=True):
            rows = () if is_composed else [rows_in(pieces[chunk.piece], chunk) for chunk in append]
            content = AppendContent(append, self._between.join(rows) if rows else None)
            contents.setdefault(append[0].target, []).append(content)
        return contents

    def _appends_in(self, run: list[RowChunk]) -> list[list[RowChunk]]:
        """The chunks of each append that a run completes."""
        appends: list[list[RowChunk]] = []
        for chunk in run:
            self._begun.setdefault(chunk.target, []).append(chunk)
            if not chunk.goes_on:
                appends.append(self._begun.pop(chunk.target))
        return appends

    def _is_composable(self, append: list[RowChunk]) -> bool:
        """Whether the server can make an append of staged pieces, with the same content as if its rows were sent."""
        messages = sum(chunk.messages for chunk in append)
        is_one = not self._options.is_table or messages <= limits.CHANGES_MAX
        return is_one and len(append) <= limits.COMPOSE_SOURCES_MAX and all(chunk.messages for chunk in append)

    def _append_run(self, contents: dict[str, list[AppendContent]]) -> None:
        for target in contents:
            if target not in self._appenders:
                self._appenders[target] = self._appender(target)
        in_parallel(lambda target: self._appenders[target].append_all(contents[target]), contents)

    def _appender(self, target: str) -> _Appender:
        is_missing = target in self._missing
        return _Appender(self._client, self._options, self._writer, self._batch, target, self._between, is_missing)


class AppendContent(NamedTuple):
    """What one append has: its chunks, and their rows; None if the server is to compose them."""

    chunks: list[RowChunk]
    rows: bytes | None


def is_final(error: HeadwaterError) -> bool:
    """Whether a target refused rows at the first attempt. After a lost response it may have stored them already."""
    cause = error.__cause__ if isinstance(error.__cause__, RequestError) else error
    return cause.attempts == 1 and not cause.retryable and not cause.outcome_unknown


class _Appender:
    """Appends to one target."""

    def __init__(
        self,
        client: Client,
        options: WriteOptions,
        writer: str,
        batch: int,
        target: str,
        between: bytes,
        is_missing: bool,
    ) -> None:
        self._client = client
        self._options = options
        self._writer = writer
        self._batch = batch
        self._name = target
        self._target = open_target(client, options, target)
        self._between = between
        self._is_missing = is_missing and options.create_target
        self.appended = 0
        self.unsure = False  # whether an append may have been stored although its response was lost

    def append_all(self, contents: list[AppendContent]) -> None:
        for content in contents:
            if content.rows is None and self._compose(content.chunks):
                continue
            rows = self._read(content.chunks) if content.rows is None else content.rows
            for body in self._target.bodies(rows):
                self._append(partial(self._target.append, body))

    def _compose(self, chunks: list[RowChunk]) -> bool:
        """Let the server append staged pieces. False if it is an older one, which refuses that."""
        sources = [SourceRange(self._client.stream(one.stored_in).url, one.offset, one.until) for one in chunks]
        try:
            self._append(partial(self._target.compose, sources))
        except SchemaError as error:
            if isinstance(error.__cause__, ContentTypeError):
                return False
            raise
        return True

    def _read(self, chunks: list[RowChunk]) -> bytes:
        return self._between.join(in_parallel(partial(read_stored, self._client), chunks))

    def _append(self, send: Callable[[ProducerTuple], None]) -> None:
        self.unsure = True
        try:
            self._send_or_create(partial(send, ProducerTuple(f"spark-{self._writer}", self._batch, self.appended)))
        except HeadwaterError as error:
            self.unsure = not is_final(error)
            if (refusal := self._refusal(error)) is not error:
                raise refusal from error
            raise
        self.unsure = False
        self.appended += 1

    def _refusal(self, error: HeadwaterError) -> Exception:
        match error:
            case StaleEpochError():
                return behind(self._name, self._batch, error)
            case ComposeSourceNotFoundError() | ComposeSourceGoneError():
                return StoredRowsGoneError(f"{self._name}: the staged rows do not exist any more: {error}")
            case BodyTooLargeError():
                return too_large(error)
            case SequenceGapError():  # also a ConflictError
                return error
            case (
                ConflictError() | InvalidChangeError()
            ):  # the target is closed, a mirror or a view, or has another type
                return SchemaError(f"{self._name} does not accept the rows: {error}")
        return error

    def _send_or_create(self, send: Callable[[], None]) -> None:
        if self._is_missing:
            self._target.create()
            self._is_missing = False
        try:
            send()
        except StreamNotFoundError:
            if not self._options.create_target:
                raise
            self._target.create()
            send()
