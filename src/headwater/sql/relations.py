"""Which stream, state, table or file a name in a query means, and the view that stands for it.

A name may be the path or glob of a stream, the name of a table, or a local file. If it is more than one of them, the
query has to say which: `stream('x')`, `table('x')`, or `'./x'` for a file.
"""

from __future__ import annotations

import contextlib
import difflib
import glob as local
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from headwater import limits
from headwater.client import Client, Stream, StreamInfo, Table
from headwater.client.columns.texts import texts
from headwater.errors import (
    ForbiddenError,
    HeadwaterError,
    InvalidPathError,
    MissingExtraError,
    ProtocolError,
    SqlError,
    StreamGoneError,
    StreamNotFoundError,
)
from headwater.log.content import ContentKind
from headwater.positions import BEGINNING
from headwater.protocol.globs import fixed_part, glob
from headwater.protocol.tables.rows import Row
from headwater.sql import fields
from headwater.sql.references import FunctionCall, References, hidden_names, quoted_name
from headwater.sql.sources import (
    BODY,
    ArrowSource,
    Direct,
    StreamPart,
    array_of,
    decoded,
    list_of,
    sample,
    stream_source,
    text_of,
)
from headwater.state import Collection, StreamDB, define_state

_GLOB = re.compile(r"[*?\[]")
_OF_FILES = ("./", "../", "/", "~")
_OPTIONS = {"stream": ("since", "until", "types"), "table": ("history",)}
_NO_COLUMN = "_no_column"  # of a view of which a query uses no column, but counts rows
_JSON = "json"  # the schema of a table whose records are JSON


class Relation(msgspec.Struct, frozen=True):
    """What stands for a name: Arrow data or a Delta table, and the text of a view over it."""

    name: str
    source: Any
    select: str  # with {} for the registered name
    streams: tuple[tuple[str, str], ...] = ()  # that it reads, and the offsets up to which it reads them
    tables: tuple[tuple[str, int], ...] = ()  # that it reads, and the SeqNos of their last rows
    glob: str | None = None  # if it reads all streams that match
    columns: tuple[str, ...] = ()  # that a query can name, for error messages


