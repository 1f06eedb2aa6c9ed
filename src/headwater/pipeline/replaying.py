"""Writes an archive back to streams, byte for byte.

The data of a target must equal the start of the archive; the rest is appended. So a replay can be killed and run again,
and a replay of an archive that has grown appends the new data. Each append has its position as Stream-Seq, so that the
server accepts only one of two appends at the same position.

Before the first append, the rows of all streams are checked: an archive that lacks rows is refused.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from itertools import chain, groupby
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater import limits
from headwater.client import Client, Stream
from headwater.errors import (
    IncompleteArchiveError,
    NetworkError,
    OptionError,
    ReplayError,
    SequenceRegressionError,
    StreamNotFoundError,
)
from headwater.log.content import ContentKind, kind_of
from headwater.pipeline.archiving import streams_table
from headwater.pipeline.connecting import check_server
from headwater.pipeline.continuity import CONTINUES_AT, Faults, after_snapshot, faults_of
from headwater.pipeline.lake import Lake
from headwater.pipeline.locations import absolute
from headwater.pipeline.options import ReplayOptions
from headwater.pipeline.records import APPEND_END
from headwater.pipeline.running import LoopJob, Step, start_loop
from headwater.pipeline.scanning import paths_of, scan
from headwater.positions import Position, byte_position, incarnation
from headwater.protocol.globs import glob
from headwater.spark.connection import ConnectionOptions
from headwater.spark.parsing import checked_path
from headwater.spark.positions import INCARNATION_SQL

log = logging.getLogger(__name__)

_SORTED = ("stream", "order", "offset", "position")
_NEEDED = ("stream", "offset", "position", "order", "content_type", "value", APPEND_END)
_LIFE = f"coalesce({INCARNATION_SQL}, 0)"


def start(spark: SparkSession, options: ReplayOptions) -> LoopJob:
    """Start the job."""
    table = absolute(options.table)
    connection = check_server(options)
    if not Lake(table).exists():
        raise OptionError(f"there is no archive at {table}")
    _check_archive(Lake(table))
    target = checked_path(options.to) if options.to else None
    replaying = _Replaying(spark, Lake(table), connection, target, options.streams, allow_gaps=options.allow_gaps)
    return start_loop(replaying.steps, name=options.label, once=True)


class Noted(msgspec.Struct, frozen=True):
    """A row of the archive's table of streams."""

    stream: str
    incarnation: str
    content_type: str
    tail_offset: str
    closed: bool
    first_offset: str | None = None

    @property
    def life(self) -> int:
        return int(self.incarnation or 0)

    @property
    def first_life(self) -> int | None:
        """The incarnation at the start of the stream: that of a fork's source, or its own."""
        first = None if self.first_offset is None else incarnation(self.first_offset)
        return None if first is None else int(first)


