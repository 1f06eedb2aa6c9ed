"""What clients read: answers of servers that may say anything, compressed or not, and streams of state events."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import brotli
import msgspec
import zstandard

from headwater import limits
from headwater.client import flows, nurls, table_reading, tables
from headwater.client.answers import error_of, retry_after_s
from headwater.client.codecs import Decoder
from headwater.client.effects import (
    CloseReply,
    Emit,
    Flow,
    HttpReply,
    HttpRequest,
    Open,
    Receive,
    RunningFlow,
    Send,
)
from headwater.client.reading import LiveMode, Reading
from headwater.client.session import Retry, Session, Timeouts
from headwater.errors import HeadwaterError, InvalidEventError, ProtocolError
from headwater.log.content import ContentKind
from headwater.positions import BEGINNING, Position
from headwater.protocol.inflating import Inflater
from headwater.protocol.state.events import EventDecoder, decode_events, parse_event
from headwater.protocol.streams import headers
from headwater.protocol.tables import headers as table_headers
from headwater.protocol.tables.content_type import TableType
from headwater.protocol.tables.following import TableFollowing
from tests.fuzz.inputs import Choices, Target

URL = "http://127.0.0.1:4437/v1/stream/s"
TABLE = "http://127.0.0.1:4437/v1/table/t"
STATUSES = (200, 204, 200, 201, 200, 400, 404, 409, 412, 410, 429, 503, 500, 301, 304, 99)
NAMES = (
    *headers.RESPONSE_HEADERS,
    *table_headers.RESPONSE_HEADERS,
    "content-type",
    "retry-after",
    "etag",
    "location",
    "www-authenticate",
)
STEPS_MAX = 60  # of one flow: a server that never ends keeps a reader busy for ever, which is not what is tested


def inflating(data: bytes) -> None:
    """Compressed answers: what comes out is what comes out at once, in pieces that are bounded, however it is cut."""
    choices = Choices(data)
    encoding = choices.choice(("gzip", "br", "zstd", "identity"))
    made = choices.number(1)
    body = choices.rest()
    if made:
        body = _compressed(encoding, body) + _compressed(encoding, body[:3])[: 5 if len(body) % 2 else 0]
    whole, fault = _inflated(encoding, [body])
    again, other = _inflated(encoding, [body[index : index + 7] for index in range(0, len(body), 7)])
    assert fault == other
    assert whole.startswith(again) or again.startswith(whole)
    if fault is None:
        assert whole == again
        if made and encoding != "br" and len(data) % 2:
            assert whole.startswith(Choices(data[2:]).rest()[:1])


def _compressed(encoding: str, body: bytes) -> bytes:
    if encoding == "gzip":
        return gzip.compress(body, mtime=0)
    if encoding == "br":
        return bytes(brotli.compress(body))
    return zstandard.compress(body) if encoding == "zstd" else body


def _inflated(encoding: str, pieces: list[bytes]) -> tuple[bytes, bool | None]:
    """What was inflated, and whether it is broken (True) or only ends too soon (False)."""
    inflater, output = Inflater(encoding, 1000), []
    try:
        for piece in pieces:
            for inflated in inflater.feed(piece):
                assert len(inflated) <= (16 << 20 if encoding == "zstd" else max(40_000, len(piece)))
                output.append(inflated)
                if sum(map(len, output)) > 1 << 20:
                    return b"", None
        inflater.finish()
    except ProtocolError as error:
        return b"".join(output), not error.retryable
    return b"".join(output), None


class Server:
    """Answers whatever the choices say, three times, and then the last one for ever."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._answers = [self._answer() for _ in range(3)]
        self._body: list[bytes] = []

    def _answer(self) -> HttpReply:
        choices = self._choices
        fields = {headers.NEXT_OFFSET: "1"}
        for _ in range(choices.number(4)):
            name = choices.choice(NAMES)
            fields[name] = choices.line().decode("latin-1")
        return HttpReply(choices.choice(STATUSES), fields, choices.line().replace(b"\\n", b"\n"))

    def reply(self, effect: Send | Open) -> HttpReply:
        reply = self._answers[0] if len(self._answers) == 1 else self._answers.pop(0)
        if isinstance(effect, Send):
            return reply
        self._body = [reply.body[:5], reply.body[5:]]
        return msgspec.structs.replace(reply, body=b"")

    def receive(self) -> bytes:
        return next((self._body.pop(0) for _ in range(len(self._body)) if self._body[0]), b"") if self._body else b""


