"""Our client, both shells, over our server and over the Node reference: one set of tests."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pydantic
import pytest
from bench.servers import Server, headwater, reference

from headwater.client import Client, DeliveryReport, Stream
from headwater.errors import (
    ConfigurationError,
    ConflictError,
    MessageError,
    ProtocolError,
    StaleEpochError,
    StreamClosedError,
    StreamGoneError,
    StreamNotFoundError,
)
from headwater.log.producers import ProducerTuple
from tests.shells import SHELLS, client_of
from tests.waiting import wait_until

OURS, NODE = "headwater", "node reference"
LIVE_MODES = ("long-poll", "sse", True)


@pytest.fixture(scope="module", params=[OURS, NODE])
def peer(request: pytest.FixtureRequest) -> Iterator[Server]:
    with headwater("--memory", "--limit", "long_poll_s=2") if request.param == OURS else reference() as server:
        yield server


@pytest.fixture(scope="module", params=SHELLS)
def client(request: pytest.FixtureRequest, peer: Server) -> Iterator[Client]:
    with client_of(request.param, f"http://{peer.host}:{peer.port}") as client:
        yield client


@pytest.fixture
def stream(client: Client) -> Stream:
    return client.stream(f"client/{uuid.uuid4().hex}")


class Price(msgspec.Struct):
    sku: str
    eur: float


@dataclass
class Cart:
    items: list[str]


class Route(pydantic.BaseModel):
    to: str
    hops: int = 1


def test_the_life_of_a_stream(stream: Stream) -> None:
    assert stream.create(content_type="application/json")
    assert not stream.create(content_type="application/json")
    with pytest.raises(ConflictError):
        stream.create(content_type="text/plain")
    info = stream.head()
    assert (info.content_type, info.closed) == ("application/json", False)
    end = stream.append({"n": 1}).offset
    assert stream.head().tail_offset == end
    stream.close()
    stream.close()
    assert stream.head().closed
    with pytest.raises(StreamClosedError) as refused:
        stream.append({"n": 2})
    assert refused.value.status == 409
    assert not refused.value.retryable
    assert stream.url in str(refused.value)
    stream.delete()
    with pytest.raises(StreamNotFoundError):
        stream.head()
    with pytest.raises(StreamNotFoundError):
        stream.delete()
    with pytest.raises(StreamNotFoundError):
        stream.read().all()


def test_everything_that_is_json_can_be_appended(stream: Stream) -> None:
    stream.create()
    values: list[Any] = [{"a": [1, None, "é"]}, "text", 7, None, True, [1, [2]], []]
    for value in values:
        stream.append(value)
    stream.append(Price("tea", 4.2))
    stream.append(Cart(["tea"]))
    stream.append(Route(to="here"))
    stream.append({"route": Route(to="there", hops=2)})
    stream.append(b'{"already": "JSON"}')
    expected = [
        *values,
        {"sku": "tea", "eur": 4.2},
        {"items": ["tea"]},
        {"to": "here", "hops": 1},
        {"route": {"to": "there", "hops": 2}},
        {"already": "JSON"},
    ]
    assert stream.read().all() == expected


def test_what_is_not_json_is_refused_before_it_is_sent(stream: Stream) -> None:
    stream.create()
    with pytest.raises(TypeError):
        stream.append(object())
    for bad in (b"1,2", b"{", b"", b"\xff", b'"\xff"'):
        with pytest.raises(ValueError, match="one JSON text"):
            stream.append(bad)
    assert stream.read().all() == []


def test_typed_reads(stream: Stream) -> None:
    stream.create(messages=[{"to": "x", "hops": 3}, {"to": "y", "hops": 4}])
    assert stream.read(type=Route).all() == [Route(to="x", hops=3), Route(to="y", hops=4)]
    assert stream.read(type=dict[str, str | int]).all() == [{"to": "x", "hops": 3}, {"to": "y", "hops": 4}]
    raw, _ = stream.read(type=bytes).all()
    assert msgspec.json.decode(raw) == {"to": "x", "hops": 3}


@pytest.mark.parametrize("wanted", [Price, Route])
def test_a_message_of_another_type_is_named_and_can_be_passed(stream: Stream, wanted: type[Price | Route]) -> None:
    good = {"sku": "tea", "eur": 1.0} if wanted is Price else {"to": "x"}
    stream.create(messages=[good, good, {"bad": 1}, good])
    reader = stream.read(type=wanted)
    items = iter(reader)
    seen = [next(items), next(items)]
    with pytest.raises(MessageError) as refused:
        next(items)
    assert stream.read(type=wanted, offset=refused.value.position, skip=1).all() == seen[:1]


def test_bytes_and_text(client: Client, stream: Stream) -> None:
    stream.create(content_type="application/octet-stream")
    stream.append(b"\x00\xff")
    stream.append_many([b"a", bytearray(b"b"), "c"])
    assert b"".join(stream.read().all()) == b"\x00\xffabc"
    with pytest.raises(TypeError):
        stream.append({"an": "object"})
    with pytest.raises(ValueError, match="nothing"):
        stream.append(b"")
    with pytest.raises(ProtocolError):
        stream.read(type=Price).all()
    text = client.stream(f"client/{uuid.uuid4().hex}")
    text.create(content_type="text/plain; charset=utf-8")
    for part in ("é", "\r\n", b"\xe2\x82", b"\xac"):
        text.append(part)
    assert "".join(text.read().all()) == "é\r\n€"
    assert b"".join(text.read(type=bytes).all()) == "é\r\n€".encode()


def test_a_read_goes_on_from_where_another_stopped(stream: Stream) -> None:
    stream.create(messages=range(10))
    stream.append_many(range(10, 20))
    for stop in range(1, 20):
        reader = stream.read()
        seen = [item for _, item in zip(range(stop), reader, strict=False)]
        reader.close()
        assert seen + stream.read(offset=reader.position).all() == list(range(20))


def test_batches_carry_the_offset_after_them(stream: Stream) -> None:
    stream.create(messages=["a", "b"])
    batches = list(stream.read().batches())
    assert [item for batch in batches for item in batch.items] == ["a", "b"]
    assert batches[-1].up_to_date
    assert batches[-1].offset == stream.head().tail_offset
    stream.append("c")
    assert stream.read(offset=batches[-1].offset).all() == ["c"]


def test_a_read_until_an_offset(stream: Stream) -> None:
    stream.create()
    ends = [stream.append_many([n, -n]).offset for n in range(1, 5)]
    for start, offset in enumerate(["-1", *ends]):
        for stop, until in enumerate(ends, start=1):
            if start <= stop:
                expected = [n * sign for n in range(start + 1, stop + 1) for sign in (1, -1)]
                assert stream.read(offset=offset, until=until).all() == expected
                assert stream.read(offset=offset, until=until, live=True).all() == expected


def test_a_read_of_bytes_until_an_offset(client: Client) -> None:
    stream = client.stream(f"client/{uuid.uuid4().hex}", content_type="application/octet-stream")
    stream.create()
    stream.append(b"abc")
    middle = stream.append(b"def").offset
    stream.append(b"ghi")
    assert b"".join(stream.read(until=middle).all()) == b"abcdef"


@pytest.mark.parametrize("live", LIVE_MODES)
@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/octet-stream"])
def test_a_live_read_sees_everything_and_ends_at_the_close(stream: Stream, live: Any, content_type: str) -> None:
    stream.create(content_type=content_type)
    stream.append("before ")

    def write() -> None:
        for number in range(20):
            stream.append(f"{number} ")
        stream.append("last", close=True)

    with _running(write):
        wanted: Any = str if content_type != "application/json" else Any
        seen = stream.read(type=wanted, live=live).all()
    assert "".join(seen) == "before " + "".join(f"{n} " for n in range(20)) + "last"


@pytest.mark.parametrize("live", LIVE_MODES)
def test_a_live_read_from_now_misses_nothing_after_it(stream: Stream, live: Any) -> None:
    stream.create(messages=["old"])
    reader = stream.read(offset="now", live=live)
    batches = iter(reader.batches())
    first = next(batches)
    assert (first.items, first.up_to_date) == ([], True)
    stream.append("new")
    stream.close()
    assert [item for batch in batches for item in batch.items] == ["new"]
    assert reader.closed


@pytest.mark.parametrize("live", ["sse", "long-poll"])
@pytest.mark.parametrize("forked", [False, True])
def test_a_live_read_of_a_deleted_stream_ends_with_an_error(
    client: Client, stream: Stream, peer: Server, live: Any, forked: bool
) -> None:
    if peer.name != OURS:
        pytest.skip("the reference does not tell live readers")
    stream.create()
    stream.append(1)
    if forked:
        stream.fork(f"client/{uuid.uuid4().hex}")
    messages = iter(stream.read(live=live))
    assert next(messages) == 1
    stream.delete()
    with pytest.raises(StreamGoneError if forked else StreamNotFoundError):
        next(messages)


def test_a_fork_has_its_own_future(client: Client, stream: Stream) -> None:
    stream.create()
    offset = stream.append("shared").offset
    stream.append("only here")
    forked = stream.fork(f"client/{uuid.uuid4().hex}", offset=offset)
    forked.append("only there")
    assert stream.read().all() == ["shared", "only here"]
    assert forked.read().all() == ["shared", "only there"]


def test_expiry_is_passed_on(client: Client, stream: Stream) -> None:
    stream.create(ttl_s=3600)
    assert stream.head().ttl_seconds == 3600
    other = client.stream(f"client/{uuid.uuid4().hex}")
    other.create(expires_at=datetime.now(UTC) + timedelta(hours=1))
    assert other.head().expires_at is not None


def test_an_append_with_producer_headers_is_stored_once(stream: Stream) -> None:
    stream.create()
    assert not stream.append("x", producer=ProducerTuple("p", 0, 0)).duplicate
    assert stream.append("x", producer=ProducerTuple("p", 0, 0)).duplicate
    assert stream.read().all() == ["x"]


def test_stream_seq_refuses_what_is_not_ahead(stream: Stream) -> None:
    stream.create()
    stream.append("x", seq="2")
    with pytest.raises(ConflictError):
        stream.append("y", seq="1")


def test_a_producer_batches_and_tells(stream: Stream) -> None:
    stream.create()
    reports: list[DeliveryReport] = []
    one: list[DeliveryReport] = []
    with stream.producer(batch_bytes=2_000, linger_s=5, on_delivery=reports.append) as producer:
        for number in range(5_000):
            producer.append({"n": number}, one.append if number == 4_000 else None)
        producer.flush()
        assert sum(delivery.count for delivery in reports) == 5_000
        producer.append("last")
    metrics = producer.metrics
    assert metrics.messages_delivered == 5_001
    assert 20 < metrics.batches_delivered < 100
    assert metrics.bytes_waiting == metrics.in_flight == 0
    assert [(delivery.count, delivery.error) for delivery in one] == [(1, None)]
    assert reports[-1].offset == stream.head().tail_offset
    assert stream.read().all() == [*({"n": number} for number in range(5_000)), "last"]


def test_a_producer_sends_what_lingers(stream: Stream) -> None:
    stream.create()
    producer = stream.producer(linger_s=0.05)
    producer.append("x")
    wait_until(lambda: stream.read().all())
    producer.close()
    with pytest.raises(RuntimeError, match="closed"):
        producer.append("y")


def test_a_producer_of_bytes(client: Client) -> None:
    stream = client.stream(f"client/{uuid.uuid4().hex}", content_type="application/octet-stream")
    stream.create()
    with stream.producer(batch_bytes=100) as producer:
        for number in range(1_000):
            producer.append(f"{number},".encode())
    assert b"".join(stream.read().all()) == b"".join(f"{number},".encode() for number in range(1_000))


def test_a_second_producer_claims_the_id_and_fences_the_first(stream: Stream) -> None:
    stream.create()
    first = stream.producer("orders", auto_claim=True)
    first.append("first")
    first.flush()
    flushed_ms = time.time_ns() // 1_000_000
    wait_until(lambda: time.time_ns() // 1_000_000 > flushed_ms)  # a claim takes its epoch from the clock
    with stream.producer("orders", auto_claim=True) as second:
        second.append("second")
    first.append("too late")
    with pytest.raises(StaleEpochError):
        first.flush()
    with pytest.raises(StaleEpochError):
        first.append("far too late")
    with pytest.raises(StaleEpochError):
        first.close()
    assert stream.read().all() == ["first", "second"]


def test_a_low_epoch_is_raised_on_request_only(stream: Stream) -> None:
    stream.create()
    with stream.producer("p", epoch=5) as producer:
        producer.append("five")
    with pytest.raises(StaleEpochError), stream.producer("p", epoch=3) as producer:
        producer.append("three")
    with stream.producer("p", epoch=3, auto_claim=True) as producer:
        producer.append("six")
    assert producer.epoch == 6
    assert stream.read().all() == ["five", "six"]
    with pytest.raises(ValueError, match="epoch"):
        stream.producer("p")


def test_a_producer_fails_all_that_waits_when_the_stream_is_closed(stream: Stream) -> None:
    stream.create()
    stream.close()
    reports: list[DeliveryReport] = []
    producer = stream.producer(on_delivery=reports.append)
    producer.append("x")
    with pytest.raises(StreamClosedError):
        producer.flush()
    assert [type(delivery.error) for delivery in reports] == [StreamClosedError]
    with pytest.raises(StreamClosedError):
        producer.close()


def test_paths_of_any_text(client: Client) -> None:
    stream = client.stream(f"client/ä b/{uuid.uuid4().hex}?#%")
    stream.create(messages=["x"])
    assert stream.read().all() == ["x"]
    assert client.stream(stream.url).read().all() == ["x"]


def test_the_list_of_streams(client: Client, peer: Server) -> None:
    prefix = f"list/{uuid.uuid4().hex}/"
    for number in range(7):
        client.stream(f"{prefix}{number}").create()
    if peer.name != OURS:
        with pytest.raises((ProtocolError, StreamNotFoundError)):
            list(client.list(prefix))
        return
    assert [info.path for info in client.list(prefix, page_size=3)] == [f"{prefix}{number}" for number in range(7)]


@contextlib.contextmanager
def _running(write: Any) -> Iterator[None]:
    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        writer.join()


def test_a_different_configuration_says_so(stream: Stream, peer: Server) -> None:
    stream.create(ttl_s=60)
    with pytest.raises(ConfigurationError if peer.name == OURS else ConflictError):
        stream.create(ttl_s=61)