class Relations:
    """Finds what the names of one query mean."""

    def __init__(
        self, client: Client, connection: duckdb.DuckDBPyConnection, references: References, *, is_direct: bool
    ) -> None:
        self._client = client
        self._connection = connection
        self._references = references
        self._hidden = hidden_names(references.columns, references.text)
        self._direct = Direct(client) if is_direct else None
        self._forbidden: dict[str, ForbiddenError] = {}  # for names that may also be those of files or globs
        self._tails: dict[str, StreamInfo] = {}  # so that all references to a stream end at the same offset

    def named(self, name: str) -> Relation | None:
        """What a name means; None if DuckDB knows it: a file, or a table of its own."""
        if "://" in name or name.startswith(_OF_FILES):
            return self._delta(name, name) if _is_delta(name) else None
        candidates: dict[str, Callable[[], Relation | None]] = {}
        if parts := self._streams(name):
            candidates[f"stream('{name}')"] = lambda: self._of_streams(name, name, parts, {})
        elif (table := self._table(name)) is not None:
            candidates[f"table('{name}')"] = lambda: self._of_table(name, table, is_history=False)
        if parts and self._table(name) is not None:
            candidates[f"table('{name}')"] = lambda: None
        if _is_delta(name):
            candidates[f"'./{name}'"] = lambda: self._delta(name, name)
        elif local.glob(name):
            candidates[f"'./{name}'"] = lambda: None
        if len(candidates) > 1:
            raise SqlError(f"{name!r} has several meanings; write {' or '.join(candidates)}")
        for make in candidates.values():
            return make()
        if not self._is_of_duckdb(name):
            raise self._missing(name, self._unknown(name))
        return None

    def called(self, call: FunctionCall, name: str) -> Relation:
        """What a call of one of our functions stands for, under the name of its view."""
        named = dict(call.named)
        if call.function == "state":
            path, kind = _arguments(call, ("path", "type"), ("at",))
            return self._of_state(name, path, kind, named.get("at"))
        (first,) = _arguments(call, ("name",), _OPTIONS.get(call.function, ()))
        if call.function == "delta":
            return self._delta(name, first)
        if call.function == "table":
            table = self._table(first)
            if table is None:
                raise self._missing(first, f"there is no table {first!r}{self._similar(first, self._table_names())}")
            return self._of_table(name, table, is_history=named.get("history") is True)
        parts = self._streams(first)
        if not parts:
            raise self._missing(first, f"there is no stream {first!r}{self._similar(first, self._paths(first))}")
        return self._of_streams(name, first, parts, named)

    # Streams

    def _streams(self, name: str) -> list[StreamPart]:
        """The streams of a path or glob, each up to its end now. A path may have the characters of a glob."""
        info = self._head(name)
        if info is not None:
            return [self._part(info)]
        if _GLOB.search(name) is None:
            return []
        try:
            matches = glob(name).fullmatch
        except ValueError:
            return []
        infos = (info for info in self._client.list(fixed_part(name)) if matches(info.path))
        return [self._part(self._tails.setdefault(info.path, info)) for info in infos]

    def _head(self, path: str) -> StreamInfo | None:
        if path in self._tails:
            return self._tails[path]
        try:
            info = self._client.stream(path.strip("/")).head()
        except (StreamNotFoundError, StreamGoneError, InvalidPathError, ValueError):
            return None
        except ForbiddenError as error:
            self._forbidden[path] = error
            return None
        return self._tails.setdefault(path, info)

    def _part(self, info: StreamInfo) -> StreamPart:
        stream = self._client.stream(info.path, content_type=info.content_type)
        return StreamPart(stream, info.path, info.content_type, BEGINNING, info.tail_offset)

    def _of_streams(self, name: str, reference: str, parts: list[StreamPart], named: Mapping[str, Any]) -> Relation:
        """The messages of the streams of a path or glob."""
        kinds = {part.kind: part.path for part in parts}
        if len(kinds) > 1:
            several = " and ".join(f"{path!r} ({kind.name.lower()})" for kind, path in kinds.items())
            raise SqlError(f"{name!r} matches streams of several kinds, {several}; name those of one kind")
        streams = tuple((part.path, part.until) for part in parts)
        pattern = None if parts[0].path == reference.strip("/") else reference
        parts = [_within(part, named) for part in parts]
        source: ArrowSource
        if ContentKind.JSON not in kinds:
            source = stream_source(parts, self._hidden, self._direct)
            return Relation(
                name,
                source,
                _select(source, [], [("_value", "value"), *((one, one) for one in self._hidden)]),
                streams,
                glob=pattern,
            )
        types: dict[str, str | None] = {}
        for part in _spread(parts, limits.SQL_SAMPLED_STREAMS):
            fields.merged(types, fields.sampled_types(sample(part, limits.SQL_SAMPLE_MESSAGES)))
        given = self._declared(named.get("types"))
        types |= given
        known = fields.as_columns(types, given=given)
        used = [field for field in known if self._references.uses(field.column)]
        if len(used) > limits.SQL_FIELDS_MAX:
            raise SqlError(f"{name!r} has {len(used):,} fields; name those that you need, or use _value->>'field'")
        hidden = self._hidden if types else list(dict.fromkeys([*self._hidden, "_value"]))
        source = stream_source(parts, hidden, self._direct)
        own = {field.column.lower() for field in used}
        beside = [(column, column) for column in self._hidden if column not in own]
        if not types:
            beside.append(("_value", "value"))
        return Relation(
            name, source, _select(source, used, beside), streams, glob=pattern, columns=_names(known) or ("value",)
        )

    def _declared(self, text: Any) -> dict[str, str]:
        """Types that the query gives: `'total DOUBLE, at TIMESTAMPTZ'`."""
        if text is None:
            return {}
        try:
            kind = self._connection.sql(f"SELECT NULL::STRUCT({text})").types[0]
            return {name: str(child) for name, child in kind.children}
        except duckdb.Error:
            raise SqlError(
                f"types are names and types, such as 'total DOUBLE, at TIMESTAMPTZ', got {text!r:.80}"
            ) from None

    # States

    def _of_state(self, name: str, path: str, kind: str, at: Any) -> Relation:
        parts = self._streams(path)
        if len(parts) != 1 or parts[0].path != path.strip("/"):
            raise self._missing(path, f"there is no stream {path!r}{self._similar(path, self._paths(path))}")
        (part,) = parts
        if part.kind is not ContentKind.JSON:
            raise SqlError(f"{path!r} is a stream of {part.content_type}; state events are JSON")
        place = part.until if at is None else _moment(at) or str(at)
        entities = Collection(kind, msgspec.Raw)
        definition = define_state({"entities": entities})
        with StreamDB(part.stream, definition, live=False, at=place) as db:
            counts = db.preload()
            rows = db.table(entities).rows()
        if not rows and counts.ignored and not counts.events - counts.ignored - counts.controls:
            raise SqlError(f"{path!r} has no entities of type {kind!r}; the name of a type is case-sensitive")
        values = [bytes(text) for text in rows.values()]
        return self._of_values(name, values, {"key": pa.array(rows, pa.string())}, "value", ((part.path, part.until),))

    def _of_values(
        self,
        name: str,
        values: Sequence[bytes],
        columns: Mapping[str, pa.Array],
        alone: str,
        streams: tuple[tuple[str, str], ...] = (),
        tables: tuple[tuple[str, int], ...] = (),
    ) -> Relation:
        """JSON values that are in memory, with columns beside them. All of them are looked at for their types."""
        column = texts([msgspec.Raw(value) for value in values])
        types: dict[str, str | None] = {}
        for first in range(0, len(values), limits.SQL_BODY_ROWS):
            fields.merged(types, fields.sampled_types(decoded(column[first : first + limits.SQL_BODY_ROWS])))
        is_object = bool(types)
        known = fields.as_columns(types, list(columns))
        used = [field for field in known if self._references.uses(field.column)]
        listed = {**columns, **({} if is_object and "_value" not in self._hidden else {"_value": column})}
        schema = pa.schema([(BODY, pa.string()), *((one, pa.list_(array.type)) for one, array in listed.items())])

        def batches() -> Iterator[pa.RecordBatch]:
            for first in range(0, len(values), limits.SQL_BODY_ROWS):
                rows = slice(first, first + limits.SQL_BODY_ROWS)
                arrays = [text_of(array_of(column[rows])), *(list_of(array[rows]) for array in listed.values())]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

        shown = [(one, one) for one in columns]
        if "_value" in listed:
            shown += [("_value", alone)] * (not is_object) + [("_value", "_value")] * ("_value" in self._hidden)
        source = ArrowSource(schema, batches)
        return Relation(
            name,
            source,
            _select(source, used, shown, is_first=True),
            streams,
            tables,
            columns=(*columns, *_names(known)),
        )

    # Tables

    def _table(self, name: str) -> Table | None:
        try:
            table = self._client.table(name)
            table.info()
        except (StreamNotFoundError, StreamGoneError, InvalidPathError, ValueError):
            return None
        except ForbiddenError as error:
            self._forbidden.setdefault(name, error)
            return None
        except HeadwaterError as error:
            if error.status in (404, 405, 501):  # a server without tables
                return None
            raise
        return table

    def _of_table(self, name: str, table: Table, *, is_history: bool) -> Relation:
        info = table.info()
        last = info.last_seqno or 0
        rows = _history(table, last) if is_history else list(table.active().values())
        columns: dict[str, pa.Array] = {"key": pa.array([row.key for row in rows], pa.string())}
        beside = {"seqno": pa.array([row.seqno for row in rows], pa.int64())}
        beside["timestamp"] = pa.array([row.timestamp for row in rows], pa.string())
        if is_history:
            beside["action"] = pa.array([row.action for row in rows], pa.string())
        read = ((info.name, last),)
        if info.schema != _JSON:
            columns["record"] = pa.array([row.record for row in rows], pa.string())
            table_source = pa.table({**columns, **beside})
            return Relation(name, table_source, _timed("SELECT * FROM {}"), (), read)
        values = [row.record.encode() or b"null" for row in rows]
        made = self._of_values(name, values, {**columns, **beside}, "record", (), read)
        return msgspec.structs.replace(made, select=_timed(made.select))

    # Files

    def _delta(self, name: str, path: str) -> Relation:
        try:
            from deltalake import DeltaTable
            from deltalake.exceptions import DeltaError, TableNotFoundError
        except ImportError:
            raise MissingExtraError("Delta tables need the package deltalake, which is in the extra spark") from None
        try:
            dataset = DeltaTable(os.path.expanduser(path)).to_pyarrow_dataset()
        except TableNotFoundError:
            raise SqlError(f"there is no Delta table at {path!r}") from None
        except (DeltaError, ImportError, OSError, ValueError) as error:
            raise SqlError(f"the Delta table {path!r} cannot be read: {error}") from None
        return Relation(name, dataset, "SELECT * FROM {}")

    # Names that are not known

    def _is_of_duckdb(self, name: str) -> bool:
        query = "SELECT 1 FROM duckdb_views() WHERE view_name = ?"
        return self._connection.execute(query, [name.lower()]).fetchall() != []

    def _unknown(self, name: str) -> str:
        known = [*self._paths(name), *self._table_names()]
        return f"there is no stream, table or file {name!r}{self._similar(name, known)}"

    def _missing(self, name: str, text: str) -> HeadwaterError:
        """The error for a name that means nothing, or nothing that the token may read."""
        forbidden = None if _GLOB.search(name) else self._forbidden.get(name)
        return forbidden or SqlError(text)

    def _paths(self, name: str) -> list[str]:
        streams = self._client.list(fixed_part(name).partition("/")[0][:1])
        return [info.path for info in itertools.islice(streams, limits.SQL_SUGGESTED_PATHS)]

    def _table_names(self) -> list[str]:
        try:
            return [info.name for info in itertools.islice(self._client.tables(), limits.SQL_SUGGESTED_PATHS)]
        except HeadwaterError:
            return []

    def _similar(self, name: str, known: Sequence[str]) -> str:
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        return f"; did you mean {close[0]!r}?" if close else "; headwater list shows the streams"


