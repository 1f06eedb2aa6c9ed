"""Producers when something goes wrong that no request can: nobody waits for ever, and everyone is told."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from headwater.client import AsyncClient, Client, DeliveryReport, Retry, Stream
from headwater.errors import ClientError, HeadwaterError, OverloadedError, ProducerReusedError, StreamClosedError
from tests.servers import Server
from tests.shells import client_of
from tests.waiting import LIMIT_S, wait_until_async

QUICK = Retry(attempts=3, first_s=0.001, most_s=0.01)


@pytest.fixture
def client(shell: str, server: Server) -> Iterator[Client]:
    with client_of(shell, f"http://{server.host}:{server.port}", retry=QUICK) as client:
        yield client


@pytest.fixture
def stream(client: Client) -> Stream:
    made = client.stream(f"producer/{uuid.uuid4().hex}")
    made.create()
    return made


def _unavailable(shell: str) -> Any:
    """An httpx client whose server answers 503 for ever."""

    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(503)

    transport = httpx.MockTransport(handle)
    return httpx.Client(transport=transport) if shell == "sync" else httpx.AsyncClient(transport=transport)


def test_a_hook_that_raises_ends_the_producer(shell: str, server: Server) -> None:
    def fail() -> str:
        raise OSError("no token today")

    with client_of(shell, f"http://{server.host}:{server.port}", token=fail) as client:
        producer = client.stream("x", content_type="application/json").producer()
        reports: list[DeliveryReport] = []
        producer.append(1, reports.append)
        with pytest.raises(ClientError, match="no token today"):
            producer.flush(5)
        with pytest.raises(ClientError):
            producer.append(2)
        with pytest.raises(ClientError):
            producer.close(LIMIT_S)
        assert [str(delivery.error) for delivery in reports] == ["OSError: no token today"]


def test_a_client_closed_first_is_an_error_and_not_a_hang(client: Client, stream: Stream) -> None:
    producer = stream.producer(linger_s=60)
    producer.append(1)
    client.close()
    with pytest.raises(HeadwaterError):
        producer.close(LIMIT_S)


def test_closing_in_time_gives_up_and_tells(shell: str) -> None:
    reports: list[DeliveryReport] = []
    with client_of(shell, "http://server", retry=QUICK, http=_unavailable(shell)) as client:
        stream = client.stream("x", content_type="application/json")
        producer = stream.producer(queue_bytes=4, on_delivery=reports.append)
        producer.append(1)
        producer.append(2)
        stuck: list[BaseException] = []

        def append() -> None:
            try:
                producer.append(3)
            except (HeadwaterError, RuntimeError) as error:
                stuck.append(error)

        waiting = threading.Thread(target=append)
        waiting.start()
        with pytest.raises(TimeoutError):
            producer.close(0.3)
        waiting.join(LIMIT_S)
        assert len(stuck) == 1
        assert sum(delivery.count for delivery in reports) == 2
        assert producer.metrics.messages_failed == 2
        with pytest.raises((HeadwaterError, RuntimeError)):
            producer.append(4)


def test_retries_are_reported(shell: str) -> None:
    reports: list[Any] = []
    with client_of(shell, "http://server", retry=QUICK, http=_unavailable(shell), on_error=reports.append) as client:
        producer = client.stream("x", content_type="application/json").producer(delivery_timeout_s=0.2)
        producer.append(1)
        with pytest.raises(OverloadedError):
            producer.close(LIMIT_S)
    assert reports
    assert isinstance(reports[0].error, OverloadedError)


def test_a_long_retry_after_does_not_outlast_the_delivery(shell: str) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(503, headers={"retry-after": "3600"})

    transport = httpx.MockTransport(handle)
    http: Any = httpx.Client(transport=transport) if shell == "sync" else httpx.AsyncClient(transport=transport)
    with client_of(shell, "http://server", retry=QUICK, http=http) as client:
        producer = client.stream("x", content_type="application/json").producer(delivery_timeout_s=0.2)
        producer.append(1)
        with pytest.raises(OverloadedError):
            producer.close(LIMIT_S)


def test_callbacks_may_append_and_close_but_not_wait(server: Server) -> None:
    with Client(f"http://{server.host}:{server.port}") as client:
        stream = client.stream(f"callbacks/{uuid.uuid4().hex}")
        stream.create()
        producer = stream.producer(queue_bytes=10, batch_bytes=5)
        waited: list[str] = []
        left = [20]
        all_appended = threading.Event()

        def again(delivery: DeliveryReport) -> None:
            try:
                producer.flush()
            except RuntimeError as error:
                waited.append(str(error))
            for _ in range(2):
                if left[0]:
                    left[0] -= 1
                    producer.append(1, again)
            if not left[0]:
                producer.close()
                all_appended.set()

        producer.append(0, again)
        assert all_appended.wait(LIMIT_S)
        producer.close(LIMIT_S)
        assert stream.read().all() == [0] + [1] * 20
        assert "callback" in waited[0]


def test_ids_that_no_header_can_carry_are_refused(stream: Stream) -> None:
    for wrong in ("m\u00fcller", "a\nb", ""):
        with pytest.raises(ValueError, match="printable ASCII"):
            stream.producer(wrong, epoch=1)


def test_cancelling_a_producer_leaves_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait until its messages are too old to be delivered."""
    monkeypatch.setattr("headwater.limits.PRODUCER_LEAVE_S", 0.05)
    refused: list[Any] = []

    async def main() -> None:
        http = _unavailable("async")
        async with AsyncClient("http://server", retry=QUICK, http=http, on_error=refused.append) as client:
            stream = client.stream("x", content_type="application/json")

            async def produce() -> None:
                async with stream.producer(delivery_timeout_s=3_600) as producer:
                    await producer.append(1)
                    await asyncio.Event().wait()

            task = asyncio.create_task(produce())
            await wait_until_async(lambda: refused)  # it retries
            task.cancel()
            done, _ = await asyncio.wait((task,), timeout=LIMIT_S)
            assert done
            assert task.cancelled()

    asyncio.run(main())


