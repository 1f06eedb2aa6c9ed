"""Rows of byte streams, which are split at the ends of appends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from headwater.client import Client
from headwater.errors import MissingExtensionError
from headwater.pipeline.archiving import COLUMNS, SCHEMA
from headwater.pipeline.records import APPEND_END, RecordCutter
from tests.servers import Server

_ROWS = pa.schema([SCHEMA.field(name) for name in COLUMNS])


class Told:
    """A client of a server that tells the record times of a stream in pages of one, some of them."""

    def __init__(self, client: Client, count: int) -> None:
        self._client = client
        self._told = count

    def stream(self, path: str) -> Told:
        self._path = path
        return self

    def record_times(self, *, offset: str) -> Iterator[Any]:
        for number, page in enumerate(self._client.stream(self._path).record_times(offset=offset, page=1)):
            if number == self._told:
                break
            yield page
        raise MissingExtensionError("this server does not offer record times")


def cut(client: Client, path: str, count: int) -> list[tuple[bytes, int | None]]:
    stream = client.stream(path)
    stream.create(content_type="text/plain")
    for text in (b"one ", b"two ", b"three"):
        stream.append(text)
    row = {"stream": path, "offset": "-1", "position": 0, "order": 0, "content_type": "text/plain"}
    rows = pa.Table.from_pylist([{**row, "value": b"one two three"}], _ROWS)
    cutter: Any = RecordCutter(Told(client, count))  # type: ignore[arg-type]
    return [(one["value"], one[APPEND_END]) for one in cutter.cut(rows).to_pylist()]


def test_each_append_is_a_row(server: Server) -> None:
    with Client(server.url) as client:
        assert cut(client, "records/all", 3) == [(b"one ", 4), (b"two ", 8), (b"three", 13)]


def test_a_server_without_record_times(server: Server) -> None:
    with Client(server.url) as client:
        assert cut(client, "records/none", 0) == [(b"one two three", None)]


def test_record_times_that_end_early_are_an_error(server: Server) -> None:
    """The rest would be one row, as if it were one append."""
    with Client(server.url) as client, pytest.raises(MissingExtensionError, match="does not offer record times"):
        cut(client, "records/some", 1)
