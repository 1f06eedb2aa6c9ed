"""The client as a type checker sees it: mypy and pyright agree on every line. This file is checked, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, assert_type

import msgspec
import pydantic

from headwater.client import (
    AppendResult,
    AsyncClient,
    AsyncReader,
    AsyncStream,
    Batch,
    Client,
    DeliveryReport,
    Follow,
    Position,
    ProducerMetrics,
    ProducerTuple,
    Reader,
    RecordInfo,
    Report,
    Retry,
    Stream,
    StreamBatch,
    StreamInfo,
    Timeouts,
)
from headwater.errors import HeadwaterError


class Price(msgspec.Struct):
    sku: str


@dataclass
class Cart:
    items: list[str]


class Route(pydantic.BaseModel):
    to: str


def hooks(report: Report) -> None:
    assert_type(report.error, HeadwaterError)
    assert_type(report.error.retryable, bool)
    assert_type(report.delay_s, float)


def blocking() -> None:
    with Client(
        "http://x", token=lambda: "t", headers={"a": "b"}, on_error=hooks, retry=Retry(), timeouts=Timeouts()
    ) as c:
        assert_type(c, Client)
        stream = c.stream("a")
        assert_type(stream, Stream)
        assert_type(stream.create(ttl_s=3), bool)
        assert_type(stream.head(), StreamInfo)
        assert_type(stream.append({"any": "thing"}), AppendResult)
        assert_type(stream.append_many([Price("x"), Cart([]), Route(to="y")]), AppendResult)
        assert_type(stream.close(), AppendResult)
        assert_type(stream.fork("b"), Stream)
        assert_type(c.list("a"), Iterator[StreamInfo])
        assert_type(stream.records(until="x", page=5), Iterator[RecordInfo])
        assert_type(stream.offset_at(datetime.now(UTC)), str)
        assert_type(stream.append(1, producer=ProducerTuple("id", 0, 0)), AppendResult)
        assert_type(stream.append(1, if_tail=stream.head().tail_offset), AppendResult)
        assert_type(stream.read(), Reader[Any])
        assert_type(stream.read(type=Price), Reader[Price])
        assert_type(stream.read(type=Cart, live=True), Reader[Cart])
        assert_type(stream.read(type=Route, live="sse"), Reader[Route])
        assert_type(stream.read(type=bytes, until="x"), Reader[bytes])
        assert_type(stream.read(type=dict[str, int]), Reader[dict[str, int]])
        for price in stream.read(type=Price):
            assert_type(price, Price)
        for batch in stream.read(type=Price).batches():
            assert_type(batch, Batch[Price])
            assert_type(batch.items, list[Price])
            assert_type(batch.offset, str)
            assert_type(batch.position, Position)
        assert_type(c.follow({"a": "-1"}), Follow[Any])
        for one in c.follow({"a": "now", "b": Position("-1")}, type=Price):
            assert_type(one, StreamBatch[Price])
            assert_type(one.items, list[Price])
            assert_type(one.stream, str)
        with stream.producer("id", epoch=3, on_delivery=told) as producer:
            producer.append(Price("x"), told)
            assert_type(producer.metrics, ProducerMetrics)
        stream.read(live="websocket")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
        stream.create(ttl_s="1h")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def told(delivery: DeliveryReport) -> None:
    assert_type(delivery.error, HeadwaterError | None)


async def fetched() -> str:
    return "t"


async def asynchronous() -> None:
    async with AsyncClient("http://x", token=fetched, on_error=hooks) as c:
        assert_type(c, AsyncClient)
        stream = c.stream("a")
        assert_type(stream, AsyncStream)
        assert_type(await stream.create(), bool)
        assert_type(await stream.append(1), AppendResult)
        assert_type(await stream.head(), StreamInfo)
        assert_type(await stream.fork("b"), AsyncStream)
        assert_type(c.list(), AsyncIterator[StreamInfo])
        assert_type(stream.records(offset="x"), AsyncIterator[RecordInfo])
        assert_type(await stream.offset_at(datetime.now(UTC)), str)
        assert_type(stream.read(type=Price), AsyncReader[Price])
        async for price in stream.read(type=Price, live=True):
            assert_type(price, Price)
        async for batch in stream.read(type=Route).batches():
            assert_type(batch, Batch[Route])
        assert_type(await stream.read(type=str).all(), list[str])
        async for one in c.follow({"a": "now"}, type=Price):
            assert_type(one, StreamBatch[Price])
        async with stream.producer() as producer:
            await producer.append(Price("x"))
            await producer.flush(3.0)
