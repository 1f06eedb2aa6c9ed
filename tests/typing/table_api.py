"""Tables of the client as a type checker sees them. This file is checked, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

from headwater.client import (
    AppendedRows,
    AsyncClient,
    AsyncTable,
    AsyncTableReader,
    Client,
    Escape,
    Mirrored,
    Nurl,
    ProducerTuple,
    Put,
    Remove,
    Row,
    Table,
    TableInfo,
    TableReader,
    TableType,
)


def blocking(client: Client) -> None:
    table = client.table("prices")
    assert_type(table, Table)
    assert_type(table.table_type, TableType | None)
    assert_type(table.create(schema="price", version=2, escape=Escape.BACKSLASH, ttl_s=60), bool)
    assert_type(table.create(view_of=client.stream("s").url, entity_type="price"), bool)
    assert_type(table.append([Put("a", "1"), Remove("b"), ("+", "c", "2")]), AppendedRows)
    assert_type(table.append([Put("a", "1")], producer=ProducerTuple("id", 0, 0), close=True), AppendedRows)
    assert_type(table.append_all(Put(str(number), "r") for number in range(9)), AppendedRows)
    assert_type(table.append_body(b"+\ta\t1\n", if_tail=table.info().last_seqno), AppendedRows)
    assert_type(table.rows(since_id=-3, until_id=9), TableReader)
    assert_type(table.follow(since_id=3), TableReader)
    assert_type(next(iter(table.follow())), Row)
    assert_type(table.follow().batches(), Iterator[list[Row]])
    assert_type(table.rows().all(), list[Row])
    assert_type(table.rows().seqno, int | None)
    assert_type(table.active(), dict[str, Row])
    assert_type(table.get("a"), Row | None)
    assert_type(table.info(), TableInfo)
    assert_type(table.close(), AppendedRows)
    assert_type(client.tables("pri"), Iterator[TableInfo])
    assert_type(table.create(mirror=True), bool)
    assert_type(table.append_rows(table.rows().all(), after=0, close=True), AppendedRows)
    assert_type(table.mirror(client.table("https://partner.example/prices")), Iterator[Mirrored])
    assert_type(next(table.mirror("https://partner.example/prices")).lag_rows, int | None)
    assert_type(table.nurl, str)
    table.advertise("https://me.example/nurl", event="rows")
    table.withdraw("https://me.example/nurl")
    assert_type(table.nurls(), list[Nurl])
    client.notify("https://partner.example/nurl", surl="https://me.example/t", rows="https://me.example/nurl")


async def asynchronous(client: AsyncClient) -> None:
    table = client.table("https://partner.example/prices", table_type=TableType("price", 2))
    assert_type(table, AsyncTable)
    assert_type(await table.create(), bool)
    assert_type(await table.append([Put("a", "1")]), AppendedRows)
    assert_type(table.follow(), AsyncTableReader)
    async for row in table.follow(since_id=3):
        assert_type(row, Row)
    assert_type(table.rows().batches(), AsyncIterator[list[Row]])
    assert_type(await table.rows().all(), list[Row])
    assert_type(await table.active(), dict[str, Row])
    assert_type(await table.get("a"), Row | None)
    assert_type(client.tables(), AsyncIterator[TableInfo])
    async for progress in client.table("copy").mirror(table):
        assert_type(progress, Mirrored)
    await table.advertise("https://me.example/nurl")
    await table.withdraw("https://me.example/nurl")
    assert_type(await table.nurls(), list[Nurl])
    await client.notify("https://partner.example/nurl", rows="https://me.example/nurl")
