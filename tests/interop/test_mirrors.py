"""Mirrors and NURLs of our server by our client, in both shells."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import httpx
import pytest
from bench.servers import Server, headwater

from headwater.client import Client, Escape, Put, Remove, Retry, Table
from headwater.errors import (
    ConfigurationError,
    HistoryChangedError,
    InvalidNotifyError,
    MirrorMismatchError,
    StreamNotFoundError,
    TargetRefusedError,
)
from tests.nurls import receiver
from tests.shells import SHELLS, client_of
from tests.waiting import LIMIT_S, wait_until


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with headwater("--memory") as running:
        yield running


@pytest.fixture(params=SHELLS)
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Client]:
    with client_of(
        request.param, f"http://{server.host}:{server.port}", retry=Retry(first_s=0.01, most_s=0.05)
    ) as client:
        yield client


def name() -> str:
    return f"mirrors/{uuid.uuid4().hex}"


def body(table: Table) -> bytes:
    return httpx.get(table.url, params={"timeout": "0"}).content


def test_a_mirror_has_the_rows_of_its_source_and_ends_with_it(client: Client) -> None:
    source, copy = client.table(name()), client.table(name())
    source.create(schema="price", version=2, escape=Escape.BACKSLASH)
    source.append_all([Put(f"key\t{number}", f"two\nlines {number}") for number in range(5_000)])
    source.append([Remove("key\t7")], close=True)
    changes = list(copy.mirror(source))
    assert sum(progress.rows for progress in changes) == 5_001
    assert (changes[-1].last_seqno, changes[-1].source_last_seqno, changes[-1].lag_rows) == (5_001, 5_001, 0)
    assert body(copy) == body(source)
    info = copy.info()
    assert (info.mirror, info.closed, info.schema, info.version) == (True, True, "price", 2)
    assert sum(progress.rows for progress in copy.mirror(source.url)) == 0  # it has everything, and is closed


def test_a_mirror_goes_on_after_its_last_row(client: Client) -> None:
    source, copy = client.table(name()), client.table(name())
    source.create()
    for batch in range(5):
        source.append([Put(f"{batch}-{number}", "r") for number in range(10)])
        for progress in copy.mirror(source):
            if progress.last_seqno == (batch + 1) * 10:
                break  # as a kill does: the next call knows nothing but the mirror
    assert body(copy) == body(source)


def test_a_source_that_is_not_the_one_that_was_mirrored(client: Client) -> None:
    source, copy = client.table(name()), client.table(name())
    source.create()
    source.append([Put("a", "1"), Put("b", "2")], close=True)
    list(copy.mirror(source))
    kept = body(copy)
    source.delete()
    source.create()
    source.append([Put("a", "1"), Put("b", "other"), Put("c", "3")])
    with pytest.raises(HistoryChangedError):
        list(copy.mirror(source))
    assert body(copy) == kept
    with pytest.raises(ConfigurationError, match="is not a mirror"):
        list(source.mirror(copy))
    with pytest.raises(StreamNotFoundError):
        list(client.table(name()).mirror(client.table(name())))


def test_rows_can_be_appended_by_hand(client: Client) -> None:
    source, copy = client.table(name()), client.table(name())
    source.create()
    source.append([Put("a", "1"), Put("b", "2"), Put("c", "3")])
    rows = source.rows().all()
    assert copy.create(mirror=True)
    with pytest.raises(MirrorMismatchError, match="would be missing"):
        copy.append_rows(rows[1:], after=1)
    assert copy.append_rows(rows[:2], after=0).last_seqno == 2
    assert copy.append_rows(rows, after=0).last_seqno == 3
    with pytest.raises(ValueError, match="nothing"):
        copy.append_rows([], after=3)
    assert copy.append_rows([], after=3, close=True).last_seqno == 3
    assert copy.rows().all() == rows


def test_a_reader_says_whether_the_table_ended(client: Client) -> None:
    table = client.table(name())
    table.create()
    table.append([Put("a", "1")])
    with table.follow() as reader:
        next(iter(reader.batches()))
        reader.close()
        assert list(reader.batches()) == []
        assert not reader.closed
    table.close()
    with table.follow() as reader:
        assert len(reader.all()) == 1
        assert reader.closed


def test_a_mirror_outlives_a_restart_of_its_server(client: Client, tmp_path_factory: pytest.TempPathFactory) -> None:
    source = client.table(name())
    source.create()
    source.append([Put("a", "1")])
    data = ("--data-dir", str(tmp_path_factory.mktemp("mirror") / "data"))
    seen: list[int] = []

    def follow(port: int) -> None:
        with Client(f"http://127.0.0.1:{port}", retry=Retry(first_s=0.01, most_s=0.1)) as other:
            seen.extend(progress.last_seqno for progress in other.table("copy").mirror(source.url))

    with headwater(*data) as first:
        thread = threading.Thread(target=follow, args=(first.port,))
        thread.start()
        wait_until(lambda: seen)
    source.append([Put("b", "2")])  # while nobody can store it
    thread.join(0.3)
    assert thread.is_alive()
    with headwater(*data, "--port", str(first.port)):
        source.append([Put("c", "3")], close=True)
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        assert httpx.get(f"http://127.0.0.1:{first.port}/v1/table/copy").content == body(source)
    assert seen[-1] == 3


def test_nurls_are_advertised_listed_and_withdrawn(client: Client) -> None:
    table = client.table(name())
    with pytest.raises(StreamNotFoundError):
        table.nurls()
    table.create()
    assert table.nurls() == []
    with receiver() as other:
        table.advertise(other.nurl())
        table.advertise(other.nurl("/b?c=d&e"), event="prices_changed")
        table.advertise(other.nurl())
        assert [(nurl.event, nurl.url) for nurl in table.nurls()] == [
            ("rows", other.nurl()),
            ("prices_changed", other.nurl("/b?c=d&e")),
        ]
        table.withdraw(other.nurl("/b?c=d&e"))
        table.append([Put("a", "1")])
        path, _, form = other.wait(1)[0]
        assert (path, httpx.QueryParams(form.decode())["surl"]) == ("/nurl", table.url)
        table.withdraw(other.nurl())
        assert table.nurls() == []
    with pytest.raises(TargetRefusedError):
        table.advertise("http://10.0.0.1/nurl")
    with pytest.raises(InvalidNotifyError, match="event type"):
        table.advertise(other.nurl(), event="Not one")


def test_notify_is_sent_to_any_nurl(client: Client) -> None:
    with receiver() as other:
        client.notify(other.nurl(), surl="https://me.example/t?a=b&c", rows="https://me.example/n", nurl="https://me/x")
        client.notify(other.nurl(), manifest="https://me.example/m")
        (_, content_type, first), (_, _, second) = other.wait(2)
    assert content_type == "application/x-www-form-urlencoded"
    assert dict(httpx.QueryParams(first.decode())) == {
        "surl": "https://me.example/t?a=b&c",
        "rows": "https://me.example/n",
        "nurl": "https://me/x",
    }
    assert second == b"manifest=https://me.example/m"
    for nurl, options in ((other.nurl(), {}), ("ftp://host/n", {"surl": "https://a/b"})):
        with pytest.raises(ValueError, match=r"a Notify form|not a NURL"):
            client.notify(nurl, **options)
