"""Fetching over a direct connection, and the client, which continues after a failure."""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headwater.client import Client
from headwater.client.fetching import UnexpectedAnswerError, can_fetch, fetch, fetch_ahead
from headwater.errors import MessageError
from headwater.limits import Limits
from headwater.positions import Position
from headwater.spark import columns
from headwater.spark.columns import RangeReader
from headwater.spark.options import read_options
from headwater.spark.planning import Planner
from headwater.spark.positions import StreamRange
from tests.cli.stubs import Answer, stub_server
from tests.fault.hostile import Fate, hostile, seeded
from tests.servers import Server, serving

_numbers = itertools.count()
SCHEMA = StructType([StructField("position", LongType()), StructField("value", StringType())])


@pytest.fixture(scope="module")
def path(server: Server) -> str:
    """A stream that takes several responses to read."""
    name = f"fetching/{next(_numbers)}"
    with Client(server.url) as client:
        client.stream(name).create()
        for start in range(0, 50, 5):
            client.stream(name).append_many([{"n": n, "pad": "x" * 100_000} for n in range(start, start + 5)])
    return name


def test_a_range_is_fetched_in_consecutive_responses(server: Server, path: str) -> None:
    options = read_options({"url": server.url, "streams": path}, bounded=True, state=False)
    with Client(server.url) as client:
        url, until = client.stream(path).url, client.stream(path).head().tail_offset
    answers = list(fetch(options, url, "-1", until))
    assert len(answers) > 2
    assert answers[-1][1] == until
    assert sum(len(body) for body, _ in answers) > 5_000_000
    with pytest.raises(UnexpectedAnswerError):
        list(fetch(options, f"{url}/missing", "-1", until))
    assert list(fetch(options, url, until, until)) == []
    assert list(fetch_ahead(options, url, "-1", until)) == answers
    with pytest.raises(UnexpectedAnswerError):
        list(fetch_ahead(options, f"{url}/missing", "-1", until))


def test_what_is_fetched_ahead_ends_with_its_reader() -> None:
    """Whether it waits for room or for a server that does not answer."""
    fields = (b"stream-next-offset: 1_5", b"content-type: application/json", b"content-length: 2", b"", b"")
    head = b"\r\n".join((b"HTTP/1.1 200 OK", *fields))
    options = read_options({"url": "http://127.0.0.1:1", "streams": "s"}, bounded=True, state=False)
    for sent in (1, 20):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            answers = fetch_ahead(options, f"http://127.0.0.1:{listening.getsockname()[1]}/s", "-1", "never")
            received: list[Any] = []
            first = threading.Thread(target=lambda: received.append(next(answers)))  # noqa: B023 - it ends in the loop
            first.start()
            connection, _ = listening.accept()
            with connection:
                connection.sendall((head + b"[]") * sent)
                first.join()
                assert received == [(b"[]", "1_5")]
                answers.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name == "fetch"]


def test_a_large_record_comes_in_chunks() -> None:
    with serving(Limits()) as server, Client(server.url) as client:
        stream = client.stream(f"fetching/{next(_numbers)}")
        stream.create()
        messages = [{"n": n, "pad": "x" * 1_000} for n in range(3_000)]
        for group in (messages[:10], messages[10:2_990], messages[2_990:]):
            stream.append_many(group)
        options = read_options({"url": server.url, "streams": "any"}, bounded=True, state=False)
        answers = list(fetch(options, stream.url, "-1", until := stream.head().tail_offset))
    assert max(len(body) for body, _ in answers) > 2_000_000
    assert answers[-1][1] == until
    assert [message for body, _ in answers for message in msgspec.json.decode(body)] == messages


def test_chunks_that_do_not_add_up() -> None:
    fields = (b"stream-next-offset: 1_5", b"content-type: application/json", b"transfer-encoding: chunked", b"", b"")
    head = b"\r\n".join((b"HTTP/1.1 200 OK", *fields))
    options = read_options({"url": "http://127.0.0.1:1", "streams": "s"}, bounded=True, state=False)

    def fetched(rest: bytes) -> list[tuple[bytearray, str]]:
        with socket.create_server(("127.0.0.1", 0)) as listening:

            def answer() -> None:
                with listening.accept()[0] as opened:
                    opened.recv(65536)
                    opened.sendall(head + rest)

            thread = threading.Thread(target=answer)
            thread.start()
            try:
                return list(fetch(options, f"http://127.0.0.1:{listening.getsockname()[1]}/s", "-1", "1_5"))
            finally:
                thread.join()

    assert fetched(b"3;x=y\r\n[1,\r\nA\r\n2222222222\r\n1\r\n]\r\n0\r\nend: of it\r\n\r\n") == [
        (bytearray(b"[1,2222222222]"), "1_5")
    ]
    for damaged in (
        b"3\r\n[1]0\r\n\r\n",
        b"-3\r\n[1]\r\n0\r\n\r\n",
        b"\r\n",
        b"3\r\n[1]\r\n",
        b"9\r\n[1]",
        b"2\r\n[1]\r\n0\r\n\r\n",
    ):
        with pytest.raises(UnexpectedAnswerError):
            fetched(damaged)


