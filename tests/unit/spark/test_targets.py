"""Tables as targets: crashes at any request, more changes than fit in a request, tables that accept no rows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import httpx
import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from headwater.client import Client
from headwater.errors import OptionError, SchemaError, StreamClosedError, StreamNotFoundError
from headwater.protocol.tables.content_type import TableType, format_table_type
from headwater.protocol.tables.escaping import Escape
from headwater.spark.formats import DurableStreamsFormat, StreamStateFormat
from headwater.spark.options import WriteOptions
from headwater.spark.publishing import Publisher
from headwater.spark.staging import Gatherer, place_of
from headwater.spark.tables.options import table_write_options
from headwater.spark.targets import TableTarget, appended_as, check_target_type, make_target
from tests.servers import Server
from tests.unit.spark.test_publishing import Killed, Mortal, client_of

_numbers = itertools.count()


class TableQuery:
    """A writer into a table that runs its batches in attempts."""

    def __init__(self, server: Server, request_bytes: int) -> None:
        self._server = server
        self.writer = f"table-query-{next(_numbers)}"
        self.target = f"targets/{self.writer}"
        texts = {"url": server.url, "table": self.target, "maxRequestBytes": str(request_bytes)}
        options = table_write_options(texts)
        with client_of(server) as client:
            self.options = msgspec.structs.replace(options, content_type=check_target_type(client, options))

    def attempt(self, batch: int, keys: list[int], parts: int, transport: httpx.BaseTransport | None = None) -> None:
        gathered = []
        with client_of(self._server) as client:
            for part in range(parts):
                own = keys[len(keys) * part // parts : len(keys) * (part + 1) // parts]
                place = place_of(self.writer, batch, part)
                gatherer = Gatherer(client, appended_as(self.options), self.options.max_request_bytes, place)
                gatherer.add(self.target, pa.array([b"+\t%d\t%d\n" % (key, batch) for key in own], pa.binary()))
                gathered.append(gatherer.finish())
        with client_of(self._server, transport) as client:
            Publisher(client, self.options, self.writer).publish(batch, gathered)

    def published(self) -> list[int]:
        with client_of(self._server) as client:
            return [int(row.key) for row in client.table(self.target).rows()]


@pytest.mark.slow
@pytest.mark.parametrize("answered", [False, True])
def test_a_crash_at_any_request_and_a_replay_with_other_partitions(
    server: Server, answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.limits.SPARK_INLINE_BYTES", 20)
    monkeypatch.setattr("headwater.limits.CHANGES_MAX", 4)  # so that a chunk takes several requests
    for lives in itertools.count(1):
        query = TableQuery(server, 100)
        query.attempt(0, [100, 101], 1)
        keys = list(range(30))
        transport = Mortal(lives, answered=answered)
        try:
            query.attempt(1, keys, 3, transport)
        except Killed:
            random.Random(lives).shuffle(keys)
            query.attempt(1, keys, 4)
        query.attempt(2, [200], 1)
        assert sorted(query.published()) == [*range(30), 100, 101, 200], lives
        if transport.request_count < lives:
            assert lives > 12
            return


def test_more_changes_than_fit_in_a_request(server: Server) -> None:
    query = TableQuery(server, 1 << 20)
    query.attempt(0, list(range(100_001)), 1)
    assert query.published() == list(range(100_001))


def test_bodies() -> None:
    with Client("http://127.0.0.1:1") as client:
        wanted = table_write_options({"url": "http://127.0.0.1:1", "table": "t"})
        wanted = msgspec.structs.replace(wanted, content_type=format_table_type(TableType()))
        target = TableTarget(client, "t", wanted)
        rows = b"+\tk\t\n" * 100_000
        assert list(target.bodies(rows)) == [rows]
        assert list(target.bodies(rows + b"-\tz\t\n")) == [rows, b"-\tz\t\n"]


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with client_of(server) as client:
        yield client


def options(client: Client, **texts: str) -> WriteOptions:
    return table_write_options({"url": client.table("targets/checked").url, **texts})


def test_the_type_of_a_table(client: Client) -> None:
    table = client.table("targets/checked")
    with pytest.raises(StreamNotFoundError, match="does not exist, and createTarget is false"):
        check_target_type(client, options(client, createTarget="false"))
    wanted = options(client, schema="price", version="3", escape="backslash")
    made = check_target_type(client, wanted)
    assert "targets/checked" not in [info.name for info in client.tables()]
    make_target(client, msgspec.structs.replace(wanted, content_type=made))
    assert made == format_table_type(TableType("price", 3, Escape.BACKSLASH))
    assert check_target_type(client, options(client)) == made
    assert check_target_type(client, options(client, version="3")) == made
    for texts in ({"version": "1"}, {"schema": "text"}, {"escape": "none"}):
        with pytest.raises(OptionError, match="is text/sequence; charset=utf-8; schema=price; version=3"):
            check_target_type(client, options(client, **texts))
    table.close()
    with pytest.raises(StreamClosedError, match="targets/checked is closed"):
        check_target_type(client, options(client))


def test_a_table_that_became_a_mirror_accepts_no_rows(server: Server, client: Client) -> None:
    query = TableQuery(server, 1 << 20)
    client.table(query.target).create(mirror=True)
    with pytest.raises(SchemaError, match="does not accept the rows"):
        query.attempt(0, [1], 1)
    with pytest.raises(SchemaError, match="is a mirror and accepts no rows"):
        check_target_type(client, msgspec.structs.replace(query.options, content_type=None))


def test_a_refused_write_creates_no_target(client: Client) -> None:
    """Neither invalid columns nor rows that a task refuses create a target."""
    path = f"targets/refused-{next(_numbers)}"
    texts = {"url": client.stream(path).url}
    wrong, right = StructType([StructField("text", StringType())]), StructType([StructField("value", StringType())])
    with pytest.raises(SchemaError, match="the column value is missing"):
        DurableStreamsFormat(texts).writer(wrong, False)
    with pytest.raises(SchemaError, match="state events need a column"):
        StreamStateFormat(texts).writer(right, False)
    writer = DurableStreamsFormat(texts).writer(right, False)
    with pytest.raises(SchemaError, match="a value is not one JSON text"):
        writer.write(iter([pa.RecordBatch.from_pydict({"value": ["{"]})]))
    writer.abort([])
    assert path not in [info.path for info in client.list("targets/refused")]
    empty = writer.write(iter([]))
    writer.commit([empty])
    assert client.stream(path).read().all() == []
    writer.commit([writer.write(iter([pa.RecordBatch.from_pydict({"value": ["1"]})]))])
    assert client.stream(path).read().all() == [1]
