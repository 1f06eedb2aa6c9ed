"""Mirrors of remote tables as HTTP clients see them, and the list of followers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest
from bench.servers import headwater

from headwater.server.asgi import App
from tests.table_servers import CONTENT_TYPE, TableServer, table_server

pytestmark = pytest.mark.slow  # servers, and time-outs that pass

FOLLOWERS = "/__stp/followers"
NOW = {"timeout": "0"}


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
        httpx.Client(base_url=server.url.replace("stream", "table"), timeout=10) as client,
    ):
        deadline = time.monotonic() + 10
        while client.get(FOLLOWERS).json()["followers"][0]["last_seqno"] < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
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
        }


def test_nothing_is_followed_by_default() -> None:
    with headwater("--memory") as server:
        assert httpx.get(server.url.replace("stream", "table") + FOLLOWERS).json() == {"followers": []}


def test_an_asgi_app_follows_until_it_is_stopped(remote: TableServer) -> None:
    async def main() -> None:
        app = App(follow={"prices": f"{surl(remote)}?token=secret"}, development=True)
        transport = httpx.ASGITransport(app)
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://app/v1/table") as client,
            asyncio.timeout(10),
        ):
            while (status := (await client.get(FOLLOWERS)).json()["followers"][0])["last_seqno"] < 3:
                await asyncio.sleep(0.01)
            assert status["surl"] == surl(remote)  # its query may hold a secret
            read = await client.get("/prices", params=NOW)
            assert read.content == b"".join(remote.tables["prices"].rows)
            await app.stop()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
