"""The options of the formats: parsed once, with an error that says what to write instead."""

from __future__ import annotations

import difflib
import enum
import time
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from headwater import limits
from headwater.client import Client, Report, Retry, Timeouts
from headwater.errors import InvalidPathError, OptionError
from headwater.log.content import ContentKind, kind_of
from headwater.protocol.streams.paths import STREAM_ROOT, parse_path, quote_path

T = TypeVar("T", int, float)

EARLIEST = "earliest"
LATEST = "latest"
JOURNAL_ROOT = "_spark"  # streams of our own: what a batch appends, and rows on their way


class ConnectionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How tasks and the driver reach the server. The token is never part of what is printed."""

    url: str
    token: str | None = None
    connect_s: float
    answer_s: float
    retry_s: float

    def __repr__(self) -> str:
        return f"ConnectionOptions({self.url!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("url", self.url)]

    def open(self, *, patient: bool = True) -> Client:
        """A client that gives up after `retry_s` of failures in a row or, where that is too patient, at once."""
        attempts = limits.PRODUCER_INTEGER_MAX if patient else limits.SPARK_CONNECT_ATTEMPTS_MAX
        return Client(
            self.url,
            token=self.token,
            retry=Retry(attempts=attempts, most_s=limits.SPARK_RETRY_MAX_S),
            timeouts=Timeouts(connect_s=self.connect_s, answer_s=self.answer_s),
            on_error=_RetryDeadline(self.retry_s).check,
        )


class _RetryDeadline:
    """Ends an operation whose failures in a row have gone on for too long."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._since_s = 0.0

    def check(self, report: Report) -> None:
        now_s = time.monotonic()
        if report.attempt == 1:
            self._since_s = now_s
        elif now_s + report.delay_s - self._since_s > self._most_s:
            raise report.error


class BadEvents(enum.Enum):
    """What becomes of a message that is no state event, or whose value does not fit the schema."""

    FAIL = "fail"
    SKIP = "skip"
    KEEP = "keep"  # as a row that says what is wrong with it
    DEAD_LETTER = "deadletter"


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    connection: ConnectionOptions
    streams: tuple[str, ...] = ()
    pattern: str | None = None
    starting: str | dict[str, str] = EARLIEST
    ending: str | dict[str, str] = LATEST
    records_max: int | None = None
    bytes_max: int | None = None
    partitions_min: int = 1
    partition_bytes: int = limits.SPARK_PARTITION_BYTES
    fail_on_data_loss: bool = True
    binary: bool | None = None  # None: as the streams are
    wait_s: float = limits.SPARK_WAIT_S
    value_schema: str | dict[str, str] | None = None  # of all values, or by type
    bad_events: BadEvents = BadEvents.FAIL
    dead_letters: str | None = None  # the stream that takes bad events
    delete_values: bool = False  # whether a delete has the value that its event has


class NonFinite(enum.Enum):
    """What becomes of numbers that JSON does not have: not a number, and the infinities."""

    NULL = "null"
    FAIL = "fail"
    TEXT = "text"


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    connection: ConnectionOptions
    target: str | None = None  # None: a column names the stream of each row
    is_table: bool = False
    create_target: bool = True
    content_type: str | None = None
    write_id: str | None = None
    write_version: int = 0
    check_repeats: bool = True
    non_finite: NonFinite = NonFinite.NULL
    checkpoint: str | None = None  # of the streaming query, if an option names it
    request_bytes: int = limits.SPARK_REQUEST_BYTES


