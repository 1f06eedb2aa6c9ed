"""Combined feeds: many streams as server-sent events of one response. Their query, their events and their ids.

    GET /v1/stream/__ds/live?stream=chat/1@now&stream=chat/2@0001767225600000_0000000000000123

    event: data
    data:{"stream":"chat/2","nextOffset":"0001767225600000_0000000000000140","messages":[{"text":"hello"}]}
    id:AQ…

The id of an event holds the positions of all streams after it. A browser sends the last one as `Last-Event-ID` when it
reconnects to the same URL. An id is base64url of

    form    1 byte      1: keys are the places of streams in the list, 2: digests of their paths
    list    6 bytes     digest of the list in the URL, or of the name of the subscription
    base    varint      the first id of an offset that was needed
    entry   …           one for each stream of which an event was sent

and an entry, which does not depend on other entries, so that an event changes only one of them, is

    varint              key << 3 | current << 2 | over << 1 | same
    zigzag varint       id of the offset - base; absent if `same`: it is that of the offset in the URL
    varint              position; if `same`, less the position in the URL
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote_plus, unquote_plus

import msgspec

from headwater import limits
from headwater.errors import InvalidHeaderError, InvalidOffsetError, InvalidPathError, InvalidQueryError
from headwater.log.content import ContentKind
from headwater.log.offsets import BEGINNING as FIRST
from headwater.log.offsets import Offset
from headwater.positions import BEGINNING
from headwater.protocol.streams.offsets import format_offset, parse_offset
from headwater.protocol.streams.paths import RESERVED, parse_path, quote_path
from headwater.protocol.streams.sse import field_lines

STREAM, SUBSCRIPTION, IDS = "stream", "subscription", "ids"
FORM_MEDIA_TYPE = "application/x-www-form-urlencoded"

_LISTED, _NAMED = 1, 2  # forms of ids
_DIGEST_BYTES = 6
_KEY_BYTES = 5  # of the digest of a path in an id
_VARINT_BITS_MAX = 63
_CURRENT, _OVER, _SAME = 4, 2, 1


class StreamStart(NamedTuple):
    """A stream in the list of a request, and the offset at which its reader begins. None is the tail."""

    path: str
    offset: Offset | None = FIRST


class CombinedQuery(msgspec.Struct, frozen=True):
    """Either `streams` or the `subscription` whose members are read."""

    streams: tuple[StreamStart, ...] = ()
    subscription: str = ""
    ids: bool = True  # whether events have ids


def parse_combined(text: str, streams_max: int) -> CombinedQuery:
    """Parse the query of a combined feed, or the same as a form in a body. Unknown parameters are ignored."""
    if text.count("&") >= streams_max + limits.COMBINED_PARAMETERS_MAX:
        raise _too_many(streams_max)
    query: dict[str, list[str]] = {}
    for pair in text.split("&"):
        name, _, value = pair.partition("=")
        try:
            query.setdefault(unquote_plus(name), []).append(unquote_plus(value, errors="strict"))
        except UnicodeDecodeError:
            raise InvalidQueryError(f"{pair[:80]!r} is not UTF-8 after percent-decoding") from None
    starts, subscription = query.get(STREAM, []), _only(SUBSCRIPTION, query.get(SUBSCRIPTION, []))
    if len(starts) > streams_max:
        raise _too_many(streams_max)
    if bool(starts) == bool(subscription):
        raise InvalidQueryError("give the streams to follow as stream=PATH@OFFSET, or the id of a subscription")
    ids = _only(IDS, query.get(IDS, ["true"]))
    if ids not in ("true", "false"):
        raise InvalidQueryError(f"{IDS} must be true or false, got {ids[:80]!r}")
    streams: dict[str, StreamStart] = {}
    for start in map(parse_start, starts):
        if start.path in streams:
            raise InvalidQueryError(f"the stream {start.path[:80]!r} is in the list twice")
        streams[start.path] = start
    return CombinedQuery(tuple(streams.values()), subscription, ids == "true")


def _only(name: str, values: Sequence[str]) -> str:
    if len(values) > 1:
        raise InvalidQueryError(f"{name} is given more than once")
    return values[0] if values else ""


def _too_many(streams_max: int) -> InvalidQueryError:
    return InvalidQueryError(f"a connection follows at most {streams_max} streams (combined_streams_max)")


def parse_start(value: str) -> StreamStart:
    """Parse `PATH@OFFSET`. The path is percent-encoded as in a URL, and the last `@` separates."""
    name, separator, offset = value.rpartition("@")
    if not separator:
        name, offset = value, BEGINNING
    try:
        path = parse_path(name)
    except InvalidPathError as error:
        raise InvalidPathError(f"{name[:80]!r} is not the path of a stream: {error.detail}") from None
    if path == RESERVED or path.startswith(f"{RESERVED}/"):
        raise InvalidPathError(f"paths below {RESERVED} are reserved, got {path[:80]!r}")
    try:
        return StreamStart(path, parse_offset(offset))
    except InvalidOffsetError:
        raise InvalidOffsetError(
            f"expected -1, now or an offset from the server after the last @ of {value[:120]!r}; "
            "a stream with an @ in its path needs an offset too"
        ) from None


def format_query(streams: Mapping[str, str], *, ids: bool = True) -> str:
    """The query for streams with their offsets."""
    pairs = [(STREAM, f"{quote_path(path)}@{offset}") for path, offset in streams.items()]
    if not ids:
        pairs.append((IDS, "false"))
    return "&".join([f"{name}={quote_plus(value, safe='/@')}" for name, value in pairs])


# Events


class CombinedEvent:
    """The lines `event` and `data` of a data event, encoded in pieces that do not depend on each other, so that several
    readers can be at different pieces. The id follows, which each connection has its own of."""

    __slots__ = ("_close", "_cuts", "_data", "_kind", "_open", "pieces")

    def __init__(self, path: str, kind: ContentKind, data: bytes, next_offset: str) -> None:
        self._data = data
        self._open, self._close = _ENVELOPES[kind]
        if kind is ContentKind.TEXT and not _is_text(data):
            kind, self._open, self._close = ContentKind.BINARY, b',"isText":true,"base64":"', b'"}\n'
        self._kind = kind
        self._open = b"event: data\ndata:{%b%b" % (named(path, next_offset), self._open)
        end = len(data) - 1 if kind is ContentKind.JSON else len(data)  # without the last comma
        self._cuts = list(range(0, max(end, 1), limits.SSE_PIECE_BYTES))
        if kind is ContentKind.TEXT:
            self._cuts = [_character_at(data, cut) for cut in self._cuts]
        self._cuts.append(end)
        self.pieces = len(self._cuts) - 1

    def piece(self, number: int) -> bytes:
        """The bytes of piece `number`, counted from 0."""
        start, end = self._cuts[number], self._cuts[number + 1]
        if self._kind is ContentKind.JSON:
            encoded = field_lines(self._data, start, end, first=False)
        elif self._kind is ContentKind.TEXT:
            encoded = msgspec.json.encode(self._data[start:end].decode())[1:-1]
        else:
            encoded = binascii.b2a_base64(self._data[start:end], newline=False)
        if not number:
            encoded = self._open + encoded
        return encoded + self._close if number == self.pieces - 1 else encoded


_ENVELOPES = {
    ContentKind.JSON: (b',"messages":[', b"]}\n"),
    ContentKind.TEXT: (b',"text":"', b'"}\n'),
    ContentKind.BINARY: (b',"base64":"', b'"}\n'),
}


def named(path: str, next_offset: str) -> bytes:
    """The first members of every event."""
    return b'"stream":%b,"nextOffset":"%b"' % (msgspec.json.encode(path), next_offset.encode())


def data_lines(path: str, kind: ContentKind, data: bytes, next_offset: str) -> bytes:
    """The lines `event` and `data` of a data event as a whole."""
    event = CombinedEvent(path, kind, data, next_offset)
    return b"".join([event.piece(number) for number in range(event.pieces)])


def control_lines(path: str, next_offset: str, *facts: str, problem: bytes = b"") -> bytes:
    """The lines `event` and `data` of a control event. `facts` are the names of members that are true, and `problem` is
    the document of an error."""
    members = "".join([f',"{fact}":true' for fact in facts]).encode()
    if problem:
        members += b',"error":' + problem
    return b"event: control\ndata:{%b%b}\n" % (named(path, next_offset), members)


def _is_text(data: bytes) -> bool:
    """Whether a JSON string can hold it: an append may end within a character, and need not be UTF-8 at all."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _character_at(data: bytes, position: int) -> int:
    """The start of the character at a position in UTF-8 text."""
    while position and position < len(data) and data[position] & 0xC0 == 0x80:
        position -= 1
    return position


