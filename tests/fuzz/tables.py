"""Parsers of the State Transfer Protocol."""

from __future__ import annotations

import contextlib
import json
from urllib.parse import parse_qsl

from headwater import limits
from headwater.errors import (
    BadRequestError,
    BodyTooLargeError,
    ConflictError,
    HeadwaterError,
    InvalidChangeError,
    InvalidNotifyError,
    InvalidRowError,
    NotAcceptableError,
    ProtocolError,
    UnsupportedMediaTypeError,
)
from headwater.log import json_framing
from headwater.log.content import ContentKind
from headwater.log.row_framing import check_order, format_rows, last_seqno_of, position_after, seqno_of, stored
from headwater.outbound.urls import parse_target
from headwater.protocol.state.as_changes import EventsAsChanges
from headwater.protocol.state.as_events import RecordFormat, RowsAsEvents
from headwater.protocol.tables.changes import is_plain_change, parse_changes
from headwater.protocol.tables.content_type import (
    TableType,
    check_accept,
    check_accept_events,
    check_changes_type,
    format_table_type,
    parse_answer_type,
    parse_media,
    parse_ranges,
    parse_table_type,
)
from headwater.protocol.tables.escaping import Escape, escape, is_escaped, unescape
from headwater.protocol.tables.following import TableFollowing
from headwater.protocol.tables.notify import Notification, format_notification, parse_notification
from headwater.protocol.tables.paths import parse_address, surl_path
from headwater.protocol.tables.queries import parse_table_query
from headwater.protocol.tables.rows import Row, RowReader, check_rows, format_row, parse_timestamp
from tests.fuzz.inputs import Choices, Target

TIME = "2026-11-15T08:00:00.000Z"


def changes(data: bytes) -> None:
    """The body of an append, against a reader that looks at a line at a time."""
    for escaping in Escape:
        try:
            lines = parse_changes(data, 50, escaping).lines
        except (BadRequestError, BodyTooLargeError):
            assert _changes(data, escaping) is None
            continue
        assert lines == _changes(data, escaping)
        if escaping is Escape.NONE:
            rows, last = stored(ContentKind.ROWS, b"\n".join(lines), 41, 0)
            assert rows == format_rows(lines, 42, "1970-01-01T00:00:00.000Z")
            assert (seqno_of(rows), last_seqno_of(rows), check_order(rows, 41)) == (42, last, last)
            assert [position_after(rows, 41), position_after(rows, last)] == [0, len(rows)]
            reader = RowReader()
            assert [row.seqno for row in reader.feed(rows)] == list(range(42, last + 1))
    assert not is_plain_change(data) or _changes(data, Escape.NONE) is not None


def _changes(data: bytes, escaping: Escape) -> list[bytes] | None:
    pieces = []
    lines = data.removesuffix(b"\n").split(b"\n")
    if not data or len(lines) > 50:
        return None
    for line in lines:
        try:
            line.decode()
        except UnicodeDecodeError:
            return None
        fields = line.split(b"\t")
        if len(fields) == 2 and fields[0] == b"-":
            fields.append(b"")
        if len(fields) != 3 or fields[0] not in (b"+", b"-") or not 0 < len(fields[1]) <= limits.KEY_BYTES_MAX:
            return None
        if any(byte < 32 or byte == 127 for field in fields for byte in field):
            return None
        if escaping is Escape.BACKSLASH and not all(is_escaped(field) for field in fields[1:]):
            return None
        pieces.append(b"\t".join(fields))
    return pieces


def rows(data: bytes) -> None:
    """Rows in pieces, against lines; and what a mirror takes is what a follower takes."""
    choices = Choices(data)
    text = choices.rest() if choices.number(1) else b"1\t" + TIME.encode() + b"\t+\tk\t" + choices.rest()
    whole, fault = _read([text])
    assert _read(Choices(data).pieces(text)) == (whole, fault)
    assert _read([text[index : index + 1] for index in range(len(text))]) == (whole, fault)
    for row, line in zip(whole, text.split(b"\n"), strict=False):
        assert format_row(row) == line + b"\n"
        with contextlib.suppress(InvalidRowError):
            parse_timestamp(row.timestamp)
    try:
        last = check_rows(text, 0, 100)
    except (InvalidChangeError, BodyTooLargeError):
        return
    assert fault is None
    assert [row.seqno for row in whole] == sorted({row.seqno for row in whole} - {0})
    assert last == (whole[-1].seqno if whole else 0)


