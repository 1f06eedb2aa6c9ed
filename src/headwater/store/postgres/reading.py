"""Reads: states with their producers, documents, and bytes. Each is one statement, so it sees one moment."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

from psycopg.pq.abc import PGresult

from headwater.errors import DamagedDataError
from headwater.log.producers import ProducerState
from headwater.log.state import Document, StreamState
from headwater.store.contract import DocumentKey, Due, Expects, Key, StatePage, version_of
from headwater.store.pieces import Piece, RecordEnd, boundary_in, list_runs, position_at, read_runs
from headwater.store.postgres.arrays import bigints, byteas
from headwater.store.postgres.batches import decode_name, encode_name
from headwater.store.postgres.connections import Pool
from headwater.store.postgres.execution import Statement
from headwater.store.postgres.rows import (
    COLUMNS,
    OUTLINE_COLUMNS,
    ByteRow,
    StoredRun,
    decode_run,
    decode_state,
    outline_of,
)
from headwater.store.postgres.writing import names_of

_EVERYTHING = 2**63 - 1
_STATES = """
    SELECT s.id, s.path, s.version, s.state,
        (SELECT ARRAY[array_agg(p.epoch), array_agg(p.seq), array_agg(p.at_ms)] FROM
            (SELECT * FROM headwater.producers WHERE stream_id = s.id ORDER BY turn) AS p),
        (SELECT array_agg(p.producer) FROM
            (SELECT * FROM headwater.producers WHERE stream_id = s.id ORDER BY turn) AS p),
        (SELECT array_agg(e.hash) FROM
            (SELECT * FROM headwater.expired_producers WHERE stream_id = s.id ORDER BY hash) AS e),
        (SELECT array_agg(e.epoch) FROM
            (SELECT * FROM headwater.expired_producers WHERE stream_id = s.id ORDER BY hash) AS e)
    FROM headwater.streams s
"""
_LOAD = f"{_STATES} WHERE s.id = ANY (%s) UNION ALL {_STATES} WHERE s.path = ANY (%s)"
# Each is looked up in the index, whatever the plan (see `schema.sql`).
_VERSIONS = """
    SELECT 0, e.id, NULL::bytea, coalesce(s.version, 0) FROM unnest(%s, %s) AS e(id, version)
        LEFT JOIN headwater.streams s ON s.id = ANY (ARRAY[e.id]) WHERE coalesce(s.version, 0) <> e.version
    UNION ALL
    SELECT 1, 0, e.path, coalesce(s.id, 0) FROM unnest(%s, %s) AS e(path, id)
        LEFT JOIN headwater.streams s ON s.path = ANY (ARRAY[e.path]) WHERE coalesce(s.id, 0) <> e.id
    UNION ALL
    SELECT 2, 0, e.key, coalesce(d.token, 0) FROM unnest(%s, %s) AS e(key, token)
        LEFT JOIN headwater.documents d ON d.key = ANY (ARRAY[e.key]) WHERE coalesce(d.token, 0) <> e.token
"""
# The same for streams alone, which is asked most often.
_STREAM_VERSIONS = Statement(
    b"stream_versions",
    "SELECT e.id, coalesce(s.version, 0) FROM unnest($1::bigint[], $2::bigint[]) AS e(id, version) "
    "LEFT JOIN headwater.streams s ON s.id = ANY (ARRAY[e.id]) WHERE coalesce(s.version, 0) <> e.version",
)
_PAGE = """
    SELECT s.id, s.path, s.version, s.state FROM headwater.streams s
    WHERE s.path > %s AND s.path >= %s AND (%s::bytea IS NULL OR s.path < %s) ORDER BY s.path LIMIT %s
"""
_DUE = """
    SELECT s.due_ms, s.id, s.path FROM headwater.streams s
    WHERE (s.due_ms, s.id) > (%s, %s) AND s.due_ms <= %s ORDER BY s.due_ms, s.id LIMIT %s
"""
_DOCUMENTS = """
    SELECT d.key, d.version, d.token, d.data FROM headwater.documents d
    WHERE d.key > %s AND d.key >= %s AND (%s::bytea IS NULL OR d.key < %s) ORDER BY d.key LIMIT %s