def test_a_close_of_the_stream_ends_when_the_producer_is_closed() -> None:
    refused: list[Any] = []

    async def main() -> None:
        http = _unavailable("async")
        async with AsyncClient("http://server", retry=QUICK, http=http, on_error=refused.append) as client:
            stream = client.stream("x", content_type="application/json")
            producer = stream.producer(delivery_timeout_s=3_600)
            closing = asyncio.create_task(producer.close_stream())
            await wait_until_async(lambda: refused)  # it retries
            await producer.close()
            with pytest.raises(ClientError, match="before it could close the stream"):
                await asyncio.wait_for(closing, LIMIT_S)

    asyncio.run(main())


def test_a_blocking_close_of_the_stream_ends_when_the_producer_is_closed() -> None:
    retried = threading.Event()
    errors: list[ClientError] = []
    with Client("http://server", retry=QUICK, http=_unavailable("sync"), on_error=lambda _: retried.set()) as client:
        producer = client.stream("x", content_type="application/json").producer(delivery_timeout_s=3_600)

        def close_stream() -> None:
            try:
                producer.close_stream()
            except ClientError as error:
                errors.append(error)

        closing = threading.Thread(target=close_stream)
        closing.start()
        assert retried.wait(LIMIT_S)
        producer.close()
        closing.join(LIMIT_S)
        assert not closing.is_alive()
    assert [str(error) for error in errors if "before it could close the stream" in str(error)]


def test_the_stream_is_closed_behind_what_was_appended(client: Client, stream: Stream) -> None:
    producer = stream.producer()
    for number in range(5):
        producer.append(number)
    producer.close_stream(final="last")
    producer.close_stream()
    assert stream.read(live=True).all() == [0, 1, 2, 3, 4, "last"]
    assert stream.head().closed
    with pytest.raises(RuntimeError, match="closed"):
        producer.append(6)


@pytest.mark.parametrize("final", [{}, {"final": None}])
def test_a_close_needs_no_message_and_null_is_one(client: Client, stream: Stream, final: dict[str, None]) -> None:
    stream.producer().close_stream(**final)
    assert stream.read(live=True).all() == list(final.values())


def test_a_close_that_another_one_did_is_done(client: Client, stream: Stream) -> None:
    producer = stream.producer()
    stream.close()
    producer.close_stream()
    with pytest.raises(StreamClosedError):
        stream.producer().close_stream(final=1)


def test_the_answer_to_a_close_is_lost(shell: str, server: Server) -> None:
    lost: list[httpx.Request] = []

    class Lossy(httpx.HTTPTransport if shell == "sync" else httpx.AsyncHTTPTransport):  # type: ignore[misc]
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
            loses = "stream-closed" in request.headers and len(lost) < 2
            if loses:
                lost.append(request)
            return loses

    kind: Any = httpx.Client if shell == "sync" else httpx.AsyncClient
    # Without connections that are kept: nobody closes a client of httpx that was given.
    http = kind(transport=Lossy(limits=httpx.Limits(max_keepalive_connections=0)))
    with client_of(shell, f"http://{server.host}:{server.port}", http=http, retry=QUICK) as there:
        stream = there.stream(f"producer/{uuid.uuid4().hex}")
        stream.create()
        producer = stream.producer()
        producer.append(1)
        producer.close_stream(final=2)
        assert len(lost) == 2
        assert stream.read(live=True).all() == [1, 2]


def test_a_used_id_and_epoch_is_an_error(client: Client, stream: Stream) -> None:
    with stream.producer("p", epoch=3) as producer:
        producer.append(1)
    again = stream.producer("p", epoch=3)
    reports: list[DeliveryReport] = []
    again.append(2, reports.append)
    with pytest.raises(ProducerReusedError, match="epoch 3"):
        again.flush()
    assert isinstance(reports[0].error, ProducerReusedError)
    with pytest.raises(ProducerReusedError):
        again.close()
    assert stream.read().all() == [1]
