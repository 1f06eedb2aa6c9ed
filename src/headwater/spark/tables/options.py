"""The options of the format `stp`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from headwater import limits
from headwater.errors import InvalidHeaderError, InvalidPathError, OptionError
from headwater.options import about
from headwater.protocol.streams.paths import STREAM_ROOT, parse_path, quote_path
from headwater.protocol.tables.content_type import MEDIA_TYPE, parse_table_type, quoted
from headwater.protocol.tables.paths import TABLE_ROOT, check_name, url_fault
from headwater.protocol.tables.rows import is_seqno
from headwater.spark.connection import check_connection
from headwater.spark.options import EARLIEST, LATEST, Count, SourceOptions, WriteOptions, checked_writing
from headwater.spark.parsing import BATCH_READS, QUERIES, parse_options, set_options


def _seqno(*words: str) -> Callable[[str, str], str | int]:
    """A parser of one of the words, or a SeqNo."""

    def parse(name: str, text: str) -> str | int:
        if text.lower() in words:
            return text.lower()
        if not is_seqno(text) or text == "0":
            raise OptionError(f"{name} must be {' or '.join(words)}, or a SeqNo, got {text[:80]!r}")
        return int(text)

    return parse


class TableReadOptions(SourceOptions, frozen=True, kw_only=True):
    format_name: ClassVar[str] = "stp"
    meant: ClassVar[Mapping[str, str]] = {
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

    table: Annotated[
        str, about("The name of a table, if `url` is that of a Headwater server. Otherwise `url` is the SURL.")
    ] = ""  # after the check: a name on the server, or a whole SURL
    starting_seq_no: Annotated[
        str | int,
        about(
            "`earliest`, `latest`, or the SeqNo of the first row. Used at the first start of a query; later starts use"
            " the checkpoint.",
            parse=_seqno(EARLIEST, LATEST),
        ),
    ] = EARLIEST
    ending_seq_no: Annotated[
        str | int, about("`latest`, or the SeqNo of the last row.", only=BATCH_READS, parse=_seqno(LATEST))
    ] = LATEST
    view: Annotated[
        Literal["all", "active"],
        about("`active`: the last row of each key that is not deleted, read by one task.", only=BATCH_READS),
    ] = "all"
    max_rows_per_trigger: Annotated[
        Count | None,
        about("The most rows of a batch. If SeqNos may have gaps, the driver reads rows to count them.", only=QUERIES),
    ] = None
    max_partition_rows: Annotated[
        Count, about("The maximum number of rows that one task reads, if SeqNos have no gaps.")
    ] = limits.SPARK_PARTITION_ROWS

    @property
    def is_active(self) -> bool:
        """Whether only the rows of live keys are read."""
        return self.view == "active"


class TableWriteOptions(WriteOptions, frozen=True, kw_only=True):
    format_name: ClassVar[str] = "stp"
    is_table: ClassVar[bool] = True
    meant: ClassVar[Mapping[str, str]] = {
        "contenttype": "schema and version",
        "name": "table",
        "path": "url",
        "stream": "table",
        "surl": "url",
        "topic": "table",
        "txnappid": "writeId",
        "txnversion": "writeVersion",
    }

    target: Annotated[
        str | None, about("The name of a table, if `url` is that of the server and not the table's SURL.")
    ] = msgspec.field(default=None, name="table")
    schema: Annotated[
        str | None,
        about("Of a table that is created. If the table exists, it must have the same. Default: `text`."),
    ] = None
    version: Annotated[str | None, about("The same, of the schema. Default: 1.")] = None
    escape: Annotated[
        Literal["none", "backslash"] | None,
        about(
            "The same. Keys and records with tabs or newlines are refused, unless the table has `backslash`."
            " Default: `none`."
        ),
    ] = None


def table_read_options(texts: Mapping[str, str], *, bounded: bool | None) -> TableReadOptions:
    options = parse_options(TableReadOptions, texts, bounded=bounded)
    root, table = _addressed(options.url, options.table or None)
    if options.is_active and {"startingseqno", "endingseqno"} & set_options(texts).keys():
        raise OptionError("view=active reads the current rows: remove startingSeqNo and endingSeqNo")
    options = msgspec.structs.replace(options, url=root, table=table)
    check_connection(options)
    return options


def table_write_options(texts: Mapping[str, str]) -> TableWriteOptions:
    options = parse_options(TableWriteOptions, texts)
    root, table = _addressed(options.url, options.target)
    if table.startswith(("http://", "https://")):
        below = table.partition(TABLE_ROOT)[2]
        if not below or urlsplit(table).query:
            raise OptionError(f"{table} is not a table of a Headwater server; other tables cannot be written")
        table = _checked_name(unquote(below))
    options = msgspec.structs.replace(options, url=root, target=table, content_type=_wanted_type(options))
    return checked_writing(options, texts)


def _wanted_type(options: TableWriteOptions) -> str | None:
    """The properties of the table's type that the options require. An existing table may have any others."""
    wanted = {"schema": options.schema, "version": options.version}
    parts = [MEDIA_TYPE, *(f"{name}={quoted(text)}" for name, text in wanted.items() if text is not None)]
    if options.escape is not None:
        parts.append(f"escape={options.escape}")
    content_type = "; ".join(parts)
    try:
        parse_table_type(content_type)
    except InvalidHeaderError as error:
        raise OptionError(error.detail) from None
    return content_type if len(parts) > 1 else None


def _addressed(url: str, name: str | None) -> tuple[str, str]:
    """The root URL of the server, and the table: its name there, or a SURL."""
    if fault := url_fault(url):
        shown = url[:200] if "@" not in url else "one with credentials in it; use the option token"
        raise OptionError(f"url must be a SURL, or that of a server with the option table; {fault}: {shown}")
    parts = urlsplit(url)
    server, root, below = f"{url.rstrip('/')}/".partition(TABLE_ROOT)
    if root and below:
        if name is not None:
            raise OptionError(f"the url is already that of a table: remove the option table, {name!r}")
        return server + STREAM_ROOT, url.rstrip("/")
    if name is not None:
        if parts.query:
            raise OptionError(
                "the url of a server must not have a query; set url to the SURL and remove the option table"
            )
        return (server + STREAM_ROOT if root else url), _checked_name(name)
    if root or (f"{parts.path.rstrip('/')}/" in ("/", STREAM_ROOT) and not parts.query):
        raise OptionError("set the option table, or set url to the SURL of the table")
    return f"{parts.scheme}://{parts.netloc}", url


def _checked_name(name: str) -> str:
    name = name.strip("/")
    try:
        parse_path(quote_path(name))
        return check_name(name)
    except InvalidPathError as error:
        raise OptionError(f"{name[:200]!r} is not the name of a table: {error.detail}") from None