"""
# Chunks and fresh rows in one statement: packing moves rows from one table to the other. The first row is the one in
# which the range begins or before which it ends. One that fits only in part is left out: it would be read twice.
# The arguments are the stream, `start`, `end`, up to where rows fit, and how many rows.
_RANGE = """
    WITH bound AS (SELECT greatest(
        (SELECT max(start) FROM headwater.chunks WHERE stream_id = $1::bigint AND start <= $2::bigint),
        (SELECT max(start) FROM headwater.fresh WHERE stream_id = $1 AND start <= $2), 0) AS low
    )
    SELECT {columns} FROM headwater.chunks WHERE stream_id = $1 AND start >= (SELECT low FROM bound)
        AND start < $3::bigint AND (start <= $2 OR start + size <= $4::bigint)
        AND EXISTS (SELECT FROM headwater.streams WHERE id = $1)
    UNION ALL
    SELECT {columns} FROM headwater.fresh WHERE stream_id = $1 AND start >= (SELECT low FROM bound)
        AND start < $3 AND (start <= $2 OR start + size <= $4)
        AND EXISTS (SELECT FROM headwater.streams WHERE id = $1)
    ORDER BY start LIMIT $5::bigint
"""
_BYTES = Statement(b"bytes", _RANGE.format(columns=COLUMNS))
_OUTLINES = Statement(b"outlines", _RANGE.format(columns=OUTLINE_COLUMNS))
# About, if there are many.
COUNT_STREAMS = """
    SELECT CASE WHEN reltuples > 1e6 THEN reltuples::bigint ELSE (SELECT count(*) FROM headwater.streams) END
    FROM pg_class WHERE oid = 'headwater.streams'::regclass
"""
READ_STATEMENTS = (_STREAM_VERSIONS, _BYTES, _OUTLINES)
_NUMBER = struct.Struct(">q")
_AT_TIME = f"""
    (SELECT {OUTLINE_COLUMNS} FROM headwater.chunks WHERE stream_id = %(id)s AND last_ms >= %(at)s
        AND start + size > %(start)s ORDER BY last_ms, start LIMIT 1)
    UNION ALL
    (SELECT {OUTLINE_COLUMNS} FROM headwater.fresh WHERE stream_id = %(id)s AND last_ms >= %(at)s
        AND start + size > %(start)s ORDER BY start LIMIT 1)
    ORDER BY start LIMIT 1
