"""Appends the chunks in the list of a batch: to many targets concurrently, to each in order, with bounded memory.

Chunks are processed in runs of some mebibytes. While one run is appended, the next one is read. No more than these two
are in memory, however large the batch is.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from headwater import limits
from headwater.client import Client, ProducerTuple
from headwater.errors import (
    BodyTooLargeError,
    ConflictError,
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
from headwater.spark.staging import BRACKETS, RowChunk, read_piece, rows_in, too_large
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
        self._begun: dict[str, list[bytes]] = {}  # rows of appends that are not complete yet

    @property
    def may_have_appended(self) -> bool:
        return any(appender.appended or appender.unsure for appender in self._appenders.values())

    def append(self, listed: Listed) -> None:
        with ThreadPoolExecutor(1, thread_name_prefix="headwater-publish") as reading:
            ahead: Future[list[bytes]] | None = None
            before: list[RowChunk] = []
            for run in runs_of(listed.chunks):
                following = reading.submit(self._read, run)
                if ahead is not None:
                    self._append_run(before, ahead.result())
                ahead, before = following, run
            if ahead is not None:
                self._append_run(before, ahead.result())

    def _read(self, run: list[RowChunk]) -> list[bytes]:
        """The rows of each chunk."""
        wanted = {chunk.piece: chunk for chunk in run}
        pieces = dict(
            zip(wanted, in_parallel(lambda chunk: read_piece(self._client, chunk), wanted.values()), strict=True)
        )
        return [rows_in(pieces[chunk.piece], chunk) for chunk in run]

    def _append_run(self, run: list[RowChunk], contents: list[bytes]) -> None:
        bodies: dict[str, list[bytes]] = {}
        for chunk, rows in zip(run, contents, strict=True):
            begun = self._begun.setdefault(chunk.target, [])
            begun.append(rows)
            if not chunk.goes_on:
                bodies.setdefault(chunk.target, []).append(self._between.join(self._begun.pop(chunk.target)))
        for target in bodies:
            if target not in self._appenders:
                self._appenders[target] = self._appender(target)
        in_parallel(lambda target: self._appenders[target].append_all(bodies[target]), bodies)

    def _appender(self, target: str) -> _Appender:
        return _Appender(self._client, self._options, self._writer, self._batch, target, target in self._missing)


def is_final(error: HeadwaterError) -> bool:
    """Whether a target refused rows at the first attempt. After a lost response it may have stored them already."""
    cause = error.__cause__ if isinstance(error.__cause__, RequestError) else error
    return cause.attempts == 1 and not cause.retryable and not cause.outcome_unknown


class _Appender:
    """Appends to one target."""

    def __init__(
        self, client: Client, options: WriteOptions, writer: str, batch: int, target: str, is_missing: bool
    ) -> None:
        self._options = options
        self._writer = writer
        self._batch = batch
        self._name = target
        self._target = open_target(client, options, target)
        self._is_missing = is_missing and options.create_target
        self.appended = 0
        self.unsure = False  # whether an append may have been stored although its response was lost

    def append_all(self, contents: list[bytes]) -> None:
        for rows in contents:
            for body in self._target.bodies(rows):
                self._append(body, ProducerTuple(f"spark-{self._writer}", self._batch, self.appended))
                self.appended += 1

    def _append(self, body: bytes, producer: ProducerTuple) -> None:
        self.unsure = True
        try:
            self._append_or_create(body, producer)
        except HeadwaterError as error:
            self.unsure = not is_final(error)
            if (refusal := self._refusal(error)) is not error:
                raise refusal from error
            raise
        self.unsure = False

    def _refusal(self, error: HeadwaterError) -> HeadwaterError:
        match error:
            case StaleEpochError():
                return behind(self._name, self._batch, error)
            case BodyTooLargeError():
                return too_large(error)
            case SequenceGapError():  # also a ConflictError
                return error
            case (
                ConflictError() | InvalidChangeError()
            ):  # the target is closed, a mirror or a view, or has another type
                return SchemaError(f"{self._name} does not accept the rows: {error}")
        return error

    def _append_or_create(self, body: bytes, producer: ProducerTuple) -> None:
        if self._is_missing:
            self._target.create()
            self._is_missing = False
        try:
            self._target.append(body, producer)
        except StreamNotFoundError:
            if not self._options.create_target:
                raise
            self._target.create()
            self._target.append(body, producer)
