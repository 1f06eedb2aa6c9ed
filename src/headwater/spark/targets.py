"""The targets of sinks: streams and tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from headwater import limits
from headwater.client import Client, ProducerTuple, SourceRange, StreamInfo
from headwater.errors import ContentTypeError, OptionError, SchemaError, StreamClosedError, StreamNotFoundError
from headwater.log.content import ContentKind, kind_of
from headwater.protocol.tables.content_type import (
    check_changes_type,
    format_table_type,
    parse_answer_type,
    parse_table_type,
)
from headwater.spark.options import WriteOptions

_JSON = "application/json"


class SinkTarget(Protocol):
    def create(self) -> None: ...

    def bodies(self, rows: bytes) -> Iterator[bytes]:
        """Split a run of rows into appends. The same rows always give the same appends."""
        ...

    def append(self, body: bytes, producer: ProducerTuple) -> None: ...

    def compose(self, sources: list[SourceRange], producer: ProducerTuple) -> None:
        """Let the server append staged bodies."""
        ...


class StreamTarget:
    def __init__(self, client: Client, path: str, options: WriteOptions) -> None:
        self._content_type = options.content_type or _JSON
        self._stream = client.stream(path, content_type=self._content_type)
        self._options = options

    def create(self) -> None:
        made = self._options
        self._stream.create(content_type=self._content_type, ttl_s=made.target_ttl, expires_at=made.target_expires_at)

    def bodies(self, rows: bytes) -> Iterator[bytes]:
        yield b"[" + rows + b"]" if kind_of(self._content_type) is ContentKind.JSON else rows

    def append(self, body: bytes, producer: ProducerTuple) -> None:
        self._stream.append_body(body, producer=producer)

    def compose(self, sources: list[SourceRange], producer: ProducerTuple) -> None:
        self._stream.compose(sources, producer=producer)


class TableTarget:
    def __init__(self, client: Client, name: str, options: WriteOptions) -> None:
        self._type = parse_answer_type(options.content_type or "")
        self._table = client.table(name, table_type=self._type)
        self._options = options

    def create(self) -> None:
        self._table.create(
            schema=self._type.schema,
            version=self._type.version,
            escape=self._type.escape,
            ttl_s=self._options.target_ttl,
            expires_at=self._options.target_expires_at,
        )

    def bodies(self, rows: bytes) -> Iterator[bytes]:
        """A request also has a maximum number of changes, in addition to the size that limits a run."""
        if rows.count(b"\n") <= limits.CHANGES_MAX:
            yield rows
            return
        lines = rows.split(b"\n")[:-1]
        for first in range(0, len(lines), limits.CHANGES_MAX):
            yield b"\n".join(lines[first : first + limits.CHANGES_MAX]) + b"\n"

    def append(self, body: bytes, producer: ProducerTuple) -> None:
        self._table.append_body(body, producer=producer)

    def compose(self, sources: list[SourceRange], producer: ProducerTuple) -> None:
        self._table.compose(sources, producer=producer)


def open_target(client: Client, options: WriteOptions, name: str) -> SinkTarget:
    """Make the target with this name. Sends no request. `check_target_type` has found its content type."""
    return (TableTarget if options.is_table else StreamTarget)(client, name, options)


def check_target_type(client: Client, options: WriteOptions) -> str:
    """The content type of the target in the options, whether it exists or will be created. Creates nothing."""
    if options.target is None:
        return options.content_type or _JSON
    return _type_of_table(client, options) if options.is_table else _type_of_stream(client, options)


def make_target(client: Client, options: WriteOptions) -> None:
    """Create the target in the options if it does not exist, even if no rows are written."""
    if options.target is not None and options.create_target:
        try:
            client.table(options.target).info() if options.is_table else client.stream(options.target).head()
        except StreamNotFoundError:
            open_target(client, options, options.target).create()


def _type_of_stream(client: Client, options: WriteOptions) -> str:
    try:
        return check_stream(options, client.stream(options.target or "").head())
    except StreamNotFoundError:
        return check_stream(options, None)


def check_stream(options: WriteOptions, stream: StreamInfo | None) -> str:
    """The content type of a target stream; None if it does not exist."""
    if stream is None:
        _check_creatable(options)
        return options.content_type or _JSON
    if stream.closed:
        raise StreamClosedError(f"the target {options.target} is closed")
    if options.content_type is not None and kind_of(options.content_type) is not kind_of(stream.content_type):
        raise ContentTypeError(f"the target {options.target} is {stream.content_type}, not {options.content_type}")
    return stream.content_type


def _type_of_table(client: Client, options: WriteOptions) -> str:
    """Check the type of a target table. `options.content_type` has only the properties that the options require."""
    table = client.table(options.target or "")
    try:
        info = table.info()
    except StreamNotFoundError:
        _check_creatable(options)
        wanted = parse_table_type(options.content_type)
        return format_table_type(wanted)
    if info.closed:
        raise StreamClosedError(f"the target {options.target} is closed")
    if info.mirror:
        raise SchemaError(
            f"the target {options.target} is a mirror and accepts no rows; write to the table that it mirrors"
        )
    if table.table_type is None:
        raise RuntimeError("the type of the table is not known after a response")
    try:
        check_changes_type(options.content_type, table.table_type)
    except ContentTypeError:
        named = f"{format_table_type(table.table_type)}, but the options require {options.content_type}"
        raise OptionError(f"the target {options.target} is {named}") from None
    return format_table_type(table.table_type)


def _check_creatable(options: WriteOptions) -> None:
    if not options.create_target:
        raise StreamNotFoundError(f"the target {options.target} does not exist, and createTarget is false")


def appended_as(options: WriteOptions) -> ContentKind:
    return kind_of(options.content_type or _JSON)


def target_name(options: WriteOptions) -> str:
    """The target as text. A stream and a table of one name are two targets."""
    if options.target is None:
        return "the streams that a column names"
    return f"the {'table' if options.is_table else 'stream'} {options.target}"