"""  # noqa: S608


class PostgresReader:
    """Reads what is committed."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._loading: dict[int | str, asyncio.Future[StreamState | None]] = {}
        self._checking: list[tuple[Expects, asyncio.Future[dict[Key, int]]]] = []

    # States. What is asked for in one turn of the loop is one statement. Nothing joins a statement that was sent, which
    # may see an earlier moment.

    async def load(self, key: int | str) -> StreamState | None:
        if not self._loading:
            asyncio.get_running_loop().call_soon(self._start_loads)
        future = self._loading.get(key)
        if future is None:
            future = self._loading[key] = asyncio.get_running_loop().create_future()
            return await future
        state = await asyncio.shield(future)
        return None if state is None else state.copy()

    def _start_loads(self) -> None:
        loading, self._loading = self._loading, {}
        _answering(self._load_all(loading), list(loading.values()))

    async def _load_all(self, loading: dict[int | str, asyncio.Future[StreamState | None]]) -> None:
        states = await self.load_many(list(loading))
        for key, future in loading.items():
            if not future.done():
                future.set_result(states.get(key))

    async def load_many(self, keys: Sequence[int | str]) -> dict[int | str, StreamState]:
        """The states of streams, by ids and by paths."""
        ids, paths, _ = names_of(keys)
        rows = await self._pool.fetch(_LOAD, (bigints(ids), byteas([encode_name(path) for path in paths])))
        wanted = set(keys)
        states: dict[int | str, StreamState] = {}
        for row in rows:
            state = _with_producers(row)
            for key in (state.id, state.path):
                if key in wanted:
                    states[key] = state if key not in states else state.copy()
        if len(ids) and len(paths):  # a stream that was asked for in both ways
            states = {key: state.copy() for key, state in states.items()}
        return states

    async def changed(self, known: Expects) -> dict[Key, int]:
        if not self._checking:
            asyncio.get_running_loop().call_soon(self._start_checks)
        future: asyncio.Future[dict[Key, int]] = asyncio.get_running_loop().create_future()
        self._checking.append((known, future))
        return await future

    def _start_checks(self) -> None:
        checking, self._checking = self._checking, []
        _answering(self._check_all(checking), [future for _, future in checking])

    async def _check_all(self, checking: list[tuple[Expects, asyncio.Future[dict[Key, int]]]]) -> None:
        every = {key: version for known, _ in checking for key, version in known.items()}
        present = await self.versions(every)
        for known, future in checking:
            if not future.done():
                now = ((key, present.get(key, every[key]), version) for key, version in known.items())
                future.set_result({key: current for key, current, version in now if current != version})

    async def versions(self, known: Expects) -> dict[Key, int]:
        """Of these, those that have another version, at one moment."""
        ids, paths, documents = names_of(known)
        if not paths and not documents:
            return await self._stream_versions(ids, [known[one] for one in ids])
        rows = await self._pool.fetch(
            _VERSIONS,
            (
                *(bigints(ids), bigints([known[one] for one in ids])),
                *(byteas([encode_name(one) for one in paths]), bigints([known[one] for one in paths])),
                *(byteas([encode_name(one.key) for one in documents]), bigints([known[one] for one in documents])),
            ),
        )
        present: dict[Key, int] = {}
        for kind, stream_id, name, version in rows:
            key: Key = stream_id
            if kind:
                key = decode_name(name) if kind == 1 else DocumentKey(decode_name(name))
            present[key] = version
        return present

    async def _stream_versions(self, ids: list[int], versions: list[int]) -> dict[Key, int]:
        result = await self._pool.execute(_STREAM_VERSIONS, (bigints(ids).data, bigints(versions).data))
        return {_number(result, row, 0): _number(result, row, 1) for row in range(result.ntuples)}

    async def page(self, prefix: str, after: str, limit: int) -> StatePage:
        low, end = encode_name(prefix), _past(encode_name(prefix))
        rows = await self._pool.fetch(_PAGE, (encode_name(after), low, end, end, limit))
        states = [_decoded(row) for row in rows]
        return StatePage(states, states[-1].path if len(states) == limit else None)

    async def due(self, after: tuple[int, int], now_ms: int, limit: int) -> Due:
        rows = await self._pool.fetch(_DUE, (*after, now_ms, limit))
        last = (rows[-1][0], rows[-1][1]) if len(rows) == limit else None
        return Due([decode_name(path) for _, _, path in rows], last)

    # Documents

    async def document(self, key: str) -> Document | None:
        return (await self.some_documents([key])).get(key)

    async def some_documents(self, keys: Sequence[str]) -> dict[str, Document]:
        rows = await self._pool.fetch(
            "SELECT d.key, d.version, d.token, d.data FROM headwater.documents d WHERE d.key = ANY (%s)",
            (byteas([encode_name(key) for key in keys]),),
        )
        return {document.key: document for document in map(_document, rows)}

    async def documents(self, prefix: str, after: str, limit: int) -> list[Document]:
        low, end = encode_name(prefix), _past(encode_name(prefix))
        rows = await self._pool.fetch(_DOCUMENTS, (encode_name(after), low, end, end, limit))
        return [_document(row) for row in rows]

    # Bytes

    async def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> Piece:
        fits = start + bytes_max
        # A row that begins after `fits` does not fit. PostgreSQL would look at all rows up to `end`, often the tail.
        rows = await self._rows(_BYTES, stream_id, start, min(end, fits), fits, _EVERYTHING)
        runs = await self._checked(stream_id, start, end, [decode_run(row) for row in rows])
        return read_runs(runs, start, end, bytes_max) if runs else Piece(b"", start, start)

    async def records(self, stream_id: int, start: int, end: int, limit: int) -> list[RecordEnd]:
        rows = await self._rows(_OUTLINES, stream_id, start, end, _EVERYTHING, limit + 1)
        runs = await self._checked(stream_id, start, end, [outline_of(row) for row in rows])
        return list_runs(runs, start, end, limit)

    async def boundary(self, stream_id: int, position: int) -> int:
        rows = await self._rows(_OUTLINES, stream_id, position, position + 1, position, 1)
        if rows and rows[0].start <= position:
            return boundary_in(outline_of(rows[0]), position)
        state = await self._existing(stream_id)
        if position > state.start and state.size and not state.is_unread(position - 1, position):
            raise _missing(stream_id, position)
        return state.start

    async def position_at(self, stream_id: int, start: int, at_ms: int) -> int | None:
        rows = await self._pool.fetch(_AT_TIME, {"id": stream_id, "start": start, "at": at_ms})
        if not rows:
            await self._existing(stream_id)
            return None
        return position_at(outline_of(ByteRow(*rows[0])), start, at_ms)

    async def _rows(
        self, statement: Statement, stream_id: int, start: int, end: int, fits: int, limit: int
    ) -> list[ByteRow]:
        arguments = (stream_id, start, max(end, start + 1), min(fits, _EVERYTHING), limit)
        result = await self._pool.execute(statement, [_NUMBER.pack(argument) for argument in arguments])
        return [_byte_row(result, row) for row in range(result.ntuples)]

    async def _checked(self, stream_id: int, start: int, end: int, runs: list[StoredRun]) -> list[StoredRun]:
        """Check that the bytes from `start` on are there without a gap."""
        expected: int | None = None
        for run in runs:
            if run.start != expected if expected is not None else run.start > start:
                await self._raise_missing(stream_id, start if expected is None else expected)
            expected = run.start + run.ends[-1]
        if expected is None or expected < start or (expected == start < end):
            state = await self._existing(stream_id)
            if start < min(end, state.tail):
                await self._raise_missing(stream_id, start)
        return runs

    async def _raise_missing(self, stream_id: int, position: int) -> None:
        state = await self._existing(stream_id)
        if position < state.first or state.is_unread(position, position + 1):
            raise LookupError(f"stream {stream_id} was trimmed at {position}")
        raise _missing(stream_id, position)

    async def _existing(self, stream_id: int) -> StreamState:
        states = await self.load_many([stream_id])
        if stream_id not in states:
            raise LookupError(f"stream {stream_id} does not exist")
        return states[stream_id]


