"""Parsers of the protocol of streams, and of HTTP as both protocols use it."""

from __future__ import annotations

import contextlib
import json
import re
from urllib.parse import quote, unquote

import msgspec

from headwater.errors import (
    BadRequestError,
    EmptyBodyError,
    HeadwaterError,
    InvalidHeaderError,
    InvalidJsonError,
    TooManyMessagesError,
)
from headwater.log import json_framing
from headwater.log.content import ContentKind, kind_of, same_type
from headwater.log.json_boundaries import elements
from headwater.log.offsets import BEGINNING, Offset
from headwater.protocol import conditions
from headwater.protocol.state.view_headers import parse_stream_view, parse_table_view
from headwater.protocol.streams import headers
from headwater.protocol.streams.headers import check_content_type
from headwater.protocol.streams.offsets import format_offset, parse_offset
from headwater.protocol.streams.paths import parse_path, quote_path
from headwater.protocol.streams.reads import next_cursor, parse_read
from headwater.protocol.streams.retention import parse_changes, parse_retention, retention_headers
from headwater.protocol.streams.sse import EventReader, data_frame
from headwater.protocol.tables import headers as table_headers
from headwater.protocol.trace_context import parse_traceparent
from headwater.server.access import Access, parse_origin, parse_public_url
from headwater.server.compression import check_request_encoding, choose_encoding
from headwater.server.default_retention import parse_rule
from headwater.server.forwarding import FAMILIES, TrustedProxies
from headwater.server.http import Request
from headwater.server.observing.access_log import AccessEntry, as_combined_line, as_json_line
from headwater.server.references import stream_path, table_path
from headwater.server.routes import resolve
from tests.fuzz.inputs import Choices, Target


def offsets(data: bytes) -> None:
    text = data.decode("latin-1")
    try:
        offset = parse_offset(text)
    except BadRequestError:
        assert not re.fullmatch(r"-1|now|[0-9]{16}_[0-9]{16}", text)
        return
    if offset is not None and offset != Offset(0, 0):
        assert format_offset(offset) == text


def paths(data: bytes) -> None:
    raw = data.decode("latin-1")
    try:
        path = parse_path(raw)
    except BadRequestError:
        return
    assert parse_path(quote_path(path)) == path
    assert path == unquote(raw, errors="strict")
    assert not {"", ".", ".."} & set(path.split("/"))
    assert "\\" not in path
    assert all(character >= " " for character in path)


def queries(data: bytes) -> None:
    text = data.decode("latin-1")
    try:
        query = parse_read(text)
    except BadRequestError:
        return
    again = [] if query.until is None else [f"until={format_offset(query.until)}"]
    if query.as_head:
        assert query.offset == BEGINNING
    elif query.offset is None or query.offset.id:
        again.append("offset=now" if query.offset is None else f"offset={format_offset(query.offset)}")
    else:
        again.append("offset=-1")
    again.append(f"live={query.live.value}")
    if query.cursor is not None:
        again.append(f"cursor={quote(query.cursor, safe='')}")
        assert next_cursor(query.cursor, 1_800_000_000_000, 0.5) > 0
    assert parse_read("&".join(again)) == query


NAMES = (*headers.REQUEST_HEADERS, *table_headers.REQUEST_HEADERS, *table_headers.RESPONSE_HEADERS)


def header_values(data: bytes) -> None:
    """Every header that is read has a value, or is refused as the sender's fault."""
    choices = Choices(data)
    fields = {choices.choice(NAMES): choices.line().decode("latin-1") for _ in range(1 + choices.number(4))}
    for parse in (
        headers.parse_closed,
        headers.parse_producer,
        headers.parse_seq,
        headers.parse_expiry,
        headers.parse_sub_offset,
        table_headers.parse_fork_seqno,
        table_headers.parse_after_seqno,
        table_headers.parse_mirror,
        table_headers.parse_gapless,
        parse_stream_view,
        parse_table_view,
        conditions.parse_stream_ends,
        conditions.parse_table_ends,
    ):
        try:
            value = parse(fields)
        except BadRequestError:
            continue
        if parse is headers.parse_expiry and isinstance(value, tuple) and isinstance(value[1], int):
            shown = headers.format_instant(value[1]) if 0 <= value[1] < 250_000_000_000_000 else None
            assert shown is None or headers.parse_instant("", shown) == value[1]


