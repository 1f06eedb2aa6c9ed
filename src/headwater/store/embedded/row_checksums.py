"""Checksums of the rows of the index.

Each row has a checksum over all its columns, including the key, and the name of its table. So a changed row is noticed,
and so is a valid row in the place of another one. Two things keep a row from vanishing when its key is damaged:

- a stream or document that is not found by its name is looked up by a hash of the name, which has an index of its own;
- the row of a stream has the sum of the checksums of its producers.

A damaged name or key can also be that of another row, which is written later. Then the fold renames the damaged row of
a stream or document, and leaves the checksum of a damaged producer in the sum (`index_writer.py`).
"""

from __future__ import annotations

import msgspec
import xxhash

from headwater.errors import DamagedDataError

_encode = msgspec.msgpack.Encoder().encode


def row_checksum(table: str, *columns: int | str | bytes | None) -> int:
    return _signed(xxhash.xxh3_64_intdigest(_encode((table, *columns))))


def data_checksum(data: bytes) -> int:
    """The checksum of a large column, which is itself a column of the row. This does not copy the data."""
    return _signed(xxhash.xxh3_64_intdigest(data))


def check_row(what: str, checksum: int, table: str, *columns: int | str | bytes | None) -> None:
    """Raise DamagedDataError unless a row has its checksum. `what` names the row for messages."""
    if row_checksum(table, *columns) != checksum:
        raise DamagedDataError(f"{what} is damaged in the index")


def name_hash(name: str) -> int:
    return _signed(xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass")))


def _signed(digest: int) -> int:
    return digest - (1 << 63)  # SQLite's integers are signed
