"""Decompression in bounded pieces."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import ProtocolError
from headwater.protocol.inflating import Inflater


@given(st.lists(st.binary(max_size=3_000), min_size=1, max_size=3), st.integers(1, 500), st.integers(1, 500))
def test_members_come_out_as_they_went_in_however_they_are_cut(members: list[bytes], cut: int, piece: int) -> None:
    body = b"".join(map(gzip.compress, members))
    inflater = Inflater("gzip", piece)
    pieces = [one for start in range(0, len(body), cut) for one in inflater.feed(body[start : start + cut])]
    inflater.finish()
    assert b"".join(pieces) == b"".join(members)
    assert all(len(one) <= piece for one in pieces)


def test_a_bomb_comes_in_pieces() -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    assert len(bomb) < 60_000
    pieces = Inflater("gzip").feed(bomb)
    assert len(next(pieces)) == 64 * 1024


def test_faults() -> None:
    with pytest.raises(ProtocolError, match="encoded as 'br'"):
        Inflater("br")
    with pytest.raises(ProtocolError, match="not valid gzip"):
        list(Inflater("gzip").feed(b"no gzip at all"))
    inflater = Inflater("gzip")
    list(inflater.feed(gzip.compress(b"rows")[:-1]))
    with pytest.raises(ProtocolError, match="too soon"):
        inflater.finish()
    Inflater("gzip").finish()
    assert list(Inflater(None).feed(b"plain")) == [b"plain"]