def drive(flow: Flow[Any], server: Server) -> list[Any]:
    """What a flow hands out; errors that are not Headwater's come through."""
    running_flow = RunningFlow(flow)
    items: list[Any] = []
    outcome: HttpReply | bytes | None = None
    for _ in range(STEPS_MAX):
        effect = running_flow.go(outcome)
        outcome = None
        if effect is None:
            return items
        if isinstance(effect, Send | Open):
            outcome = server.reply(effect)
        elif isinstance(effect, Receive):
            outcome = server.receive()
        elif isinstance(effect, Emit):
            items += effect.batch.items
        else:
            assert isinstance(effect, CloseReply) or effect is not None
    return items


def _session() -> Session:
    return Session("http://127.0.0.1:4437", None, None, None, Retry(attempts=3), Timeouts(), None)


FLOWS: tuple[Callable[[Session], Flow[Any]], ...] = (
    lambda session: flows.head(session, URL),
    lambda session: flows.create(session, URL, "application/json"),
    lambda session: flows.append(session, URL, "application/json", [1], if_tail="-1"),
    lambda session: flows.delete(session, URL),
    lambda session: flows.list_page(session, "", None, 10),
    lambda session: flows.splits(session, URL, offset="-1", until=None, parts=2, part_bytes=None, limit=None),
    lambda session: flows.record_page(session, URL, "-1", None, 10),
    lambda session: flows.record_times(session, URL, "-1", None, 10),
    lambda session: tables.info(session, TABLE),
    lambda session: tables.append(session, TABLE, TableType(), [("+", "k", "r")], if_tail=0),
    lambda session: tables.table_page(session, "", None, 10),
    lambda session: nurls.advertised(session, TABLE),
    lambda session: table_reading.active(session, TABLE, None),
)


def answers(data: bytes) -> None:
    """Any answer to any request: a result, or an error of Headwater's."""
    choices = Choices(data)
    make = choices.choice(FLOWS)
    server = Server(choices)
    try:
        drive(make(_session()), server)
    except HeadwaterError as error:
        assert error.status >= 0
        assert str(error)


def reads(data: bytes) -> None:
    """Reads and follows of any answers: items, or an error of Headwater's."""
    choices = Choices(data)
    live: LiveMode = choices.choice((False, True, "sse", "long-poll"))
    wanted = choices.choice((Any, bytes, str, dict[str, int]))
    table = choices.number(1)
    server = Server(choices)
    session = _session()
    try:
        if table:
            reading: Any = table_reading.TableReading(session, TABLE, TableFollowing(), {})
            seqnos = [row.seqno for row in drive(reading.flow(), server)]
            assert seqnos == sorted(set(seqnos))
        else:
            drive(Reading(session, URL, wanted, Position(BEGINNING), None, live).flow(), server)
    except HeadwaterError as error:
        assert str(error)


def errors(data: bytes) -> None:
    choices = Choices(data)
    status = choices.number(999)
    kind = choices.choice(("application/problem+json", "text/plain", "application/problem+json; x"))
    fields = {"content-type": kind}
    for _ in range(choices.number(3)):
        name = choices.choice(NAMES)
        fields[name] = choices.line().decode("latin-1")
    method = choices.choice(("POST", "PUT", "GET"))
    request = HttpRequest(method, URL, guarded=bool(choices.number(1)))
    error = error_of(request, HttpReply(status, fields, choices.rest()))
    assert isinstance(error, HeadwaterError)
    assert error.status == status
    wait_s = retry_after_s(fields)
    assert wait_s is None or 0 <= wait_s <= limits.RETRY_AFTER_MAX_S


def messages(data: bytes) -> None:
    """JSON answers in pieces: the messages of the whole array, up to the first one that is none."""
    choices = Choices(data)
    skip = choices.number(3)
    text = choices.rest()
    try:
        whole = json.loads(text.decode())
    except (ValueError, RecursionError):
        whole = None
    answer = Decoder(ContentKind.JSON, bytes).answer(skip)
    items: list[Any] = []
    try:
        for piece in Choices(data).pieces(text):
            answer.feed(piece)
            items += answer.some()
        items += answer.rest()
    except ProtocolError:
        assert not isinstance(whole, list) or b"[[[" in text
        return
    if isinstance(whole, list) and answer.bad is None:
        assert [json.loads(item) for item in items] == whole[skip:] or "nan" in repr(whole)
        assert answer.taken == max(len(whole), 0) or not whole


