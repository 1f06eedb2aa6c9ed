"""Queries, headers, names of tables and rows as server-sent events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import limits
from headwater.errors import InvalidPathError, InvalidQueryError, ProtocolError
from headwater.protocol.streams.sse import EventReader
from headwater.protocol.tables import headers
from headwater.protocol.tables.paths import TABLE_ROOT, TableAddress, check_name, parse_address, surl_path
from headwater.protocol.tables.queries import RowView, TableQuery, parse_table_query
from headwater.protocol.tables.rows import Row, event_frames, format_row
from tests.unit.protocol.tables.test_rows import ROWS, SEED


def test_since_id() -> None:
    """`since_id=N` returns rows with SeqNo > N; `since_id=-N` returns the last N rows."""
    assert parse_table_query("since_id=42").since_id == 42
    assert parse_table_query("since_id=-5").since_id == -5
    assert parse_table_query(f"since_id={2**63 - 1}").since_id == 2**63 - 1


def test_since_id_if_absent_treat_as_0() -> None:
    """if absent, treat as `since_id=0`."""
    assert parse_table_query("").since_id == parse_table_query("x=1").since_id == 0
    assert parse_table_query("since_id=0") == parse_table_query("since_id=-0") == TableQuery()


@pytest.mark.parametrize(
    "value",
    ["", "x", "1.5", "1e3", "--1", "+1", "%2B1", "%201", "1_0", "٣", "-", "null", "9" * 19, "1" * 20, "1" * 5000],
)
def test_since_id_must_be_an_integer(value: str) -> None:
    with pytest.raises(InvalidQueryError, match="since_id must be an integer"):
        parse_table_query(f"since_id={value}")


def test_timeout_and_idle_are_seconds_within_limits() -> None:
    """Servers SHOULD stream rows until timeout or idle, then close."""
    query = parse_table_query("timeout=2.5&idle=.25")
    assert (query.timeout_s, query.idle_s) == (2.5, 0.25)
    assert parse_table_query("timeout=0").timeout_s == 0
    lowered = parse_table_query("timeout=86400&idle=999999999")
    assert (lowered.timeout_s, lowered.idle_s) == (limits.TABLE_TIMEOUT_MAX_S, limits.TABLE_IDLE_MAX_S)
    assert parse_table_query("since_id=1") == TableQuery(1, limits.TABLE_TIMEOUT_S, limits.TABLE_IDLE_S)


@pytest.mark.parametrize("value", ["", "-1", "nan", "inf", "1e3", "0x10", "5s", ".", "1,5", "1" * 10, "٣"])
def test_seconds_are_decimal_numbers(value: str) -> None:
    for name in ("timeout", "idle"):
        with pytest.raises(InvalidQueryError, match=f"{name} must be a decimal number of seconds"):
            parse_table_query(f"{name}={value}")


def test_views_and_keys() -> None:
    assert parse_table_query("view=active").view is RowView.ACTIVE
    assert parse_table_query("view=all").view is RowView.ALL
    query = parse_table_query("key=caf%C3%A9+au%20lait")
    assert (query.view, query.key) == (RowView.ACTIVE, "café au lait")
    assert parse_table_query("key=a%26b&view=active").key == "a&b"
    for bad in ("view=", "view=Active", "view=live", "key=", "view=all&key=a", "key=%ff", "key=" + "k" * 1025):
        with pytest.raises(InvalidQueryError):
            parse_table_query(bad)


def test_events_resume_after_the_last_event_id() -> None:
    assert parse_table_query("live=sse").events
    assert not parse_table_query("live=false").events
    assert parse_table_query("live=sse&since_id=3", "44").since_id == 44
    assert parse_table_query("live=sse&since_id=3", "").since_id == 3
    assert parse_table_query("since_id=3", "44").since_id == 3  # not a request of an EventSource
    with pytest.raises(InvalidQueryError, match="Last-Event-ID"):
        parse_table_query("live=sse", "x")
    with pytest.raises(InvalidQueryError, match="live must be sse"):
        parse_table_query("live=long-poll")


def test_unknown_parameters_are_ignored_and_known_ones_come_once() -> None:
    assert parse_table_query("utm=1&utm=%ff&&=&since_id=7&Since_Id=x").since_id == 7
    for bad in ("since_id=1&since_id=1", "key=a&ke%79=a"):
        with pytest.raises(InvalidQueryError, match="more than once"):
            parse_table_query(bad)


def test_servers_may_include_the_last_seqno() -> None:
    """Servers MAY also include: STP-Last-SeqNo: <n>."""
    assert (headers.LAST_SEQNO, headers.GAPLESS) == ("stp-last-seqno", "stp-gapless")
    assert headers.parse_last_seqno({"stp-last-seqno": "44"}) == 44
    assert headers.parse_last_seqno({}) is None
    for bad in ("", "x", "-1", "1.5", "9" * 30):
        with pytest.raises(ProtocolError):
            headers.parse_last_seqno({"stp-last-seqno": bad})


def test_only_true_promises_seqnos_without_gaps() -> None:
    assert headers.parse_gapless({"stp-gapless": " True "})
    for value in ("false", "1", "yes", ""):
        assert not headers.parse_gapless({"stp-gapless": value})
    assert not headers.parse_gapless({})
    assert all(name == name.lower() for name in headers.RESPONSE_HEADERS)


@pytest.mark.parametrize(
    ("raw", "address"),
    [
        ("prices", TableAddress("prices")),
        ("shops/caf%C3%A9", TableAddress("shops/café")),
        ("prices/notify", TableAddress("prices", "notify")),
        ("shops/eu/%6Eotify", TableAddress("shops/eu", "notify")),
        ("prices/trim", TableAddress("prices", "trim")),
        ("notify/prices", TableAddress("notify/prices")),
        ("notify-me", TableAddress("notify-me")),
    ],
)
def test_surls_and_nurls(raw: str, address: TableAddress) -> None:
    assert parse_address(raw) == address
    url = f"{surl_path(address.name)}/{address.below}" if address.below else surl_path(address.name)
    assert url.startswith("/v1/table/")
    assert parse_address(url.removeprefix(TABLE_ROOT)) == address


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "notify",
        "notify/notify",
        "a/notify/notify",
        "__stp",
        "__stp/tables",
        "__stp/notify",
        "a//b",
        "..",
        "a%2Fb",
        "%00",
    ],
)
def test_names_that_are_refused(raw: str) -> None:
    with pytest.raises(InvalidPathError):
        parse_address(raw)


def test_table_names_are_checked() -> None:
    assert check_name("a/b") == "a/b"
    for name in ("a/notify", "__stp/x", "notify"):
        with pytest.raises(InvalidPathError):
            check_name(name)


def test_rows_as_events() -> None:
    assert event_frames(SEED) == (
        b"id: 43\ndata: 43\t2026-01-08T00:00:00Z\t+\tfhir_read\thttps://prov.com/fhir/read\n\n"
        b"id: 44\ndata: 44\t2026-01-08T00:00:01Z\t+\tdirect_message\thttps://prov.com/direct\n\n"
    )
    assert event_frames(b"") == b""


@given(st.lists(ROWS))
def test_events_hold_the_rows(rows: list[Row]) -> None:
    stored = [format_row(row) for row in rows]
    events = EventReader().feed(event_frames(b"".join(stored)))
    assert events == [(b"message", row[:-1].replace(b"\r", b"\n")) for row in stored]


def test_a_carriage_return_in_a_mirrored_row_cannot_inject_a_field() -> None:
    frames = event_frames(b"1\tt\t+\tk\tx\r\rid: 9\revent: control\r\n")
    assert b"\r" not in frames
    assert [line for line in frames.split(b"\n") if line and not line.startswith(b"data: ")] == [b"id: 1"]


QUERY_PARTS = [
    "since_id",
    "until_id",
    "timeout",
    "idle",
    "view",
    "key",
    "live",
    "=",
    "&",
    "active",
    "all",
    "sse",
    "0",
    "-",
]
QUERY_PARTS += ["1", "9" * 20, "%", "%2D", "%ff", "+", ".", "é", "x", "since_id=5", "&view=active", "&live=sse"]


@given(st.lists(st.sampled_from(QUERY_PARTS)), st.sampled_from([None, "", "7", "-7", "x"]))
def test_any_query_is_within_limits_or_an_error(parts: list[str], last_event_id: str | None) -> None:
    try:
        query = parse_table_query("".join(parts), last_event_id)
    except InvalidQueryError:
        return
    assert abs(query.since_id) <= limits.SEQNO_MAX
    assert query.until_id is None or 0 <= query.until_id <= limits.SEQNO_MAX
    assert 0 <= query.timeout_s <= limits.TABLE_TIMEOUT_MAX_S
    assert 0 <= query.idle_s <= limits.TABLE_IDLE_MAX_S
    assert query.key is None or 0 < len(query.key.encode()) <= limits.KEY_BYTES_MAX
    assert not (query.events and query.view is RowView.ACTIVE)
    if query.events and last_event_id:
        assert query.since_id == int(last_event_id)
