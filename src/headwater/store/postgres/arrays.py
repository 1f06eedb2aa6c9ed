"""Arrays of PostgreSQL, encoded in its binary format in a few calls. psycopg visits every element of a list, which
takes longer."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format

_INT4, _INT8, _BYTEA = 23, 20, 17
_LENGTH = struct.Struct(">i").pack


class EncodedArray:
    """The text of an array as PostgreSQL receives it. There is a class for each type of its elements."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class IntArray(EncodedArray):
    """integer[]"""

    __slots__ = ()


class BigintArray(EncodedArray):
    """bigint[]"""

    __slots__ = ()


class ByteaArray(EncodedArray):
    """bytea[]"""

    __slots__ = ()


def ints(values: Sequence[int]) -> IntArray:
    if not values:
        return _NO_INTS
    return IntArray(_numbers("ii", len(values)).pack(1, 0, _INT4, len(values), 1, *_with_sizes(values, 4)))


def bigints(values: Sequence[int]) -> BigintArray:
    if not values:
        return _NO_BIGINTS
    return BigintArray(_numbers("iq", len(values)).pack(1, 0, _INT8, len(values), 1, *_with_sizes(values, 8)))


def byteas(values: Sequence[bytes]) -> ByteaArray:
    if not values:
        return _NO_BYTEAS
    parts = [_HEAD.pack(1, 0, _BYTEA, len(values), 1)]
    for value in values:
        parts += (_LENGTH(len(value)), value)
    return ByteaArray(b"".join(parts))


def decode_ints(data: bytes) -> list[int]:
    """The elements of an integer[] of one dimension, none of them NULL."""
    if len(data) == _EMPTY.size:
        return []
    pairs = struct.unpack_from(f">{(len(data) - _HEAD.size) // 4}i", data, _HEAD.size)
    return list(pairs[1::2])


def _with_sizes(values: Sequence[int], size: int) -> list[int]:
    pairs = [size] * (2 * len(values))
    pairs[1::2] = values
    return pairs


@lru_cache(maxsize=512)
def _numbers(pair: str, count: int) -> struct.Struct:
    return struct.Struct(">5i" + pair * count)


_HEAD = struct.Struct(">5i")
_EMPTY = struct.Struct(">3i")
_NO_INTS = IntArray(_EMPTY.pack(0, 0, _INT4))
_NO_BIGINTS = BigintArray(_EMPTY.pack(0, 0, _INT8))
_NO_BYTEAS = ByteaArray(_EMPTY.pack(0, 0, _BYTEA))


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Any) -> Buffer | None:
        data: bytes = obj.data
        return data


class _IntDumper(_ArrayDumper):
    oid = 1007


class _BigintDumper(_ArrayDumper):
    oid = 1016


class _ByteaDumper(_ArrayDumper):
    oid = 1001


def register(adapters: AdaptersMap) -> None:
    """Make a connection pass these arrays on as they are."""
    adapters.register_dumper(IntArray, _IntDumper)
    adapters.register_dumper(BigintArray, _BigintDumper)
    adapters.register_dumper(ByteaArray, _ByteaDumper)
