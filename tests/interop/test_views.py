"""Views of our server by our client, and a StreamDB that reads a table."""

from __future__ import annotations

import uuid

import msgspec
import pytest
from bench.servers import Server

from headwater.client import Client, Put, RecordFormat, Remove
from headwater.errors import ConfigurationError, ConflictError, ViewSourceNotFoundError
from headwater.state import Collection, StreamDB, define_state
from tests.waiting import wait_for


class Price(msgspec.Struct):
    id: str
    eur: float


PRICES = Collection("price", Price)


def name() -> str:
    return f"views/{uuid.uuid4().hex}"


def test_a_table_over_a_stream(client: Client) -> None:
    stream, table = client.stream(name()), client.table(name())
    with pytest.raises(ViewSourceNotFoundError):
        table.create(view_of=stream.url, entity_type="price")
    with pytest.raises(ValueError, match="entity_type"):
        table.create(view_of=stream.url)
    stream.create()
    assert table.create(view_of=stream.url, entity_type="price")
    assert not table.create(view_of=stream.url, entity_type="price")
    with pytest.raises(ConfigurationError):
        table.create(view_of=stream.url, entity_type="stock")
    with pytest.raises(ConflictError):
        table.append([Put("k", "1")])
    stream.append(PRICES.insert(Price("tea", 2.4)))
    wait_for(lambda: {key: row.record for key, row in table.active().items()}, {"tea": '{"id":"tea","eur":2.4}'})
    assert table.info().schema == "json"


def test_an_entity_type_can_be_any_text(client: Client) -> None:
    stream, table = client.stream(name()), client.table(name())
    stream.create()
    table.create(view_of=stream.url, entity_type="précis 100% 🜂")
    stream.append({"type": "précis 100% 🜂", "key": "k", "value": 1, "headers": {"operation": "insert"}})
    wait_for(lambda: [row.record for row in table.rows()], ["1"])


def test_records_as_text(client: Client) -> None:
    table, stream = client.table(name()), client.stream(name())
    table.create()
    table.append([Put("k", "free form")])
    stream.create(view_of=table.url, entity_type="note", record=RecordFormat.TEXT)
    wait_for(lambda: [message["value"] for message in stream.read(live=False)], [{"record": "free form"}])


def test_a_stream_db_over_a_table(server: Server) -> None:
    with Client(f"http://{server.host}:{server.port}") as client:
        table, stream = client.table(name()), client.stream(name())
        table.create(schema="price")
        table.append([Put("tea", '{"id":"tea","eur":2.4}'), Put("coffee", '{"id":"coffee","eur":3.1}')])
        stream.create(view_of=table.url, entity_type="price")
        with StreamDB(stream, define_state({"prices": PRICES})) as db:
            db.preload()
            wait_for(lambda: sorted(db.prices), ["coffee", "tea"])  # type: ignore[attr-defined]
            table.append([Remove("coffee"), Put("tea", '{"id":"tea","eur":2.5}')])
            wait_for(lambda: {key: price.eur for key, price in db.prices.items()}, {"tea": 2.5})  # type: ignore[attr-defined]
            table.delete()
            table.create(schema="price")
            table.append([Put("water", '{"id":"water","eur":0}')])
            wait_for(lambda: sorted(db.prices), ["water"])  # type: ignore[attr-defined]
