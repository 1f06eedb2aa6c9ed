"""The options of the formats `durable-streams` and `stream-state`: a struct for each format and direction.

Names, checks of single values and the table in `docs/reference/spark.md` are made from the fields. Functions check what
concerns several options. Errors say what to write instead.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Meta

from headwater import limits
from headwater.errors import InvalidHeaderError, OptionError
from headwater.log.content import ContentKind, kind_of
from headwater.options import about
from headwater.protocol.streams.headers import parse_instant
from headwater.protocol.streams.paths import STREAM_ROOT
from headwater.spark.connection import ConnectionOptions, Seconds, check_connection
from headwater.spark.parsing import (
    BATCH_READS,
    QUERIES,
    by_name_in,
    names,
    parse_options,
    parse_times,
    positions,
    set_options,
    stream_name,
    stream_names,
)

EARLIEST = "earliest"
LATEST = "latest"
SNAPSHOT = "snapshot"  # the newest snapshot of each stream, and the events after it
JOURNAL_ROOT = "_spark"  # internal streams: lists of batches and staged rows

Count: TypeAlias = Annotated[int, Meta(gt=0)]
Positions: TypeAlias = str | dict[str, str]  # of all streams, or by stream
Times: TypeAlias = int | dict[str, int]  # in milliseconds since 1970, of all streams or by stream
W = TypeVar("W", bound="WriteOptions")


class BadEvents(enum.Enum):
    """How to handle a message that is not a state event, or whose value does not match the schema."""

    FAIL = "fail"
    SKIP = "skip"
    KEEP = "keep"  # as a row with the reason
    KEEP_MESSAGES = "keepMessages"  # the same, and all rows have the message
    DEAD_LETTER = "deadLetter"


KEEPING = (BadEvents.KEEP, BadEvents.KEEP_MESSAGES)


class NonFinite(enum.Enum):
    """How to handle numbers that JSON does not have: NaN and the infinities."""

    NULL = "null"
    FAIL = "fail"
    TEXT = "text"


# Reading


def _starting(name: str, text: str) -> Positions:
    if text.lower() == SNAPSHOT:
        raise OptionError(f"{name}=snapshot is for the format stream-state: only state events have snapshots")
    return positions(EARLIEST, LATEST)(name, text)


class SourceOptions(ConnectionOptions, frozen=True, kw_only=True):
    """Options of all sources."""

    min_partitions: Annotated[Count, about("The minimum number of tasks, if there are enough split points.")] = 1
    fail_on_data_loss: Annotated[
        bool,
        about(
            "Whether the query fails if a stream or table was deleted, created again or truncated, or if the server was"
            " [restored](../backup.md#readers-after-a-restore) to a state before the position of the query. The error"
            " says from which position on data is lost. A stream that was closed and read to its end may be deleted."
            " With `false`, a stream or table that was created again is read from its beginning, and a named stream may"
            " be missing."
        ),
    ] = True
    long_poll_timeout: Annotated[Seconds, about("How many seconds a trigger waits for new data.", only=QUERIES)] = (
        limits.SPARK_WAIT_S
    )


class ReadOptions(SourceOptions, frozen=True, kw_only=True):
    """Options of sources over streams."""

    meant: ClassVar[Mapping[str, str]] = {  # names of the same options in Kafka, Delta and the format stp
        "assign": "streams",
        "includeheaders": "the columns of the format stream-state",
        "kafka.bootstrap.servers": "url",
        "maxoffsetspertrigger": "maxRecordsPerTrigger",
        "maxrowspertrigger": "maxRecordsPerTrigger",
        "numpartitions": "minPartitions",
        "path": "streams",
        "startingseqno": "startingOffsets",
        "startingversion": "startingOffsets",
        "subscribe": "streams",
        "subscribepattern": "pattern",
        "table": "streams, or the format stp",
        "topic": "streams",
    }

    stream: Annotated[tuple[str, ...], about("The same as `streams`.", parse=stream_names)] = ()
    streams: Annotated[tuple[str, ...], about('Paths, `a,b` or `["a","b"]`.', parse=stream_names)] = ()
    pattern: Annotated[
        str | None,
        about(
            "Instead of `streams`: a glob over paths. `*` and `?` stay within a segment, `**` does not. New streams"
            " join at the next trigger, from their beginning. Snapshots of streams (`{path}.snapshots/…`) do not match,"
            " unless the pattern names `.snapshots/`. Needs a Headwater server (a list of streams)."
        ),
    ] = None
    starting_offsets: Annotated[
        Positions,
        about(
            '`earliest`, `latest`, or JSON by stream: `{"a": "latest", "b": "0000000000000001_0000000000000064"}`;'
            " `offset+count` skips messages. A stream that is not named begins at `earliest`. Used at the first start"
            " of a query; later starts use the checkpoint.",
            parse=_starting,
        ),
    ] = EARLIEST
    starting_timestamp: Annotated[
        Times | None,
        about(
            "Instead of `startingOffsets`: begin with the first record that was appended at or after a time, or at the"
            " end if there is none. `2026-11-15T08:00:00Z`, milliseconds since 1970, or JSON by stream. One request for"
            " each stream. Needs a Headwater server ([record times](../protocol.md)).",
            parse=parse_times,
        ),
    ] = None
    ending_offsets: Annotated[
        Positions,
        about("The end, as `startingOffsets`; `latest` or JSON.", only=BATCH_READS, parse=positions(LATEST)),
    ] = LATEST
    ending_timestamp: Annotated[
        Times | None, about("Instead of `endingOffsets`: end before that record.", only=BATCH_READS, parse=parse_times)
    ] = None
    max_records_per_trigger: Annotated[
        Count | None,
        about(
            "The most records of a batch, divided so that the streams advance together in append time, see"
            " [Watermarks](../spark.md#watermarks). To count records, the driver reads them once.",
            only=QUERIES,
        ),
    ] = None
    max_bytes_per_trigger: Annotated[
        Count | None,
        about(
            "The most bytes of a batch, divided in the same way. To count bytes, the driver sends some requests for"
            " each stream.",
            only=QUERIES,
        ),
    ] = None
    max_partition_bytes: Annotated[
        Count,
        about("The maximum number of bytes of one stream that one task reads: several tasks read a large stream."),
    ] = limits.SPARK_PARTITION_BYTES


class StreamReadOptions(ReadOptions, frozen=True, kw_only=True):
    format_name: ClassVar[str] = "durable-streams"

    value_type: Annotated[
        Literal["string", "binary"] | None,
        about("`string` or `binary`, the type of `value`. Default: by the content types of the streams."),
    ] = None


def _value_schema(name: str, text: str) -> str | dict[str, str]:
    expected = f'{name} must be "name STRING, …", or JSON by type: {{"user": "name STRING, …"}}'
    return by_name_in(text, str, expected) if text.startswith("{") else text


class StateReadOptions(ReadOptions, frozen=True, kw_only=True):
    format_name: ClassVar[str] = "stream-state"

    starting_offsets: Annotated[
        Positions,
        about(
            "As for `durable-streams`. For a batch also `snapshot`: the newest [snapshot](../state.md) of each stream,"
            " and the events after it.",
            parse=positions(EARLIEST, LATEST, SNAPSHOT),
        ),
    ] = EARLIEST
    types: Annotated[
        frozenset[str] | None,
        about(
            'Types of events, `a,b` or `["a","b"]`: events of other types are left out and their values are not'
            " decoded. Control events and bad events stay. Default: all.",
            parse=names,
        ),
    ] = None
    value_schema: Annotated[
        str | dict[str, str] | None,
        about(
            "The fields of all values: `name STRING, age INT`. Or JSON with the fields of each type,"
            ' `{"user": "name STRING", "order": "total DOUBLE"}`: then `value` has a field for each type,'
            " `value.user.name`, and is null for other types. Or an option for each type: `valueSchema.user`; names of"
            " options are case-insensitive, so a type with capital letters needs the JSON. Without it `value` is JSON"
            " text.",
            children="valueSchema",
            parse=_value_schema,
        ),
    ] = None
    bad_events: Annotated[
        BadEvents,
        about(
            "`fail`: a bad event fails the query, and the error has its position. `skip`: it is left out. `deadLetter`:"
            " it is left out and appended to `deadLetterStream`. `keep`: it becomes a row. There are two more columns:"
            " `bad`, the reason, and `message`, its JSON; both are null in other rows. `keepMessages`: the same, and"
            " all rows have their `message`."
        ),
    ] = BadEvents.FAIL
    dead_letter_stream: Annotated[
        str | None,
        about(
            "The stream for bad events, created if it is missing:"
            ' `{"stream", "offset", "position", "reason", "message"}`.',
            parse=stream_name,
        ),
    ] = None
    delete_values: Annotated[
        bool,
        about("With `true`, a delete has the `value` of its event, if it fits the schema; otherwise it is null."),
    ] = False

    latest_only: Annotated[
        bool,
        about(
            "With `true`, a task leaves out events that a later event of the same type and key replaces in its range,"
            " as far as it holds them in memory: the rows are the last event of each entity, and some earlier ones."
            " Control events, bad events and the first event of each range stay. Needs the columns `type`, `key` and"
            " `control`."
        ),
    ] = False

    @property
    def is_by_type(self) -> bool:
        """Whether each type has its own schema."""
        return isinstance(self.value_schema, dict)


def read_options(texts: Mapping[str, str], *, bounded: bool | None, state: bool = True) -> ReadOptions:
    """Parse the options of a source. A batch read may have an end. None: batch or streaming is not known yet."""
    options: ReadOptions = parse_options(StateReadOptions if state else StreamReadOptions, texts, bounded=bounded)
    root, below = _split_url(options.url)
    streams = tuple(dict.fromkeys((*options.streams, *options.stream, *below)))
    if bool(streams) == bool(options.pattern):
        raise OptionError("set either streams, a list of paths, or pattern, a glob over paths")
    options = msgspec.structs.replace(options, url=root, stream=(), streams=streams)
    check_connection(options)
    _check_bounds(options, set_options(texts), bounded=bounded)
    if isinstance(options, StateReadOptions):
        _check_dead_letters(options)
    return options


def _check_bounds(options: ReadOptions, texts: Mapping[str, str], *, bounded: bool | None) -> None:
    if texts.get("startingoffsets", "").lower() == SNAPSHOT and bounded is False:
        instead = "read the state in a batch, and start the query after it"
        example = 'with startingOffsets {"stream": "the offset where the batch ended"}'
        raise OptionError(f"startingOffsets=snapshot is for batch reads: {instead}, {example}")
    for side in ("starting", "ending"):
        offsets, timestamp = f"{side}Offsets", f"{side}Timestamp"
        if {offsets.lower(), timestamp.lower()} <= texts.keys():
            raise OptionError(f"give {timestamp} or {offsets}, not both")
    for field in msgspec.structs.fields(options):
        bound = getattr(options, field.name) if field.name.startswith(("starting_", "ending_")) else None
        unknown = sorted(bound.keys() - set(options.streams)) if isinstance(bound, dict) and options.streams else []
        if unknown:
            raise OptionError(f"{field.encode_name} names {', '.join(unknown)}, which the option streams does not name")


def _check_dead_letters(options: StateReadOptions) -> None:
    stream = options.dead_letter_stream
    if (stream is not None) != (options.bad_events is BadEvents.DEAD_LETTER):
        raise OptionError("badEvents=deadLetter and deadLetterStream must be set together")
    if stream in options.streams:
        raise OptionError(
            f"{stream} cannot be the deadLetterStream, because it is one of the streams that the query reads"
        )


# Writing


def _write_id(name: str, text: str) -> str:
    fits = len(text) <= limits.SPARK_WRITE_ID_BYTES_MAX and text.isascii()
    if not fits or not text.strip(".") or text.translate(_ID_CHARACTERS):
        raise OptionError(f"{name} must be at most {limits.SPARK_WRITE_ID_BYTES_MAX} letters, digits and -_.:~")
    return text


_ID_CHARACTERS = str.maketrans("", "", "-_.:~abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


def _instant(name: str, text: str) -> str:
    try:
        parse_instant(name, text)
    except InvalidHeaderError as error:
        raise OptionError(f"{error.detail}; an example is 2027-01-31T00:00:00Z") from None
    return text


class WriteOptions(ConnectionOptions, frozen=True, kw_only=True):
    """Options of all sinks."""

    is_table: ClassVar[bool] = False

    target: str | None = None  # None: the column `stream` has the target of each row
    content_type: str | None = None
    create_target: Annotated[bool, about("Whether a missing target is created.")] = True
    target_ttl: Annotated[Count | None, about("Expiry of a target that is created: seconds after its last use.")] = None
    target_expires_at: Annotated[
        str | None,
        about("Expiry of a target that is created: a time such as `2027-01-31T00:00:00Z`.", parse=_instant),
    ] = None
    write_id: Annotated[
        str | None,
        about(
            "For batch writes: writes with the same id to the same target are one write, which is done once. A"
            " streaming query has its own id, in its checkpoint. Default: a new one.",
            parse=_write_id,
        ),
    ] = None
    write_version: Annotated[
        Annotated[int, Meta(ge=0, le=limits.PRODUCER_INTEGER_MAX)],
        about(
            "With `writeId`: the number of this write, which must increase. A write that was done is not done again; a"
            " lower number than the last is an error."
        ),
    ] = 0
    check_repeats: Annotated[
        bool,
        about(
            "Whether a repeated batch number or `writeId` must have the same rows; see"
            " [Exactly-once writes](../spark.md#exactly-once-writes)."
        ),
    ] = True
    max_request_bytes: Annotated[Count, about("The size of one append; at most the server's `body_bytes_max`.")] = (
        limits.SPARK_REQUEST_BYTES
    )
    checkpoint_location: Annotated[
        str | None,
        about("Spark's own option of a streaming query. A repeated batch is recognised by the offsets in it."),
    ] = None


def _media_type(name: str, text: str) -> str:
    if kind_of(text) is ContentKind.BINARY and "/" not in text:
        raise OptionError(f"{name} must be a media type such as application/json, got {text!r}")
    return text


class _StreamWriting(WriteOptions, frozen=True, kw_only=True):
    meant: ClassVar[Mapping[str, str]] = {
        "kafka.bootstrap.servers": "url",
        "path": "stream",
        "pattern": "stream, or a column stream",
        "streams": "stream, or a column stream",
        "table": "stream, or the format stp",
        "topic": "stream",
        "txnappid": "writeId",
        "txnversion": "writeVersion",
    }

    target: Annotated[
        str | None,
        about("The target. Without it, the column `stream` names the target of each row.", parse=stream_name),
    ] = msgspec.field(default=None, name="stream")
    content_type: Annotated[
        str | None, about("Of a target that is created. Default: `application/json`.", parse=_media_type)
    ] = None


class StreamWriteOptions(_StreamWriting, frozen=True, kw_only=True):
    format_name: ClassVar[str] = "durable-streams"


class StateWriteOptions(_StreamWriting, frozen=True, kw_only=True):
    format_name: ClassVar[str] = "stream-state"

    non_finite_numbers: Annotated[
        NonFinite,
        about(
            "What becomes of `NaN` and infinities, which JSON does not have: the write fails, or they are written as"
            ' `null` or as `text` (`"NaN"`, `"-Infinity"`).'
        ),
    ] = NonFinite.FAIL


def write_options(texts: Mapping[str, str], *, state: bool = True) -> WriteOptions:
    options: WriteOptions = parse_options(StateWriteOptions if state else StreamWriteOptions, texts)
    root, below = _split_url(options.url)
    targets = list(dict.fromkeys([*below, *filter(None, [options.target])]))
    if len(targets) > 1:
        raise OptionError(f"the url names the stream {targets[0]!r} and the option stream {targets[1]!r}; remove one")
    return checked_writing(msgspec.structs.replace(options, url=root, target=next(iter(targets), None)), texts)


def checked_writing(options: W, texts: Mapping[str, str]) -> W:
    """Check what concerns several options of a sink for streams or for tables."""
    check_connection(options)
    if options.write_id is None and "writeversion" in set_options(texts):
        raise OptionError("writeVersion needs a writeId")
    if options.target_ttl is not None and options.target_expires_at is not None:
        raise OptionError(
            "set either targetTtl, which counts from the last use of a target, or targetExpiresAt, a fixed time"
        )
    expires = options.target_ttl is not None or options.target_expires_at is not None
    if expires and not options.create_target:
        raise OptionError("targetTtl and targetExpiresAt are for created targets, but createTarget is false")
    return options


def _split_url(url: str) -> tuple[str, list[str]]:
    """The root URL of the server, and the stream if the URL is that of a stream."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)
        usable = usable and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        shown = url if "@" not in url else "one with credentials in it"
        raise OptionError(f"url must be that of a server, such as http://127.0.0.1:4437, got {shown}")
    if parts.username is not None or parts.password is not None:
        raise OptionError("url must not have credentials, because they would appear in logs; use the option token")
    server, root, below = f"{url.rstrip('/')}/".partition(STREAM_ROOT)
    return (server + root if root else url, [unquote(below.rstrip("/"))] if below else [])