_OF_SPARK = ("checkpointLocation", "queryName")  # which every sink of a query is given
CONNECTION = ("url", "token", "connectTimeout", "requestTimeout", "retryTimeout")
_READ = (
    *CONNECTION,
    "stream",
    "streams",
    "pattern",
    "startingOffsets",
    "endingOffsets",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxPartitionBytes",
    "failOnDataLoss",
    "longPollTimeout",
)
_READ_STREAMS = (*_READ, "valueType")
_READ_STATE = (*_READ, "valueSchema", "badEvents", "deadLetterStream", "deleteValues")
_FOR_QUERIES = ("maxRecordsPerTrigger", "maxBytesPerTrigger", "longPollTimeout")
WRITING = ("createTarget", "writeId", "writeVersion", "checkRepeats", "maxRequestBytes")  # streams and tables alike
_WRITE = (*CONNECTION, "stream", "contentType", *WRITING)
_WRITE_STATE = (*_WRITE, "nonFiniteNumbers")
_MEANT = {  # what Kafka, Delta and the format stp call it
    "assign": "streams",
    "endingtimestamp": "endingOffsets",
    "includeheaders": "the columns of the format stream-state",
    "kafka.bootstrap.servers": "url",
    "maxoffsetspertrigger": "maxRecordsPerTrigger",
    "maxrowspertrigger": "maxRecordsPerTrigger",
    "numpartitions": "minPartitions",
    "path": "streams",
    "startingseqno": "startingOffsets",
    "startingtimestamp": "startingOffsets",
    "startingversion": "startingOffsets",
    "subscribe": "streams",
    "subscribepattern": "pattern",
    "table": "streams, or the format stp",
    "topic": "streams",
}
_OF_STATE = (
    "badevents",
    "deadletterstream",
    "deletevalues",
    "valueschema",
    "nonfinitenumbers",
)  # options of stream-state
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
    """What a source was told; a batch is bounded and may have an end. None: not known yet, for the schema."""
    known = _READ_STATE if state else _READ_STREAMS
    found = GivenOptions(given, known)
    found.refuse_unknown(known, _MEANT, "valueSchema" if state else None)
    for name in _FOR_QUERIES if bounded else ():
        if found.text(name) is not None:
            raise OptionError(f"{name} is for streaming queries; leave it out")
    root, below = _split_url(found.required("url"))
    streams = tuple(dict.fromkeys(_names(found.text("streams")) + _names(found.text("stream")) + below))
    pattern = found.text("pattern")
    if bool(streams) == bool(pattern):
        raise OptionError("name what to read: streams, a list of paths, or pattern, a glob over them; one of the two")
    ending = found.text("endingOffsets")
    if ending is not None and bounded is False:
        raise OptionError("endingOffsets is for batch reads: a streaming query has no end")
    bad_events, dead_letters = _bad_events(found, streams)
    return ReadOptions(
        connection=connection_options(root, found),
        streams=streams,
        pattern=pattern,
        starting=_positions("startingOffsets", found.text("startingOffsets") or EARLIEST, (EARLIEST, LATEST), streams),
        ending=_positions("endingOffsets", ending or LATEST, (LATEST,), streams),
        records_max=found.number("maxRecordsPerTrigger", int, None),
        bytes_max=found.number("maxBytesPerTrigger", int, None),
        partitions_min=found.number("minPartitions", int, 1),
        partition_bytes=found.number("maxPartitionBytes", int, limits.SPARK_PARTITION_BYTES),
        fail_on_data_loss=found.flag("failOnDataLoss", default=True),
        binary={None: None, "string": False, "binary": True}[found.choice("valueType", ("string", "binary"))],
        wait_s=found.number("longPollTimeout", float, limits.SPARK_WAIT_S),
        value_schema=_value_schema(found),
        bad_events=bad_events,
        dead_letters=dead_letters,
        delete_values=found.flag("deleteValues", default=False),
    )


def _value_schema(found: GivenOptions) -> str | dict[str, str] | None:
    """One schema, or one for each type: as JSON, or as options whose names, which have no case, end with the type."""
    given = found.text("valueSchema")
    by_type = found.below("valueSchema")
    if given is not None and given.startswith("{"):
        try:
            by_type = {**msgspec.json.decode(given, type=dict[str, str]), **by_type}
        except msgspec.MsgspecError:
            raise OptionError('valueSchema is "name STRING, …", or JSON by type: {"user": "name STRING, …"}') from None
    elif given is not None and by_type:
        raise OptionError("valueSchema is for all types; leave it out, or give each type its own with valueSchema.type")
    return by_type or given