def _number(result: PGresult, row: int, column: int) -> int:
    number: int = _NUMBER.unpack(result.get_value(row, column) or b"")[0]
    return number


def _byte_row(result: PGresult, row: int) -> ByteRow:
    stream_id, start, size, last_ms = (_number(result, row, column) for column in range(4))
    outline, data = result.get_value(row, 4), result.get_value(row, 5)
    return ByteRow(stream_id, start, size, last_ms, outline or b"", data or b"")


def _missing(stream_id: int, position: int) -> DamagedDataError:
    return DamagedDataError(f"the bytes of stream {stream_id} at {position} are missing in the database")


def _answering(work: Any, futures: Sequence[asyncio.Future[Any]]) -> None:
    """Run work that answers futures. Its error is the answer of all that it did not answer."""
    task = asyncio.ensure_future(work)
    _running.add(task)

    def ended(task: asyncio.Future[Any]) -> None:
        _running.discard(task)
        error = None if task.cancelled() else task.exception()
        for future in futures:
            if future.done():
                continue
            if error is None:
                future.cancel()
            else:
                future.set_exception(error)

    task.add_done_callback(ended)


_running: set[asyncio.Future[Any]] = set()  # the loop refers to them only weakly


def _decoded(row: Sequence[Any]) -> StreamState:
    state = decode_state(row[0], row[3])
    if encode_name(state.path) != row[1] or state.version != row[2]:
        raise DamagedDataError(f"the row of stream {state.id} does not have the path and version of its state")
    return state


def _with_producers(row: Sequence[Any]) -> StreamState:
    state = _decoded(row)
    numbers, names, hashes, epochs = row[4:8]
    if names:
        state.producers = {
            decode_name(name): ProducerState(epoch, seq, at_ms)
            for name, epoch, seq, at_ms in zip(names, *numbers, strict=True)
        }
    if hashes:
        state.expired_producers = dict(zip(hashes, epochs, strict=True))
    return state


def _document(row: Sequence[Any]) -> Document:
    document = Document(decode_name(row[0]), row[3], row[1])
    if version_of(document) != row[2]:
        raise DamagedDataError(f"the document {document.key!r} is damaged in the database")
    return document


def _past(prefix: bytes) -> bytes | None:
    """The smallest name that sorts after all with a prefix; None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None
