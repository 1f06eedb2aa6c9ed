"""The options of the format `stp`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

import msgspec

from headwater import limits
from headwater.errors import InvalidHeaderError, InvalidPathError, OptionError
from headwater.protocol.streams.paths import STREAM_ROOT, parse_path, quote_path
from headwater.protocol.tables.content_type import MEDIA_TYPE, parse_table_type, quoted
from headwater.protocol.tables.paths import TABLE_ROOT, check_name, url_fault
from headwater.protocol.tables.rows import is_seqno
from headwater.spark.connection import CONNECTION, ConnectionOptions, connection_options
from headwater.spark.given import GivenOptions
from headwater.spark.options import EARLIEST, LATEST, WRITING, WriteOptions, writing_to


class OptionUse(enum.Enum):
    """The use of the options: some are only for reading, writing, batch or streaming."""

    SCHEMA = "the schema"
    BATCH = "batch reads"
    STREAM = "streaming queries"


class TableReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    connection: ConnectionOptions
    table: str  # a name on the server, or a whole SURL
    starting: str | int = EARLIEST
    ending: str | int = LATEST
    active: bool = False  # only the rows of live keys
    rows_max: int | None = None
    partitions_min: int = 1
    partition_rows: int = limits.SPARK_PARTITION_ROWS
    fail_on_data_loss: bool = True
    wait_s: float = limits.SPARK_WAIT_S


_READ = (
    *CONNECTION,
    "table",
    "startingSeqNo",
    "endingSeqNo",
    "view",
    "maxRowsPerTrigger",
    "minPartitions",
    "maxPartitionRows",
    "failOnDataLoss",
    "longPollTimeout",
)
_WRITE = (*CONNECTION, "table", "schema", "version", "escape", *WRITING)
_ONLY_FOR = {
    "endingSeqNo": OptionUse.BATCH,
    "view": OptionUse.BATCH,
    "maxRowsPerTrigger": OptionUse.STREAM,
    "longPollTimeout": OptionUse.STREAM,
}
_MEANT = {
    "endingoffsets": "endingSeqNo",
    "endingversion": "endingSeqNo",
    "maxbytespertrigger": "maxRowsPerTrigger",
    "maxoffsetspertrigger": "maxRowsPerTrigger",
    "maxpartitionbytes": "maxPartitionRows",
    "maxrecordspertrigger": "maxRowsPerTrigger",
    "name": "table",
    "numpartitions": "minPartitions",
    "path": "url",
    "since_id": "startingSeqNo",
    "startingoffsets": "startingSeqNo",
    "startingversion": "startingSeqNo",
    "stream": "table",
    "streams": "table",
    "subscribe": "table",
    "surl": "url",
    "topic": "table",
    "until_id": "endingSeqNo",
}
_MEANT_FOR_WRITES = {
    "contenttype": "schema and version",
    "name": "table",
    "path": "url",
    "stream": "table",
    "surl": "url",
    "topic": "table",
    "txnappid": "writeId",
    "txnversion": "writeVersion",
}


def table_read_options(given: Mapping[str, str], use: OptionUse) -> TableReadOptions:
    found = GivenOptions(given, _READ)
    found.refuse_unknown(_READ, _MEANT)
    for name, only in _ONLY_FOR.items():
        if found.text(name) is not None and use not in (only, OptionUse.SCHEMA):
            raise OptionError(f"{name} is for {only.value}; remove it")
    root, table = _addressed(found.required("url"), found.text("table"))
    active = found.choice("view", ("all", "active")) == "active"
    if active and (found.text("startingSeqNo") or found.text("endingSeqNo")):
        raise OptionError("view=active reads the current rows: remove startingSeqNo and endingSeqNo")
    return TableReadOptions(
        connection=connection_options(root, found),
        table=table,
        starting=_seqno("startingSeqNo", found.text("startingSeqNo") or EARLIEST, (EARLIEST, LATEST)),
        ending=_seqno("endingSeqNo", found.text("endingSeqNo") or LATEST, (LATEST,)),
        active=active,
        rows_max=found.number("maxRowsPerTrigger", int, None),
        partitions_min=found.number("minPartitions", int, 1),
        partition_rows=found.number("maxPartitionRows", int, limits.SPARK_PARTITION_ROWS),
        fail_on_data_loss=found.flag("failOnDataLoss", default=True),
        wait_s=found.number("longPollTimeout", float, limits.SPARK_WAIT_S),
    )


def table_write_options(given: Mapping[str, str]) -> WriteOptions:
    found = GivenOptions(given, _WRITE)
    found.refuse_unknown(_WRITE, _MEANT_FOR_WRITES)
    root, table = _addressed(found.required("url"), found.text("table"))
    if table.startswith(("http://", "https://")):
        below = table.partition(TABLE_ROOT)[2]
        if not below or urlsplit(table).query:
            raise OptionError(f"{table} is not a table of a Headwater server; other tables cannot be written")
        table = _checked_name(unquote(below))
    return writing_to(table, _wanted_type(found), root, found, is_table=True)


def _wanted_type(found: GivenOptions) -> str | None:
    """The properties of the table's type that the options require. An existing table may have any others."""
    parts = [MEDIA_TYPE]
    if (schema := found.text("schema")) is not None:
        parts.append(f"schema={quoted(schema)}")
    if (version := found.text("version")) is not None:
        parts.append(f"version={quoted(version)}")
    if (escape := found.choice("escape", ("none", "backslash"))) is not None:
        parts.append(f"escape={escape}")
    wanted = "; ".join(parts)
    try:
        parse_table_type(wanted)
    except InvalidHeaderError as error:
        raise OptionError(error.detail) from None
    return wanted if len(parts) > 1 else None


def _addressed(url: str, name: str | None) -> tuple[str, str]:
    """The root URL of the server, and the table: its name there, or a SURL."""
    if fault := url_fault(url):
        shown = url[:200] if "@" not in url else "one with credentials in it; use the option token"
        raise OptionError(f"url must be a SURL, or that of a server with the option table; {fault}: {shown}")
    parts = urlsplit(url)
    server, found, below = f"{url.rstrip('/')}/".partition(TABLE_ROOT)
    if found and below:
        if name is not None:
            raise OptionError(f"the url is already that of a table: remove the option table, {name!r}")
        return server + STREAM_ROOT, url.rstrip("/")
    if name is not None:
        if parts.query:
            raise OptionError(
                "the url of a server must not have a query; set url to the SURL and remove the option table"
            )
        return (server + STREAM_ROOT if found else url), _checked_name(name)
    if found or (f"{parts.path.rstrip('/')}/" in ("/", STREAM_ROOT) and not parts.query):
        raise OptionError("set the option table, or set url to the SURL of the table")
    return f"{parts.scheme}://{parts.netloc}", url


def _checked_name(name: str) -> str:
    name = name.strip("/")
    try:
        parse_path(quote_path(name))
        return check_name(name)
    except InvalidPathError as error:
        raise OptionError(f"{name[:200]!r} is not the name of a table: {error.detail}") from None


def _seqno(name: str, text: str, words: tuple[str, ...]) -> str | int:
    if text.lower() in words:
        return text.lower()
    if not is_seqno(text) or text == "0":
        raise OptionError(f"{name} must be {' or '.join(words)}, or a SeqNo, got {text[:80]!r}")
    return int(text)
