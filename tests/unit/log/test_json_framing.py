from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import EmptyBodyError, InvalidJsonError
from headwater.log import json_framing

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
def test_one_level_is_flattened_and_the_bytes_are_kept(body: bytes, kept: bytes) -> None:
    assert json_framing.stored(body) == kept


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
        b"[" * 5000 + b"]" * 5000,
    ],
)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidJsonError) as error:
        json_framing.stored(body)
    assert error.value.detail


def test_an_empty_array_is_an_empty_stream_but_not_an_append() -> None:
    assert json_framing.stored(b" [ ] ", may_be_empty=True) == b""
    with pytest.raises(EmptyBodyError):
        json_framing.stored(b"[]")


@given(st.lists(values, min_size=1))
def test_what_is_kept_reads_as_what_was_sent(messages: list[object]) -> None:
    kept = json_framing.stored(json.dumps(messages).encode())
    assert json.loads(b"[" + kept[:-1] + b"]") == messages
    ends = json_framing.message_ends(kept)
    assert len(ends) == len(messages)
    assert [json.loads(kept[a : b - 1]) for a, b in zip([0, *ends], ends, strict=False)] == messages
