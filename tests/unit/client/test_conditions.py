"""Appends on condition that nobody else has written, and answers to them that are lost."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from headwater.client import Client, Put, Retry
from headwater.errors import NetworkError, StreamClosedError, TailMovedError
from headwater.log.producers import ProducerTuple
from tests.servers import Server
from tests.shells import client_of

QUICK = Retry(attempts=4, first_s=0.0001, most_s=0.001)


@pytest.fixture
def client(shell: str, server: Server) -> Iterator[Client]:
    with client_of(shell, f"http://{server.host}:{server.port}") as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"condition/{uuid.uuid4().hex}"


def test_a_stream(client: Client, name: str) -> None:
    stream = client.stream(name)
    stream.create()
    first = stream.append(1, if_tail="-1")
    with pytest.raises(TailMovedError) as moved:
        stream.append(2, if_tail="-1")
    assert (moved.value.status, moved.value.offset, moved.value.last_seqno) == (412, first.offset, None)
    assert not moved.value.retryable
    second = stream.append_many([2, 3], if_tail=moved.value.offset)
    assert stream.append_body(b"[4]", if_tail=second.offset).offset > second.offset
    with pytest.raises(TailMovedError):
        stream.append_body(b"[4]", if_tail=second.offset)
    for refused in (stream.close, stream.delete):
        with pytest.raises(TailMovedError):
            refused(if_tail=second.offset)
    tail = stream.head().tail_offset
    stream.close(if_tail=tail)
    with pytest.raises(StreamClosedError):
        stream.append(5, if_tail=tail)
    assert stream.read().all() == [1, 2, 3, 4]
    stream.delete(if_tail=tail)


def test_a_table(client: Client, name: str) -> None:
    table = client.table(name)
    table.create()
    table.append([Put("a", "1"), Put("b", "2")], if_tail=0)
    with pytest.raises(TailMovedError) as moved:
        table.append([Put("a", "2")], if_tail=0)
    assert (moved.value.last_seqno, moved.value.offset) == (2, "")
    assert table.append_body(b"+\ta\t2\n", if_tail=2).last_seqno == 3
    for refused in (table.close, table.delete):
        with pytest.raises(TailMovedError):
            refused(if_tail=2)
    table.close(if_tail=3)
    table.delete(if_tail=3)


def losing(shell: str, count: int) -> tuple[Any, list[httpx.Request]]:
    """A client of httpx that loses the first answers to appends."""
    lost: list[httpx.Request] = []

    class Losing(httpx.HTTPTransport if shell == "sync" else httpx.AsyncHTTPTransport):  # type: ignore[misc]
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            response: httpx.Response = super().handle_request(request)
            if self._loses(request):
                response.close()
                raise httpx.ReadError("reset")
            return response

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            response: httpx.Response = await super().handle_async_request(request)
            if self._loses(request):
                await response.aclose()
                raise httpx.ReadError("reset")
            return response

        def _loses(self, request: httpx.Request) -> bool:
            loses = request.method == "POST" and len(lost) < count
            if loses:
                lost.append(request)
            return loses

    kind: Any = httpx.Client if shell == "sync" else httpx.AsyncClient
    return kind(transport=Losing(limits=httpx.Limits(max_keepalive_connections=0))), lost


def test_a_lost_answer(shell: str, server: Server, name: str) -> None:
    """Not repeated without a producer. The caller may repeat it: it is never stored twice."""
    http, lost = losing(shell, 1)
    with client_of(shell, f"http://{server.host}:{server.port}", http=http, retry=QUICK) as client:
        stream = client.stream(name)
        stream.create()
        with pytest.raises(NetworkError) as failed:
            stream.append(1, if_tail="-1")
        assert (failed.value.attempts, len(lost)) == (1, 1)
        with pytest.raises(TailMovedError):
            stream.append(1, if_tail="-1")
        assert stream.read().all() == [1]


def test_a_lost_answer_to_a_producer(shell: str, server: Server, name: str) -> None:
    """Repeated: the server recognises it, although the tail has moved."""
    http, lost = losing(shell, 2)
    with client_of(shell, f"http://{server.host}:{server.port}", http=http, retry=QUICK) as client:
        stream = client.stream(name)
        stream.create()
        done = stream.append(1, if_tail="-1", producer=ProducerTuple("p", 0, 0))
        assert done.duplicate
        assert len(lost) == 2
        with pytest.raises(TailMovedError):
            stream.append(2, if_tail="-1", producer=ProducerTuple("p", 0, 1))
        assert stream.read().all() == [1]