def _bad_events(found: GivenOptions, streams: tuple[str, ...]) -> tuple[BadEvents, str | None]:
    wanted = BadEvents(found.choice("badEvents", ("fail", "skip", "keep", "deadLetter")) or "fail")
    named = found.text("deadLetterStream")
    if (named is not None) != (wanted is BadEvents.DEAD_LETTER):
        raise OptionError("badEvents=deadLetter and deadLetterStream, the stream that takes them, need each other")
    target = checked_path(named.strip("/")) if named is not None else None
    if target in streams:
        raise OptionError(
            f"{target} is read, so it cannot be the deadLetterStream: what is added there would come back"
        )
    return wanted, target


def write_options(given: Mapping[str, str], *, state: bool = True) -> WriteOptions:
    known = _WRITE_STATE if state else _WRITE
    found = GivenOptions(given, known)
    found.refuse_unknown(known, _MEANT_FOR_WRITES)
    root, below = _split_url(found.required("url"))
    names = list(dict.fromkeys([*below, *filter(None, [found.text("stream")])]))
    if len(names) > 1:
        raise OptionError(f"the url names the stream {names[0]!r} and the option {names[1]!r}; give one of them")
    content_type = found.text("contentType")
    if content_type is not None and kind_of(content_type) is ContentKind.BINARY and "/" not in content_type:
        raise OptionError(f"contentType is a media type such as application/json, got {content_type!r}")
    target = checked_path(names[0].strip("/")) if names else None
    non_finite = NonFinite(found.choice("nonFiniteNumbers", ("null", "fail", "text")) or "null")
    return msgspec.structs.replace(writing_to(target, content_type, root, found), non_finite=non_finite)


def writing_to(
    target: str | None, content_type: str | None, root: str, found: GivenOptions, *, is_table: bool = False
) -> WriteOptions:
    """What the sinks into streams and into tables have in common."""
    write_id = found.text("writeId")
    if write_id is not None and not _is_id(write_id):
        raise OptionError(f"writeId takes letters, digits and -_.:~, at most {limits.SPARK_WRITE_ID_BYTES_MAX} of them")
    version = found.text("writeVersion") or "0"
    if not (version.isascii() and version.isdigit() and int(version) <= limits.PRODUCER_INTEGER_MAX):
        raise OptionError(f"writeVersion is a number that grows from write to write, got {version!r}")
    if write_id is None and found.text("writeVersion") is not None:
        raise OptionError("writeVersion numbers the writes of a writeId; give both")
    return WriteOptions(
        connection=connection_options(root, found),
        target=target,
        is_table=is_table,
        create_target=found.flag("createTarget", default=True),
        content_type=content_type,
        write_id=write_id,
        write_version=int(version),
        check_repeats=found.flag("checkRepeats", default=True),
        checkpoint=found.text("checkpointLocation"),
        request_bytes=found.number("maxRequestBytes", int, limits.SPARK_REQUEST_BYTES),
    )


def connection_options(root: str, found: GivenOptions) -> ConnectionOptions:
    return ConnectionOptions(
        url=root,
        token=found.text("token"),
        connect_s=found.number("connectTimeout", float, limits.CONNECT_TIMEOUT_S),
        answer_s=found.number("requestTimeout", float, limits.ANSWER_TIMEOUT_S),
        retry_s=found.number("retryTimeout", float, limits.SPARK_RETRY_S),
    )


