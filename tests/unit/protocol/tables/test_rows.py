"""Rows and their timestamps, to the byte."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import limits
from headwater.errors import InvalidRowError
from headwater.protocol.tables.rows import (
    Action,
    Row,
    RowReader,
    format_row,
    format_rows,
    format_timestamp,
    last_seqno_of,
    parse_row,
    parse_timestamp,
    seqno_of,
)

SEED = (  # the example of the specification
    b"43\t2026-01-08T00:00:00Z\t+\tfhir_read\thttps://prov.com/fhir/read\n"
    b"44\t2026-01-08T00:00:01Z\t+\tdirect_message\thttps://prov.com/direct\n"
)
SEED_ROWS = [
    Row(43, "2026-01-08T00:00:00Z", "+", "fhir_read", "https://prov.com/fhir/read"),
    Row(44, "2026-01-08T00:00:01Z", "+", "direct_message", "https://prov.com/direct"),
]

ACTIONS: list[Action] = ["+", "-"]
FIELDS = st.text(st.characters(exclude_characters="\t\n", exclude_categories=["Cs"]))
RECORDS = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))
ROWS = st.builds(Row, st.integers(0, limits.SEQNO_MAX), FIELDS, st.sampled_from(ACTIONS), FIELDS.filter(bool), RECORDS)


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    """Split data at some positions. Equal positions give empty pieces."""
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(places):
        yield data[start:end]


def read(data: bytes, cuts: list[int], row_bytes_max: int = limits.ROW_BYTES_MAX) -> tuple[list[Row], str]:
    """The rows that a reader returns, and its error, if any."""
    reader, rows = RowReader(row_bytes_max), []
    try:
        for piece in pieces(data, cuts):
            for row in reader.feed(piece):
                rows.append(row)
        reader.finish()
    except InvalidRowError as error:
        return rows, str(error)
    return rows, ""


def test_each_row_is_a_tsv_line() -> None:
    """Each row is a TSV line: SeqNo, Timestamp, Action, PrimaryKey, Record."""
    assert [parse_row(line) for line in SEED.decode().split("\n")[:-1]] == SEED_ROWS
    assert b"".join(map(format_row, SEED_ROWS)) == SEED
    assert read(SEED, []) == (SEED_ROWS, "")


def test_action_is_add_replace_or_delete() -> None:
    """Action: `+` add/replace, `-` delete."""
    assert parse_row("1\tt\t-\tk\t") == Row(1, "t", "-", "k", "")
    for action in ("", "*", "++", "add", "−", " +"):
        with pytest.raises(InvalidRowError, match=r"action of row 1 must be \+ or -"):
            parse_row(f"1\tt\t{action}\tk\tr")


def test_record_may_contain_spaces_should_avoid_tabs() -> None:
    """Record: free-form schema-defined string (may contain spaces; SHOULD avoid tabs)."""
    line = "7\t2026-01-08T00:00:00Z\t+\tkey with spaces\t two  spaces \tand a tab\t"
    assert parse_row(line) == Row(7, "2026-01-08T00:00:00Z", "+", "key with spaces", " two  spaces \tand a tab\t")
    assert format_row(parse_row(line)) == line.encode() + b"\n"


@pytest.mark.parametrize(
    "seqno", ["", "-1", "+1", "01", "00", "1.0", "1e3", " 1", "x", "١", "²", "1_0", str(2**63), "9" * 40]
)
def test_seqno_is_an_integer(seqno: str) -> None:
    """SeqNo: integer, monotonic per table."""
    with pytest.raises(InvalidRowError, match="SeqNo"):
        parse_row(f"{seqno}\tt\t+\tk\tr")
    assert parse_row("0\tt\t+\tk\tr").seqno == 0
    assert parse_row(f"{2**63 - 1}\tt\t+\tk\tr").seqno == 2**63 - 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "begins with its SeqNo"),
        ("<html>", "begins with its SeqNo"),
        ("1", "1 of the 5 fields"),
        ("1\tt\t-\tk", "4 of the 5 fields"),
        ("1\tt\t+\t\tr", "primary key of row 1 is empty"),
    ],
)
def test_invalid_rows(line: str, reason: str) -> None:
    with pytest.raises(InvalidRowError, match=reason):
        parse_row(line)


def test_a_lenient_reader_accepts_a_delete_without_a_record_and_empty_lines() -> None:
    text = b"\n1\tt\t-\tk\n\n2\tt\t+\tk\tr\n\n"
    for cut in range(len(text)):
        reader = RowReader(lenient=True)
        rows = [*reader.feed(text[:cut]), *reader.feed(text[cut:])]
        assert rows == [Row(1, "t", "-", "k", ""), Row(2, "t", "+", "k", "r")]
    assert format_row(rows[0]) == b"1\tt\t-\tk\t\n"
    for line in (b"1\tt\t+\tk\n", b"1\tt\t-\n", b"1\tt\t-\t\n"):
        with pytest.raises(InvalidRowError):
            list(RowReader(lenient=True).feed(line))
    with pytest.raises(InvalidRowError):
        list(RowReader().feed(b"1\tt\t-\tk\n"))


def test_many_changes_become_rows_in_one_step() -> None:
    lines = [b"+\ta\t1", "+\té\tüber".encode(), b"-\ta\t"]
    assert format_rows(lines, 99, "2026-01-08T00:00:00.123Z") == (
        b"99\t2026-01-08T00:00:00.123Z\t+\ta\t1\n"
        b"100\t2026-01-08T00:00:00.123Z\t+\t\xc3\xa9\t\xc3\xbcber\n"
        b"101\t2026-01-08T00:00:00.123Z\t-\ta\t\n"
    )
    assert format_rows([], 1, "t") == b""


def test_stored_rows_name_their_seqnos() -> None:
    second = SEED.splitlines(keepends=True)[1]
    assert seqno_of(second) == last_seqno_of(SEED) == last_seqno_of(second) == 44
    assert seqno_of(SEED) == 43


@given(st.lists(ROWS), st.lists(st.integers(0, 400)))
def test_rows_survive_any_split_of_the_bytes(rows: list[Row], cuts: list[int]) -> None:
    data = b"".join(map(format_row, rows))
    assert read(data, cuts) == (rows, "")


@given(st.lists(ROWS, min_size=1), st.integers(0, 400), st.lists(st.integers(0, 400)), st.binary(max_size=3))
def test_damage_gives_the_same_error_for_any_split(rows: list[Row], at: int, cuts: list[int], junk: bytes) -> None:
    data = b"".join(map(format_row, rows))
    damaged = data[:at] + junk + data[at + len(junk) :]
    assert read(damaged, cuts, 60) == read(damaged, [], 60)


def test_the_rows_before_an_invalid_line_are_returned() -> None:
    for cuts in ([], list(range(len(SEED) + 4))):
        rows, error = read(SEED + b"bad\n" + SEED, cuts)
        assert rows == SEED_ROWS
        assert error.startswith("line 3: a row begins with its SeqNo")
    assert read(SEED + b"1\tt\t+\tk\t\xff\n", [])[1] == "line 3: byte 8 of the row is not UTF-8"


def test_a_response_that_ends_within_a_row_is_an_error() -> None:
    rows, error = read(SEED[:-1], [])
    assert rows == SEED_ROWS[:1]
    assert error.startswith("line 2: the response ends within a row that begins with '44\\t2026")


def test_an_endless_line_is_refused_with_bounded_memory() -> None:
    reader = RowReader(100)
    assert list(reader.feed(SEED + b"x" * 100)) == SEED_ROWS
    with pytest.raises(InvalidRowError, match="line 3: the row is longer than 100 bytes") as caught:
        list(reader.feed(b"x"))
    assert caught.value.line == 3
    with pytest.raises(InvalidRowError, match="line 1: the row is longer than 100 bytes"):
        list(RowReader(100).feed(b"1\tt\t+\tk\t" + b"x" * 100 + b"\n"))


def test_formatted_timestamps_always_have_milliseconds() -> None:
    """Timestamp: RFC3339 UTC timestamp (informational; not authoritative)."""
    assert format_timestamp(1_767_830_400_000) == "2026-01-08T00:00:00.000Z"
    assert format_timestamp(1_767_830_400_123) == "2026-01-08T00:00:00.123Z"
    assert format_timestamp(0) == "1970-01-01T00:00:00.000Z"


@given(st.integers(0, 253_402_300_799_999))
def test_timestamps_round_trip(ms: int) -> None:
    assert parse_timestamp(format_timestamp(ms)) == ms


@given(st.lists(st.integers(0, 10**14), min_size=2))
def test_timestamps_sort_as_text_in_the_order_of_time(times: list[int]) -> None:
    assert [format_timestamp(ms) for ms in sorted(times)] == sorted(map(format_timestamp, times))


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-01-08T00:00:00Z", 1_767_830_400_000),
        ("2026-01-08t00:00:00z", 1_767_830_400_000),
        ("2026-01-08T00:00:00+00:00", 1_767_830_400_000),
        ("2026-01-08T00:00:00.5-00:00", 1_767_830_400_500),
        ("2026-01-08T00:00:00.123999999999Z", 1_767_830_400_123),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000),
    ],
)
def test_timestamps_of_other_servers(text: str, ms: int) -> None:
    assert parse_timestamp(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-01-08",
        "2026-01-08T00:00:00",
        "2026-01-08T02:00:00+02:00",
        "2026-02-30T00:00:00Z",
        "2026-01-08T24:00:00Z",
        "2026-01-08T00:00:61Z",
        "2026-01-08T00:00:00.Z",
        "٢026-01-08T00:00:00Z",
    ],
)
def test_timestamps_that_are_not_rfc_3339_in_utc(text: str) -> None:
    with pytest.raises(InvalidRowError):
        parse_timestamp(text)
    assert parse_row(f"1\t{text}\t+\tk\tr").timestamp == text  # it is informational, so the row is valid


@given(
    st.lists(
        st.sampled_from(["\t", "0", "1", "9" * 18, "+", "-", "k", "\u0661", " ", "\r", "é", "2026-01-08T00:00:00Z"])
    )
)
def test_any_line_is_the_row_that_it_is_formatted_from_or_an_error(parts: list[str]) -> None:
    line = "".join(parts)
    try:
        row = parse_row(line)
    except InvalidRowError:
        fields = line.split("\t", 4)
        seqno = fields[0]
        plain = bool(re.fullmatch("0|[1-9][0-9]{0,18}", seqno)) and int(seqno) < 2**63
        assert len(fields) < 5 or not plain or fields[2] not in ("+", "-") or not fields[3]
    else:
        assert format_row(row) == f"{line}\n".encode()
