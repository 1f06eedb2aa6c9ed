"""The query, the events and the ids of combined feeds."""

from __future__ import annotations

import base64
import json
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import HeadwaterError, InvalidHeaderError, InvalidOffsetError, InvalidPathError, InvalidQueryError
from headwater.limits import SSE_PIECE_BYTES
from headwater.log.content import ContentKind
from headwater.log.offsets import BEGINNING, Offset
from headwater.protocol.streams import combined
from headwater.protocol.streams.combined import CombinedQuery, EventIds, Reached, StreamStart, parse_combined, parse_id
from headwater.protocol.streams.sse import EventReader

OFFSET = "1794990848523000_0000000000000017"


@pytest.mark.parametrize(
    ("query", "streams"),
    [
        ("stream=a", [("a", BEGINNING)]),
        ("stream=a@-1&stream=b@now", [("a", BEGINNING), ("b", None)]),
        (f"stream=a/b@{OFFSET}", [("a/b", Offset(1794990848523000, 17))]),
        (f"stream=a%2Fb%40{OFFSET}", [("a/b", Offset(1794990848523000, 17))]),  # as URLSearchParams writes it
        ("stream=mail@home@now", [("mail@home", None)]),  # the last @ separates
        ("stream=mail%2540home", [("mail@home", BEGINNING)]),
        ("stream=gr%C3%BCn+tee@now", [("grün tee", None)]),
        ("ids=true&stream=a&unknown=1", [("a", BEGINNING)]),
    ],
)
def test_a_query_lists_streams_with_their_offsets(query: str, streams: list[tuple[str, Offset | None]]) -> None:
    assert parse_combined(query, 10) == CombinedQuery(tuple(StreamStart(*one) for one in streams))


@given(st.lists(st.text("aZ0/@%+& ü~", min_size=1).map(lambda text: f"x{text}x".replace("//", "/")), unique=True))
def test_any_paths_survive_in_the_query(paths: list[str]) -> None:
    paths = [path for path in paths if "//" not in path][:20]
    if paths:
        query = combined.format_query(dict.fromkeys(paths, OFFSET), ids=False)
        parsed = parse_combined(query, 20)
        assert [start.path for start in parsed.streams] == paths
        assert not parsed.ids


@pytest.mark.parametrize(
    ("query", "error", "words"),
    [
        ("", InvalidQueryError, "stream=PATH@OFFSET"),
        ("stream=a&subscription=b", InvalidQueryError, "stream=PATH@OFFSET"),
        ("stream=a&stream=a@now", InvalidQueryError, "'a' is in the list twice"),
        ("subscription=a&subscription=b", InvalidQueryError, "subscription is given more than once"),
        ("stream=a&ids=no", InvalidQueryError, "ids must be true or false, got 'no'"),
        ("stream=a@5", InvalidOffsetError, "after the last @ of 'a@5'"),
        ("stream=user@example.org", InvalidOffsetError, "needs an offset too"),
        ("stream=a@", InvalidOffsetError, "after the last @"),
        ("stream=@now", InvalidPathError, "no empty segments"),
        ("stream=a//b", InvalidPathError, "'a//b' is not the path of a stream"),
        ("stream=%01t", InvalidPathError, "control character"),  # the path of a table in the log
        ("stream=a%ff", InvalidQueryError, "not UTF-8"),
        ("stream=__ds/live", InvalidPathError, "reserved"),
        ("stream=a&stream=b&stream=c&stream=d", InvalidQueryError, "at most 3 streams (combined_streams_max)"),
        ("&" * 100_000, InvalidQueryError, "at most 3 streams (combined_streams_max)"),
    ],
)
def test_a_query_that_is_wrong_is_refused(query: str, error: type[HeadwaterError], words: str) -> None:
    with pytest.raises(error) as caught:
        parse_combined(query, 3)
    assert words in str(caught.value)


def event(kind: ContentKind, data: bytes) -> dict[str, object]:
    lines = combined.data_lines('a"ü', kind, data, OFFSET)
    [(name, text)] = EventReader().feed(lines + b"\n")
    assert name == b"data"
    parsed: dict[str, object] = json.loads(text)
    assert (parsed.pop("stream"), parsed.pop("nextOffset")) == ('a"ü', OFFSET)
    return parsed


@given(st.text())
def test_text_arrives_as_it_is(text: str) -> None:
    assert event(ContentKind.TEXT, text.encode(errors="ignore")) == {"text": text.encode(errors="ignore").decode()}


@given(st.binary())
def test_bytes_arrive_as_they_are(data: bytes) -> None:
    parsed = event(ContentKind.BINARY, data)
    assert base64.b64decode(str(parsed["base64"])) == data


@pytest.mark.parametrize("count", [1, 5, 20_000])
def test_messages_arrive_as_they_are(count: int) -> None:
    messages = [{"n": n, "ü": 1} for n in range(count)]
    texts = [json.dumps(message, indent=message["n"] % 2 or None) for message in messages]
    data = b"".join(f"{text},".encode() for text in texts)
    assert event(ContentKind.JSON, data) == {"messages": messages}


def test_text_that_is_not_utf_8_is_sent_as_bytes() -> None:
    assert event(ContentKind.TEXT, b"gr\xc3") == {"isText": True, "base64": base64.b64encode(b"gr\xc3").decode()}


@pytest.mark.parametrize("shift", [0, 1, 2, 3])
def test_a_large_text_is_cut_between_characters(shift: int) -> None:
    text = "x" * shift + "\U0001f375" * SSE_PIECE_BYTES
    parts = combined.CombinedEvent("a", ContentKind.TEXT, text.encode(), OFFSET)
    assert parts.pieces > 3
    assert event(ContentKind.TEXT, text.encode()) == {"text": text}


