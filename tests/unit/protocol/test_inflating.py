"""Decompression in bounded pieces."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from headwater import limits
from headwater.errors import ProtocolError
from headwater.protocol.inflating import Inflater

ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("encoding", ENCODERS)
@given(data=st.binary(max_size=3_000), cut=st.integers(1, 500))
def test_a_body_round_trips_however_it_is_split(encoding: str, data: bytes, cut: int) -> None:
    body, inflater = ENCODERS[encoding](data * 20), Inflater(encoding, 1_000)
    pieces = [one for start in range(0, len(body), cut) for one in inflater.feed(body[start : start + cut])]
    inflater.finish()
    assert b"".join(pieces) == data * 20


@pytest.mark.parametrize("encoding", ENCODERS)
def test_a_decompression_bomb_is_read_in_bounded_pieces(encoding: str) -> None:
    """How much memory this takes is a figure of `python -m bench bounds`."""
    bomb = ENCODERS[encoding](b"\0" * 50_000_000)
    sizes = [len(piece) for piece in Inflater(encoding).feed(bomb)]
    assert sum(sizes) == 50_000_000
    assert max(sizes) <= (16 * 1024 * 1024 if encoding == "zstd" else 2 * limits.INFLATE_PIECE_BYTES)


@pytest.mark.parametrize("encoding", ENCODERS)
def test_an_incomplete_body_is_an_error(encoding: str) -> None:
    inflater = Inflater(encoding)
    list(inflater.feed(ENCODERS[encoding](b"rows" * 100)[:-1]))
    with pytest.raises(ProtocolError, match="is incomplete"):
        inflater.finish()


@given(st.lists(st.binary(max_size=3_000), min_size=1, max_size=3), st.integers(1, 500), st.integers(1, 500))
def test_members_round_trip_however_they_are_split(members: list[bytes], cut: int, piece: int) -> None:
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
    with pytest.raises(ProtocolError, match="encoded as 'compress'"):
        Inflater("compress")
    with pytest.raises(ProtocolError, match="not valid gzip"):
        list(Inflater("gzip").feed(b"no gzip at all"))
    inflater = Inflater("gzip")
    list(inflater.feed(gzip.compress(b"rows")[:-1]))
    with pytest.raises(ProtocolError, match="is incomplete"):
        inflater.finish()
    Inflater("gzip").finish()
    assert list(Inflater(None).feed(b"plain")) == [b"plain"]
