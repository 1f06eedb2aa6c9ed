from __future__ import annotations

import json
from collections.abc import Iterator
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater import limits
from headwater.errors import EmptyBodyError, InvalidJsonError, TooManyMessagesError
from headwater.log import json_framing
from headwater.log.json_boundaries import elements

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
).filter(lambda value: "\\ud" not in json.dumps(value))


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (b'{"a":1}', b'{"a":1},'),
        (b'[{"a":1},{"b":2}]', b'{"a":1},{"b":2},'),
        (b"[[1,2],[3,4]]", b"[1,2],[3,4],"),
        (b"[[[1]]]", b"[[1]],"),
        (b' \n[ 1 , {"a" : 2} ]\t', b'1,{"a" : 2},'),
        (b"  7 ", b"7,"),
        ('"é"'.encode(), '"é",'.encode()),
    ],
)
def test_one_level_is_flattened_and_bytes_are_stored_unchanged(body: bytes, kept: bytes) -> None:
    assert json_framing.stored(body, 10) == kept


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"{",
        b"1 2",
        b"1,2",
        b"[1,]",
        b'{"a":1}x',
        b"[1]]",
        b"NaN",
        b'"\xff"',
        b'["\xc3"]',
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
)
def test_invalid_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidJsonError) as error:
        json_framing.stored(body, 10)
    assert error.value.detail


def test_an_empty_array_is_an_empty_stream_but_not_an_append() -> None:
    assert json_framing.stored(b" [ ] ", 10, may_be_empty=True) == b""
    with pytest.raises(EmptyBodyError):
        json_framing.stored(b"[]", 10)


@given(st.lists(values, min_size=1))
def test_stored_messages_read_as_they_were_sent(messages: list[object]) -> None:
    kept = json_framing.stored(json.dumps(messages).encode(), 1000)
    assert json.loads(b"[" + kept[:-1] + b"]") == messages
    ends = [end for number in range(1, len(messages) + 2) if (end := json_framing.message_end(kept, number))]
    assert len(ends) == len(messages)
    assert [json.loads(kept[a : b - 1]) for a, b in zip([0, *ends], ends, strict=False)] == messages


def test_more_messages_than_the_limit_are_refused() -> None:
    assert json_framing.stored(b"[1,2]", 2) == b"1,2,"
    with pytest.raises(TooManyMessagesError, match="2 messages"):
        json_framing.stored(b"[1,2,3]", 2)


@pytest.fixture(params=[4, 12])
def tiny_steps(request: pytest.FixtureRequest) -> Iterator[None]:
    with mock.patch.multiple(limits, JSON_STEP_BYTES=request.param, JSON_COMMAS_AT_ONCE=2):
        yield


parts = st.sampled_from(
    [b"[", b"]", b"{", b"}", b'"', b"\\", b",", b":", b"1", b" ", b'"a"', b'"\\""', b"[]", b"{}", b"{},{}"]
)


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_steps")
@settings(max_examples=2000)
@given(st.lists(parts, max_size=30).map(b"".join))
def test_steps_accept_what_a_parser_accepts(inner: bytes) -> None:
    body = b"[" + inner + b"]"
    try:
        expected = [bytes(message) for message in json_framing.split_array(body)]
    except msgspec.DecodeError:
        with pytest.raises(InvalidJsonError):
            json_framing.stored(body, 1000, may_be_empty=True)
    else:
        kept = json_framing.stored(body, 1000, may_be_empty=True)
        assert kept == b"".join([message + b"," for message in expected])


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_steps")
@settings(max_examples=500)
@given(st.lists(values, max_size=20), st.sampled_from([None, 1]))
def test_steps_find_every_message(messages: list[object], indent: int | None) -> None:
    body = json.dumps(messages, indent=indent, ensure_ascii=False).encode()
    kept = json_framing.stored(body, 1000, may_be_empty=True)
    assert json.loads(b"[" + kept[:-1] + b"]") == messages
    position = 0
    for number in range(1, len(messages) + 1):
        end = json_framing.message_end(kept, number)
        assert end is not None
        json.loads(kept[position : end - 1])
        position = end
    assert position == len(kept)
    assert json_framing.message_end(kept, len(messages) + 1) is None


@given(
    st.lists(
        st.sampled_from(['"a,b"', '"\\\\"', '"]"', "[1, [2]]", '{"a": {"b": [","]}}', "NaN", "1e999", "x", ""]),
        max_size=8,
    )
)
def test_elements_are_split_at_commas_valid_or_not(texts: list[str]) -> None:
    data = ",".join(texts).encode()
    assert elements(data) == ([text.encode() for text in texts] if data else [])


def test_elements_may_be_nested_at_any_depth() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert elements(b"1," + deep + b",2") == [b"1", deep, b"2"]


@pytest.mark.parametrize("data", [b"[1", b"1]", b'"a', b'"\\', b"{", b"1,[2,", b'[1],"x'])
def test_elements_whose_brackets_or_quotes_do_not_match_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        elements(data)
