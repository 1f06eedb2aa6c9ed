"""Writes an archive back to streams, byte for byte.

The data of a target must equal the start of the archive; the rest is appended. So a replay can be killed and run again,
and a replay of an archive that has grown appends the new data. Each append has its position as Stream-Seq, so that the
server accepts only one of two appends at the same position.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from itertools import chain, groupby
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater import limits
from headwater.client import Client, Stream
from headwater.errors import NetworkError, OptionError, ReplayError, SequenceRegressionError, StreamNotFoundError
from headwater.log.content import ContentKind, kind_of
from headwater.pipeline.archive import streams_table
from headwater.pipeline.lake import Lake
from headwater.pipeline.records import APPEND_END
from headwater.pipeline.running import LoopJob, Step, start_loop
from headwater.pipeline.scanning import paths_of, scan
from headwater.positions import Position
from headwater.protocol.globs import glob
from headwater.spark.connection import ConnectionOptions
from headwater.spark.options import checked_path, read_options
from headwater.spark.positions import byte_position, incarnation

_SORTED = ("stream", "life", "order", "offset", "position")
_NEEDED = ("stream", "offset", "position", "order", "content_type", "value", APPEND_END)
_LIFE = "coalesce(try_cast(regexp_extract(offset, '^([0-9]+)_([0-9]+)$', 1) AS BIGINT), 0)"
_BEGIN = "try_cast(regexp_extract(offset, '^([0-9]+)_([0-9]+)$', 2) AS BIGINT)"


def replay(
    spark: SparkSession,
    *,
    url: str,
    table: str,
    to: str | None = None,
    streams: str | None = None,
    token: str | None = None,
    name: str = "replay",
) -> LoopJob:
    """Write the matching streams of an archive to a server: to their own paths, or below `to`.

    Of a stream that was deleted and created again, the last archived incarnation is written.
    """
    if not Lake(table).exists():
        raise OptionError(f"there is no archive at {table}")
    _check_archive(Lake(table))
    options = {"url": url, "streams": "unused", **({} if token is None else {"token": token})}
    connection = read_options(options, bounded=True, state=False).connection
    replaying = _Replaying(spark, Lake(table), connection, checked_path(to.strip("/")) if to else None, streams)
    return start_loop(replaying.steps, name=name, once=True)


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


class Life(msgspec.Struct, frozen=True):
    """An incarnation of a stream, as far as it is part of the replayed stream."""

    stream: str
    life: int
    ends: int | None  # where the next incarnation starts; data from there on is not part of the stream


class _Replaying:
    def __init__(
        self, spark: SparkSession, lake: Lake, connection: ConnectionOptions, to: str | None, wanted: str | None
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._connection = connection
        self._to = to
        self._wanted = wanted

    def steps(self) -> Iterator[Step]:
        version = self._lake.open().version()
        every = _noted(self._lake)
        begins = self._begins(version)
        known = {stream for stream, _ in (*every, *begins)}
        wanted = {stream for stream in known if self._is_wanted(stream)}
        if known and not wanted:
            raise OptionError(f"the archive has no stream that matches {self._wanted}; it has {_some(known)}")
        begins = {key: begin for key, begin in begins.items() if key[0] in wanted}
        every = {key: one for key, one in every.items() if key[0] in wanted}
        lives = lives_of(begins, every)
        last = {one.stream: one.life for one in reversed(lives)}
        noted = written(last, every)
        with self._connection.open(patient=False) as client:
            for stream, one in noted.items():
                if (stream, last.get(stream)) not in begins:  # others are created with the type in their rows
                    _make(client, self._target(stream), one.content_type)
            rows = self._rows(version, lives)
            parts = rows.repartition("stream").sortWithinPartitions(*_SORTED).drop("life")
            writer = StreamWriter(self._connection, self._to)
            done = parts.mapInArrow(writer, "stream STRING, appended BIGINT, has_more BOOLEAN").collect()
            for row in done:
                if row.has_more and row.stream in noted and noted[row.stream].closed:
                    raise ReplayError(f"{self._target(row.stream)} has more data than the closed stream in the archive")
            for stream, one in noted.items():
                if one.closed:
                    client.stream(self._target(stream), content_type=one.content_type).close()
        yield Step(rows=sum(row.appended for row in done))

    def _is_wanted(self, stream: str) -> bool:
        return self._wanted is None or bool(glob(self._wanted).fullmatch(stream))

    def _target(self, stream: str) -> str:
        return target_of(stream, self._to)

    def _begins(self, version: int) -> dict[tuple[str, int], int]:
        """The streams and incarnations of the rows, and the first byte that was read of each."""
        paths = sorted(paths_of(self._lake, version))
        places = scan(self._spark, self._lake, version, paths, ["stream", "offset"]).distinct()
        begins = places.groupBy("stream", F.expr(_LIFE).alias("life")).agg(F.min(F.expr(_BEGIN)).alias("begin"))
        return {(row.stream, row.life): row.begin or 0 for row in begins.collect()}

    def _rows(self, version: int, lives: list[Life]) -> DataFrame:
        paths = sorted(paths_of(self._lake, version))
        parts = [(one.stream, one.life, one.ends) for one in lives]
        ends = self._spark.createDataFrame(parts, "stream STRING, life BIGINT, ends BIGINT")
        rows = scan(self._spark, self._lake, version, paths, _NEEDED).withColumn("life", F.expr(_LIFE))
        kept = rows.join(F.broadcast(ends), ["stream", "life"]).where("ends IS NULL OR order < ends")
        return kept.select("life", *_NEEDED)


def _check_archive(lake: Lake) -> None:
    """Refuse a table that cannot be read or is not an archive, before anything is written."""
    names = {field.name for field in lake.open().schema().fields}
    if missing := [name for name in _NEEDED if name not in names]:
        raise OptionError(f"{lake.uri} is not an archive: it has no column {', '.join(missing)}")
    _noted(lake)


def _noted(lake: Lake) -> dict[tuple[str, int], Noted]:
    """The streams and incarnations in the archive."""
    beside = Lake(streams_table(lake.uri))
    rows = beside.open().to_pyarrow_table().to_pylist() if beside.exists() else []
    return {(one.stream, one.life): one for one in (msgspec.convert(row, Noted) for row in rows)}


def lives_of(begins: Mapping[tuple[str, int], int], noted: Mapping[tuple[str, int], Noted]) -> list[Life]:
    """What is replayed: the last archived incarnation of each stream, and the data that a fork has from its source.

    A fork has the offsets of its source up to the point where it was forked.
    """
    empty = {key: 0 for key, one in noted.items() if one.incarnation and byte_position(one.tail_offset) == 0}
    every = {**empty, **begins}
    found: list[Life] = []
    for stream, keys in groupby(sorted(every, reverse=True), lambda key: key[0]):
        (_, last), *before = keys
        own = [
            last,
            *(life for _, life in before if _is_inherited(life, noted.get((stream, last)), (stream, life) in noted)),
        ]
        begin = every[stream, own[-1]]
        if begin > 0 and len(own) <= len(before):
            told = f"{stream} was created again, and the archive lacks its first {begin} bytes"
            raise ReplayError(f"{told}; exclude it with streams, or archive it from its beginning")
        ends: int | None = None
        for life in own:
            found.append(Life(stream, life, ends))
            ends = min(every[stream, life], every[stream, life] if ends is None else ends)
    return found


def _is_inherited(life: int, last: Noted | None, is_noted: bool) -> bool:
    """Whether an incarnation is that of a fork's source. Otherwise it is that of a deleted stream."""
    first = last.first_life if last is not None else None
    return life >= first if first is not None else not is_noted