def _select(
    source: ArrowSource,
    used: Sequence[fields.SampledField],
    shown: Sequence[tuple[str, str]],
    *,
    is_first: bool = False,
) -> str:
    """The text of a view: lists become rows, and fields get their types. `shown` are columns of the source and their
    names in the view; with `is_first` they are before the fields."""
    lists, columns = fields.parsed(used, BODY)
    inner = [f"unnest({text}) AS u{number}" for number, text in enumerate(lists)]
    listed = [field.name for field in source.schema if pa.types.is_list(field.type)]
    inner += [f"unnest({quoted_name(name)}) AS {quoted_name(name)}" for name in listed]
    if not inner:
        inner.append(f"unnest(range(json_array_length({BODY})::BIGINT)) AS {_NO_COLUMN}")
    inner += ["_stream"] if "_stream" in source.schema.names else []
    beside = [f"{quoted_name(name)} AS {quoted_name(column)}" for name, column in shown]
    outer = [*beside, *columns] if is_first else [*columns, *beside]
    return f"SELECT {', '.join(outer) or _NO_COLUMN} FROM (SELECT {', '.join(inner)} FROM {{}})"  # noqa: S608  # quoted


def _history(table: Table, last: int) -> list[Row]:
    return table.rows(until_id=last).all() if last else []