def retentions(data: bytes) -> None:
    """The headers of a retention, which survive a round trip, and a rule of the operator with the same limits."""
    choices = Choices(data)
    fields: dict[str, str] = {}
    for name in headers.RETENTION:
        if choices.number(1):
            fields[name] = choices.line().decode("latin-1")
    rule = choices.rest().decode("utf-8", "replace")
    with contextlib.suppress(InvalidHeaderError):
        changes = parse_changes(fields)
        assert len(changes) == len(fields)
        retention = parse_retention(fields)
        assert (retention is None) == (not fields)
        if retention is not None:
            assert parse_retention(dict(retention_headers(retention))) in (retention, None)
    with contextlib.suppress(ValueError):
        paths, kept = parse_rule(rule)
        limits = {**dict(retention_headers(kept))}
        text = " ".join(f"{_LIMIT_NAMES[name]}={value}" for name, value in limits.items())
        assert parse_rule(f"{paths.text} {text or 'forever'}") == (paths, kept)


_LIMIT_NAMES = {
    name: name.removeprefix("stream-").removeprefix("retain-").replace("-", "_") for name in headers.RETENTION
}


def conditional(data: bytes) -> None:
    """If-Match and If-None-Match against lists that are taken apart a character at a time."""
    text = data.decode("latin-1")
    try:
        ends = conditions.parse_stream_ends({"if-match": text})
    except BadRequestError:
        assert _tags(text) is None
    else:
        tags = _tags(text)
        assert tags is not None
        known = [tag for tag in tags if re.fullmatch(r"(?!0{16}_(?!0{16}))[0-9]{16}_[0-9]{16}", tag)]
        assert ends is None or {format_offset(end) for end in ends} >= set(known)
    tag = conditions.etag(7, 0, 12, closed=False)
    assert (conditions.matched(f"{tag}, {text.replace('*', '')}", tag) or tag) == tag


def _tags(text: str) -> list[str] | None:
    """The strong tags of a list by RFC 9110; None if it is no list."""
    if text.strip(" \t") == "*":
        return []
    tags, position, after_comma, count = [], 0, True, 0
    while position < len(text):
        if text[position] in " \t":
            position += 1
        elif text[position] == ",":
            position, after_comma = position + 1, True
        else:
            weak = text.startswith("W/", position)
            position += 2 * weak
            end = text.find('"', position + 1)
            if not after_comma or text[position : position + 1] != '"' or end < 0:
                return None
            tag = text[position + 1 : end]
            if any(character <= " " or character == "\x7f" for character in tag):
                return None
            tags += [] if weak else [tag]
            position, after_comma, count = end + 1, False, count + 1
    return tags if count else None


def json_bodies(data: bytes) -> None:
    """What is kept of a JSON body, against the standard library."""
    try:
        kept = json_framing.stored(data, 1000)
    except (InvalidJsonError, EmptyBodyError, TooManyMessagesError):
        kept = None
    expected = _messages(data)
    if expected is None:
        assert kept is None
        return
    if kept is None:
        # msgspec refuses what Python does not: numbers that are out of range, lone surrogates, deep nesting.
        assert (
            not expected
            or len(expected) > 1000
            or b"\\u" in data
            or b"[[[" in data
            or re.search(rb"[0-9]{18}|[eE]", data)
        )
        return
    assert kept.endswith(b",")
    assert repr(json.loads(b"[" + kept[:-1] + b"]")) == repr(expected)
    pieces = elements(kept[:-1])
    assert [bytes(piece).strip() for piece in pieces] == [
        bytes(raw) for raw in msgspec.json.decode(b"[" + kept[:-1] + b"]", type=list[msgspec.Raw])
    ]
    for count in range(1, min(len(pieces), 5) + 1):
        end = json_framing.message_end(kept, count)
        assert end is not None
        assert len(json.loads(b"[" + kept[: end - 1] + b"]")) == count
    assert json_framing.message_end(kept, len(pieces) + 1) is None


def _messages(data: bytes) -> list[object] | None:
    try:
        text = data.decode()
        if text.startswith("\ufeff"):
            return None
        value = json.loads(text, parse_constant=lambda _: 1 / 0)
    except (ValueError, RecursionError, ZeroDivisionError):
        return None
    return value if isinstance(value, list) else [value]


