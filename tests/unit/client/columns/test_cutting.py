"""Messages are cut where the parser cuts them, for any valid array, or not at all."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.client.columns.cutting import ends_of
from headwater.client.columns.texts import checked_text_column, text_column
from headwater.errors import MessageError

_TEXT = st.text(alphabet='{}[],:"\\ \n\té😀ab', max_size=80)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=30,
)
_CONTAINERS = st.lists(_VALUES, max_size=4) | st.dictionaries(_TEXT, _VALUES, max_size=4)


def _body(values: list[Any], **style: Any) -> bytearray:
    return bytearray(b"[" + b",".join(json.dumps(value, **style).encode() for value in values) + b"]")


def _cut(body: bytearray) -> list[bytes] | None:
    ends = ends_of(body)
    if ends is None:
        return None
    starts = [1, *(int(end) + 1 for end in ends[:-1])]
    return [bytes(body[start:end]) for start, end in zip(starts, ends, strict=True)]


@given(st.lists(_CONTAINERS, min_size=1, max_size=20), st.booleans(), st.booleans())
def test_objects_and_arrays_are_cut_as_the_parser_cuts_them(values: list[Any], ascii_only: bool, compact: bool) -> None:
    body = _body(values, ensure_ascii=ascii_only, separators=(",", ":") if compact else None)
    assert _cut(body) == [text.encode() for text in text_column(body).to_pylist()]


_FLAT = st.text(alphabet='}{,"\\xé', max_size=12) | st.just("},{") | st.lists(st.integers(0, 9), max_size=2)


@given(st.lists(st.dictionaries(st.text(alphabet='ab"', max_size=2), _FLAT, max_size=3), min_size=1, max_size=40))
def test_objects_without_objects_in_them(values: list[Any]) -> None:
    body = _body(values, separators=(",", ":"))
    assert _cut(body) == [text.encode() for text in text_column(body).to_pylist()]


_TRICKY = st.text(alphabet='}{,:"\\ xé', max_size=12) | st.sampled_from(('},{"', '},{"x', '"},{', ':{"x', ',{"', "\\"))
_NAMES = st.text(alphabet='ab",: }\\', max_size=3)
_OBJECTS = st.recursive(
    _TRICKY | st.integers(0, 9), lambda inner: st.dictionaries(_NAMES, inner, max_size=3), max_leaves=12
)


@given(st.lists(st.dictionaries(_NAMES, _OBJECTS, max_size=3), min_size=1, max_size=40), st.booleans())
def test_objects_with_objects_in_them_and_no_arrays(values: list[Any], compact: bool) -> None:
    body = _body(values, separators=(",", ":") if compact else None)
    assert _cut(body) == [text.encode() for text in text_column(body).to_pylist()]


@given(st.lists(st.dictionaries(_NAMES, _OBJECTS, max_size=2) | st.integers(0, 9) | _TRICKY, min_size=1, max_size=9))
def test_objects_among_other_messages(values: list[Any]) -> None:
    body = _body(values, separators=(",", ":"))
    assert checked_text_column(body).equals(text_column(body))


@pytest.mark.parametrize(
    "text",
    [
        b'[{"a":"x},{y"}]',
        b'[{"a":"},{"}]',
        b'[{"a":"},{"},{"x":1}]',
        b'[{"a":{"},{":1},"b":{}}]',
        b'[{"a":{}},{"},{":{}},{"b":"},{"}]',
        b'[{"a":{},"b":"},{","c":{}},{"d":{}}]',
        b'[{"a":{"b":1}},{" ":{}},{"c":{}}]',
        b'[{"a":"x},{y"},{"b":1}]',
        b'[{"a":"\\"},{"},{"b":1}]',
        b'[{"a":"}"},{"b":"{"}]',
        b'[{"a":"},{"},[{"b":"},{"}]]',
        b'[{"a":1},[{"b":1}],{"c":1}]',
        b'[{"a":[{"b":1},{"c":1}]}]',
    ],
)
def test_braces_that_do_not_separate_messages(text: bytes) -> None:
    assert _cut(bytearray(text)) == [message.encode() for message in text_column(text).to_pylist()]


@given(st.lists(_VALUES, max_size=20), st.sampled_from((None, 1, 2)))
def test_the_column_is_that_of_the_parser_for_every_array(values: list[Any], indent: int | None) -> None:
    body = _body(values, indent=indent, ensure_ascii=False)
    assert checked_text_column(body).equals(text_column(body))


@pytest.mark.parametrize("seed", range(20))
def test_boundaries_anywhere_in_a_word_and_long_texts(seed: int) -> None:
    chance = random.Random(seed)
    pieces = ['"', "\\", "},{", "[{", "x" * 63, "x" * 64, "x" * 65, ",", "}", "é"]
    values = [
        {"a" * chance.randrange(70): "".join(chance.choices(pieces, k=chance.randrange(6))), "b": [{}, {"c": []}]}
        for _ in range(300)
    ]
    for of_messages in (values, [{**message, "b": []} for message in values]):
        body = _body(of_messages, separators=(",", ":"))
        assert _cut(body) == [text.encode() for text in text_column(body).to_pylist()]


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"[1,2]",
        b'["},{","a"]',
        b"[{},1,{}]",
        b"[1,{}]",
        b"[{},1]",
        b"[{},1,2,{}]",
        b"[{},null,[]]",
        b"[{} , {}]",
        b"[{}, {}]",
        b"[{} ,{}]",
        b"[ {}]",
        b"[{} ]",
        b"[{}]\n",
        b"[{}\n,\n{}]",
    ],
)
def test_other_arrays_are_left_to_the_parser(text: bytes) -> None:
    assert ends_of(text) is None
    assert checked_text_column(text).equals(text_column(text))


@pytest.mark.parametrize("text", [b'[{"a":"}]', b"[{]", b"[{}}]", b'[{"a":{}},{"b":[}]', b"[{},", b"{}", b""])
def test_texts_whose_quotes_or_brackets_do_not_match_are_errors(text: bytes) -> None:
    assert ends_of(text) is None
    with pytest.raises(msgspec.DecodeError):
        checked_text_column(text)


def test_invalid_utf8_is_an_error() -> None:
    with pytest.raises(MessageError):
        checked_text_column(b'[{"a":"\xff"}]')


def test_a_slice_of_a_buffer_that_goes_on_to_be_used() -> None:
    body = _body([{"n": n} for n in range(5)])
    column = checked_text_column(body)
    body[:] = b"x" * len(body)
    assert column.to_pylist() == [f'{{"n": {n}}}' for n in range(5)]
