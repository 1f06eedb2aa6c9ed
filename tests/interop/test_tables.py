"""Tables of our server by our client, in both shells."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import pytest
from bench.servers import Server, headwater

from headwater.client import Client, Escape, Put, Remove, Table
from headwater.errors import ConfigurationError, StreamNotFoundError


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("tables") / "data"
    small = ("--limit", "segment_bytes=1000000", "--limit", "fold_idle_s=0.1")
    with headwater("--data-dir", str(directory), *small) as running:
        yield running


@pytest.fixture
def table(client: Client) -> Table:
    made = client.table(f"tables/{uuid.uuid4().hex}")
    assert made.create(schema="price", version=2)
    return made


def test_create_append_and_read(table: Table) -> None:
    assert not table.create(schema="price", version=2)
    with pytest.raises(ConfigurationError):
        table.create(schema="price", version=3)
    assert table.append([Put("tea", "2.40"), Put("coffee", "3.10")]).last_seqno == 2
    table.append([Remove("coffee")])
    rows = [(row.seqno, row.action, row.key, row.record) for row in table.rows()]
    assert rows == [(1, "+", "tea", "2.40"), (2, "+", "coffee", "3.10"), (3, "-", "coffee", "")]
    assert [row.seqno for row in table.rows(since_id=1, until_id=2)] == [2]
    assert [row.seqno for row in table.rows(since_id=-1)] == [3]
    assert {key: row.record for key, row in table.active().items()} == {"tea": "2.40"}
    tea = table.get("tea")
    assert tea is not None
    assert tea.seqno == 1
    assert table.get("coffee") is None
    assert table.info().last_seqno == 3


def test_many_changes_are_stored_once_and_read_in_order(table: Table) -> None:
    count = 30_000
    table.append_all([Put(f"k{number % 1000}", f"v{number}") for number in range(count)], batch_bytes=100_000)
    assert [row.record for row in table.rows()] == [f"v{number}" for number in range(count)]
    assert [row.seqno for row in table.rows(since_id=count - 10)] == list(range(count - 9, count + 1))
    assert len(table.active()) == 1000


def test_changes_go_in_more_requests_if_there_are_more_than_a_server_takes_in_one(table: Table) -> None:
    assert table.append_all([Remove("k")] * 100_001).last_seqno == 100_001


def test_a_table_that_is_not_there_is_named(client: Client) -> None:
    with pytest.raises(StreamNotFoundError, match=r"no such table \(http"):
        client.table("nowhere").append([Put("a", "1")])


def test_a_follower_gets_each_row_once_until_the_table_is_closed(client: Client, table: Table) -> None:
    table.append([Put("a", "0")])

    def write() -> None:
        for number in range(1, 20):
            table.append([Put("a", str(number))])
        table.close()

    writer = threading.Thread(target=write)
    writer.start()
    records = [row.record for row in client.table(table.url).follow()]
    writer.join()
    assert records == [str(number) for number in range(20)]


def test_escapes(client: Client) -> None:
    table = client.table(f"tables/{uuid.uuid4().hex}")
    table.create(escape=Escape.BACKSLASH)
    table.append([Put("tab\there", "two\nlines\\")])
    [row] = table.rows()
    assert (row.key, row.record) == ("tab\there", "two\nlines\\")
    assert table.get("tab\there") is not None


def test_the_list_and_the_end(client: Client, table: Table) -> None:
    name = table.url.rpartition("/v1/table/")[2]
    assert [info.name for info in client.tables(name)] == [name]
    assert not list(client.list(name))
    table.delete()
    assert not list(client.tables(name))
    with pytest.raises(StreamNotFoundError):
        list(table.rows())
