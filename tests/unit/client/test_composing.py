"""Composes through both shells of the client."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import httpx
import pytest

from headwater.client import Client, ProducerTuple, SourceRange
from headwater.errors import (
    ComposeSourceGoneError,
    ComposeSourceNotFoundError,
    ContentTypeError,
    InvalidComposeError,
    TailMovedError,
)
from tests.servers import Server
from tests.shells import client_of


@pytest.fixture
def client(shell: str, server: Server) -> Iterator[Client]:
    with client_of(shell, f"http://{server.host}:{server.port}") as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"composing/{uuid.uuid4().hex}"


def test_ranges_of_streams_are_appended(client: Client, name: str) -> None:
    one, target = client.stream(f"{name}/größe 1%"), client.stream(name)
    one.create()
    target.create()
    assert target.head().composes
    ends = [one.append(number).offset for number in range(3)]
    done = target.compose([SourceRange(one.url, ends[0], ends[1]), SourceRange(one.url)], if_tail="-1")
    assert not done.duplicate
    assert done.offset == target.head().tail_offset
    assert target.read().all() == [1, 0, 1, 2]
    with pytest.raises(TailMovedError):
        target.compose([SourceRange(one.url)], if_tail="-1")
    target.compose([SourceRange(httpx.URL(one.url).raw_path.decode())], close=True)  # a URL path does as well
    assert target.head().closed
    assert target.read().all() == [1, 0, 1, 2, 0, 1, 2]


def test_a_repeated_compose_is_a_duplicate(client: Client, name: str) -> None:
    one, target = client.stream(f"{name}/1"), client.stream(name)
    one.create(messages=[1])
    target.create()
    source, first = SourceRange(one.url), ProducerTuple("p", 0, 0)
    done = target.compose([source], producer=first)
    one.delete()
    again = target.compose([source], producer=first)
    assert (done.duplicate, again.duplicate, again.offset) == (False, True, done.offset)
    with pytest.raises(ComposeSourceNotFoundError, match="source 1") as missing:
        target.compose([source], producer=ProducerTuple("p", 0, 1))
    assert (missing.value.status, missing.value.retryable) == (404, False)
    assert target.read().all() == [1]


def test_tables(client: Client, name: str) -> None:
    lines, table = client.stream(f"{name}/1", content_type="text/tab-separated-values"), client.table(name)
    lines.create()
    end = lines.append_body(b"+\ta\t1\n+\tb\t2\n").offset
    lines.append_body(b"-\ta\n")
    table.create(schema="x")
    assert table.compose([SourceRange(lines.url, until=end)], producer=ProducerTuple("p", 0, 0)).last_seqno == 2
    assert table.compose([SourceRange(lines.url, until=end)], producer=ProducerTuple("p", 0, 0)).duplicate
    assert table.compose([SourceRange(lines.url, end)], if_tail=2, close=True).last_seqno == 3
    assert [(row.seqno, row.action, row.key) for row in table.rows()] == [(1, "+", "a"), (2, "+", "b"), (3, "-", "a")]


def test_errors(client: Client, name: str) -> None:
    text, target = client.stream(f"{name}/1", content_type="text/plain"), client.stream(name)
    text.create(messages=["a"])
    target.create(messages=[1])
    with pytest.raises(ContentTypeError, match=r"source 1 .* is text/plain"):
        target.compose([SourceRange(text.url)])
    with pytest.raises(InvalidComposeError, match="is the target"):
        target.compose([SourceRange(target.url)])
    with pytest.raises(ValueError, match="nothing to compose"):
        target.compose([])
    with pytest.raises(ValueError, match="not a stream of this client's server"):
        target.compose([SourceRange("http://elsewhere.example/v1/stream/a")])
    old = text.head().tail_offset
    text.delete()
    text.create(messages=["b"])
    with pytest.raises(ComposeSourceGoneError, match="source 1") as gone:
        target.compose([SourceRange(text.url, old)])
    assert gone.value.status == 410
    assert target.read().all() == [1]


def test_a_server_without_composes_says_nothing_of_them(shell: str) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "application/json", "stream-next-offset": "1"})

    kind = httpx.Client if shell == "sync" else httpx.AsyncClient
    with client_of(shell, "http://reference.example", http=kind(transport=httpx.MockTransport(answer))) as client:
        assert not client.stream("a").head().composes
