"""Paths, offsets, cursors, entity tags, content types, server-sent events and queries."""

from __future__ import annotations

import base64
import re
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import limits
from headwater.errors import (
    InvalidHeaderError,
    InvalidOffsetError,
    InvalidPathError,
    InvalidQueryError,
)
from headwater.log.content import ContentKind, kind_of, same_type
from headwater.log.offsets import BEGINNING, Offset
from headwater.protocol import conditions
from headwater.protocol.streams import offsets, reads, sse
from headwater.protocol.streams.headers import check_content_type
from headwater.protocol.streams.paths import parse_path, quote_path
from headwater.protocol.streams.reads import Live, ReadQuery, cache_control, parse_read, wrap

LONG = "/".join(["abcdefgh"] * 200)
REFUSED = ["", "a//b", "/a", "a/", "..", "a/../b", ".", "%2e%2e", "a%2Fb", "a%5cb", "a\\b", "a%00", "a%0a", "%ff"]


@pytest.mark.parametrize("raw", [*REFUSED, "x" * 256, LONG])
def test_paths_that_are_refused(raw: str) -> None:
    with pytest.raises(InvalidPathError):
        parse_path(raw)


@pytest.mark.parametrize(
    ("raw", "path"),
    [("chat/abc", "chat/abc"), ("%61", "a"), ("caf%C3%A9", "café"), ("a%20b", "a b"), ("..a", "..a")],
)
def test_paths_are_decoded_once(raw: str, path: str) -> None:
    assert parse_path(raw) == path
    assert parse_path(quote_path(path)) == path


def test_offsets_sort_as_text() -> None:
    assert offsets.format_offset(Offset(7, 31)) == f"{7:016d}_{31:016d}"
    assert offsets.parse_offset(f"{7:016d}_{31:016d}") == Offset(7, 31)
    assert offsets.parse_offset("-1") == BEGINNING
    assert offsets.parse_offset(f"{0:016d}_{0:016d}") == BEGINNING
    assert offsets.parse_offset("now") is None


@pytest.mark.parametrize(
    "token", ["", "1_2", "-2", "NOW", "0" * 33, f"{'1' * 16}_{'١' * 16}", "a,b", "../x", "x" * 500]
)
def test_invalid_offsets(token: str) -> None:
    with pytest.raises(InvalidOffsetError):
        offsets.parse_offset(token)


def test_cursors_count_intervals_and_never_decrease() -> None:
    now_ms = (limits.CURSOR_EPOCH_S + 1000 * limits.CURSOR_INTERVAL_S) * 1000
    assert reads.interval_at(now_ms) == 1000
    assert reads.next_cursor(None, now_ms, 0.5) == 1000
    assert reads.next_cursor("999", now_ms, 0.5) == 1000
    for junk in ("", "x", "-5", "1.5"):
        assert reads.next_cursor(junk, now_ms, 0.5) == 1000
    assert reads.next_cursor("9" * 40, now_ms, 0.5) > int("9" * 40)


@given(st.integers(1000, 10**9), st.floats(0, 1, exclude_max=True))
def test_the_next_cursor_exceeds_the_echoed_one_by_a_bounded_jitter(echoed: int, entropy: float) -> None:
    now_ms = (limits.CURSOR_EPOCH_S + 1000 * limits.CURSOR_INTERVAL_S) * 1000
    after = reads.next_cursor(str(echoed), now_ms, entropy)
    assert 1 <= after - echoed <= limits.CURSOR_JITTER_MAX_S // limits.CURSOR_INTERVAL_S


def test_entity_tags_vary_with_closure_and_encoding() -> None:
    tag = conditions.etag(1, 0, 5, closed=False)
    assert tag != conditions.etag(1, 0, 5, closed=True)
    assert conditions.matched(f'"x", W/{tag}', tag)
    assert conditions.matched(conditions.encoded(tag, "gzip"), tag)
    assert conditions.matched("*", tag)
    assert not conditions.matched(conditions.etag(1, 0, 5, closed=True), tag)


def test_content_types() -> None:
    assert same_type("Application/JSON; charset=utf-8", "application/json")
    assert not same_type("text/plain", "text/html")
    assert kind_of("application/json;x=y") is ContentKind.JSON
    assert kind_of("TEXT/csv") is ContentKind.TEXT
    assert kind_of("application/x-ndjson") is ContentKind.BINARY
    for bad in ("json", "/", "a/", "a b/c", "x" * 2000 + "/y"):
        with pytest.raises(InvalidHeaderError):
            check_content_type(bad)