class _Replaying:
    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        connection: ConnectionOptions,
        to: str | None,
        wanted: str | None,
        *,
        allow_gaps: bool,
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._connection = connection
        self._to = to
        self._wanted = wanted
        self._allow_gaps = allow_gaps

    def steps(self) -> Iterator[Step]:
        version = self._lake.open().version()
        archived = self._archived(version)
        every = _noted(self._lake)
        known = {stream for stream, _ in (*every, *archived)}
        wanted = {stream for stream in known if self._is_wanted(stream)}
        if known and not wanted:
            raise OptionError(f"the archive has no stream that matches {self._wanted}; it has {_some(known)}")
        archived = {key for key in archived if key[0] in wanted}
        every = {key: one for key, one in every.items() if key[0] in wanted}
        check_noted(self._lake, {stream for stream, _ in archived}, {stream for stream, _ in every})
        lives = lives_of(archived, every)
        last = {stream: max(of_stream) for stream, of_stream in lives.items()}
        noted = written(last, every)
        empty = {stream for stream in noted if (stream, last.get(stream)) not in archived}
        rows = self._rows(version, lives).persist(StorageLevel.DISK_ONLY)
        try:
            self._check(rows, noted, empty)
            yield Step(rows=self._write(rows, noted, empty))
        finally:
            rows.unpersist()

    def _check(self, rows: DataFrame, noted: Mapping[str, Noted], empty: Collection[str]) -> None:
        """Check the rows of every stream. Nothing was written so far."""
        checker = StreamChecker({stream: one.tail_offset for stream, one in noted.items() if one.closed})
        fault_rows = rows.mapInArrow(checker, "stream STRING, faults BINARY").collect()
        faults = {row.stream: msgspec.msgpack.decode(bytes(row.faults), type=Faults) for row in fault_rows}
        for stream in empty:
            size = byte_position(noted[stream].tail_offset)
            if size:
                faults[stream] = Faults([f"all rows: it had {size} bytes when the archive first saw it"])
        report(self._lake, faults, allow_gaps=self._allow_gaps)

    def _write(self, rows: DataFrame, noted: Mapping[str, Noted], empty: Collection[str]) -> int:
        with self._connection.open(patient=False) as client:
            for stream in sorted(empty):  # others are created with the type in their rows
                _make(client, self._target(stream), noted[stream].content_type)
            writer = ReplayWriter(self._connection, self._to)
            done = rows.mapInArrow(writer, "stream STRING, appended BIGINT, has_more BOOLEAN").collect()
            for row in done:
                if row.has_more and row.stream in noted and noted[row.stream].closed:
                    raise ReplayError(f"{self._target(row.stream)} has more data than the closed stream in the archive")
            for stream, one in noted.items():
                if one.closed:
                    client.stream(self._target(stream), content_type=one.content_type).close()
        return sum(row.appended for row in done)

    def _is_wanted(self, stream: str) -> bool:
        return self._wanted is None or bool(glob(self._wanted).fullmatch(stream))

    def _target(self, stream: str) -> str:
        return target_of(stream, self._to)

    def _archived(self, version: int) -> set[tuple[str, int]]:
        """The streams and incarnations of the rows."""
        paths = sorted(paths_of(self._lake, version))
        places = scan(self._spark, self._lake, version, paths, ["stream", "offset"])
        lives = places.select("stream", F.expr(_LIFE).alias("life")).distinct().collect()
        return {(row.stream, row.life) for row in lives}

    def _rows(self, version: int, lives: Mapping[str, Collection[int]]) -> DataFrame:
        """The rows of the streams that are written, each stream in one partition and in order."""
        paths = sorted(paths_of(self._lake, version))
        names = [field.name for field in self._lake.open(version).schema().fields]
        needed = [*_NEEDED, *([CONTINUES_AT] if CONTINUES_AT in names else [])]
        pairs = [(stream, life) for stream, of_stream in lives.items() for life in sorted(of_stream)]
        kept = self._spark.createDataFrame(pairs, "stream STRING, life BIGINT")
        rows = scan(self._spark, self._lake, version, paths, needed).withColumn("life", F.expr(_LIFE))
        rows = rows.join(F.broadcast(kept), ["stream", "life"]).select(*needed)
        return rows.repartition("stream").sortWithinPartitions(*_SORTED)


def _check_archive(lake: Lake) -> None:
    """Refuse a table that cannot be read or is not an archive, before anything is written."""
    names = {field.name for field in lake.open().schema().fields}
    if missing := [name for name in _NEEDED if name not in names]:
        raise OptionError(f"{lake.uri} is not an archive: it has no column {', '.join(missing)}")
    _noted(lake)


def _noted(lake: Lake) -> dict[tuple[str, int], Noted]:
    """The streams and incarnations in the archive."""
    beside = Lake(streams_table(lake.uri))
    if not beside.exists():
        message = f"{lake.uri} lacks its table of streams, {beside.uri}"
        raise IncompleteArchiveError(f"{message}; restore it, or archive the streams into a new table")
    rows = beside.open().to_pyarrow_table().to_pylist()
    return {(one.stream, one.life): one for one in (msgspec.convert(row, Noted) for row in rows)}


def check_noted(lake: Lake, archived: Collection[str], noted: Collection[str]) -> None:
    """Refuse rows of streams of which the table of streams knows nothing."""
    if unknown := {*archived} - {*noted}:
        message = f"{streams_table(lake.uri)} has no row of {_some(unknown)}"
        raise IncompleteArchiveError(f"{message}; restore that table, or archive the streams into a new table")


def report(lake: Lake, faults: Mapping[str, Faults], *, allow_gaps: bool) -> None:
    """Refuse an archive with conflicts, and one with gaps, unless they are allowed."""
    conflicts = {stream: [one.conflict] for stream, one in faults.items() if one.conflict is not None}
    if conflicts:
        message = f"{lake.uri} has two versions of a stream, such as the data before and after a restore of the server"
        way_out = "nothing was written. Archive these streams into a new table, or exclude them with streams"
        raise IncompleteArchiveError(f"{message}: {_listed(conflicts, 'has')}; {way_out}")
    gaps = {stream: one.gaps for stream, one in faults.items() if one.gaps}
    if gaps and not allow_gaps:
        way_out = "nothing was written. Archive the streams from their beginning into a new table, or replay the rows"
        raise IncompleteArchiveError(
            f"{lake.uri} is not complete: {_listed(gaps, 'lacks')}; {way_out} that exist with allow_gaps"
        )
    if gaps:
        log.warning("%s is replayed with gaps: %s", lake.uri, _listed(gaps, "lacks"))


