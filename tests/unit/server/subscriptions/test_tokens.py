from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import WakeTokenError
from headwater.server.subscriptions.tokens import WakeToken, bearer_of, format_token, parse_token

SECRET = b"s" * 32
tokens = st.builds(WakeToken, st.text(max_size=40), st.integers(0, 2**60), st.text(max_size=40), st.integers(0, 2**40))


@given(tokens)
def test_a_token_is_read_as_it_was_written(token: WakeToken) -> None:
    assert parse_token(SECRET, format_token(SECRET, token)) == token


@given(tokens, st.data())
def test_a_token_with_any_other_character_is_refused(token: WakeToken, data: st.DataObject) -> None:
    text = format_token(SECRET, token)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from([one for one in "Aa0-_.=+/ é" if one != text[at]]))
    try:
        changed = parse_token(SECRET, text[:at] + other + text[at + 1 :])
    except WakeTokenError:
        return
    assert changed == token  # the unused bits of the last character


@given(st.text(max_size=60))
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(WakeTokenError):
        parse_token(SECRET, text)


def test_a_token_of_another_server_is_refused() -> None:
    text = format_token(b"t" * 32, WakeToken("life", 1, "w", 1))
    with pytest.raises(WakeTokenError):
        parse_token(SECRET, text)


@pytest.mark.parametrize("header", ["Bearer t.s", "bearer t.s", "BEARER  t.s "])
def test_a_token_is_a_bearer_token(header: str) -> None:
    assert bearer_of(header) == "t.s"


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic t.s", "t.s"])
def test_other_headers_are_refused(header: str | None) -> None:
    with pytest.raises(WakeTokenError):
        bearer_of(header)