def _read(pieces: list[bytes]) -> tuple[list[Row], tuple[int, str] | None]:
    reader, rows = RowReader(200), []
    try:
        for piece in pieces:
            for row in reader.feed(piece):
                rows.append(row)
        reader.finish()
    except InvalidRowError as error:
        return rows, (error.line, "" if "longer" in error.detail or "ends within" in error.detail else error.detail)
    return rows, None


def following(data: bytes) -> None:
    """Any answers at all: rows are delivered once and in order, or it is the server's fault."""
    choices = Choices(data)
    snapshot = bool(choices.number(1))
    follower = TableFollowing(choices.choice((0, 3, -2)), gaps=bool(choices.number(1)), snapshot=snapshot)
    last = -1  # a row may have the SeqNo 0
    for _ in range(4):
        fields = {
            "content-type": choices.choice(("text/sequence; schema=s; version=1", choices.line().decode("latin-1")))
        }
        if choices.number(1):
            fields["stp-last-seqno"] = choices.choice(("0", "5", choices.line().decode("latin-1")))
        if choices.number(1):
            fields["stp-gapless"] = "true"
        try:
            follower.begin(fields)
            rows: list[Row] = []
            for _ in range(choices.number(3)):
                line = choices.line()
                numbered = b"%d\t%b\t+\tk\t%b\n" % (choices.number(9), TIME.encode(), line)
                rows += follower.feed(choices.choice((numbered, line + b"\n", line)))
            for row in rows + follower.end():
                assert row.seqno > last
                last = row.seqno
            assert follower.finish(1.0) >= 0
        except HeadwaterError as error:
            assert isinstance(error, ProtocolError)
            try:
                follower.failed(error, 3)
            except HeadwaterError as final:
                assert isinstance(final, ProtocolError)
                return


def notify(data: bytes) -> None:
    """Notify forms, against the standard library; and a form that was read can be sent on."""
    try:
        notification = parse_notification(data)
    except (InvalidNotifyError, BodyTooLargeError):
        return
    pairs = [(name, value) for name, value in parse_qsl(data.decode(errors="replace"), keep_blank_values=True)]
    assert notification.surl == dict(pairs).get("surl")
    assert set(notification.nurls) <= set(pairs)
    assert parse_notification(format_notification(notification)) == notification
    assert isinstance(notification, Notification)
    for url in (notification.surl, *[nurl for _, nurl in notification.nurls]):
        try:
            target = parse_target(url or "", development=True)
        except HeadwaterError:
            continue
        assert target.host not in ("", "169.254.169.254")
        assert not {" ", "\r", "\n", "@"} & set(target.host)


def table_queries(data: bytes) -> None:
    choices = Choices(data)
    event_id = choices.choice((None, choices.line().decode("latin-1")))
    try:
        query = parse_table_query(choices.rest().decode("latin-1"), event_id)
    except BadRequestError:
        return
    assert abs(query.since_id) <= limits.SEQNO_MAX
    assert 0 <= query.timeout_s <= limits.TABLE_TIMEOUT_MAX_S
    assert 0 <= query.idle_s <= limits.TABLE_IDLE_MAX_S
    assert query.until_id is None or query.until_id >= 0


def table_types(data: bytes) -> None:
    """Content types and Accept: what is read is written and read again as the same."""
    text = data.decode("latin-1")
    media = parse_media(text)
    assert media is None or media.type == media.type.lower()
    assert all(part.type for part in parse_ranges(text))
    for parse in (parse_table_type, parse_answer_type):
        try:
            table = parse(text)
        except (BadRequestError, ProtocolError):
            continue
        assert parse(format_table_type(table)) == table
        check_accept(format_table_type(table), table)
    with contextlib.suppress(BadRequestError, UnsupportedMediaTypeError, ConflictError):
        check_changes_type(text, TableType())
    with contextlib.suppress(BadRequestError, NotAcceptableError):
        check_accept(text, TableType())
    with contextlib.suppress(BadRequestError, NotAcceptableError):
        check_accept_events(text)