def _listed(texts: Mapping[str, Collection[str]], verb: str) -> str:
    """What is wrong with each stream; the first one of many faults, and of the first streams."""
    shown = []
    for stream in sorted(texts)[: limits.PIPELINE_SHOWN_STREAMS]:
        first, *others = texts[stream]
        shown.append(f"{stream} {verb} {first}" + (f" and {len(others)} more gaps" if others else ""))
    left = len(texts) - len(shown)
    return ", ".join(shown) + (f" and {left} other streams" if left else "")


def lives_of(
    archived: Collection[tuple[str, int]], noted: Mapping[tuple[str, int], Noted]
) -> dict[str, frozenset[int]]:
    """The incarnations of each stream whose rows are replayed: the last archived one, those of a fork's source, and the
    timelines of a server that was restored.

    A fork has the offsets of its source up to the point where it was forked, and a timeline those of the stream.
    """
    empty = {key for key, one in noted.items() if one.incarnation and byte_position(one.tail_offset) == 0}
    lives: dict[str, frozenset[int]] = {}
    for stream, keys in groupby(sorted({*empty, *archived}, reverse=True), lambda key: key[0]):
        (_, last), *before = keys
        own = {life for _, life in before if _is_inherited(noted.get((stream, last)), life, noted.get((stream, life)))}
        lives[stream] = frozenset({last, *own})
    return lives


def _is_inherited(last: Noted | None, life: int, of_life: Noted | None) -> bool:
    """Whether an incarnation is part of the last one. Otherwise it is that of a deleted stream.

    A stream that was seen with an inherited incarnation has the same beginning as the last one.
    """
    first = last.first_life if last is not None else None
    if first is None:
        return of_life is None
    return life >= first and (of_life is None or of_life.first_life in (None, first))


def written(last: Mapping[str, int], noted: Mapping[tuple[str, int], Noted]) -> dict[str, Noted]:
    """The archived metadata of the streams that are written, for the last incarnation in their rows.

    If a fork was read in one range, its rows have the incarnation of its source.
    """
    streams = {stream: noted[stream, life] for stream, life in sorted(noted)}
    for stream, newest in streams.items():
        life = last.get(stream, newest.life)
        if newest.first_life is None or newest.first_life > life:
            streams[stream] = noted.get((stream, life), newest)
    return streams


def _some(streams: Collection[str]) -> str:
    shown = ", ".join(sorted(streams)[: limits.PIPELINE_SHOWN_STREAMS])
    return shown if len(streams) <= limits.PIPELINE_SHOWN_STREAMS else f"{shown} and others"


def target_of(stream: str, to: str | None) -> str:
    return stream if to is None else f"{to}/{stream}"


def _make(client: Client, path: str, content_type: str) -> Stream:
    """The target; created if it does not exist."""
    stream = client.stream(path)
    try:
        info = stream.head()
    except StreamNotFoundError:
        stream.create(content_type=content_type)
        return stream
    if kind_of(info.content_type) is not kind_of(content_type):
        raise ReplayError(f"{path} is a stream of {info.content_type}, but the archive has {content_type}")
    return stream


class StreamChecker:
    """Checks the rows of streams, one stream after the other. Pickled for the tasks."""

    def __init__(self, tails: Mapping[str, str]) -> None:
        self._tails = dict(tails)  # of closed streams

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in batch.to_pylist())
        for stream, own in groupby(rows, lambda row: row["stream"]):
            first = next(own)
            is_json = kind_of(first["content_type"]) is ContentKind.JSON
            faults = faults_of(chain([first], own), is_json=is_json, tail=self._tails.get(stream))  # noqa: B031
            if faults.gaps or faults.conflict is not None:
                yield pa.RecordBatch.from_pydict({"stream": [stream], "faults": [msgspec.msgpack.encode(faults)]})


class ReplayWriter:
    """Writes rows to streams, one stream after the other. Pickled for the tasks."""

    def __init__(self, connection: ConnectionOptions, to: str | None) -> None:
        self._connection = connection
        self._to = to

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in batch.to_pylist())
        with self._connection.open() as client:
            for stream, own in groupby(rows, lambda row: row["stream"]):
                first = next(own)
                target = _make(client, target_of(stream, self._to), first["content_type"])
                is_json = kind_of(first["content_type"]) is ContentKind.JSON
                rows_of = without_repeats(chain([first], own), is_json=is_json)  # noqa: B031
                content = (Messages if is_json else Appends)(rows_of)
                appended, has_more = write_back(target, content)
                columns = {"stream": [stream], "appended": [appended], "has_more": [has_more]}
                yield pa.RecordBatch.from_pydict(columns)


