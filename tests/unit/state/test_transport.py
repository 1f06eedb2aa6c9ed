"""The transport's rows of the specification's checklist, for streams as Headwater serves them."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import pytest

from headwater.client import Client, Position, Stream
from headwater.state import Collection, parse_event
from tests.servers import Server

things = Collection("thing", dict)


@pytest.fixture
def stream(server: Server) -> Iterator[Stream]:
    with Client(f"http://{server.host}:{server.port}") as client:
        made = client.stream(f"transport/{uuid.uuid4().hex}")
        made.create()
        yield made


def test_transport_provides_total_order_per_stream(stream: Stream) -> None:
    """Whoever reads sees the same order, however many write at once; each writer's own order is kept."""

    def write(writer: int) -> None:
        for number in range(20):
            stream.append(things.insert({"id": f"{writer}-{number}"}))

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(5)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    stream.close()
    seen = [event["key"] for event in stream.read().all()]
    for live in ("long-poll", "sse", True):
        assert [event["key"] for event in stream.read(live=live).all()] == seen
    for name in range(5):
        assert [key for key in seen if key.startswith(f"{name}-")] == [f"{name}-{number}" for number in range(20)]


def test_transport_supports_replay_from_arbitrary_offsets(stream: Stream) -> None:
    offsets = ["-1", *(stream.append(things.insert({"id": number})).offset for number in range(10))]
    for position, offset in enumerate(offsets):
        assert [event["key"] for event in stream.read(offset=offset)] == [str(n) for n in range(position, 10)]


def test_transport_delivers_exactly_once_to_monotonic_consumers(stream: Stream) -> None:
    """A consumer that stops anywhere and resumes from its last position; `tests/fault` adds a hostile network."""
    stream.append_many([things.insert({"id": number}) for number in range(7)])
    stream.append_many([things.insert({"id": number}) for number in range(7, 20)])
    seen: list[str] = []
    position = "-1"
    while len(seen) < 20:
        reader = stream.read(offset=Position.parse(position))
        seen += [event["key"] for _, event in zip(range(3), reader, strict=False)]
        position = str(reader.position)
        reader.close()
    assert seen == [str(number) for number in range(20)]


def test_transport_preserves_json_structure(stream: Stream) -> None:
    value = {"id": "1", "deep": [{"é": [None, True, 1e300, -0.5, "\u0000\n\"'"]}, [], {}], "long": "x" * 10_000}
    stream.append(things.insert(value, txid="t", timestamp="2030-01-01T00:00:00Z"))
    (message,) = stream.read().all()
    assert message == {
        "type": "thing",
        "key": "1",
        "value": value,
        "headers": {"operation": "insert", "txid": "t", "timestamp": "2030-01-01T00:00:00Z"},
    }
    assert parse_event(message) == things.insert(value, txid="t", timestamp="2030-01-01T00:00:00Z")