def escapes(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    assert unescape(escape(text)) == text
    assert is_escaped(escape(text).encode())
    try:
        plain = unescape(data.decode("latin-1"))
    except ValueError:
        assert not is_escaped(data)
    else:
        assert is_escaped(data)
        assert set(plain) & set("\t\r\n") or escape(plain) == data.decode("latin-1")


def table_names(data: bytes) -> None:
    raw = data.decode("latin-1")
    try:
        address = parse_address(raw)
    except BadRequestError:
        return
    assert parse_address(surl_path(address.name).removeprefix("/v1/table/")).name == address.name


def views(data: bytes) -> None:
    """State events as changes and rows as state events: what is no event is counted, and never ends a view."""
    choices = Choices(data)
    escaping = choices.choice(tuple(Escape))
    record_format = choices.choice(tuple(RecordFormat))
    body = choices.rest()
    with contextlib.suppress(HeadwaterError):
        kept = json_framing.stored(body, 100)
        count = len(json.loads(b"[" + kept[:-1] + b"]")) if kept else 0
        made = list(EventsAsChanges("t", escaping).convert(kept, 0))
        assert made[-1].taken == count
        for change in [record for batch in made for record in batch.records]:
            assert parse_changes(change, 1, escaping).lines == [change]
    with contextlib.suppress(HeadwaterError):
        lines = parse_changes(body, 100, escaping).lines
        decoded = list(RowsAsEvents("t", escaping, record_format).convert(format_rows(lines, 1, TIME), 0))
        events = [json.loads(record) for batch in decoded for record in batch.records]
        assert len(events) + sum(batch.skipped for batch in decoded) == len(lines) == decoded[-1].last_seqno
        assert all(event["type"] == "t" and event["key"] for event in events)


URL = b"https://partner.example/prices"
TARGETS = {
    "changes": Target(
        changes,
        (b"+\tk\tr\n-\tk\n", b"+\tk\\t\tr"),
        (b"+\t", b"-\t", b"\t", b"\n", b"\\", b"\\n", b"\xff", b"\xc3\xa9", b"\x7f", b"k"),
    ),
    "rows": Target(
        rows,
        (b"\x011\t" + TIME.encode() + b"\t+\tk\tr\n", b"\x00r\n2\tt\t-\tk\t\n"),
        (b"\t", b"\n", b"+\t", b"0", b"9" * 19, TIME.encode(), b"\xff"),
    ),
    "following": Target(
        following, (b"\x00\x00\x00x\n\x01\x01\n\x01\x02abc\n\x05\x00",), (b"\n", b"\x00", b"\x01", b"\x02", b"5\n")
    ),
    "notify": Target(
        notify,
        (b"surl=" + URL + b"&rows=https%3A//a.example/n", b"rows=" + URL),
        (b"surl=", b"&", b"=", b"rows=", URL, b"%", b"+", b"http://[::1]:80/", b"@", b"%0d%0a"),
    ),
    "table_queries": Target(
        table_queries,
        (b"\x00\nsince_id=-3&timeout=0.5", b"\x01\n12\nlive=sse", b"\x00\nview=active&key=a%20b"),
        (b"since_id=", b"&", b"until_id=", b"idle=", b"key=", b"live=sse", b"%", b"9" * 20, b".", b"-"),
    ),
    "table_types": Target(
        table_types,
        (
            b'text/sequence; schema="a b"; version=2',
            b"text/*;q=0.5, */*",
            b"text/sequence; charset=UTF-8; escape=backslash",
        ),
        (b";", b"=", b'"', b"\\", b"text/sequence", b"schema=", b"version=", b"q=", b","),
    ),
    "escapes": Target(escapes, (b"a\\tb", b"\\"), (b"\\", b"t", b"n", b"\t", b"\n", b"\xc3\xa9")),
    "table_names": Target(table_names, (b"a/b", b"a/notify"), (b"/", b"notify", b"__stp", b"%")),
    "views": Target(
        views,
        (b'\x00[{"type":"t","key":"k","value":1,"headers":{"operation":"insert"}}]', b"\x00+\tk\t{}\n"),
        (
            b'"type":"t"',
            b'"key":"k"',
            b'"headers":',
            b'{"operation":"delete"}',
            b"{",
            b"}",
            b"[",
            b"]",
            b",",
            b'"value":',
            b"+\tk\t",
        ),
    ),
}
