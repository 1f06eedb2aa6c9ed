"""A batch of records that only append, as the arguments of the function `store_appends` (`schema.sql`). Most batches
are of this kind, so this is faster than `batches.py`, which encodes all."""

from __future__ import annotations

from collections.abc import Sequence

from headwater import limits
from headwater.log.events import Appended
from headwater.log.producers import key_of
from headwater.log.state import StreamState
from headwater.store.contract import Commit, Moved
from headwater.store.postgres.arrays import bigints, byteas, ints
from headwater.store.postgres.batches import (
    EncodedBatch,
    LastRequests,
    NewBytes,
    StoringFunction,
    due_column,
    encode_producers,
)
from headwater.store.postgres.rows import encode_run, encode_state

_NO_DUES = bigints(())


class _AppendedRun(NewBytes):
    """What a batch appends to one stream, and the state after it."""

    __slots__ = ("group", "state", "version")

    def __init__(self, group: int, version: int, state: StreamState, event: Appended) -> None:
        self.group = group  # the first record
        self.version = version  # before the batch
        self.state = state
        data = event.data
        self.start = event.position
        self.size = len(data)
        self.ends = [self.size]
        self.times = [event.at_ms]
        self.parts = [data]


def encode_appends(batch: Sequence[Commit]) -> EncodedBatch | None:
    """Encode a batch. None if a record does something else than to append to one stream, or depends on more than this
    stream, or if the bytes of a stream do not fit into one row."""
    runs: dict[int, _AppendedRun] = {}
    requests: LastRequests = {}
    streams: list[int] = []  # of each record
    for commit in batch:
        record, expects = commit.record, commit.expects
        if len(record) != 1 or expects is None or len(expects) != 1:
            return None
        event, after = record[0], commit.after[0]
        if type(event) is not Appended or not event.data or type(after) is not StreamState:
            return None
        stream_id = event.id
        if stream_id not in expects:
            return None
        run = runs.get(stream_id)
        if run is None:
            run = runs[stream_id] = _AppendedRun(len(streams), expects[stream_id], after, event)
        else:
            run.state = after
            run.add(event.data, event.at_ms)
        streams.append(stream_id)
        if event.producer is not None:
            requests[stream_id, key_of(event.producer.id)] = (event.producer, event.at_ms, len(run.ends))
    if any(run.size > limits.POSTGRES_CHUNK_BYTES for run in runs.values()):
        return None
    return _encoded(runs, requests, streams)


def _encoded(runs: dict[int, _AppendedRun], requests: LastRequests, streams: list[int]) -> EncodedBatch:
    ids = sorted(runs)
    ordered = [runs[stream_id] for stream_id in ids]
    states = [run.state for run in ordered]
    dues = [due_column(state) for state in states]
    rows = [encode_run(run.state.id, run.start, run.ends, run.times, run.data) for run in ordered]
    groups = {stream_id: run.group for stream_id, run in runs.items()} if requests else {}
    versions = {stream_id: run.version for stream_id, run in runs.items()} if requests else {}
    arguments = (
        bigints(ids),
        ints([run.group for run in ordered]),
        bigints([run.version for run in ordered]),
        bigints([state.version for state in states]),
        _NO_DUES if all(due == -1 for due in dues) else bigints(dues),
        byteas([encode_state(state) for state in states]),
        bigints([row.start for row in rows]),
        bigints([row.size for row in rows]),
        bigints([row.last_ms for row in rows]),
        byteas([row.outline for row in rows]),
        byteas([row.data for row in rows]),
        *encode_producers(requests, versions, groups),
    )
    return EncodedBatch(
        function=StoringFunction.APPENDS,
        arguments=arguments,
        record_count=len(streams),
        group_of=lambda record: runs[streams[record]].group,
        keys=runs.keys(),
        slots=frozenset(),
        moved=[Moved(state.id, state.path, state.version) for state in states],
        added=[(run.state.id, run.size) for run in ordered],
        created=0,
        deleted=0,
    )