def state_events(data: bytes) -> None:
    try:
        events = decode_events(data)
    except (InvalidEventError, ValueError):
        events = []
    assert all(event is not None for event in events)
    for item in EventDecoder().decode_array(data) if data[:1] == b"[" and _is_json(data) else ():
        assert item is not None
    if _is_json(data):
        try:
            parse_event(json.loads(data))
        except InvalidEventError:
            return


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data.decode())
    except (ValueError, RecursionError):
        return False
    return True


def text_answers(data: bytes) -> None:
    """Text in pieces: the same text, up to the first byte that is no UTF-8."""
    decoder = Decoder(ContentKind.TEXT, str)
    got = ""
    for piece in Choices(data).pieces(data):
        answer = decoder.answer(0)
        answer.feed(piece)
        got += "".join(answer.rest())
        if answer.bad is not None:
            break
    assert data.decode(errors="replace").startswith(got)


def gzip_seed(body: bytes) -> bytes:
    return zlib.compress(body, wbits=31)


TARGETS = {
    "inflating": Target(
        inflating,
        (
            b"\x00\x01hello",
            b"\x00\x00" + gzip_seed(b"hello"),
            b"\x01\x00" + brotli.compress(b"hello" * 50),
            b"\x02\x00" + zstandard.compress(b"x" * 999),
        ),
        (gzip_seed(b"a"), brotli.compress(b"a"), zstandard.compress(b"a"), b"\x00\x00\xff\xff", b"(\xb5/\xfd"),
    ),
    "answers": Target(
        answers,
        (
            b"\x00\x01\x0512\n\x00{}\n",
            b'\x04\x00\x00{"streams":[]}\n',
            b"\x08\x02\x0etext/sequence; schema=a; version=1\n\x0b5\n\x00\n",
        ),
        (
            b"\n",
            b"{}",
            b'{"streams":[',
            b'"path":"a"',
            b"\xff",
            b"9" * 5000 + b"\n",
            b"\xb2\n",
            b"application/problem+json\n",
            b"text/sequence; schema=s; version=1\n",
        ),
    ),
    "reads": Target(
        reads,
        (
            b"\x00\x00\x00\x01\x13application/json\n\x00[1,2]\n",
            b"\x02\x00\x00\x01\x13text/event-stream\n\x00event: data\\ndata:[1]\\n\\n\n",
            b"\x00\x00\x01\x01\x13text/sequence; schema=s; version=1\n\x001\\t\n",
        ),
        (
            b"\n",
            b"\\n",
            b"event: control\\n",
            b'data:{"streamNextOffset":"2"}\\n\\n',
            b"data:[1]\\n\\n",
            b"application/json\n",
            b"text/event-stream\n",
            b"text/plain\n",
            b"\xff",
            b"true\n",
        ),
    ),
    "errors": Target(
        errors,
        (b'\x01\x90\x00\x00\x00\x00{"type":"urn:headwater:invalid-offset","detail":"x"}',),
        (
            b'{"type":"',
            b'"detail":"',
            b"\xff",
            b'"}',
            b"urn:headwater:tail-moved",
            b"Wed, 21 Oct 2015 07:28:00 GMT\n",
            b"9" * 5000 + b"\n",
            b"Fri, 31 Dec 9999 23:59:59 -2359\n",
        ),
    ),
    "messages": Target(
        messages,
        (b'\x00[1,{"a":[2,"x,y"]},3]', b"\x01[[1],[2]]"),
        (b"[", b"]", b",", b"{", b"}", b'"', b"\\", b"1", b" ", b"[1,2]"),
    ),
    "state_events": Target(
        state_events,
        (b'[{"type":"t","key":"k","value":1,"headers":{"operation":"insert"}}]', b'{"headers":{"control":"reset"}}'),
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
            b'"control":"snapshot-end"',
        ),
    ),
    "text_answers": Target(
        text_answers, ("é€𐍈".encode(), b"a\xc3"), (b"\xc3", b"\xa9", b"\xe2\x82", b"\xf0", b"\xff", b"a")
    ),
}
