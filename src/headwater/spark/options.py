"""Parses the options of the formats. Errors say what to write instead."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

import msgspec

from headwater import limits
from headwater.errors import InvalidHeaderError, InvalidPathError, OptionError
from headwater.log.content import ContentKind, kind_of
from headwater.protocol.streams.headers import parse_instant
from headwater.protocol.streams.paths import STREAM_ROOT, parse_path, quote_path
from headwater.spark.connection import CONNECTION, ConnectionOptions, connection_options
from headwater.spark.given import GivenOptions
from headwater.spark.moments import parse_times

EARLIEST = "earliest"
LATEST = "latest"
SNAPSHOT = "snapshot"  # the newest snapshot of each stream, and the events after it
JOURNAL_ROOT = "_spark"  # internal streams: lists of batches and staged rows


class BadEvents(enum.Enum):
    """How to handle a message that is not a state event, or whose value does not match the schema."""

    FAIL = "fail"
    SKIP = "skip"
    KEEP = "keep"  # as a row with the reason
    KEEP_MESSAGES = "keepmessages"  # the same, and all rows have the message
    DEAD_LETTER = "deadletter"


KEEPING = (BadEvents.KEEP, BadEvents.KEEP_MESSAGES)


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    connection: ConnectionOptions
    streams: tuple[str, ...] = ()
    pattern: str | None = None
    starting: str | dict[str, str] = EARLIEST
    ending: str | dict[str, str] = LATEST
    starting_ms: int | dict[str, int] | None = None  # instead of offsets
    ending_ms: int | dict[str, int] | None = None
    records_max: int | None = None
    bytes_max: int | None = None
    partitions_min: int = 1
    partition_bytes: int = limits.SPARK_PARTITION_BYTES
    fail_on_data_loss: bool = True
    binary: bool | None = None  # None: the content types of the streams decide
    wait_s: float = limits.SPARK_WAIT_S
    types: frozenset[str] | None = None  # of state events; None: all
    value_schema: str | dict[str, str] | None = None  # of all values, or by type
    bad_events: BadEvents = BadEvents.FAIL
    dead_letters: str | None = None  # the stream that takes bad events
    delete_values: bool = False  # whether the row of a delete has the value of its event


class NonFinite(enum.Enum):
    """How to handle numbers that JSON does not have: NaN and the infinities."""

    NULL = "null"
    FAIL = "fail"
    TEXT = "text"


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    connection: ConnectionOptions
    target: str | None = None  # None: the column `stream` has the target of each row
    is_table: bool = False
    create_target: bool = True
    target_ttl_s: int | None = None  # of targets that are created
    target_expires_at: str | None = None
    content_type: str | None = None
    write_id: str | None = None
    write_version: int = 0
    check_repeats: bool = True
    non_finite: NonFinite = NonFinite.FAIL
    checkpoint: str | None = None  # of the streaming query, if an option names it
    request_bytes: int = limits.SPARK_REQUEST_BYTES


_READ = (
    *CONNECTION,
    "stream",
    "streams",
    "pattern",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxPartitionBytes",
    "failOnDataLoss",
    "longPollTimeout",
)
_READ_STREAMS = (*_READ, "valueType")
_READ_STATE = (*_READ, "types", "valueSchema", "badEvents", "deadLetterStream", "deleteValues")
_FOR_QUERIES = ("maxRecordsPerTrigger", "maxBytesPerTrigger", "longPollTimeout")
WRITING = (  # streams and tables alike
    "createTarget",
    "targetTtl",
    "targetExpiresAt",
    "writeId",
    "writeVersion",
    "checkRepeats",
    "maxRequestBytes",
)
_WRITE = (*CONNECTION, "stream", "contentType", *WRITING)
_WRITE_STATE = (*_WRITE, "nonFiniteNumbers")
_MEANT = {  # names of the same options in Kafka, Delta and the format stp
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
_MEANT_FOR_WRITES = {
    "kafka.bootstrap.servers": "url",
    "path": "stream",
    "pattern": "stream, or a column stream",
    "streams": "stream, or a column stream",
    "table": "stream, or the format stp",
    "topic": "stream",
    "txnappid": "writeId",
    "txnversion": "writeVersion",
}


def read_options(given: Mapping[str, str], *, bounded: bool | None, state: bool = True) -> ReadOptions:
    """Parse the options of a source. A batch read may have an end. None: batch or streaming is not known yet."""
    known = _READ_STATE if state else _READ_STREAMS
    found = GivenOptions(given, known)
    found.refuse_unknown(known, _MEANT, *(("valueSchema",) if state else ()))
    for name in _FOR_QUERIES if bounded else ():
        if found.text(name) is not None:
            raise OptionError(f"{name} is for streaming queries; remove it")
    root, below = _split_url(found.required("url"))
    streams = tuple(dict.fromkeys(_names(found.text("streams")) + _names(found.text("stream")) + below))
    pattern = found.text("pattern")
    if bool(streams) == bool(pattern):
        raise OptionError("set either streams, a list of paths, or pattern, a glob over paths")
    for name in ("endingOffsets", "endingTimestamp"):
        if found.text(name) is not None and bounded is False:
            raise OptionError(f"{name} is for batch reads: a streaming query has no end")
    bad_events, dead_letters = _bad_events(found, streams)
    return ReadOptions(
        connection=connection_options(root, found),
        streams=streams,
        pattern=pattern,
        starting=_starting(found, streams, bounded=bounded, state=state),
        ending=_positions("endingOffsets", found.text("endingOffsets") or LATEST, (LATEST,), streams),
        starting_ms=_times("startingTimestamp", "startingOffsets", found, streams),
        ending_ms=_times("endingTimestamp", "endingOffsets", found, streams),
        records_max=found.number("maxRecordsPerTrigger", int, None),
        bytes_max=found.number("maxBytesPerTrigger", int, None),
        partitions_min=found.number("minPartitions", int, 1),
        partition_bytes=found.number("maxPartitionBytes", int, limits.SPARK_PARTITION_BYTES),
        fail_on_data_loss=found.flag("failOnDataLoss", default=True),
        binary={None: None, "string": False, "binary": True}[found.choice("valueType", ("string", "binary"))],
        wait_s=found.number("longPollTimeout", float, limits.SPARK_WAIT_S),
        types=_types(found),
        value_schema=_value_schema(found),
        bad_events=bad_events,
        dead_letters=dead_letters,
        delete_values=found.flag("deleteValues", default=False),
    )


def _value_schema(found: GivenOptions) -> str | dict[str, str] | None:
    """One schema, or one for each type: as JSON, or as options `valueSchema.TYPE`, which are case-insensitive."""
    given = found.text("valueSchema")
    by_type = found.below("valueSchema")
    if given is not None and given.startswith("{"):
        try:
            by_type = {**msgspec.json.decode(given, type=dict[str, str]), **by_type}
        except msgspec.MsgspecError:
            raise OptionError(
                'valueSchema must be "name STRING, …", or JSON by type: {"user": "name STRING, …"}'
            ) from None
    elif given is not None and by_type:
        raise OptionError("set either valueSchema for all types, or valueSchema.type for each type")
    return by_type or given


def _bad_events(found: GivenOptions, streams: tuple[str, ...]) -> tuple[BadEvents, str | None]:
    wanted = BadEvents(found.choice("badEvents", ("fail", "skip", "keep", "keepMessages", "deadLetter")) or "fail")
    named = found.text("deadLetterStream")
    if (named is not None) != (wanted is BadEvents.DEAD_LETTER):
        raise OptionError("badEvents=deadLetter and deadLetterStream must be set together")
    target = checked_path(named.strip("/")) if named is not None else None
    if target in streams:
        raise OptionError(
            f"{target} cannot be the deadLetterStream, because it is one of the streams that the query reads"
        )
    return wanted, target


def write_options(given: Mapping[str, str], *, state: bool = True) -> WriteOptions:
    known = _WRITE_STATE if state else _WRITE
    found = GivenOptions(given, known)
    found.refuse_unknown(known, _MEANT_FOR_WRITES)
    root, below = _split_url(found.required("url"))
    names = list(dict.fromkeys([*below, *filter(None, [found.text("stream")])]))
    if len(names) > 1:
        raise OptionError(f"the url names the stream {names[0]!r} and the option stream {names[1]!r}; remove one")
    content_type = found.text("contentType")
    if content_type is not None and kind_of(content_type) is ContentKind.BINARY and "/" not in content_type:
        raise OptionError(f"contentType must be a media type such as application/json, got {content_type!r}")
    target = checked_path(names[0].strip("/")) if names else None
    non_finite = NonFinite(found.choice("nonFiniteNumbers", ("null", "fail", "text")) or "fail")
    return msgspec.structs.replace(writing_to(target, content_type, root, found), non_finite=non_finite)


def writing_to(
    target: str | None, content_type: str | None, root: str, found: GivenOptions, *, is_table: bool = False
) -> WriteOptions:
    """Parse the options that sinks for streams and for tables share."""
    write_id = found.text("writeId")
    if write_id is not None and not _is_id(write_id):
        raise OptionError(f"writeId must be at most {limits.SPARK_WRITE_ID_BYTES_MAX} letters, digits and -_.:~")
    version = found.text("writeVersion") or "0"
    if not (version.isascii() and version.isdigit() and int(version) <= limits.PRODUCER_INTEGER_MAX):
        raise OptionError(f"writeVersion must be a number that increases with each write, got {version!r}")
    if write_id is None and found.text("writeVersion") is not None:
        raise OptionError("writeVersion needs a writeId")
    ttl_s, expires_at = _lifetime(found)
    return WriteOptions(
        connection=connection_options(root, found),
        target=target,
        is_table=is_table,
        create_target=found.flag("createTarget", default=True),
        target_ttl_s=ttl_s,
        target_expires_at=expires_at,
        content_type=content_type,
        write_id=write_id,
        write_version=int(version),
        check_repeats=found.flag("checkRepeats", default=True),
        checkpoint=found.text("checkpointLocation"),
        request_bytes=found.number("maxRequestBytes", int, limits.SPARK_REQUEST_BYTES),
    )


def _lifetime(found: GivenOptions) -> tuple[int | None, str | None]:
    """The lifetime of a created target: a time-to-live after its last use, or a fixed time."""
    ttl_s, expires_at = found.number("targetTtl", int, None), found.text("targetExpiresAt")
    if ttl_s is not None and expires_at is not None:
        raise OptionError(
            "set either targetTtl, which counts from the last use of a target, or targetExpiresAt, a fixed time"
        )
    if (ttl_s is not None or expires_at is not None) and not found.flag("createTarget", default=True):
        raise OptionError("targetTtl and targetExpiresAt are for created targets, but createTarget is false")
    if expires_at is not None:
        try:
            parse_instant("targetExpiresAt", expires_at)
        except InvalidHeaderError as error:
            raise OptionError(f"{error.detail}; an example is 2027-01-31T00:00:00Z") from None
    return ttl_s, expires_at


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
    server, found, below = f"{url.rstrip('/')}/".partition(STREAM_ROOT)
    return (server + STREAM_ROOT if found else url, [unquote(below.rstrip("/"))] if below else [])


def _types(found: GivenOptions) -> frozenset[str] | None:
    text = found.text("types")
    return None if text is None else frozenset(_list("types must be a list of types", text))


def _names(text: str | None) -> list[str]:
    return [] if text is None else stream_names(text)


def stream_names(text: str) -> list[str]:
    """The paths of a list of streams: `a,b`, or JSON."""
    return [checked_path(name.strip("/")) for name in _list("streams must be a list of paths", text)]


def _list(what: str, text: str) -> list[str]:
    if not text.startswith("["):
        return [name.strip() for name in text.split(",")]
    try:
        return msgspec.json.decode(text, type=list[str])
    except msgspec.MsgspecError:
        raise OptionError(f'{what}, a,b or ["a","b"], got {text[:200]}') from None


def checked_path(path: str) -> str:
    """Check the path of a stream. URLs are not allowed, because a token is for one server."""
    try:
        parse_path(quote_path(path))
    except InvalidPathError as error:
        raise OptionError(f"{path[:200]!r} is not a valid path of a stream: {error}") from None
    return path


def _positions(name: str, text: str, words: tuple[str, ...], streams: tuple[str, ...]) -> str | dict[str, str]:
    if text.lower() in words:
        return text.lower()
    expected = f'{name} must be {" or ".join(words)}, or JSON such as {{"orders": "{LATEST}"}}'
    try:
        positions = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        raise OptionError(f"{expected}, got {text[:200]}") from None
    unknown = sorted(positions.keys() - set(streams)) if streams else []
    if unknown:
        raise OptionError(f"{name} names {', '.join(unknown)}, which the option streams does not name")
    return {path.strip("/"): position for path, position in positions.items()}


def _starting(
    found: GivenOptions, streams: tuple[str, ...], *, bounded: bool | None, state: bool
) -> str | dict[str, str]:
    given = found.text("startingOffsets") or EARLIEST
    if given.lower() == SNAPSHOT and not state:
        raise OptionError("startingOffsets=snapshot is for the format stream-state: only state events have snapshots")
    if given.lower() == SNAPSHOT and bounded is False:
        told = "startingOffsets=snapshot is for batch reads: read the state in a batch, and start the query after it"
        raise OptionError(f'{told}, with startingOffsets {{"stream": "the offset where the batch ended"}}')
    return _positions("startingOffsets", given, (EARLIEST, LATEST, *((SNAPSHOT,) if state else ())), streams)


def _times(name: str, other: str, found: GivenOptions, streams: tuple[str, ...]) -> int | dict[str, int] | None:
    text = found.text(name)
    if text is not None and found.text(other) is not None:
        raise OptionError(f"give {name} or {other}, not both")
    return None if text is None else parse_times(name, text, streams)


def _is_id(text: str) -> bool:
    fits = len(text) <= limits.SPARK_WRITE_ID_BYTES_MAX and text.isascii()
    return fits and text.strip(".") != "" and text.translate(_ID_CHARACTERS) == ""


_ID_CHARACTERS = str.maketrans("", "", "-_.:~abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