# Ids


class Reached(NamedTuple):
    """Where a reader is in a stream. `over`: it was told that there is no more. `current`: it was told that it is
    up to date, and has everything since then."""

    offset: Offset
    over: bool = False
    current: bool = False


class EventIds:
    """The ids of the events of one connection."""

    __slots__ = ("_base", "_entries", "_head", "_starts")

    def __init__(self, query: CombinedQuery) -> None:
        self._head = _id_head(query)
        self._base: int | None = None
        self._starts: dict[int, Offset | None] = dict(enumerate([start.offset for start in query.streams]))
        self._entries: dict[int, bytes] = {}

    def move(self, key: int, reached: Reached) -> None:
        """The reader has got more of a stream."""
        offset = reached.offset
        if self._base is None:
            self._base = offset.id
            self._head += _varint(offset.id)
        start = self._starts.get(key)
        same = start is not None and start.id == offset.id and start.position <= offset.position
        flags = key << 3 | (_SAME if same else 0)
        flags |= (_CURRENT if reached.current else 0) | (_OVER if reached.over else 0)
        if same and start is not None:
            entry = _varint(flags) + _varint(offset.position - start.position)
        else:
            distance = offset.id - self._base
            zigzag = distance << 1 if distance >= 0 else (-distance << 1) - 1
            entry = _varint(flags) + _varint(zigzag) + _varint(offset.position)
        self._entries[key] = entry

    def forget(self, key: int) -> None:
        """The connection does not follow the stream any more."""
        self._entries.pop(key, None)

    def line(self) -> bytes:
        """The id of an event as its last line, and the end of the event."""
        encoded = binascii.b2a_base64(self._head + b"".join(self._entries.values()), newline=False)
        return b"id:%b\n\n" % encoded.translate(_URL_SAFE).rstrip(b"=")


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def parse_id(query: CombinedQuery, text: str) -> dict[int, Reached]:
    """Parse the id of an event of a connection with the same query: where it was in each stream, by key."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise _damaged() from None
    head = _id_head(query)
    if len(data) <= _DIGEST_BYTES or data[0] not in (_LISTED, _NAMED):
        raise _damaged()
    if data[: len(head)] != head:
        raise InvalidHeaderError(
            "Last-Event-ID belongs to another list of streams; send it with the URL that it came from, "
            "or give the offset of each stream instead"
        )
    numbers = _numbers(data[len(head) :])
    base = next(numbers, 0)
    places: dict[int, Reached] = {}
    for flags in numbers:
        key, same = flags >> 3, bool(flags & _SAME)
        start = query.streams[key].offset if key < len(query.streams) else None
        if key in places or (query.streams and key >= len(query.streams)) or (same and start is None):
            raise _damaged()
        if same and start is not None:
            offset = Offset(start.id, start.position + _next(numbers))
        else:
            zigzag = _next(numbers)
            distance = -(zigzag + 1 >> 1) if zigzag & 1 else zigzag >> 1
            offset = Offset(base + distance, _next(numbers))
        if offset.id < 0 or max(offset.id, offset.position) > limits.POSITION_MAX:
            raise _damaged()
        places[key] = Reached(offset, bool(flags & _OVER), bool(flags & _CURRENT))
    return places


def key_of(path: str) -> int:
    """The key of a member of a subscription, whose place in a list may change."""
    return int.from_bytes(hashlib.blake2b(path.encode(), digest_size=_KEY_BYTES).digest(), "big")


def _id_head(query: CombinedQuery) -> bytes:
    form, text = (_NAMED, query.subscription) if query.subscription else (_LISTED, "\n".join(_texts(query.streams)))
    return bytes((form,)) + hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def _texts(streams: Sequence[StreamStart]) -> Iterable[str]:
    for path, offset in streams:
        yield f"{path}@{'now' if offset is None else format_offset(offset)}"


def _damaged() -> InvalidHeaderError:
    return InvalidHeaderError("Last-Event-ID is not the id of an event of this connection, or is incomplete")


def _varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _numbers(data: bytes) -> Iterator[int]:
    number, shift = 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
            if shift > _VARINT_BITS_MAX:
                raise _damaged()
        else:
            yield number
            number, shift = 0, 0
    if shift:
        raise _damaged()


def _next(numbers: Iterator[int]) -> int:
    number = next(numbers, None)
    if number is None:
        raise _damaged()
    return number
