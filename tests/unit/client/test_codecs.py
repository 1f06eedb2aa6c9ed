from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.client import Client
from headwater.client.codecs import Decoder, JsonAnswer, encode_json, encoder_of
from headwater.errors import ProtocolError
from headwater.log.content import ContentKind
from headwater.protocol.streams.sse import EventReader, control_frame, data_frame

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(ends)]


@given(st.lists(JSON, max_size=12), st.lists(st.integers(0, 2000), max_size=6), st.integers(0, 14), st.booleans())
def test_messages_in_parts_are_the_messages(values: list[Any], places: list[int], skip: int, spaced: bool) -> None:
    body = json.dumps(values, separators=(" , ", " : ") if spaced else (",", ":")).encode()
    answer = JsonAnswer(msgspec.json.Decoder(list[Any]).decode, skip)
    seen = []
    for chunk in cut(body, places):
        answer.feed(chunk)
        seen += answer.some()
    seen += answer.rest()
    assert seen == values[skip:]
    assert answer.taken == len(values)


@given(st.lists(st.lists(JSON, max_size=4), max_size=5), st.integers(0, 8))
def test_arrays_of_several_events_are_one(arrays: list[list[Any]], skip: int) -> None:
    answer = JsonAnswer(msgspec.json.Decoder(list[Any]).decode, skip)
    seen = []
    for array in arrays:
        answer.event(json.dumps(array).encode())
        seen += answer.some()
    seen += answer.rest()
    assert seen == [value for array in arrays for value in array][skip:]


def test_a_long_message_is_not_searched_at_every_chunk() -> None:
    """Its commas are inside it: looking for its end anew at every chunk would take quadratic time."""
    message = json.dumps([list(range(200_000))]).encode()
    answer = JsonAnswer(msgspec.json.Decoder(list[Any]).decode, 0)
    for start in range(0, len(message), 1000):
        answer.feed(message[start : start + 1000])
        assert answer.some() == []
    assert answer.rest() == [list(range(200_000))]


def test_what_is_cut_short_is_not_a_message() -> None:
    for broken in (b"[1,2", b"[", b"1]", b"<html>", b'[{"a":1},'):
        answer = JsonAnswer(msgspec.json.Decoder(list[Any]).decode, 0)
        answer.feed(broken)
        with pytest.raises(ProtocolError) as refused:
            answer.rest()
        assert refused.value.retryable


def test_the_messages_before_a_bad_one_are_given() -> None:
    answer = JsonAnswer(msgspec.json.Decoder(list[int]).decode, 1)
    answer.feed(b'[0,1,2,"three",4]')
    assert answer.rest() == [1, 2]
    assert answer.taken == 3
    assert answer.bad is not None
    assert "three" in answer.bad


@given(st.text(max_size=60), st.lists(st.integers(0, 300), max_size=8))
def test_text_is_decoded_across_answers(text: str, places: list[int]) -> None:
    decoder = Decoder(ContentKind.TEXT, str)
    seen = []
    for chunk in cut(text.encode(), places):
        answer = decoder.answer(0)
        answer.feed(chunk)
        seen += answer.rest()
    assert decoder.held_bytes == 0
    assert "".join(seen) == text


def test_bytes_for_a_stream_of_json_are_one_message() -> None:
    assert encode_json(b' {"a": [1,2]} ') == b' {"a": [1,2]} '
    for bad in (b"", b"1,2", b"]", b"1]extra[2", b'"\xff"', b"nul"):
        with pytest.raises(ValueError, match="one JSON text"):
            encode_json(bad)


def test_what_other_streams_take() -> None:
    encode = encoder_of("text/plain")
    assert encode("é") == "é".encode()
    assert encode(memoryview(b"x")) == b"x"
    with pytest.raises(TypeError, match="text/plain"):
        encode(1)


