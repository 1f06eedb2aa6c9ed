"""The content type of tables, and which of them a client accepts."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import InvalidHeaderError, NotAcceptableError, ProtocolError
from headwater.protocol.tables.content_type import (
    TableType,
    check_accept,
    check_accept_events,
    check_changes_type,
    format_table_type,
    parse_answer_type,
    parse_table_type,
)
from headwater.protocol.tables.escaping import Escape

SEED = "text/sequence; charset=utf-8; schema=endpoint_manifest; version=1"
MANIFEST = TableType("endpoint_manifest", 1)
PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=128)


def test_stp_responses_must_include_a_content_type() -> None:
    """STP responses MUST include: Content-Type: text/sequence; charset=utf-8; schema=<schema_id>; version=<n>."""
    assert format_table_type(MANIFEST) == SEED
    assert parse_answer_type(SEED) == parse_table_type(SEED) == MANIFEST


def test_responses_without_schema_or_version_are_not_tables() -> None:
    for value in (
        None,
        "text/sequence",
        "text/sequence; schema=a",
        "text/sequence; version=1",
        "text/html",
        "",
        SEED + "1x",
    ):
        with pytest.raises(ProtocolError):
            parse_answer_type(value)
    assert parse_answer_type("text/sequence;schema=a;version=2") == TableType("a", 2)


def test_requests_may_omit_parameters_with_defaults() -> None:
    assert parse_table_type(None) == parse_table_type("text/sequence") == TableType("text", 1, Escape.NONE)
    assert parse_table_type("text/sequence; version=7") == TableType("text", 7)


@pytest.mark.parametrize(
    "value",
    [
        "TEXT/Sequence ; Version=1 ;SCHEMA=endpoint_manifest; Charset=UTF-8",
        'text/sequence; version="1"; schema="endpoint\\_manifest"; charset="utf-8"',
        "text/sequence; schema=endpoint_manifest;; version=1; future=yes;",
    ],
)
def test_case_quotes_order_and_unknown_parameters_do_not_matter(value: str) -> None:
    assert parse_table_type(value) == MANIFEST


@pytest.mark.parametrize(
    "value",
    [
        "",
        "text",
        "text/plain",
        "application/json",
        "text/sequence; charset=latin-1",
        "text/sequence; schema=",
        'text/sequence; schema=""',
        'text/sequence; schema="a',
        "text/sequence; schema=é",
        "text/sequence; schema=a b",
        "text/sequence; schema=a; schema=a",
        "text/sequence; schema=" + "x" * 129,
        "text/sequence; version=-1",
        "text/sequence; version=01",
        "text/sequence; version=1.0",
        "text/sequence; version=x",
        "text/sequence; version=" + "1" * 10,
        "text/sequence; escape=quotes",
        "text/sequence, text/sequence",
        "text/sequence; x=" + "y" * 2000,
    ],
)
def test_content_types_that_are_refused(value: str) -> None:
    with pytest.raises(InvalidHeaderError):
        parse_table_type(value)


def test_the_content_type_shows_escapes() -> None:
    table = TableType("notes", 3, Escape.BACKSLASH)
    assert format_table_type(table) == "text/sequence; charset=utf-8; schema=notes; version=3; escape=backslash"
    assert parse_answer_type(format_table_type(table)) == table


@given(PRINTABLE, st.integers(0, 999_999_999), st.sampled_from(Escape))
def test_content_types_round_trip(schema: str, version: int, escape: Escape) -> None:
    table = TableType(schema, version, escape)
    assert parse_answer_type(format_table_type(table)) == table
    check_accept(format_table_type(table), table)


@pytest.mark.parametrize(
    "accept",
    [
        None,
        "",
        "*/*",
        "text/*",
        "text/sequence",
        SEED,
        "text/sequence; version=1",
        'TEXT/SEQUENCE; SCHEMA="endpoint_manifest"; charset=UTF-8',
        "text/html, text/sequence;q=0.001",
        "text/sequence; schema=other, */*;q=0.1",
        'text/html; title="a, b; q=0", text/sequence; q=1.000',
        "text/sequence; version=2; q=0, text/sequence",
        "text/*;q=0, text/sequence",
        "text/sequence; escape=none",
        "text/sequence; q=high",
        "complete nonsense",
    ],
)
def test_accepted_content_types(accept: str | None) -> None:
    check_accept(accept, MANIFEST)


@pytest.mark.parametrize(
    "accept",
    [
        "text/html",
        "application/*",
        "text/sequence; schema=other",
        "text/sequence; schema=Endpoint_Manifest",
        "text/sequence; schema=endpoint_manifest; version=2",
        "text/sequence; charset=latin-1",
        "text/sequence; escape=backslash",
        "text/sequence;q=0",
        "text/sequence; q=0.000, */*",
        "text/sequence; version=1; q=0, text/sequence, */*",
        "text/*;q=0, */*",
        'text/sequence; version=2; note="schema=endpoint_manifest, */*"',
    ],
)
def test_a_wrong_schema_or_version_is_not_acceptable(accept: str) -> None:
    with pytest.raises(NotAcceptableError, match="schema=endpoint_manifest; version=1") as caught:
        check_accept(accept, MANIFEST)
    assert caught.value.status == 406


def test_browsers_accept_events() -> None:
    for accept in (None, "text/event-stream", "*/*", "text/*"):
        check_accept_events(accept)
    for accept in ("text/sequence", "text/event-stream;q=0"):
        with pytest.raises(NotAcceptableError, match="text/event-stream"):
            check_accept_events(accept)


def test_a_long_accept_header_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(InvalidHeaderError, match="longer"):
        check_accept('"\\' * 10_000, MANIFEST)
    check_accept('"\\' * 512, MANIFEST)


PARTS = ["text/sequence", "text/*", "*/*", ";", ",", "=", '"', "\\", " ", "schema", "version", "escape", "q", "q=0"]
PARTS += ["charset=utf-8", "schema=s", "version=1", "version=01", "backslash", "0.5", "é", "\x00", "a" * 300]


@given(st.lists(st.sampled_from(PARTS)))
def test_any_content_type_is_a_type_that_round_trips_or_an_error(parts: list[str]) -> None:
    try:
        table = parse_table_type("".join(parts))
    except InvalidHeaderError:
        return
    assert parse_table_type(format_table_type(table)) == table
    assert format_table_type(table).isascii()
    check_changes_type("".join(parts), table)


@given(st.lists(st.sampled_from(PARTS)))
def test_any_accept_header_is_parsed_or_refused(parts: list[str]) -> None:
    own = format_table_type(TableType("s", 1))
    accept = "".join(parts)
    for more in (own, f"{own}, text/html"):
        check_accept(more, TableType("s", 1))
    with contextlib.suppress(NotAcceptableError, InvalidHeaderError):  # InvalidHeaderError if it is too long
        check_accept(accept, TableType("s", 1))
        check_accept(f"{accept},{accept}", TableType("s", 1))  # what is accepted once is accepted twice


@pytest.mark.parametrize("part", ['"', '"\\', '\\"', 'a/b;c="', "a/b;", ',"', "a/b;c=d,"])
def test_a_hostile_accept_header_is_parsed_or_not_acceptable(part: str) -> None:
    """`bench/bounds_bench.py` measures that it takes no longer than another."""
    with contextlib.suppress(NotAcceptableError):
        check_accept((part * 1024)[:1024], TableType())
