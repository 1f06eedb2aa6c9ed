from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import InvalidHeaderError
from headwater.log.offsets import BEGINNING, Offset
from headwater.protocol.conditions import encoded, etag, parse_stream_ends, parse_table_ends
from headwater.protocol.streams.offsets import format_offset

offsets = st.builds(Offset, st.integers(1, 10**16 - 1), st.integers(0, 10**16 - 1))


def ends(value: str) -> tuple[Offset, ...] | None:
    return parse_stream_ends({"if-match": value})


def rows(value: str) -> tuple[Offset, ...] | None:
    return parse_table_ends({"if-match": value})


@given(st.lists(offsets, min_size=1), st.sampled_from([",", ", ", " \t,\t", ",,"]))
def test_a_list_of_tails(given_offsets: list[Offset], between: str) -> None:
    value = between.join(f'"{format_offset(offset)}"' for offset in given_offsets)
    assert ends(value) == tuple(given_offsets)
    assert ends(f" ,{value}, ") == tuple(given_offsets)
    assert ends(value.replace('"0', 'W/"0').replace('"', '"x', 1)) is not None


def test_no_condition() -> None:
    assert parse_stream_ends({}) is parse_table_ends({}) is None
    for value in ("*", " *\t"):
        assert ends(value) is rows(value) is None


def test_the_entity_tag_of_a_response_is_the_end_of_the_read() -> None:
    for closed in (False, True):
        tag = etag(7, 3, 44, closed=closed)
        assert ends(tag) == rows(tag) == (Offset(7, 44),)
        assert ends(encoded(tag, "gzip")) == (Offset(7, 44),)


def test_the_end_of_an_empty_stream() -> None:
    assert ends('"-1"') == ends(f'"{format_offset(BEGINNING)}"') == (BEGINNING,)
    assert ends(f'"{0:016d}_{5:016d}"') == ()
    assert rows('"0"') == (BEGINNING,)


def test_the_last_row_of_a_table() -> None:
    assert rows('"41", "42"') == (Offset(0, 41), Offset(0, 42))
    assert rows(f'"{2**63 - 1}"') == (Offset(0, 2**63 - 1),)
    for other in ('"042"', '"-1"', f'"{2**63}"', '"1_2"', '"\u0664"', '"7:active:1:2:3"'):
        assert rows(other) == (), other


@pytest.mark.parametrize("value", ['W/"-1"', 'W/"1:0:2", W/"x"', '"now"', '"x"', '""', '"a,b"', '"\xff"', '"1_2"'])
def test_tags_that_match_nothing(value: str) -> None:
    assert ends(value) == ()


@pytest.mark.parametrize(
    "value", ["", " ", ",", "x", "-1", '"', '"a', 'a"', '"a" "b"', '*, "a"', '"a",*', 'w/"a"', 'W/ "a"', '"a b"', "'a'"]
)
def test_invalid_lists(value: str) -> None:
    for read in (ends, rows):
        with pytest.raises(InvalidHeaderError):
            read(value)


def test_a_long_value_is_parsed_fast() -> None:
    for long in (" " * 200_000 + "x", '"a"' * 60_000, "," * 200_000, '"' + "a" * 200_000, 'W/"x",' * 40_000 + "!"):
        with pytest.raises(InvalidHeaderError):
            ends(long)
