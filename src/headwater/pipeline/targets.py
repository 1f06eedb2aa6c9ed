"""The targets of `publish`: a state stream with an entity type, or a table of the server."""

from __future__ import annotations

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.client import Client
from headwater.errors import HeadwaterError, OptionError, ServerError, StreamGoneError, StreamNotFoundError
from headwater.spark.options import write_options
from headwater.spark.positions import incarnation


class Identity(msgspec.Struct, frozen=True):
    """The identity of a target, which changes when it is deleted and created again, as far as the server shows it."""

    incarnation: str | None  # unique on one server
    created_at: str | None

    def is_other_than(self, other: Identity) -> bool:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return any(None not in pair and pair[0] != pair[1] for pair in pairs)

    def is_surely(self, other: Identity) -> bool:
        return self == other and self.created_at is not None


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A target: a state stream with an entity type, or a table."""

    url: str
    type: str | None = None
    to: str | None = None
    to_table: str | None = None
    token: str | None = None

    def check(self) -> None:
        if (self.to is None) == (self.to_table is None):
            raise OptionError("set one target: a stream (to), or a table of the server (to_table)")
        if (self.type is None) != (self.to is None):
            raise OptionError(
                "to needs type, the type of the entities in the state stream; to_table must not have a type"
            )

    @property
    def name(self) -> str:
        return f"the stream {self.to}" if self.to is not None else f"the table {self.to_table}"

    def write(self, changes: DataFrame, job: str, number: int) -> None:
        """Send rows of `key`, `value` (null for a delete) and `is_new` (null: unknown), once for this number."""
        options = {**self._connection(), "writeId": job, "writeVersion": str(number)}
        kind = "stream-state" if self.to is not None else "stp"
        options |= {"stream": self.to} if self.to is not None else {"table": self.to_table or ""}
        self._rows(changes).write.format(kind).options(**options).mode("append").save()

    def _rows(self, changes: DataFrame) -> DataFrame:
        """The changes with the columns of the sink."""
        if self.to is None:
            return changes.selectExpr("key", "value AS record")
        operation = "CASE WHEN value IS NULL THEN 'delete' WHEN is_new THEN 'insert' WHEN NOT is_new THEN 'update'"
        named = F.expr(f"{operation} ELSE 'upsert' END").alias("operation")
        return changes.select(F.lit(self.type).alias("type"), "key", named, "value")

    def _connection(self) -> dict[str, str]:
        return {"url": self.url, **({} if self.token is None else {"token": self.token})}

    def identity(self) -> Identity | None:
        """The identity of the target; None if it does not exist."""
        with write_options(self._connection()).connection.open() as client:
            try:
                if self.to is None:
                    client.table(self.to_table or "").info()
                    return Identity(None, self._created_at(client))
                return Identity(incarnation(client.stream(self.to).head().tail_offset), self._created_at(client))
            except (StreamNotFoundError, StreamGoneError):
                return None

    def _created_at(self, client: Client) -> str | None:
        """The time of creation; None if the server does not list its streams, or not for this token."""
        try:
            if self.to is None:
                name = self.to_table or ""
                return next((one.created_at for one in client.tables(name, page_size=1) if one.name == name), None)
            path = self.to.strip("/")
            return next((one.created_at for one in client.list(path, page_size=1) if one.path == path), None)
        except HeadwaterError as error:
            if error.retryable or isinstance(error, ServerError):
                raise
            return None