def _names(known: Sequence[fields.SampledField]) -> tuple[str, ...]:
    return tuple(field.column for field in known)


def _timed(select: str) -> str:
    """Timestamps of rows are informative: an invalid one is null."""
    return f'SELECT * REPLACE (TRY_CAST("timestamp" AS TIMESTAMPTZ) AS "timestamp") FROM ({select})'  # noqa: S608  # ours


def _within(part: StreamPart, named: Mapping[str, Any]) -> StreamPart:
    """A part between two times or offsets."""
    offset, until = (_offset(part.stream, named.get(name)) for name in ("since", "until"))
    until = part.until if until is None else min(until, part.until)
    offset = offset or part.offset
    return msgspec.structs.replace(part, offset=min(offset, until), until=until)


def _offset(stream: Stream, text: Any) -> str | None:
    if text is None:
        return None
    moment = _moment(text)
    if moment is not None:
        return stream.offset_at(moment)
    if text != BEGINNING:
        with contextlib.suppress(ProtocolError):  # a server without record times
            next(iter(stream.records(offset=text, page=1)), None)  # an error if it is no offset of this stream
    return str(text)


_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_OFFSET = re.compile(r"[0-9]+_[0-9]+|-1")


def _moment(text: Any) -> datetime | None:
    """A time: `'1h'` before now, or a timestamp; None for an offset."""
    text = str(text)
    if _OFFSET.fullmatch(text):
        return None
    try:
        if span := _SPAN.fullmatch(text):
            return datetime.now(UTC) - timedelta(**{_UNITS[span[2]]: float(span[1])})
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise SqlError(
            "a time is 30s, 15m, 1h or 2d ago, a timestamp such as 2030-01-01T00:00:00Z, or an offset, "
            f"got {text[:80]!r}"
        ) from None


def _arguments(call: FunctionCall, names: Sequence[str], options: Sequence[str]) -> tuple[str, ...]:
    usage = (
        f"{call.function}({', '.join(repr(name.upper()) for name in names)}{''.join(f', {o} := …' for o in options)})"
    )
    is_text = all(isinstance(one, str) and one for one in call.arguments)
    if len(call.arguments) != len(names) or not is_text or {name for name, _ in call.named} - set(options):
        raise SqlError(f"{call} is not right; write {usage}")
    return call.arguments


def _spread(parts: Sequence[StreamPart], most: int) -> list[StreamPart]:
    """Some of the parts, from all over the list."""
    if len(parts) <= most:
        return list(parts)
    return [parts[number * (len(parts) - 1) // (most - 1)] for number in range(most)]


def _is_delta(path: str) -> bool:
    return (Path(os.path.expanduser(path)) / "_delta_log").is_dir()