def events(data: bytes) -> None:
    """Server-sent events: the same however they are cut, as a reader that has all of it at once sees them."""
    choices = Choices(data)
    kind = choices.choice((ContentKind.TEXT, ContentKind.JSON, ContentKind.BINARY))
    text = choices.rest()
    reader = EventReader()
    decoded = [event for piece in choices.pieces(text) for event in reader.feed(piece)]
    cut = EventReader()
    assert (
        [event for index in range(len(text)) for event in cut.feed(text[index : index + 1])] == decoded == _events(text)
    )
    assert reader.pending_bytes <= len(text)
    if kind is ContentKind.TEXT:
        ((name, got),) = EventReader().feed(data_frame(kind, text, "o")) or [(b"data", b"")]
        assert (name, got) == (b"data", text.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))


def _events(text: bytes) -> list[tuple[bytes, bytes]]:
    events: list[tuple[bytes, bytes]] = []
    lines: list[bytes] = []
    name = b""
    whole = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[:-1]
    for line in whole:
        if not line:
            if lines:
                events.append((name or b"message", b"\n".join(lines)))
            name, lines = b"", []
        elif line.startswith((b"data:", b"event:")) or line in (b"data", b"event"):
            field, _, value = line.partition(b":")
            value = value[1:] if value.startswith(b" ") else value
            if field == b"data":
                lines.append(value)
            else:
                name = value
    return events


def content_types(data: bytes) -> None:
    text = data.decode("latin-1")
    try:
        kept = check_content_type(text)
    except BadRequestError:
        return
    assert same_type(kept, text.upper()) or not text.isascii()
    assert kind_of(kept) is kind_of(kept.lower())


def encodings(data: bytes) -> None:
    text = data.decode("latin-1")
    assert choose_encoding(text) in (None, "zstd", "br", "gzip", "deflate")
    try:
        check_request_encoding(text)
    except HeadwaterError as error:
        assert error.status == 415


def references(data: bytes) -> None:
    """Paths in headers and in requests: nothing is found that the route of the thing itself would not name."""
    text = data.decode("latin-1")
    for name, read in (("stream", stream_path), ("table", table_path)):
        try:
            path = read(f"/v1/{name}/{text}", "")
        except BadRequestError:
            continue
        assert resolve(f"/v1/{name}/{text}").path == path
    try:
        resolve(text)
    except HeadwaterError as error:
        assert 400 <= error.status < 500


def forwarded(data: bytes) -> None:
    """Hosts, origins, and what proxies say of a request: nothing that a proxy says can end up in a URL unchecked."""
    choices = Choices(data)
    names = ("host", "origin", "forwarded", "x-forwarded-proto", "x-forwarded-host", "sec-fetch-site", "referer")
    fields = {choices.choice(names): choices.line().decode("latin-1") for _ in range(1 + choices.number(4))}
    peer = choices.choice(("10.0.0.1", "::ffff:10.0.0.1", "11.0.0.1", "", fields.get("host", "")))
    request = Request(choices.choice(("GET", "POST", "OPTIONS")), "/", "", fields, b"", peer=peer)
    with contextlib.suppress(InvalidHeaderError):
        TrustedProxies(["10.0.0.0/8"], choices.choice((None, *FAMILIES))).apply(request)
    assert request.scheme in ("http", "https")
    assert re.fullmatch(r"[A-Za-z0-9_.:\[\]-]*", request.authority)
    for access in (
        Access(),
        Access(origins=["https://app.example"], hosts=["app.example"], proxies=TrustedProxies(["10.0.0.0/8"])),
    ):
        try:
            shared = access.check(request)
            shared += access.preflight(request)
        except HeadwaterError as error:
            assert error.status in (400, 403, 421)
        else:
            assert all("\n" not in value and "\r" not in value for _, value in shared)
    for parse in (parse_origin, parse_public_url):
        try:
            parse(fields.get("origin", ""))
        except ValueError:
            continue


def traces(data: bytes) -> None:
    """A traceparent that is passed on is one, and belongs to the same trace."""
    context = parse_traceparent(data.decode("latin-1"))
    if context is not None:
        assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", context.header())
        assert parse_traceparent(context.header()) == context
        assert context.trace_id in data.decode("latin-1")


def access_lines(data: bytes) -> None:
    """Whatever a request holds, it is one line of ASCII in the access log, and its parameters' values are not there."""
    choices = Choices(data)
    texts = [choices.line().decode("latin-1") for _ in range(5)]
    entry = AccessEntry(
        1.0, texts[0], texts[1], "GET", texts[2], f"token=S3CRET&{texts[3]}", "1.1", 200, None, 0.1, texts[4], "r"
    )
    for render in (as_combined_line, as_json_line):
        line = render(entry)
        assert line.isascii()
        assert line.isprintable()
        assert "S3CRET" not in line
    assert json.loads(as_json_line(entry))["user_agent"] == texts[4]