@given(
    st.lists(st.tuples(st.sampled_from([ContentKind.TEXT, ContentKind.BINARY]), st.binary(min_size=1, max_size=40))),
    st.lists(st.integers(0, 2000), max_size=10),
)
def test_events_are_read_as_they_were_written(frames: list[tuple[ContentKind, bytes]], places: list[int]) -> None:
    feed, expected = b"", []
    for kind, data in frames:
        text = data.replace(b"\r", b"")
        feed += data_frame(kind, text, "x") + b": a comment\n\n"
        feed += control_frame("x", cursor=1, up_to_date=True, closed=False)
        expected.append(text if kind is ContentKind.TEXT else None)
    reader = EventReader()
    events = [event for chunk in cut(feed, places) for event in reader.feed(chunk)]
    assert [name for name, _ in events] == [b"data", b"control"] * len(frames)
    for (_, data), written in zip(events[::2], expected, strict=True):
        assert written is None or data == written


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_end_in_any_way_and_anywhere(end: bytes) -> None:
    feed = end.join([b"event: data", b"data: one", b"data:two", b"", b"id: 7", b"data", b"", b""])
    for size in range(1, len(feed)):
        reader = EventReader()
        events = [event for at in range(0, len(feed), size) for event in reader.feed(feed[at : at + size])]
        events += reader.feed(b"\n") if end == b"\r" else []
        assert events == [(b"data", b"one\ntwo"), (b"message", b"")]


DEEP = b"[" * 3_000 + b"]" * 3_000


@pytest.mark.parametrize("bad", [b"1e999", b"NaN", b'"\\ud800"', DEEP], ids=lambda bad: bad[:8].decode())
@pytest.mark.parametrize("skip", [0, 1, 3])
def test_a_message_that_cannot_be_decoded_is_named_after_those_before_it(bad: bytes, skip: int) -> None:
    answer = JsonAnswer(msgspec.json.Decoder(list[Any]).decode, skip)
    answer.feed(b"[1,2," + bad + b",4]")
    assert answer.rest() == [1, 2, None, 4][skip : 4 if skip > 2 else 2]
    assert (answer.bad is None) == (skip > 2)


@pytest.mark.parametrize("body", [b"[1,2", b'[1,{"a":[2]]', b"[1,2],", b"<html>"])
@pytest.mark.parametrize("skip", [0, 1])
def test_an_answer_that_was_cut_short_is_broken_and_requested_again(body: bytes, skip: int) -> None:
    answer = JsonAnswer(msgspec.json.Decoder(list[Any]).decode, skip)
    answer.feed(body)
    with pytest.raises(ProtocolError) as broken:
        answer.rest()
    assert broken.value.retryable


@pytest.mark.parametrize("message", [{"sku": "tea"}, "tea", b'"tea"'])
def test_one_message_in_place_of_several_is_refused(message: Any) -> None:
    with Client("http://host:1") as client:
        stream = client.stream("prices", content_type="application/json")
        with pytest.raises(TypeError, match="put it into a list"):
            stream.append_many(message)
        with pytest.raises(TypeError, match="put it into a list"):
            stream.create(messages=message)


class Price(msgspec.Struct):
    eur: float | None


class Quote(pydantic.BaseModel):
    eur: float | None


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have_are_refused(number: float) -> None:
    values: list[tuple[Any, str]] = [
        (number, rf"no number {number};"),
        ({"a": [1.0, {"b": number}]}, r"at a\[1\]\.b"),
        ((None, number), r"at \[1\]|at 1"),
        (Price(number), "at eur"),
        (Quote(eur=number), "at eur"),
        ({"quote": Quote(eur=number)}, "at quote.eur"),
    ]
    for value, where in values:
        with pytest.raises(ValueError, match=where):
            encode_json(value)
    assert encode_json({"a": None, "b": Price(None), "c": Quote(eur=None), "d": 1.5}) == (
        b'{"a":null,"b":{"eur":null},"c":{"eur":null},"d":1.5}'
    )


DEEP = b"[" * 100_000 + b"]" * 100_000  # more than any interpreter can follow


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        *((kind, "JSON is nested too deeply: [[[[") for kind in (Any, bytes, list[Any])),
        (Quote, "recursion limit exceeded"),  # the words of pydantic
    ],
)
def test_a_message_that_is_nested_too_deeply_is_a_bad_message(wanted: Any, reason: str) -> None:
    good = b'{"eur":1}' if wanted is Quote else b"[]"
    answer = Decoder(ContentKind.JSON, wanted).answer(0)
    answer.feed(b"[" + good + b"," + DEEP + b"," + good + b"]")
    assert len(answer.rest()) == 1
    assert reason in str(answer.bad)


def test_a_value_that_is_nested_too_deeply_is_not_encoded() -> None:
    value: Any = None
    for _ in range(100_000):
        value = [value]
    for nested in (value, {"a": value}, DEEP):
        with pytest.raises(ValueError, match=r"nested too deeply|must be one JSON text"):
            encode_json(nested)
