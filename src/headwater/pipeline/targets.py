"""The targets of `publish`: a state stream with an entity type, or a table of the server."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from typing import TypeVar

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.client import Client, StreamInfo, Table
from headwater.errors import (
    DataLossError,
    HeadwaterError,
    InvalidOffsetError,
    OffsetGoneError,
    OptionError,
    ProtocolError,
    RequestError,
    ServerError,
    StreamGoneError,
    StreamNotFoundError,
    UnauthorizedError,
)
from headwater.pipeline.connecting import check_server, format_options
from headwater.pipeline.options import TargetOptions
from headwater.positions import incarnation, is_original
from headwater.protocol.tables.rows import Row
from headwater.spark.options import write_options
from headwater.spark.tables.places import RowPlace, from_json, place_after, to_json

T = TypeVar("T")
_WAY_OUT = "start with a new checkpoint, which publishes all rows again"


class TargetIdentity(msgspec.Struct, frozen=True):
    """The identity of a target, which changes when it is deleted and created again, as far as the server shows it."""

    incarnation: str | None  # unique on one server
    created_at: str | None

    def is_other_than(self, other: TargetIdentity) -> bool:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return any(None not in pair and pair[0] != pair[1] for pair in pairs)

    def is_surely(self, other: TargetIdentity) -> bool:
        return self == other and self.created_at is not None


class PublishTarget(msgspec.Struct, frozen=True):
    """A target: a state stream with an entity type, or a table."""

    options: TargetOptions

    def __repr__(self) -> str:
        return f"Target({self.name!r} of {self.options.url!r})"

    def check(self) -> None:
        check_server(self.options)
        if (self.to is None) == (self.options.to_table is None):
            raise OptionError("set one target: a stream (to), or a table of the server (to_table)")
        if (self.options.type is None) != (self.to is None):
            raise OptionError(
                "to needs type, the type of the entities in the state stream; to_table must not have a type"
            )

    @property
    def name(self) -> str:
        return self.options.target

    @property
    def to(self) -> str | None:
        return self.options.to

    @property
    def table(self) -> str:
        return self.options.to_table or ""

    def write(self, changes: DataFrame, job: str, number: int) -> None:
        """Send rows of `key`, `value` (null for a delete) and `is_new` (null: unknown), once for this number."""
        options = {**self._connection(), "writeId": job, "writeVersion": str(number)}
        kind = "stream-state" if self.to is not None else "stp"
        options |= {"stream": self.to} if self.to is not None else {"table": self.table}
        self._rows(changes).write.format(kind).options(**options).mode("append").save()

    def _rows(self, changes: DataFrame) -> DataFrame:
        """The changes with the columns of the sink."""
        if self.to is None:
            return changes.selectExpr("key", "value AS record")
        operation = "CASE WHEN value IS NULL THEN 'delete' WHEN is_new THEN 'insert' WHEN NOT is_new THEN 'update'"
        named = F.expr(f"{operation} ELSE 'upsert' END").alias("operation")
        return changes.select(F.lit(self.options.type).alias("type"), "key", named, "value")

    def _connection(self) -> dict[str, str]:
        return format_options(self.options)

    def identity(self) -> TargetIdentity | None:
        """The identity of the target; None if it does not exist."""
        with self._open() as client:
            try:
                if self.to is None:
                    client.table(self.table).info()
                    return TargetIdentity(None, self._created_at(client))
                tail, listed = client.stream(self.to).head().tail_offset, self._listed(client)
                first = listed.first_offset if listed is not None else None  # a restore does not change it
                life = incarnation(first or tail) if first is None or is_original(first) else None  # it was trimmed
                return TargetIdentity(life, listed.created_at if listed is not None else None)
            except (StreamNotFoundError, StreamGoneError):
                return None

    def end(self) -> str | None:
        """The current end of the target, as text for `lacks`; None if it is empty."""
        with self._open() as client:
            if self.to is not None:
                return client.stream(self.to).head().tail_offset
            table = client.table(self.table)
            row = _row(table, table.info().last_seqno or 0)
            return None if row is None else json.dumps(to_json(place_after(row)))

    def lacks(self, end: str) -> str | None:
        """Why the target does not have its data up to an earlier end any more; None if it has."""
        with self._open() as client:
            if self.to is None:
                return _lacks_row(client.table(self.table), from_json(json.loads(end)))
            try:
                client.stream(self.to).splits(offset=end, parts=1)
            except (OffsetGoneError, InvalidOffsetError) as error:
                return str(error)
            except (RequestError, ProtocolError) as error:
                if error.retryable or isinstance(error, UnauthorizedError):
                    raise
            return None  # also if the server cannot tell

    def check_kept(self, sent_to: TargetIdentity, end: str | None) -> TargetIdentity:
        """Check that the target is the one that rows were sent to, and has its data up to an earlier end.

        Later rows only change earlier ones, so a target that lacks some of them would be wrong. Returns its identity.
        """
        now = self.identity()
        if now is None or now.is_other_than(sent_to):
            again = "was deleted and created again, or is on another server"
            message = f"{self.name}, the target, {'does not exist any more' if now is None else again}"
            raise DataLossError(f"{message}; {_WAY_OUT}")
        if end is not None and (why := self.lacks(end)) is not None:
            message = f"{self.name}, the target, lacks rows that were published, after a restore of its server"
            raise DataLossError(f"{message} ({why}); {_WAY_OUT}")
        return now

    def _open(self) -> Client:
        return write_options(self._connection()).open()

    def _created_at(self, client: Client) -> str | None:
        """The time of creation of a table; None if the server does not list its tables, or not for this token."""
        name = self.table
        tables = _if_listed(lambda: list(islice(client.tables(name, page_size=1), 1)))
        return next((one.created_at for one in tables or () if one.name == name), None)

    def _listed(self, client: Client) -> StreamInfo | None:
        """The stream in the list of the server; None if it does not list its streams, or not for this token."""
        path = (self.to or "").strip("/")
        streams = _if_listed(lambda: list(islice(client.list(path, page_size=1), 1)))
        return next((one for one in streams or () if one.path == path), None)


def _if_listed(find: Callable[[], list[T]]) -> list[T] | None:
    try:
        return find()
    except HeadwaterError as error:
        if error.retryable or isinstance(error, ServerError):
            raise
        return None


def _row(table: Table, seqno: int) -> Row | None:
    if seqno < 1:
        return None
    with table.rows(since_id=seqno - 1, until_id=seqno) as reader:
        return next(iter(reader), None)


def _lacks_row(table: Table, place: RowPlace) -> str | None:
    info = table.info()
    if (info.last_seqno or 0) < place.seqno:
        return f"it ends at row {info.last_seqno or 0}"
    row = _row(table, place.seqno)
    if row is None:
        return f"it has no row {place.seqno}" if info.gapless else None  # it may have been compacted away
    return None if place_after(row) == place else f"row {place.seqno} is another one"