def decode(frame: bytes) -> list[tuple[str, str]]:
    """Events as an EventSource reads them."""
    events = []
    for block in frame.decode().split("\n\n")[:-1]:
        name, data = "message", []
        for line in block.split("\n"):
            key, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if key == "event":
                name = value
            elif key == "data":
                data.append(value)
        events.append((name, "\n".join(data)))
    return events


@given(st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"])))
def test_text_survives_server_sent_events(text: str) -> None:
    assert decode(sse.data_frame(ContentKind.TEXT, text.encode(), "o")) == [("data", text)]


@given(st.binary())
def test_bytes_survive_server_sent_events(data: bytes) -> None:
    [(name, payload)] = decode(sse.data_frame(ContentKind.BINARY, data, "o"))
    assert name == "data"
    assert base64.b64decode(payload, validate=True) == data


def test_json_frames_are_arrays_and_cannot_inject_events() -> None:
    frame = sse.data_frame(ContentKind.JSON, b'{"a":\r\r1},2,', "o")
    assert decode(frame) == [("data", '[{"a":\n\n1},2]')]
    assert decode(sse.data_frame(ContentKind.TEXT, b"x\r\n\r\nevent: control\rdata: y", "o")) == [
        ("data", "x\n\nevent: control\ndata: y")
    ]


def test_control_frames() -> None:
    open_frame = sse.control_frame("o", cursor=5, up_to_date=True, closed=False)
    assert decode(open_frame) == [("control", '{"streamNextOffset":"o","streamCursor":"5","upToDate":true}')]
    closed = sse.control_frame("o", cursor=5, up_to_date=True, closed=True)
    assert decode(closed) == [("control", '{"streamNextOffset":"o","streamClosed":true,"upToDate":true}')]


def test_read_queries() -> None:
    assert parse_read("").live is Live.NO
    assert parse_read("offset=now&live=sse&cursor=4&x=1&x=2").live is Live.SSE
    assert parse_read("live=false").offset == BEGINNING
    for bad in (
        f"cursor={'9' * 65}",
        "live=true",
        "live=long-poll",
        "offset=-1&offset=-1",
        "live=sse&live=sse&offset=-1",
    ):
        with pytest.raises(InvalidQueryError):
            parse_read(bad)
    for bad in ("offset=", "offset=a", "until=now", "until=-1", "until=%00"):
        with pytest.raises(InvalidOffsetError):
            parse_read(bad)


def test_bodies_are_wrapped_without_copying() -> None:
    assert b"".join(wrap(ContentKind.JSON, b"1,2,")) == b"[1,2]"
    assert b"".join(wrap(ContentKind.JSON, b"")) == b"[]"
    assert b"".join(wrap(ContentKind.TEXT, b"ab")) == b"ab"


def test_nothing_is_cached_past_its_expiry_and_responses_at_the_tail_are_revalidated() -> None:
    offset = Offset(1, 5)
    between = ReadQuery(offset, until=Offset(1, 9))
    assert cache_control(between, None, 0, at_tail=False) == "public, max-age=31536000, immutable"
    assert cache_control(ReadQuery(offset), None, 0, at_tail=False) == "public, max-age=3600"
    assert cache_control(ReadQuery(offset), 10_000, 4_000, at_tail=False) == "public, max-age=6"
    assert cache_control(ReadQuery(offset), 4_000, 10_000, at_tail=False) == "public, max-age=0"
    assert cache_control(ReadQuery(), None, 0, at_tail=False) == "public, max-age=60, stale-while-revalidate=300"
    assert cache_control(ReadQuery(offset), None, 0, at_tail=True) == "no-cache"
    polled = ReadQuery(offset, Live.LONG_POLL)
    assert cache_control(polled, None, 0, at_tail=True) == "public, max-age=60, stale-while-revalidate=300"
    assert cache_control(ReadQuery(None), None, 0, at_tail=True) == "no-store"


@given(st.lists(st.sampled_from([b"\n", b"\r", b" ", b"x", b"data: "])).map(b"".join).filter(bool))
def test_an_event_is_the_same_in_any_number_of_pieces(text: bytes) -> None:
    lines = [(b"data: " if line.startswith(b" ") else b"data:") + line for line in re.split(rb"\r\n|\r|\n", text)]
    with mock.patch.object(limits, "SSE_PIECE_BYTES", 3):
        frame = sse.data_frame(ContentKind.TEXT, text, "o")
        assert frame == b"event: data\n" + b"\n".join(lines) + b"\nid:o\n\n"
        encoded = b"event: data\ndata:" + base64.b64encode(text) + b"\nid:o\n\n"
        assert sse.data_frame(ContentKind.BINARY, text, "o") == encoded
        json = decode(sse.data_frame(ContentKind.JSON, b'"",' + text + b"1,", "o"))
        normal = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").decode()
        assert json == [("data", f'["",{normal}1]')]