def test_a_control_event_has_the_facts_that_apply() -> None:
    [(name, text)] = EventReader().feed(combined.control_lines("a", OFFSET, "upToDate", "streamClosed") + b"\n")
    assert name == b"control"
    assert json.loads(text) == {"stream": "a", "nextOffset": OFFSET, "upToDate": True, "streamClosed": True}


offsets = st.builds(Offset, st.integers(0, 2**60), st.integers(0, 2**60))
moves = st.dictionaries(st.integers(0, 49), st.builds(Reached, offsets, st.booleans(), st.booleans()), min_size=1)


def id_of(ids: EventIds) -> str:
    line = ids.line().decode()
    assert line.startswith("id:")
    assert line.endswith("\n\n")
    return line[3:-2]


@given(st.lists(st.none() | offsets, min_size=50, max_size=50), moves)
def test_an_id_has_the_position_of_every_stream(starts: list[Offset | None], reached: dict[int, Reached]) -> None:
    query = CombinedQuery(tuple(StreamStart(f"s{n}", offset) for n, offset in enumerate(starts)))
    ids = EventIds(query)
    for key, place in reached.items():
        ids.move(key, Reached(Offset(place.offset.id, place.offset.position // 2)))
        ids.move(key, place)
    assert parse_id(query, id_of(ids)) == reached


@given(st.dictionaries(st.text(min_size=1), offsets, min_size=1))
def test_an_id_of_a_subscription_does_not_depend_on_the_order_of_its_members(members: dict[str, Offset]) -> None:
    ids = EventIds(CombinedQuery(subscription="s"))
    for path, offset in members.items():
        ids.move(combined.key_of(path), Reached(offset))
    reached = parse_id(CombinedQuery(subscription="s"), id_of(ids))
    assert reached == {combined.key_of(path): Reached(offset) for path, offset in members.items()}


def test_an_id_grows_only_with_streams_that_moved_and_is_short_if_the_url_has_their_offsets() -> None:
    first = Offset(1_794_990_848_523_000, 10_000_000)
    at = [Offset(first.id + n * 10**6, first.position) for n in range(500)]
    given_offsets = CombinedQuery(tuple(StreamStart(f"s{n}", offset) for n, offset in enumerate(at)))
    beginnings = CombinedQuery(tuple(StreamStart(f"s{n}") for n in range(500)))
    lengths = []
    for query in (given_offsets, beginnings):
        ids = EventIds(query)
        ids.move(7, Reached(first))
        assert len(id_of(ids)) < 30
        for key in range(500):
            ids.move(key, Reached(Offset(first.id + key * 10**6, first.position + 5_000)))
        lengths.append(len(id_of(ids)))
    assert lengths[0] < 3_000
    assert lengths[1] < 8_000  # the header line that proxies accept by default


QUERY = CombinedQuery((StreamStart("a", Offset(5, 10)), StreamStart("b"), StreamStart("c", None)))


@pytest.mark.parametrize(
    "other",
    [
        CombinedQuery(QUERY.streams[::-1]),
        CombinedQuery(QUERY.streams[:2]),
        CombinedQuery((StreamStart("a", Offset(5, 11)), *QUERY.streams[1:])),  # positions are relative to these
        CombinedQuery(subscription="a"),
    ],
)
def test_an_id_of_another_list_is_refused(other: CombinedQuery) -> None:
    ids = EventIds(other)
    ids.move(0, Reached(Offset(5, 20)))
    with pytest.raises(InvalidHeaderError, match="another list of streams"):
        parse_id(QUERY, id_of(ids))


def test_every_damaged_id_is_refused_or_names_other_offsets() -> None:
    ids = EventIds(QUERY)
    ids.move(0, Reached(Offset(5, 300)))
    ids.move(2, Reached(Offset(900, 70_000), over=True))
    text = id_of(ids)
    for end in range(1, len(text)):
        try:
            parsed = parse_id(QUERY, text[:end])
        except InvalidHeaderError:
            continue
        assert set(parsed) < {0, 2}  # it was cut between two entries


@pytest.mark.parametrize(
    "entries",
    [
        b"\x80",  # an incomplete number
        b"\xff" * 10 + b"\x01",  # a number that is too large
        b"\x18\x00\x01",  # the fourth stream of three
        b"\x11\x01",  # `same` for a stream that began at its tail
        b"\x08\x00\x01\x08\x00\x02",  # one stream twice
        b"\x08\x00",  # without a position
        b"\x08\x7f\x01",  # an id of less than 0
        b"\x01" + b"\xff" * 8 + b"\x7f",  # a position that is too large
    ],
)
def test_an_id_that_no_server_made_is_refused(entries: bytes) -> None:
    head = base64.urlsafe_b64decode(id_of(EventIds(QUERY)) + "==")[:7]
    for data in (head + b"\x05" + entries, entries, b"", b"\x03" + head):
        with pytest.raises(InvalidHeaderError):
            parse_id(QUERY, base64.urlsafe_b64encode(data).decode().rstrip("="))


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda data: base64.urlsafe_b64encode(data).decode()))
def test_any_text_as_an_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidHeaderError):
        parse_id(QUERY, text)


def test_a_form_of_a_library_is_read() -> None:
    form = urlencode([("stream", "a b@now"), ("stream", "c/d@-1")])
    assert [start.path for start in parse_combined(form, 5).streams] == ["a b", "c/d"]