def without_repeats(rows: Iterator[dict[str, Any]], *, is_json: bool) -> Iterator[dict[str, Any]]:
    """Rows in order, without duplicates, which exist if an archive was started again in the same table."""
    reached, end, last, snapshot = 0, 0, None, None
    for row in rows:
        first, value = row["order"], row["value"]
        if (following := after_snapshot(row)) is not None:
            place = (following, row["position"])
            if place != last and (following == snapshot or following > end):
                yield row
                reached, snapshot = max(reached, following), following
            last = place
        elif first is None:
            place = (row["offset"], row["position"])
            if place != last:
                yield row
            last = place
        elif is_json:
            if first >= reached:
                yield row
                reached, end = first + 1, first + len(value) + 1
        elif first + len(value) > reached:
            yield {**row, "value": value[max(0, reached - first) :]}
            reached = first + len(value)


class Messages:
    """The remaining messages of a JSON stream, to compare with the target or to append to it."""

    def __init__(self, rows: Iterator[dict[str, Any]]) -> None:
        self._rows = (row["value"] for row in rows)
        self._returned: list[bytes] = []
        self.done = 0  # messages so far

    def _next(self) -> bytes | None:
        return self._returned.pop(0) if self._returned else next(self._rows, None)

    def skip(self, there: bytes) -> bool:
        """Skip a message that the target has. False if there is none left, so that the target has more."""
        message = self._next()
        if message is None:
            return False
        if message != there:
            raise ReplayError(f"message {self.done} differs from the archive")
        self.done += 1
        return True

    def take(self) -> list[bytes]:
        """The next messages for one append."""
        taken: list[bytes] = []
        size = 0
        while size < limits.PIPELINE_REPLAY_BYTES and len(taken) < limits.PIPELINE_REPLAY_MESSAGES:
            message = self._next()
            if message is None:
                break
            taken.append(message)
            size += len(message) + 1
        return taken

    def give_back(self, taken: list[bytes]) -> None:
        self._returned = taken + self._returned

    def count(self, taken: list[bytes]) -> None:
        self.done += len(taken)


class Appends:
    """The same for a stream of bytes. It repeats the original appends if the archive has them."""

    def __init__(self, rows: Iterator[dict[str, Any]]) -> None:
        self._pieces = _joined(rows)
        self._returned = b""
        self.done = 0  # bytes so far

    def _next(self) -> bytes:
        piece, self._returned = self._returned or next(self._pieces, b""), b""
        return piece

    def skip(self, there: bytes) -> bool:
        while there:
            piece = self._next()
            if not piece:
                return False
            same = min(len(piece), len(there))
            if piece[:same] != there[:same]:
                raise ReplayError(f"the bytes after {self.done} differ from the archive")
            there, self._returned = there[same:], piece[same:]
            self.done += same
        return True

    def take(self) -> list[bytes]:
        piece = self._next()
        return [piece] if piece else []

    def give_back(self, taken: list[bytes]) -> None:
        self._returned = b"".join(taken) + self._returned

    def count(self, taken: list[bytes]) -> None:
        self.done += sum(map(len, taken))


def _joined(rows: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    """Group rows into appends: rows with the same `append_end` are one append, if it is known."""
    held, end = b"", None
    for row in rows:
        if held and (row[APPEND_END] is None or row[APPEND_END] != end):
            yield held
            held = b""
        held, end = held + row["value"], row[APPEND_END]
    if held:
        yield held


def write_back(target: Stream, content: Messages | Appends) -> tuple[int, bool]:
    """Append the missing data. Returns the number of messages or bytes, and whether the target has more data."""
    position, appended, failures = Position(), 0, 0
    try:
        while True:
            with target.read(type=bytes, offset=position) as reader:
                for batch in reader.batches():
                    for item in batch.items:
                        if not content.skip(item):
                            return appended, True
                    position = batch.position
            while taken := content.take():
                seq = f"{content.done:020d}"
                try:
                    position = Position(target.append_many(taken, seq=seq).offset)
                except (NetworkError, SequenceRegressionError) as error:
                    failures += 1
                    content.give_back(taken)
                    if failures == limits.PIPELINE_REPLAY_ATTEMPTS:
                        raise
                    if isinstance(error, NetworkError):
                        time.sleep(limits.PIPELINE_REPLAY_PAUSE_S)
                    break
                failures = 0
                content.count(taken)
                appended += len(taken) if isinstance(content, Messages) else 1
            else:
                return appended, False
    except ReplayError as error:
        raise ReplayError(f"{target.path}: {error}") from None