@pytest.mark.parametrize("seed", range(int(os.environ.get("SEEDS", "8"))))
def test_no_row_is_lost_if_fetching_fails(server: Server, path: str, seed: int) -> None:
    chance = random.Random(seed)

    def decide(what: str, times: int) -> Fate:
        fate = seeded(seed)(what, times)
        return Fate(fate.kind, chance.randrange(2_500_000)) if fate.kind in ("cut", "reset") else fate

    with hostile(server, decide) as proxy:
        options = read_options({"url": proxy.url, "streams": path, "minPartitions": "3"}, bounded=True, state=False)
        with options.open() as client:
            planner = Planner(options, client)
            streams = planner.check()
            ranges = planner.partitions(planner.resolve("earliest", streams), planner.resolve("latest", streams))
            reader = RangeReader(options, client, SCHEMA)
            values = [
                value
                for part in ranges
                for one in part
                for batch in reader.read(one)
                for value in batch["value"].to_pylist()
            ]
    assert [value.partition(",")[0] for value in values] == [f'{{"n":{n}' for n in range(50)]


@pytest.mark.parametrize("failure", [ConnectionResetError("by peer"), UnexpectedAnswerError("503"), ValueError("cut")])
def test_the_client_continues_and_the_log_says_why(
    server: Server, path: str, failure: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*arguments: Any) -> Iterator[tuple[bytearray, str]]:
        yield next(fetch(*arguments))
        raise failure

    monkeypatch.setattr(columns, "fetch", failing)
    options = read_options({"url": server.url, "streams": path}, bounded=True, state=False)
    with options.open() as client:
        end = client.stream(path).head().tail_offset
        part = StreamRange(path, "application/json", Position("-1"), Position(end), exact=True)
        rows = [row for batch in RangeReader(options, client, SCHEMA).read(part) for row in batch.to_pylist()]
    assert [json.loads(row["value"])["n"] for row in rows] == list(range(50))
    (record,) = caplog.records
    what = f"{type(failure).__name__}: {failure}"
    assert record.getMessage() == f"/v1/stream/{path}: a direct read ended early, and the client continues it: {what}"


def test_a_message_that_is_nested_too_deeply_is_an_error_with_its_position() -> None:
    """Another server may send it."""
    end = "0000000000000000_0000000000200030"
    deep = b"[" * 100_000 + b"]" * 100_000

    def answer(method: str, path: str) -> Answer:
        headers = {"content-type": "application/json", "stream-next-offset": end, "stream-up-to-date": "true"}
        return 200, headers, b'[{"n":1},' + deep + b',{"n":2}]'

    with stub_server(answer) as stub:
        options = read_options({"url": stub.url, "streams": "deep"}, bounded=True, state=False)
        part = StreamRange("deep", "application/json", Position("-1"), Position(end), exact=True)
        with options.open() as client:
            reader = RangeReader(options, client, SCHEMA)
            checked = [row["value"] for batch in reader.read(part) for row in batch.to_pylist()]
            with pytest.raises(MessageError, match="JSON is nested too deeply") as error:
                list(reader.read(msgspec.structs.replace(part, exact=False)))
    assert checked == ['{"n":1}', deep.decode(), '{"n":2}']  # what a Headwater server accepted is not parsed again
    assert (error.value.offset, error.value.skip) == ("-1", 1)


def test_the_client_reads_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_fetch("http://example.org/v1/stream/a")
    assert can_fetch("https://example.org/v1/stream/a")
    monkeypatch.setenv("http_proxy", "http://proxy.example.org:3128")
    assert not can_fetch("http://example.org/v1/stream/a")
    monkeypatch.setenv("no_proxy", "example.org")
    assert can_fetch("http://example.org/v1/stream/a")