def written(last: Mapping[str, int], noted: Mapping[tuple[str, int], Noted]) -> dict[str, Noted]:
    """The archived metadata of the streams that are written, for the last incarnation in their rows.

    If a fork was read in one range, its rows have the incarnation of its source.
    """
    found = {stream: noted[stream, life] for stream, life in sorted(noted)}
    for stream, newest in found.items():
        life = last.get(stream, newest.life)
        if newest.first_life is None or newest.first_life > life:
            found[stream] = noted.get((stream, life), newest)
    return found


def _some(streams: Collection[str]) -> str:
    shown = ", ".join(sorted(streams)[: limits.PIPELINE_SHOWN_STREAMS])
    return shown if len(streams) <= limits.PIPELINE_SHOWN_STREAMS else f"{shown} and others"


def target_of(stream: str, to: str | None) -> str:
    return stream if to is None else f"{to}/{stream}"


def _make(client: Client, path: str, content_type: str) -> Stream:
    """The target; created if it does not exist."""
    stream = client.stream(path)
    try:
        found = stream.head()
    except StreamNotFoundError:
        stream.create(content_type=content_type)
        return stream
    if kind_of(found.content_type) is not kind_of(content_type):
        raise ReplayError(f"{path} is a stream of {found.content_type}, but the archive has {content_type}")
    return stream


class StreamWriter:
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
    reached = 0
    for row in rows:
        first, value = row["order"], row["value"]
        if first is None:
            yield row
        elif is_json:
            if first >= reached:
                yield row
                reached = first + 1
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
    position, found, failures = Position(), 0, 0
    try:
        while True:
            with target.read(type=bytes, offset=position) as reader:
                for batch in reader.batches():
                    for item in batch.items:
                        if not content.skip(item):
                            return found, True
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
                found += len(taken) if isinstance(content, Messages) else 1
            else:
                return found, False
    except ReplayError as error:
        raise ReplayError(f"{target.path}: {error}") from None
