from __future__ import annotations

import pytest

from headwater.errors import InvalidHeaderError
from headwater.log.producers import ProducerTuple
from headwater.protocol.streams import headers
from headwater.protocol.streams.headers import (
    format_instant,
    parse_closed,
    parse_expiry,
    parse_producer,
    parse_seq,
    parse_sub_offset,
)


@pytest.mark.parametrize(
    ("value", "closes"),
    [("true", True), ("TRUE", True), ("True", True), ("false", False), ("yes", False), ("1", False), ("", False)],
)
def test_only_true_closes(value: str, closes: bool) -> None:
    assert parse_closed({"stream-closed": value}) is closes


def test_producer_headers_must_be_sent_together() -> None:
    whole = {"producer-id": "p", "producer-epoch": "3", "producer-seq": "9007199254740991"}
    assert parse_producer(whole) == ProducerTuple("p", 3, 2**53 - 1)
    assert parse_producer({}) is None
    for name in whole:
        with pytest.raises(InvalidHeaderError, match="together"):
            parse_producer({key: value for key, value in whole.items() if key != name})


@pytest.mark.parametrize("value", ["", "-1", "1.0", "1e3", "abc", "9007199254740992", "1" * 40, "١"])
def test_producer_integers_are_strict(value: str) -> None:
    with pytest.raises(InvalidHeaderError):
        parse_producer({"producer-id": "p", "producer-epoch": value, "producer-seq": "0"})


@pytest.mark.parametrize("value", ["", "-1", "+5", "05", "1.5", "1e3", "abc", "9" * 30, " 5"])
def test_a_ttl_is_plain_decimal_seconds(value: str) -> None:
    with pytest.raises(InvalidHeaderError):
        parse_expiry({"stream-ttl": value})
    assert parse_expiry({"stream-ttl": "0"}) == (0, None)
    assert parse_expiry({"stream-ttl": "3600"}) == (3600, None)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "tomorrow",
        "9999-12-31T23:59:59-01:00",
        "2026-01-01",
        "2026-13-01T00:00:00Z",
        "2026-01-01T00:00:00",
        "20260101T000000Z",
    ],
)
def test_an_expiry_is_rfc_3339(value: str) -> None:
    with pytest.raises(InvalidHeaderError):
        parse_expiry({"stream-expires-at": value})


def test_times_are_compared_across_zones_and_formatted_in_utc() -> None:
    _, utc = parse_expiry({"stream-expires-at": "2026-11-15T10:00:00.250Z"})
    _, zoned = parse_expiry({"stream-expires-at": "2026-11-15T12:00:00.250+02:00"})
    assert utc is not None
    assert utc == zoned
    assert format_instant(utc) == "2026-11-15T10:00:00.250Z"


def test_ttl_and_expiry_cannot_be_sent_together() -> None:
    with pytest.raises(InvalidHeaderError, match="cannot be sent together"):
        parse_expiry({"stream-ttl": "1", "stream-expires-at": "2026-11-15T10:00:00Z"})


def test_a_sub_offset_needs_a_source() -> None:
    with pytest.raises(InvalidHeaderError, match="Forked-From"):
        parse_sub_offset({"stream-fork-sub-offset": "0"})
    assert parse_sub_offset({"stream-fork-sub-offset": "7", "stream-forked-from": "/x"}) == 7
    for value in ("", "-1", "01", "1.0", "x"):
        with pytest.raises(InvalidHeaderError):
            parse_sub_offset({"stream-fork-sub-offset": value, "stream-forked-from": "/x"})


def test_stored_values_are_bounded() -> None:
    with pytest.raises(InvalidHeaderError, match="longer"):
        parse_seq({"stream-seq": "s" * 2000})
    with pytest.raises(InvalidHeaderError, match="longer"):
        parse_producer({"producer-id": "p" * 2000, "producer-epoch": "0", "producer-seq": "0"})


def test_header_names_are_lower_case() -> None:
    for name in (*headers.REQUEST_HEADERS, *headers.RESPONSE_HEADERS):
        assert name == name.lower()


@pytest.mark.parametrize("ms", [1_032_023, 1_763_200_800_001, 253_402_300_799_999, 0, 1_001])
def test_times_keep_their_milliseconds(ms: int) -> None:
    assert parse_expiry({"stream-expires-at": format_instant(ms)}) == (None, ms)