OFFSET = b"0000000000000007_0000000000000012"
TARGETS = {
    "traces": Target(
        traces,
        (b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", b"01-" + b"a" * 32 + b"-" + b"b" * 16 + b"-ff-x"),
        (b"-", b"00-", b"ff-", b"0" * 32, b"0" * 16, b" ", b"\n"),
    ),
    "access_lines": Target(
        access_lines,
        (b"10.0.0.1\nname\n/v1/stream/a\noffset=-1\ncurl/8\n",),
        (b"\n", b'"', b"\\", b"\x7f", b"\x1b[", b"&", b"="),
    ),
    "offsets": Target(offsets, (OFFSET, b"-1", b"now"), (b"_", b"0" * 16, b"9" * 16, b"\xb2")),
    "paths": Target(paths, (b"a/b%20c", b"%2e%2e/a", b"%C3%A9"), (b"%", b"/", b"..", b"%2F", b"%00", b"%5c", b"a")),
    "queries": Target(
        queries,
        (b"offset=" + OFFSET + b"&live=sse&cursor=12", b"until=" + OFFSET, b"offset=now&live=long-poll"),
        (b"offset=", b"live=", b"until=", b"cursor=", b"&", b"%", b"+", OFFSET, b"9" * 60),
    ),
    "header_values": Target(
        header_values,
        (b"\x00\x04true\n", b"\x04\x00" + b"p\n\x05" + b"1\n", b"\x00\x022030-01-01T00:00:00Z\n"),
        (
            b"\n",
            b"true",
            b"9" * 20,
            b"-",
            b"2030-01-01T00:00:00.123456789+23:59\n",
            b"0000-01-01T00:00:00Z\n",
            b"/v1/stream/a",
        ),
    ),
    "retentions": Target(
        retentions,
        (
            b"\x01604800\n\x0110\n\x01\n\x01true\n\x015\nlogs/** seconds=60 compact=true",
            b"\x00\x00\x00\x00\x00/v1/table/a/* messages=5 bytes=1 compact=true compact_after=0",
        ),
        (b"\x01", b"\n", b"9" * 16, b"0", b" ", b"=", b"seconds=", b"forever", b"**", b"[z-a]", b"false", b"\xb2"),
    ),
    "conditional": Target(
        conditional,
        (b'"' + OFFSET + b'"', b'W/"a", "b,c"', b"*", b'"7:0:12:c:gzip"'),
        (b'"', b"W/", b",", b" ", b"\t", OFFSET, b"*", b"-1", b"7:0:12"),
    ),
    "json": Target(
        json_bodies,
        (b'[{"a":[1,2]},"x",null]', b" 7 ", b'"\\ud800"', b"[1e400]", b'["\xc3\xa9"]'),
        (
            b"[",
            b"]",
            b"{",
            b"}",
            b",",
            b":",
            b'"',
            b"\\u0000",
            b"\\",
            b"-",
            b"1e5",
            b"true",
            b"null",
            b"\xef\xbb\xbf",
            b" ",
        ),
    ),
    "events": Target(
        events,
        (b"\x00event: data\ndata:[1]\nid:7\n\n", b"\x00data\rdata: x\r\n\r\n: c\n\n", b"\x01:\n"),
        (b"data", b"event", b":", b" ", b"\r", b"\n", b"\r\n", b"\n\n", b"id:1\n"),
    ),
    "content_types": Target(
        content_types, (b"application/json; charset=utf-8", b"text/plain"), (b";", b"/", b"=", b'"', b"+json")
    ),
    "encodings": Target(
        encodings, (b"gzip;q=0.5, br, *;q=0", b"identity"), (b"q=", b";", b",", b"0.", b"zstd", b"1", b"*")
    ),
    "references": Target(
        references,
        (b"a/b", b"a/notify", b"__ds/x", b"/v1/table/a/notify"),
        (b"/", b"%", b"%2e", b"__stp", b"notify", b"/v1/stream/"),
    ),
    "forwarded": Target(
        forwarded,
        (
            b'\x02\x02for=1;proto=https;host="a"\n',
            b"\x01\x00localhost:80\n\x01http://a\n\x00",
            b"\x00\x01https://app.example\n",
        ),
        (b"host=", b"proto=https", b";", b",", b'"', b"[::1]", b":", b"%", b"\n", b"http://", b"null"),
    ),
}