class GivenOptions:
    """Options by name, in whatever case they were written."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        by_lower = {name.lower(): name for name in known}
        whole = {name for name in self._given if name.partition(".")[0] not in by_lower}
        for name in whole - by_lower.keys():  # Spark has options of its own; a near miss is a mistake
            for close in difflib.get_close_matches(name, by_lower, n=1, cutoff=0.8):
                raise OptionError(f"there is no option {name}; did you mean {by_lower[close]}?")

    def refuse_unknown(self, known: tuple[str, ...], meant: Mapping[str, str], parent: str | None = None) -> None:
        """Refuse every option that would do nothing; `meant` has what is called otherwise in other formats."""
        below = {f"{parent}.{name}".lower() for name in self.below(parent)} if parent is not None else set()
        for name in sorted(self._given.keys() - {known.lower() for known in (*known, *_OF_SPARK)} - below):
            instead = f"did you mean {meant[name]}?" if name in meant else f"there are {', '.join(known)}"
            if name.partition(".")[0] in _OF_STATE:
                instead = "it is for the format stream-state"
            raise OptionError(f"there is no option {name}; {instead}")

    def text(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        return value.strip() or None if value is not None else None

    def below(self, name: str) -> dict[str, str]:
        """The options whose names are that name, a dot, and something of the user's."""
        start = f"{name.lower()}."
        return {key.removeprefix(start): value for key, value in self._given.items() if key.startswith(start)}

    def required(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise OptionError(f"the option {name} is missing")
        return value

    def number(self, name: str, kind: type[T], default: Any) -> Any:
        value = self.text(name)
        if value is None:
            return default
        try:
            number = kind(value)
        except ValueError:
            number = kind(0)
        if not 0 < number < float("inf"):
            raise OptionError(f"{name} is a number above 0, got {value!r}")
        return number

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.choice(name, ("true", "false"))
        return default if value is None else value == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        value = self.text(name)
        if value is not None and value.lower() not in map(str.lower, choices):
            raise OptionError(f"{name} is {' or '.join(choices)}, got {value!r}")
        return value.lower() if value is not None else None


def _split_url(url: str) -> tuple[str, list[str]]:
    """The server's root, and the stream if the URL is that of one."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)
        usable = usable and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        shown = url if "@" not in url else "one with credentials in it"
        raise OptionError(f"url is a server's, such as http://127.0.0.1:4437, got {shown}")
    if parts.username is not None or parts.password is not None:
        raise OptionError("url must not hold credentials, which would show in logs; use the option token")
    server, found, below = f"{url.rstrip('/')}/".partition(STREAM_ROOT)
    return (server + STREAM_ROOT if found else url, [unquote(below.rstrip("/"))] if below else [])


def _names(text: str | None) -> list[str]:
    if text is None:
        return []
    if text.startswith("["):
        try:
            names = msgspec.json.decode(text, type=list[str])
        except msgspec.MsgspecError:
            raise OptionError(f'streams is a list of paths, a,b or ["a","b"], got {text[:200]}') from None
    else:
        names = text.split(",")
    return [checked_path(name.strip().strip("/")) for name in names]


def checked_path(path: str) -> str:
    """A path of a stream, and not a URL: a token is for one server."""
    try:
        parse_path(quote_path(path))
    except InvalidPathError as error:
        raise OptionError(f"{path[:200]!r} is not the path of a stream: {error}") from None
    return path


def _positions(name: str, text: str, words: tuple[str, ...], streams: tuple[str, ...]) -> str | dict[str, str]:
    if text.lower() in words:
        return text.lower()
    expected = f'{name} is {" or ".join(words)}, or JSON such as {{"orders": "{LATEST}"}}'
    try:
        positions = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        raise OptionError(f"{expected}, got {text[:200]}") from None
    unknown = sorted(positions.keys() - set(streams)) if streams else []
    if unknown:
        raise OptionError(f"{name} names {', '.join(unknown)}, which streams does not")
    return {path.strip("/"): position for path, position in positions.items()}


def _is_id(text: str) -> bool:
    fits = len(text) <= limits.SPARK_WRITE_ID_BYTES_MAX and text.isascii()
    return fits and text.strip(".") != "" and text.translate(_ID_CHARACTERS) == ""


_ID_CHARACTERS = str.maketrans("", "", "-_.:~abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
