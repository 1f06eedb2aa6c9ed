"""Rows of snapshots: of streams of their own, from which a batch read can start, and of those that compaction has made,
with which a compacted stream begins.

The events of a snapshot replace everything before its offset. In their rows, `stream` is the stream, `offset` is that
of the snapshot, `order` is one less than that of the first event after it, and `position` is the byte of the snapshot
at which the event starts. So they are in order, after all earlier events and before all later ones. The control
`snapshot-start` of a compacted stream is a `reset`, because a query that was behind may have read earlier events of it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headwater.client import Client, StreamInfo
from headwater.errors import InvalidOffsetError, MessageError, OffsetGoneError, OptionError, ProtocolError, RequestError
from headwater.positions import byte_position
from headwater.protocol.globs import fixed_part
from headwater.spark.options import ReadOptions
from headwater.spark.parallel import in_parallel
from headwater.spark.planning import Planner
from headwater.spark.positions import SnapshotOf, StreamPlace, StreamRange
from headwater.state.bootstrap import SNAPSHOTS, newest_first

log = logging.getLogger(__name__)

_NEEDED = {"order": StructField("order", LongType()), "control": StructField("control", StringType())}


class StateSnapshot(msgspec.Struct, frozen=True):
    info: StreamInfo
    offset: str  # in the stream whose state at this offset it has


def find_snapshots(options: ReadOptions, client: Client, end: Mapping[str, StreamPlace]) -> dict[str, StateSnapshot]:
    """The newest snapshot of each stream up to its end. A stream without one is read from its beginning."""
    prefixes = [f"{path}{SNAPSHOTS}" for path in end] if options.pattern is None else [fixed_part(options.pattern)]
    by_stream: dict[str, dict[str, StreamInfo]] = defaultdict(dict)
    try:
        for infos in in_parallel(lambda prefix: list(client.list(prefix)), prefixes):
            for info in infos:
                by_stream[info.path.rpartition(SNAPSHOTS)[0]][info.path] = info
    except (RequestError, ProtocolError) as error:
        raise OptionError(f"snapshot needs a server that lists its streams; use earliest: {error}") from error

    def newest(path: str) -> StateSnapshot | None:
        infos = by_stream[path]
        for name, offset in newest_first(infos.values(), path):
            if offset <= end[path].offset and _has(client, path, offset):
                return StateSnapshot(infos[name], offset)
        return None

    paths = sorted(by_stream.keys() & end.keys())
    snapshots = zip(paths, in_parallel(newest, paths), strict=True)
    return {path: snapshot for path, snapshot in snapshots if snapshot is not None}


def _has(client: Client, path: str, offset: str) -> bool:
    """Whether an offset belongs to this stream, not to an earlier one with the same path."""
    try:
        client.stream(path).splits(offset=offset, parts=1)
    except (OffsetGoneError, InvalidOffsetError) as error:
        log.warning("the snapshot %s%s%s is not used: %s", path, SNAPSHOTS, offset, error)
        return False
    return True


def partitions(
    planner: Planner,
    start: Mapping[str, StreamPlace],
    end: Mapping[str, StreamPlace],
    snapshots: Mapping[str, StateSnapshot],
) -> list[list[StreamRange]]:
    """The ranges of the snapshots and of the events after them."""
    begin, stop = dict(start), dict(end)
    of: dict[str, SnapshotOf] = {}
    for path, snapshot in snapshots.items():
        info = snapshot.info
        begin |= {path: StreamPlace(snapshot.offset), info.path: StreamPlace()}
        stop[info.path] = StreamPlace(info.tail_offset)
        of[info.path] = SnapshotOf(path, snapshot.offset, info.tail_offset)
    tasks = planner.partitions(begin, stop)
    return [[msgspec.structs.replace(part, snapshot_of=of.get(part.path)) for part in ranges] for ranges in tasks]


def with_needed(schema: StructType, columns: Iterable[str]) -> StructType:
    """A schema with columns that rows of a snapshot need."""
    return StructType([*schema.fields, *(_NEEDED[name] for name in columns if name not in schema.names)])


def placed(of: SnapshotOf, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a snapshot that compaction has made, in their place in the stream."""
    before = (byte_position(of.offset) or 0) - 1
    for batch in batches:
        count = batch.num_rows
        columns = {
            "offset": pa.repeat(pa.scalar(of.offset, pa.string()), count),
            "position": batch.column("order"),
            "order": pa.repeat(pa.scalar(before, pa.int64()), count),
        }
        if "control" in schema.names:
            is_start = pc.fill_null(pc.equal(batch.column("control"), "snapshot-start"), False)
            columns["control"] = pc.if_else(is_start, "reset", batch.column("control"))
            columns["append_time"] = pa.nulls(count, pa.timestamp("us", tz="UTC"))
        arrays = [columns[name] if name in columns else batch.column(name) for name in schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_of(
    part: StreamRange, of: SnapshotOf, batches: Iterable[pa.RecordBatch], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The events of a snapshot as rows of its stream."""
    is_whole = part.end.offset != of.tail
    before = (byte_position(of.offset) or 0) - 1
    for batch in batches:
        starts, control = batch.column("order"), batch.column("control")
        if starts[0].as_py() == 0 and control[0].as_py() != "snapshot-start":
            break
        again = pc.fill_null(pc.and_(pc.equal(control, "snapshot-start"), pc.greater(starts, 0)), False)
        columns = {
            "stream": pa.repeat(pa.scalar(of.stream, pa.string()), len(starts)),
            "offset": pa.repeat(pa.scalar(of.offset, pa.string()), len(starts)),
            "position": starts,
            "order": pa.repeat(pa.scalar(before, pa.int64()), len(starts)),
            "control": pc.if_else(
                again, "reset", control
            ),  # the snapshot was started again, so earlier events do not count
            "append_time": pa.nulls(len(starts), pa.timestamp("us", tz="UTC")),
        }
        arrays = [columns[name] if name in columns else batch.column(name) for name in schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        is_whole = part.end.offset != of.tail or control[-1].as_py() == "snapshot-end"
    if not is_whole:
        raise MessageError(f"{part.path} is not a complete snapshot: delete it, or read with startingOffsets earliest")
