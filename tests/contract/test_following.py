"""Mirrors of remote tables as HTTP clients see them, and the list of followers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from bench.servers import headwater

from headwater.server.asgi import App
from tests.edges import free_port
from tests.public_urls import headwater_at
from tests.table_servers import CONTENT_TYPE, TableServer, table_server
from tests.waiting import wait_for, wait_for_async, wait_until

pytestmark = pytest.mark.slow  # servers, and time-outs that pass

FOLLOWERS = "/__stp/followers"
NOW = {"timeout": "0"}
TYPE = {"content-type": CONTENT_TYPE}
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture
def remote() -> Iterator[TableServer]:
    with table_server() as server:
        server.put("prices", "+ apples 1.20", "+ pears 2.10", "- apples")
        yield server


def surl(remote: TableServer) -> str:
    return f"{remote.url}/v1/table/prices"


def test_a_mirror_is_read_as_any_table_and_not_written_to(remote: TableServer) -> None:
    with (
        headwater("--memory", "--follow", f"copy/prices={surl(remote)}") as server,
        httpx.Client(base_url=server.url.replace("stream", "table"), timeout=60) as client,
    ):
        wait_for(lambda: client.get(FOLLOWERS).json()["followers"][0]["last_seqno"], 3)
        read = client.get("/copy/prices", params=NOW)
        assert read.content == b"".join(remote.tables["prices"].rows)
        assert read.headers["content-type"] == CONTENT_TYPE
        assert read.headers["stp-last-seqno"] == "3"
        assert "stp-gapless" not in read.headers
        assert client.get("/copy/prices", params={"since_id": "-1", **NOW}).content.startswith(b"3\t")
        assert b"pears" in client.get("/copy/prices", params={"view": "active"}).content
        assert client.post("/copy/prices", content=b"+\tk\tr\n").status_code == 409
        assert client.post("/copy/prices", headers={"stream-closed": "true"}).status_code == 409
        assert client.put("/copy/prices", headers={"content-type": CONTENT_TYPE}).status_code == 409
        assert [table["name"] for table in client.get("/__stp/tables").json()["tables"]] == ["copy/prices"]
        (status,) = client.get(FOLLOWERS).json()["followers"]
        since = status.pop("since")
        assert since.endswith("Z")
        assert status == {
            "name": "copy/prices",
            "surl": surl(remote),
            "state": "following",
            "last_seqno": 3,
            "remote_last_seqno": 3,
            "lag_rows": 0,
            "last_error": None,
            "notify": "none: the remote server names no NURL",
        }


def test_nothing_is_followed_by_default() -> None:
    with headwater("--memory") as server:
        assert httpx.get(server.url.replace("stream", "table") + FOLLOWERS).json() == {"followers": []}


def test_an_asgi_app_follows_until_it_is_stopped(remote: TableServer) -> None:
    async def main() -> None:
        app = App(follow={"prices": f"{surl(remote)}?token=secret"}, development=True)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://app/v1/table") as client:

            async def follower() -> dict[str, Any]:
                return dict((await client.get(FOLLOWERS)).json()["followers"][0])

            async def last_seqno() -> int:
                return int((await follower())["last_seqno"])

            await wait_for_async(last_seqno, 3)
            assert (await follower())["surl"] == surl(remote)  # its query may hold a secret
            read = await client.get("/prices", params=NOW)
            assert read.content == b"".join(remote.tables["prices"].rows)
            await app.stop()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


# Between two servers of ours


class Peer(httpx.Client):
    """A client of a server process, which can be killed."""

    def __init__(self, port: int, pid: int) -> None:
        super().__init__(base_url=f"http://127.0.0.1:{port}/v1/table", timeout=60)
        self.url = f"http://127.0.0.1:{port}/v1/table"
        self.pid = pid

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def followers(self) -> list[dict[str, Any]]:
        return list(self.get(FOLLOWERS).json()["followers"])

    def rows(self, name: str) -> bytes:
        answer = self.get(name, params=NOW)
        return answer.content if answer.status_code == 200 else b""

    def nurls(self, name: str) -> list[tuple[str, str]]:
        """Action and record of each row of the table of NURLs."""
        lines = self.rows(f"{name}/notify").decode().splitlines()
        return [(line.split("\t")[2], line.split("\t")[4]) for line in lines]

    def told(self, name: str) -> list[dict[str, Any]]:
        """The NURLs of a table, with the last answer of each."""
        nurls: list[dict[str, Any]] = self.get("/__stp/nurls", params={"name": name.strip("/")}).json()["nurls"]
        return nurls

    def append(self, name: str, *changes: str) -> None:
        self.post(name, content="".join(f"{change}\n" for change in changes), headers=TYPE).raise_for_status()

    def notify(self, name: str, form: str) -> int:
        return self.post(f"{name}/notify", content=form, headers=FORM).status_code


@contextlib.contextmanager
def peer(*options: str, port: int = 0) -> Iterator[Peer]:
    with headwater("--port", str(port), *options) as server, Peer(server.port, server.pid) as client:
        yield client


@pytest.fixture
def shop() -> Iterator[Peer]:
    with peer("--memory", "--limit", "notify_retry_s=0.1") as client:
        client.put("/prices", headers=TYPE).raise_for_status()
        client.append("/prices", "+\tapples\t1.20", "+\tpears\t2.10")
        yield client


def test_a_follower_registers_for_notify(shop: Peer, tmp_path: Path) -> None:
    """The handshake sends the NURL of the follower to the NURL of the remote server. Repeats change nothing."""
    port, data = free_port(), ("--data-dir", str(tmp_path / "data"))
    follow = ("--follow", f"copy/prices={shop.url}/prices")
    for _ in range(2):
        with peer(*data, *follow, port=port) as copy:
            wait_for(lambda: [status["notify"] for status in copy.followers()], ["registered"])
            assert shop.nurls("/prices") == [("+", f"{copy.url}/copy/prices/notify")]
            shop.append("/prices", "+\tplums\t3")
            wait_for(lambda: copy.rows("/copy/prices"), shop.rows("/prices"))
            copy.kill()
    assert len(shop.nurls("/prices")) == 1


def test_the_remote_server_drops_a_nurl_whose_table_is_no_longer_followed(shop: Peer, tmp_path: Path) -> None:
    port, data = free_port(), ("--data-dir", str(tmp_path / "data"))
    with peer(*data, "--follow", f"prices={shop.url}/prices", port=port) as copy:
        wait_for(lambda: [status["notify"] for status in copy.followers()], ["registered"])
        mirrored = shop.rows("/prices")
        wait_for(lambda: copy.rows("/prices"), mirrored)
    with peer(*data, port=port) as copy:
        shop.append("/prices", "+\tplums\t3")
        wait_for(lambda: shop.nurls("/prices"), [("+", f"{copy.url}/prices/notify"), ("-", "answered 410")])
        assert copy.rows("/prices") == mirrored
        assert copy.notify("/prices", f"surl={shop.url}/prices") == 410


def test_a_follower_whose_nurl_is_refused_continues_without_notify(shop: Peer) -> None:
    options = ("--memory", "--follow", f"prices={shop.url}/prices")
    with headwater_at("http://example.com", *options) as server, Peer(server.port, server.pid) as copy:
        wait_for(lambda: [status["notify"] for status in copy.followers()], ["refused: answered 403"])
        shop.append("/prices", "+\tplums\t3")
        wait_for(lambda: copy.rows("/prices"), shop.rows("/prices"))
        assert copy.followers()[0]["state"] == "following"
        assert shop.nurls("/prices") == []


def test_an_asgi_app_registers_for_notify_and_is_woken(shop: Peer) -> None:
    async def main() -> None:
        for public_url, status in (
            ("http://127.0.0.1:4999/mounted", "registered"),
            (None, "none: this server has no public URL"),
        ):
            app = App(follow={"prices": f"{shop.url}/prices"}, development=True, public_url=public_url)
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://app/v1/table") as client:

                async def follower() -> dict[str, Any]:
                    return dict((await client.get(FOLLOWERS)).json()["followers"][0])

                async def mirrored() -> bytes:
                    return (await client.get("/prices", params=NOW)).content

                async def notify() -> str:
                    return str((await follower())["notify"])

                await wait_for_async(notify, status)
                assert (await follower())["state"] in ("following", "retrying")
                await wait_for_async(mirrored, shop.rows("/prices"))
                form = f"surl={shop.url}/prices"
                assert (await client.post("/prices/notify", content=form, headers=FORM)).status_code == 204
                assert (await client.post("/other/notify", content=form, headers=FORM)).status_code == 204
                await app.stop()
            assert len(asyncio.all_tasks()) == 1
        assert shop.nurls("/prices") == [("+", "http://127.0.0.1:4999/mounted/v1/table/prices/notify")]

    asyncio.run(main())


def test_a_table_named_by_notify_is_followed_until_its_mirror_is_deleted(shop: Peer, tmp_path: Path) -> None:
    port = free_port()
    data, allow = ("--data-dir", str(tmp_path / "data")), ("--allow-follow", shop.url)
    form = f"surl={shop.url}/prices"
    with peer(*data, *allow, port=port) as copy:
        assert copy.notify("/copy", f"surl={shop.url.replace('table', 'other')}/prices") == 410
        assert copy.followers() == []
        assert copy.notify("/copy", form) == 204
        copy.kill()
    with peer(*data, *allow, port=port) as copy:  # the SURL was kept before the answer
        wait_for(lambda: copy.rows("/copy"), shop.rows("/prices"))
        wait_for(lambda: shop.nurls("/prices"), [("+", f"{copy.url}/copy/notify")])
    with peer(*data, port=port) as copy:
        assert copy.followers() == []
    with peer(*data, *allow, port=port) as copy:
        shop.append("/prices", "+\tplums\t3")
        wait_for(lambda: copy.rows("/copy"), shop.rows("/prices"))
        # A Notify after the deletion would follow the table again.
        wait_for(lambda: [nurl["last_answer"] for nurl in shop.told("/prices")], ["delivered"])
        assert copy.delete("/copy").status_code == 204
        assert copy.followers() == []
        assert copy.get("/copy", params=NOW).status_code == 404
        copy.kill()
    with peer(*data, *allow, port=port) as copy:
        assert copy.followers() == []
        assert copy.notify("/new", f"surl={shop.url}/not-there") == 204
        wait_for(lambda: [status["state"] for status in copy.followers()], ["retrying"])
        assert copy.delete("/new").status_code == 204  # nothing is there but the follower
        assert copy.followers() == []
        assert copy.delete("/new").status_code == 404


def test_notify_does_not_follow_into_a_table_that_is_not_a_mirror(shop: Peer) -> None:
    with peer("--memory", "--allow-follow", shop.url) as copy:
        copy.put("/own", headers=TYPE).raise_for_status()
        assert copy.notify("/own", f"surl={shop.url}/prices") == 410
        assert copy.followers() == []


def test_a_deleted_mirror_is_created_again(shop: Peer) -> None:
    with peer("--memory", "--follow", f"prices={shop.url}/prices") as copy:
        wait_for(lambda: copy.rows("/prices"), shop.rows("/prices"))
        first = copy.head("/prices").headers["etag"]
        assert copy.delete("/prices").status_code == 204
        wait_for(lambda: copy.rows("/prices"), shop.rows("/prices"))
        assert copy.head("/prices").headers["etag"] != first


def test_a_table_that_takes_the_place_of_a_mirror_gets_none_of_its_rows(shop: Peer) -> None:
    """The table is deleted and created again many times while rows arrive."""
    stop, written = threading.Event(), [0]

    def is_replaced(copy: Peer) -> bool:
        copy.delete("/prices")
        created = copy.put("/prices", headers=TYPE)
        assert created.status_code in (201, 409)  # the follower may be faster
        return created.status_code == 201

    def write() -> None:
        with httpx.Client(base_url=shop.url) as client:
            while not stop.is_set():
                client.post("/prices", content="+\tk\tr\n" * 5, headers=TYPE).raise_for_status()
                written[0] += 1

    writer = threading.Thread(target=write)
    with peer("--memory", "--follow", f"prices={shop.url}/prices") as copy:
        writer.start()
        try:
            for _ in range(20):
                wait_until(lambda: is_replaced(copy), "a table takes the place of the mirror")
                for _ in range(2):
                    before = written[0]
                    wait_until(lambda before=before: written[0] > before)  # type: ignore[misc]
                    answer = copy.get("/prices", params=NOW)
                    assert (answer.content, answer.headers["stp-gapless"]) == (b"", "true")
        finally:
            stop.set()
            writer.join()
        wait_for(lambda: [status["state"] for status in copy.followers()], ["retrying"])
        copy.delete("/prices").raise_for_status()
        wait_for(lambda: copy.rows("/prices"), shop.rows("/prices"))


def test_a_stopped_follower_is_reported_after_a_restart(tmp_path: Path) -> None:
    port, copy_port = free_port(), free_port()
    follow = ("--data-dir", str(tmp_path / "data"), "--follow", f"prices=http://127.0.0.1:{port}/v1/table/prices")
    with peer("--memory", port=port) as first:
        first.put("/prices", headers=TYPE).raise_for_status()
        first.append("/prices", "+\ta\t1", "+\tb\t2")
        mirrored = first.rows("/prices")
        with peer(*follow, port=copy_port) as copy:
            wait_for(lambda: copy.rows("/prices"), mirrored)
    with peer("--memory", port=port) as second:  # the remote server lost its data
        second.put("/prices", headers=TYPE).raise_for_status()
        second.append("/prices", "+\tc\t1", "+\td\t2", "+\te\t3")
        for _ in range(2):
            with peer(*follow, port=copy_port) as copy:
                wait_for(lambda: [status["state"] for status in copy.followers()], ["stopped"])
                assert "row 2 differs from the row that was read before" in copy.followers()[0]["last_error"]
                assert copy.rows("/prices") == mirrored
        with peer(*follow, port=copy_port) as copy:
            wait_for(lambda: [status["state"] for status in copy.followers()], ["stopped"])
            assert copy.notify("/prices", f"surl={second.url}/prices") == 410
            copy.delete("/prices").raise_for_status()  # the way to begin again
            wait_for(lambda: copy.rows("/prices"), second.rows("/prices"))
