"""The names of the protocol's headers, and strict parsing of their values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from headwater import limits
from headwater.errors import BadRequestError, InvalidHeaderError
from headwater.log.producers import ProducerTuple

NEXT_OFFSET = "stream-next-offset"
CURSOR = "stream-cursor"
UP_TO_DATE = "stream-up-to-date"
CLOSED = "stream-closed"
TTL = "stream-ttl"
EXPIRES_AT = "stream-expires-at"
RETAIN_SECONDS = "stream-retain-seconds"
RETAIN_BYTES = "stream-retain-bytes"
RETAIN_MESSAGES = "stream-retain-messages"
COMPACT = "stream-compact"
COMPACT_AFTER = "stream-compact-after"
FIRST_OFFSET = "stream-first-offset"  # where the stream begins: data before it was trimmed
SEQ = "stream-seq"
FORKED_FROM = "stream-forked-from"
FORK_OFFSET = "stream-fork-offset"
FORK_SUB_OFFSET = "stream-fork-sub-offset"
VIEW_OF = "stream-view-of"  # of a PUT: the URL path of the table that the stream is a view of
VIEW_TYPE = "stream-view-type"  # the entity type of its events, percent-encoded
VIEW_RECORD = "stream-view-record"  # how a record becomes a value: `json` or `text`
SSE_DATA_ENCODING = "stream-sse-data-encoding"
PRODUCER_ID = "producer-id"
PRODUCER_EPOCH = "producer-epoch"
PRODUCER_SEQ = "producer-seq"
PRODUCER_EXPECTED_SEQ = "producer-expected-seq"
PRODUCER_RECEIVED_SEQ = "producer-received-seq"
ACCEPT_POST = "accept-post"  # of a stream: its content type, and that of a compose
IF_MATCH = "if-match"  # of a write: the expected tail, see `protocol.conditions`

RETENTION = (RETAIN_SECONDS, RETAIN_BYTES, RETAIN_MESSAGES, COMPACT, COMPACT_AFTER)

REQUEST_HEADERS = (
    SEQ,
    TTL,
    EXPIRES_AT,
    *RETENTION,
    CLOSED,
    FORKED_FROM,
    FORK_OFFSET,
    FORK_SUB_OFFSET,
    VIEW_OF,
    VIEW_TYPE,
    VIEW_RECORD,
    PRODUCER_ID,
    PRODUCER_EPOCH,
    PRODUCER_SEQ,
    IF_MATCH,
)
RESPONSE_HEADERS = (
    NEXT_OFFSET,
    CURSOR,
    UP_TO_DATE,
    CLOSED,
    TTL,
    EXPIRES_AT,
    *RETENTION,
    FIRST_OFFSET,
    ACCEPT_POST,
    SSE_DATA_ENCODING,
    PRODUCER_EPOCH,
    PRODUCER_SEQ,
    PRODUCER_EXPECTED_SEQ,
    PRODUCER_RECEIVED_SEQ,
)

OF_APPENDS = frozenset({SEQ, CLOSED, PRODUCER_ID, PRODUCER_EPOCH, PRODUCER_SEQ, IF_MATCH})

_DIGITS = re.compile(r"[0-9]{1,16}")
_CANONICAL = re.compile(r"0|[1-9][0-9]*")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


def parse_closed(headers: Mapping[str, str]) -> bool:
    """Whether the header is `true` (case-insensitive); any other value is ignored."""
    value = headers.get(CLOSED)
    return value is not None and value.strip().lower() == "true"


def parse_producer(headers: Mapping[str, str]) -> ProducerTuple | None:
    producer_id = headers.get(PRODUCER_ID)
    epoch = headers.get(PRODUCER_EPOCH)
    seq = headers.get(PRODUCER_SEQ)
    if producer_id is None and epoch is None and seq is None:
        return None
    if producer_id is None or epoch is None or seq is None:
        raise InvalidHeaderError("Producer-Id, Producer-Epoch and Producer-Seq must be sent together")
    if not producer_id:
        raise InvalidHeaderError("Producer-Id must not be empty")
    _check_length("Producer-Id", producer_id)
    return ProducerTuple(producer_id, _integer("Producer-Epoch", epoch), _integer("Producer-Seq", seq))


def _integer(name: str, value: str) -> int:
    if not _DIGITS.fullmatch(value) or int(value) > limits.PRODUCER_INTEGER_MAX:
        raise InvalidHeaderError(f"{name} must be an integer from 0 to 2^53-1, got {value[:80]!r}")
    return int(value)


def parse_seq(headers: Mapping[str, str]) -> str | None:
    value = headers.get(SEQ)
    if value is not None:
        _check_length("Stream-Seq", value)
    return value


def parse_expiry(headers: Mapping[str, str]) -> tuple[int | None, int | None]:
    """The time-to-live in seconds and the time of expiry in milliseconds; at most one is set."""
    ttl, expires_at = headers.get(TTL), headers.get(EXPIRES_AT)
    if ttl is not None and expires_at is not None:
        raise InvalidHeaderError("Stream-TTL and Stream-Expires-At cannot be sent together")
    if ttl is not None:
        return _ttl(ttl), None
    return None, None if expires_at is None else parse_instant("Stream-Expires-At", expires_at)


def _ttl(value: str) -> int:
    if not _CANONICAL.fullmatch(value):
        raise InvalidHeaderError(f"Stream-TTL must be a decimal integer of seconds, got {value[:80]!r}")
    if len(value) > limits.OFFSET_DIGITS or int(value) > limits.TTL_S_MAX:
        raise InvalidHeaderError(f"Stream-TTL must be at most {limits.TTL_S_MAX} seconds")
    return int(value)


def parse_instant(name: str, value: str, error: type[BadRequestError] = InvalidHeaderError) -> int:
    """Parse an RFC 3339 timestamp to milliseconds."""
    if not _RFC3339.fullmatch(value):
        raise error(f"{name} must be an RFC 3339 timestamp, got {value[:80]!r}")
    try:
        moment = datetime.fromisoformat(value.upper()).astimezone(UTC)
        return (moment - _EPOCH) // timedelta(milliseconds=1)  # floats have rounding errors
    except (ValueError, OverflowError):
        raise error(f"{name} is not a valid time: {value[:80]!r}") from None


def parse_sub_offset(headers: Mapping[str, str]) -> int:
    value = headers.get(FORK_SUB_OFFSET)
    if value is None:
        return 0
    if FORKED_FROM not in headers:
        raise InvalidHeaderError("Stream-Fork-Sub-Offset needs Stream-Forked-From")
    if not _CANONICAL.fullmatch(value) or len(value) > limits.OFFSET_DIGITS:
        raise InvalidHeaderError(f"Stream-Fork-Sub-Offset must be a non-negative decimal integer, got {value[:80]!r}")
    return int(value)


def _check_length(name: str, value: str) -> None:
    if len(value) > limits.HEADER_VALUE_BYTES_MAX:
        raise InvalidHeaderError(f"{name} is longer than {limits.HEADER_VALUE_BYTES_MAX} bytes")


def format_instant(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"


_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # noqa: S105
_SYNTAX = re.compile(rf"{_TOKEN}/{_TOKEN}\s*(;.*)?", re.DOTALL)


def check_content_type(value: str) -> str:
    value = value.strip()
    if len(value) > limits.HEADER_VALUE_BYTES_MAX or not _SYNTAX.fullmatch(value):
        raise InvalidHeaderError(f"Content-Type must be type/subtype, got {value[:80]!r}")
    return value
