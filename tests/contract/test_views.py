"""Views over every edge: tables of the state events of a stream, and streams of the rows of a table."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from bench.servers import headwater

from headwater.limits import Limits
from headwater.server.asgi import App
from headwater.store.embedded.opening import open_store
from tests.edges import EDGES_OF_SHARED, edge, root_of
from tests.table_servers import table_server
from tests.waiting import wait_for, wait_for_async

JSON = {"content-type": "application/json"}
ROWS = {"content-type": "text/sequence"}
NOW = {"timeout": "0"}
VIEWS = "/v1/table/__stp/views"


class Site:
    """The URL of a server, with or without a mount point."""

    def __init__(self, root: str) -> None:
        self.mount = httpx.URL(root).path.removesuffix("/v1/stream")
        self.http = httpx.Client(base_url=root.removesuffix("/v1/stream"), timeout=60)

    def stream(self, name: str | None = None) -> str:
        path = f"/v1/stream/{name or uuid.uuid4().hex}"
        assert self.http.put(path, headers=JSON).status_code == 201
        return path

    def table(self, body: str = "") -> str:
        path = f"/v1/table/{uuid.uuid4().hex}"
        assert self.http.put(path, content=body.encode(), headers=ROWS).status_code == 201
        return path

    def append(self, stream: str, *messages: Any) -> None:
        assert self.http.post(stream, json=list(messages)).status_code == 204

    def put_table_view(self, source: str, path: str | None = None, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request_headers = {"stp-view-of": self.mount + source, "stp-view-type": "price", **named}
        return self.http.put(path or f"/v1/table/{uuid.uuid4().hex}", headers=request_headers)

    def table_view(self, source: str, path: str | None = None, **headers: str) -> str:
        path = path or f"/v1/table/{uuid.uuid4().hex}"
        assert self.put_table_view(source, path, **headers).status_code == 201
        return path

    def put_stream_view(self, source: str, path: str, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request_headers = {"stream-view-of": self.mount + source, "stream-view-type": "price", **named}
        return self.http.put(path, headers=request_headers)

    def stream_view(self, source: str, **headers: str) -> str:
        path = f"/v1/stream/{uuid.uuid4().hex}"
        assert self.put_stream_view(source, path, **headers).status_code == 201
        return path

    def changes(self, table: str) -> list[str]:
        """The rows of a table without their SeqNos and timestamps."""
        read = self.http.get(table, params=NOW)
        assert read.status_code == 200
        rows = [line.split("\t", 2) for line in read.text.splitlines()]
        assert [row[0] for row in rows] == [str(number + 1) for number in range(len(rows))]
        return [row[2].replace("\t", " ") for row in rows]

    def status(self, view: str) -> dict[str, Any]:
        views = [one for one in self.http.get(VIEWS).json()["views"] if one["view"] == view]
        assert len(views) == 1
        return dict(views[0])


def event(key: str, value: Any = None, operation: str = "upsert", kind: str = "price") -> dict[str, Any]:
    return {"type": kind, "key": key, "value": value, "headers": {"operation": operation}}


RESET = {"headers": {"control": "reset"}}


@pytest.fixture(scope="module", params=EDGES_OF_SHARED)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with edge(request.param) as server:
        site = Site(root_of(request.param, server))
        with site.http:
            yield site


# A table over a stream


def test_a_table_has_existing_and_new_events_of_the_stream(site: Site) -> None:
    stream = site.stream()
    site.append(stream, event("a", {"eur": 1}, "insert"), event("x", 1, kind="stock"), event("b", 2))
    view = site.table_view(stream)
    wait_for(lambda: site.changes(view), ['+ a {"eur":1}', "+ b 2"])
    site.append(stream, event("a", [1, 2], "update"), event("b", operation="delete"))
    wait_for(lambda: site.changes(view), ['+ a {"eur":1}', "+ b 2", "+ a [1,2]", "- b "])
    head = site.http.head(view)
    assert head.headers["content-type"] == "text/sequence; charset=utf-8; schema=json; version=1"
    assert head.headers["stp-gapless"] == "true"
    assert [line.split("\t")[3] for line in site.http.get(view, params={"view": "active"}).text.splitlines()] == ["a"]


def test_values_keep_their_digits_and_lose_white_space(site: Site) -> None:
    stream = site.stream()
    view = site.table_view(stream)
    body = b'{ "type": "price", "key": "k", "value": { "n": 1e999, "t": "a b" }, "headers": { "operation": "insert" } }'
    assert site.http.post(stream, content=body, headers=JSON).status_code == 204
    wait_for(lambda: site.changes(view), ['+ k {"n":1e999,"t":"a b"}'])


def test_a_reset_deletes_every_live_key(site: Site) -> None:
    stream = site.stream()
    site.append(stream, event("a", 1), event("b", 1), event("b", operation="delete"), event("c", 1), RESET)
    view = site.table_view(stream)
    wait_for(lambda: site.changes(view), ["+ a 1", "+ b 1", "- b ", "+ c 1", "- a ", "- c "])
    site.append(stream, RESET, RESET, event("a", 2), RESET, event("d", 3))
    wait_for(lambda: site.changes(view)[6:], ["+ a 2", "- a ", "+ d 3"])


def test_invalid_events_are_counted_and_reported(site: Site) -> None:
    stream = site.stream()
    view = site.table_view(stream)
    site.append(stream, event("a", 1), 7, event("", 1), event("tab\there", 1), {"type": "price"}, event("b", 2))
    wait_for(lambda: site.changes(view), ["+ a 1", "+ b 2"])
    status = site.status(view)
    assert status["skipped"] == 4
    assert "headers" in status["last_skipped"]


def test_a_table_with_escapes_accepts_every_key(site: Site) -> None:
    stream = site.stream()
    view = site.table_view(stream, content_type="text/sequence; escape=backslash")
    site.append(stream, event("tab\there", "a\\b"))
    wait_for(lambda: site.changes(view), [r'+ tab\there "a\\\\b"'])


def test_a_closed_stream_closes_its_view(site: Site) -> None:
    stream = site.stream()
    view = site.table_view(stream)
    headers = {**JSON, "stream-closed": "true"}
    assert site.http.post(stream, json=event("a", 1), headers=headers).status_code == 204
    wait_for(lambda: site.http.head(view).headers.get("stream-closed"), "true")
    assert site.changes(view) == ["+ a 1"]
    wait_for(lambda: site.status(view)["state"], "closed")
    assert site.put_table_view(stream, view).status_code == 200
    assert site.http.delete(view).status_code == 204


def test_a_stream_that_is_created_again_resets_the_view(site: Site) -> None:
    stream = site.stream()
    site.append(stream, event("a", 1), event("b", 1))
    view = site.table_view(stream)
    wait_for(lambda: len(site.changes(view)), 2)
    assert site.http.delete(stream).status_code == 204
    wait_for(lambda: site.status(view)["state"], "waiting")
    assert len(site.changes(view)) == 2
    assert "does not exist" in site.status(view)["last_error"]
    assert site.put_table_view(stream, view).status_code == 200  # a repeat, though the source is not there
    assert site.http.put(stream, headers={"content-type": "text/plain"}).status_code == 201
    wait_for(lambda: "text/plain" in str(site.status(view)["last_error"]), True)
    assert site.http.delete(stream).status_code == 204
    site.stream(stream.removeprefix("/v1/stream/"))
    site.append(stream, event("c", 3))
    wait_for(lambda: site.changes(view)[2:], ["- a ", "- b ", "+ c 3"])
    assert site.status(view)["last_error"] is None


# A stream over a table


def test_a_stream_has_existing_and_new_rows_of_the_table(site: Site) -> None:
    table = site.table('+\ta\t{"eur":1}\n+\tb\t2\n')
    view = site.stream_view(table)
    site.http.post(table, content=b"-\ta\tsold out\n")
    wait_for(lambda: len(site.http.get(view).json()), 3)
    read = site.http.get(view)
    assert read.headers["content-type"] == "application/json"
    changes = read.json()
    stamps = [one["headers"].pop("timestamp") for one in changes]
    assert all(re.fullmatch(r"[-0-9]{10}T[:0-9]{8}\.[0-9]{3}Z", stamp) for stamp in stamps)
    assert changes == [
        {"type": "price", "key": "a", "value": {"eur": 1}, "headers": {"operation": "upsert", "seqno": "1"}},
        {"type": "price", "key": "b", "value": 2, "headers": {"operation": "upsert", "seqno": "2"}},
        {"type": "price", "key": "a", "headers": {"operation": "delete", "seqno": "3"}},
    ]


def test_records_that_are_not_json_are_skipped_or_converted_to_text(site: Site) -> None:
    table = site.table("+\ta\tfree form\n+\tb\t2\n")
    as_json, as_text = site.stream_view(table), site.stream_view(table, stream_view_record="text")
    wait_for(lambda: [one["value"] for one in site.http.get(as_json).json()], [2])
    wait_for(
        lambda: [one["value"] for one in site.http.get(as_text).json()], [{"record": "free form"}, {"record": "2"}]
    )
    assert site.status(as_json)["skipped"] == 1
    assert site.status(as_json)["last_skipped"].startswith("row 1: the record is not JSON")


def test_a_table_that_is_created_again_resets_the_stream(site: Site) -> None:
    table = site.table("+\ta\t1\n")
    view = site.stream_view(table)
    wait_for(lambda: len(site.http.get(view).json()), 1)
    site.http.delete(table)
    site.http.put(table, content=b"+\tb\t2\n", headers=ROWS)
    wait_for(lambda: len(site.http.get(view).json()), 3)
    assert [one.get("key", one["headers"].get("control")) for one in site.http.get(view).json()] == ["a", "reset", "b"]


def test_a_view_of_a_view(site: Site) -> None:
    stream = site.stream()
    first = site.table_view(stream)
    second = site.stream_view(first)
    third = site.table_view(second)
    site.append(stream, event("a", 1), RESET, event("b", {"x": [1]}))
    wait_for(lambda: site.changes(third), ["+ a 1", "- a ", '+ b {"x":[1]}'])


# What views share


def test_clients_cannot_append_to_a_view(site: Site) -> None:
    stream, table = site.stream(), site.table()
    view, other = site.table_view(stream), site.stream_view(table)
    for path, body, kind in ((view, b"+\tk\tr\n", "text/sequence"), (other, b"1", "application/json")):
        for headers in ({}, {"stream-closed": "true"}):
            refused = site.http.post(path, content=body, headers={"content-type": kind, **headers})
            assert refused.status_code == 409
            assert "is a view of /v1/" in refused.json()["detail"]
        assert site.http.post(path, headers={"stream-closed": "true"}).status_code == 409


def test_a_repeated_put_succeeds_and_a_different_one_is_refused(site: Site) -> None:
    stream, other, table = site.stream(), site.stream(), site.table("+\ta\t1\n")
    view = site.table_view(stream)
    assert site.put_table_view(stream, view).status_code == 200
    assert site.put_table_view(other, view).status_code == 409
    assert site.put_table_view(stream, view, stp_view_type="stock").status_code == 409
    assert site.put_table_view(stream, view, content_type="text/sequence; schema=other").status_code == 409
    assert site.put_table_view(stream, view, stream_ttl="60").status_code == 409
    assert site.http.put(view, headers={"content-type": "text/sequence; schema=json"}).status_code == 409
    assert site.put_table_view(stream, table).status_code == 409
    events = site.stream_view(table)
    assert site.put_stream_view(table, events).status_code == 200
    assert site.put_stream_view(table, events, stream_view_record="text").status_code == 409
    assert site.http.put(events, headers=JSON).status_code == 409
    assert site.put_stream_view(table, stream).status_code == 409
    site.append(stream, event("a", 1))
    wait_for(lambda: site.changes(view), ["+ a 1"])


def test_invalid_sources(site: Site) -> None:
    stream, table = site.stream(), site.table()
    missing = site.put_table_view("/v1/stream/missing")
    assert (missing.status_code, missing.json()["type"]) == (404, "urn:headwater:view-source-not-found")
    assert site.put_stream_view("/v1/table/missing", "/v1/stream/v").status_code == 404
    assert site.put_table_view(table).status_code == 400
    assert site.put_stream_view(stream, "/v1/stream/v").status_code == 400
    assert site.put_table_view(f"{table}/notify").status_code == 400
    text = f"/v1/stream/{uuid.uuid4().hex}"
    assert site.http.put(text, headers={"content-type": "text/plain"}).status_code == 201
    assert site.put_table_view(text).status_code == 409
    assert site.put_table_view(stream, stp_view_type="").status_code == 400
    assert site.put_table_view(stream, stp_view_type="%ff").status_code == 400
    assert site.put_table_view(stream, stream_closed="true").status_code == 400
    assert site.put_stream_view(table, "/v1/stream/v", stream_view_record="xml").status_code == 400
    assert site.put_stream_view(table, "/v1/stream/v", content_type="text/plain").status_code == 400
    only = {"stp-view-of": site.mount + stream}
    assert site.http.put("/v1/table/v", headers=only).status_code == 400
    assert site.http.get("/v1/table/v").status_code == 404


def test_a_view_cannot_be_its_own_source(site: Site) -> None:
    stream = site.stream()
    table = site.table_view(stream)
    events = site.stream_view(table)
    site.http.delete(stream)
    refused = site.put_stream_view(table, stream)
    assert refused.status_code == 409
    site.http.delete(table)
    assert site.put_table_view(events, table).status_code == 409
    site.http.delete(events)
    assert site.put_stream_view(table, events).status_code == 404


def test_the_name_of_a_deleted_view_can_be_used_again(site: Site) -> None:
    stream, other = site.stream(), site.stream()
    site.append(stream, event("a", 1))
    site.append(other, event("b", 2))
    view = site.table_view(stream)
    assert site.http.delete(view).status_code == 204
    assert site.http.delete(view).status_code == 404
    assert view not in [one["view"] for one in site.http.get(VIEWS).json()["views"]]
    site.table_view(other, view)
    wait_for(lambda: site.changes(view), ["+ b 2"])
    assert site.http.delete(view).status_code == 204
    assert site.http.put(view, headers=ROWS).status_code == 201
    assert site.http.post(view, content=b"+\tk\tr\n").status_code == 204


def wait_for_expiry(site: Site) -> None:
    """Wait until everything has expired that was created before, lives for a second and is not used."""
    name = uuid.uuid4().hex
    assert site.http.put(f"/v1/stream/{name}", headers={**JSON, "stream-ttl": "1"}).status_code == 201
    wait_for(lambda: site.http.get("/v1/stream/__ds/streams", params={"prefix": name}).json()["streams"], [])


def test_a_view_expires_as_any_table_and_keeps_its_source_alive(site: Site) -> None:
    stream = f"/v1/stream/{uuid.uuid4().hex}"
    site.http.put(stream, headers={**JSON, "stream-ttl": "1"})
    lasting, view = site.table_view(stream), site.table_view(stream, stream_ttl="1")
    wait_for_expiry(site)
    site.append(stream, event("a", 1))  # its views read it
    wait_for(lambda: site.changes(lasting), ["+ a 1"])
    wait_for(lambda: view in [one["view"] for one in site.http.get(VIEWS).json()["views"]], False)
    assert site.http.get(view, params=NOW).status_code == 404
    again = site.table_view(stream, view, stream_ttl="1")
    wait_for_expiry(site)  # nothing was appended, so nothing found out that it has expired
    assert site.http.put(again, headers=ROWS).status_code == 201
    assert site.http.post(again, content=b"+\tk\tr\n").status_code == 204


def test_the_list_of_views(site: Site) -> None:
    stream, table = site.stream(), site.table("+\ta\t1\n")
    view, events = site.table_view(stream, stp_view_type="pr%C3%A9cis%20%25"), site.stream_view(table)
    site.append(stream, event("a", 1))
    end = site.http.head(stream).headers["stream-next-offset"]
    wait_for(lambda: site.status(view)["position"], end)
    status = site.status(view)
    assert status.pop("since").endswith("Z")
    assert status == {
        "view": view,
        "name": view.removeprefix("/v1/table/"),
        "direction": "table",
        "source": stream,
        "type": "précis %",
        "record": None,
        "state": "following",
        "position": end,
        "lag_bytes": 0,
        "skipped": 0,
        "last_skipped": None,
        "last_error": None,
    }
    wait_for(lambda: site.status(events)["position"], "1")
    shown = site.status(events)
    assert [shown[name] for name in ("direction", "source", "record", "lag_bytes")] == ["stream", table, "json", 0]


def test_a_large_append_becomes_many_rows_in_order(site: Site) -> None:
    stream = site.stream()
    view = site.table_view(stream)
    messages = [event(f"k{number}", {"n": number, "text": "a b"}) for number in range(20_000)]
    site.append(stream, *messages)
    wait_for(lambda: site.http.head(view).headers["stp-last-seqno"], "20000")
    assert [json.loads(line.split(" ", 2)[2])["n"] for line in site.changes(view)] == list(range(20_000))


@pytest.mark.slow
def test_a_mirror_of_a_remote_table_can_be_a_source() -> None:
    with table_server() as remote:
        remote.put("prices", "+ apples 1.20", "- apples")
        with headwater("--memory", "--follow", f"copy={remote.url}/v1/table/prices") as server:
            site = Site(server.url)
            with site.http:
                wait_for(lambda: site.http.head("/v1/table/copy").headers.get("stp-last-seqno"), "2")
                view = site.stream_view("/v1/table/copy")
                remote.put("prices", "+ pears 2.10")
                wait_for(lambda: len(site.http.get(view).json()), 3)
                changes = [
                    (one["headers"]["seqno"], one["key"], one.get("value")) for one in site.http.get(view).json()
                ]
                assert changes == [("1", "apples", 1.2), ("2", "apples", None), ("3", "pears", 2.1)]


def test_an_app_stops_its_views_and_resumes_them(tmp_path: Path) -> None:
    async def main() -> None:
        for number in range(3):
            app = App(lambda: open_store(tmp_path / "data", Limits()))
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
                await client.put("/v1/stream/s", headers=JSON)
                made = {"stp-view-of": "/v1/stream/s", "stp-view-type": "price"}
                put = await client.put("/v1/table/v", headers=made)
                assert put.status_code == (201 if number == 0 else 200)
                await client.post("/v1/stream/s", json=event("k", number))

                async def last_seqno(client: httpx.AsyncClient = client) -> str:
                    return str((await client.head("/v1/table/v")).headers["stp-last-seqno"])

                await wait_for_async(last_seqno, str(number + 1))
                await app.stop()
            assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
