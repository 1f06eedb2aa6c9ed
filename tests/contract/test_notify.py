"""Notify over every edge: delivery, retries, withdrawal and the table of NURLs, which the specification leaves open.

`test_stp_specification.py` has what the specification says.
"""

from __future__ import annotations

import os
import signal
import tempfile
import uuid
from collections.abc import Iterator
from urllib.parse import urljoin

import httpx
import pytest
from bench.servers import Server, headwater

from tests.contract.tables import FORM, NOW, SCHEMA, advertise, advertised, problem, rows
from tests.metrics import metric
from tests.nurls import Receiver, receiver
from tests.public_urls import headwater_at
from tests.servers import exit_code_of
from tests.waiting import wait_for, wait_until

pytestmark = pytest.mark.slow  # servers, and time-outs that pass


@pytest.fixture
def peer() -> Iterator[Receiver]:
    with receiver() as server:
        yield server


def test_a_form_is_applied_atomically(client: httpx.Client, table: str) -> None:
    body = "a=https://example.com/a&b=https://10.0.0.1/"
    assert client.post(f"{table}/notify", content=body, headers=FORM).status_code == 403
    assert client.get(f"{table}/notify", params=NOW).status_code == 404


def test_there_must_be_a_table(client: httpx.Client) -> None:
    for method in ("POST", "GET", "HEAD", "DELETE"):
        answer = client.request(method, "/none/notify?nurl=https://example.com/", content=b"", headers=FORM)
        assert answer.status_code == 404
    answer = client.post("/none/notify", content="rows=https://example.com/", headers=FORM)
    assert "table 'none' does not exist" in answer.json()["detail"]
    assert client.put("/none/notify").status_code == 405


def test_every_response_has_the_nurl_of_its_table(client: httpx.Client) -> None:
    """`STP-Notify` is relative to the SURL, also if the server is mounted below a path."""
    for name in (f"/n/{uuid.uuid4().hex}", f"/{uuid.uuid4().hex}", f"/n/{uuid.uuid4().hex}/a:b%20%C3%A9"):
        assert client.put(name, headers=SCHEMA, content=rows(2)).status_code == 201
        tag = client.get(name, params=NOW).headers["etag"]
        for answer in (
            client.head(name),
            client.get(name, params=NOW),
            client.get(name, params=NOW, headers={"if-none-match": tag}),
            client.get(name, params={"until_id": "1"}),
            client.get(name, params={"idle": "0.1"}),
            client.get(name, params={"live": "sse", "idle": "0.1"}),
            client.get(name, params={"view": "active"}),
        ):
            assert answer.status_code in (200, 304)
            nurl = urljoin(str(answer.request.url.copy_with(query=None)), answer.headers["stp-notify"])
            assert nurl == f"{client.base_url}".rstrip("/") + f"{name}/notify"
        assert client.post(nurl, content="rows=https://example.com/n", headers=FORM).status_code == 204
        assert "stp-notify" not in client.get(f"{name}/notify", params=NOW).headers  # NURLs have none themselves


def test_a_surl_that_is_not_followed(client: httpx.Client, table: str) -> None:
    """410 says that nothing reads the SURL, and makes the remote server drop the NURL."""
    body = "surl=https://example.com/state"
    own = client.post(f"{table}/notify", content=body, headers=FORM)
    assert (own.status_code, problem(own)) == (410, "not-followed")
    assert "has its own rows and follows no SURL" in own.json()["detail"]
    both = client.post(f"{table}/notify", content=f"{body}&rows=https://example.com/n", headers=FORM)
    assert both.status_code == 204
    assert [record for _, _, record in advertised(client, table)] == ["https://example.com/n"]
    refused = client.post("/none/notify", content=body, headers=FORM)
    assert (refused.status_code, problem(refused)) == (410, "not-followed")
    answer = client.post("/none/notify", content=f"{body}&rows=https://example.com/n", headers=FORM)
    assert (answer.status_code, problem(answer)) == (404, "stream-not-found")


# The table of NURLs


def test_nurls_can_be_read_as_a_table(client: httpx.Client, table: str) -> None:
    advertise(client, table, "https://example.com/a")
    advertise(client, table, "https://example.com/b?x=1&y=2")
    read = client.get(f"{table}/notify", params=NOW)
    assert read.headers["content-type"] == "text/sequence; charset=utf-8; schema=nurls; version=1"
    assert client.head(f"{table}/notify").headers["stp-last-seqno"] == "2"
    assert len(client.get(f"{table}/notify", params={"since_id": "1", **NOW}).text.splitlines()) == 1
    client.delete(f"{table}/notify", params={"nurl": "https://example.com/a"})
    active = client.get(f"{table}/notify", params={"view": "active"}).text
    assert [line.split("\t")[4] for line in active.splitlines()] == ["https://example.com/b?x=1&y=2"]


def test_nurls_are_withdrawn(client: httpx.Client, table: str, peer: Receiver) -> None:
    advertise(client, table, peer.nurl())
    advertise(client, table, peer.nurl(), "other")
    for _ in range(2):
        answer = client.delete(f"{table}/notify", params={"nurl": peer.nurl()})
        assert answer.status_code == 204
    assert [(action, record) for action, _, record in advertised(client, table)[2:]] == [("-", "withdrawn")] * 2
    client.post(table, content=rows(1))
    peer.assert_received(0, client)
    assert client.delete(f"{table}/notify").status_code == 400


def test_the_nurls_of_a_deleted_table_are_deleted(client: httpx.Client, table: str, peer: Receiver) -> None:
    advertise(client, table, peer.nurl())
    assert client.delete(table).status_code == 204
    assert client.get(f"{table}/notify", params=NOW).status_code == 404
    client.put(table, headers=SCHEMA)
    client.post(table, content=rows(1))
    peer.assert_received(0, client)
    advertise(client, table, peer.nurl())
    assert len(advertised(client, table)) == 1


# Delivery


def test_many_appends_are_one_post(client: httpx.Client, table: str, peer: Receiver) -> None:
    advertise(client, table, peer.nurl())
    peer.hold.clear()
    client.post(table, content=rows(1))
    peer.wait(1)
    for _ in range(20):
        client.post(table, content=rows(1))
    for _ in range(4):  # servers that share a store: each has seen the last append when it answers
        client.head(table)
    assert len(peer.received) == 1
    peer.hold.set()
    peer.wait(2)
    peer.assert_received(2, client)
    assert peer.most == 1


def test_failures_are_retried(client: httpx.Client, table: str, peer: Receiver) -> None:
    peer.statuses = [500, 404, 302]
    advertise(client, table, peer.nurl())
    client.post(table, content=rows(1))
    notifications = peer.wait(4)
    assert {path for path, _, _ in notifications} == {"/nurl"}  # the redirect is not followed
    peer.assert_received(4, client)
    assert len(advertised(client, table)) == 1


def test_410_drops_a_nurl(client: httpx.Client, table: str, peer: Receiver) -> None:
    peer.statuses = [410]
    advertise(client, table, peer.nurl())
    client.post(table, content=rows(1))
    wait_for(lambda: advertised(client, table), [["+", "rows", peer.nurl()], ["-", "rows", "answered 410"]])
    client.post(table, content=rows(1))
    peer.assert_received(1, client)


# Restarts and limits, of the native edge


def opened(server: Server) -> httpx.Client:
    return httpx.Client(base_url=f"http://{server.host}:{server.port}/v1/table", timeout=60)


def states(client: httpx.Client) -> tuple[float, float]:
    """The number of NURLs that are sent to, and of those that wait for the next attempt."""
    sending, waiting = [metric(client, "headwater_notify_nurls", state=state) for state in ("sending", "waiting")]
    return sending, waiting


def test_a_restart_delivers_what_was_pending(peer: Receiver) -> None:
    peer.statuses = [503]
    with tempfile.TemporaryDirectory() as directory:
        kept = ("--data-dir", f"{directory}/data")
        with headwater(*kept, "--limit", "notify_retry_s=600") as server, opened(server) as client:
            client.put("/prices", headers=SCHEMA)
            client.put("/quiet", headers=SCHEMA)
            advertise(client, "/prices", peer.nurl())
            advertise(client, "/quiet", peer.nurl("/quiet"))
            client.post("/quiet", content=rows(1))
            wait_for(lambda: states(client), (0.0, 1.0))  # it failed, and is not sent again by this process
            client.post("/prices", content=rows(1))
            peer.wait(2)
            wait_for(lambda: states(client), (0.0, 1.0))  # the server has the response
        retries = ("--limit", "notify_retry_s=0.1", "--limit", "notify_retry_max_s=0.1")
        with headwater(*kept, *retries) as server, opened(server) as client:
            assert peer.wait(3)[2][0] == "/quiet"  # what was delivered is not delivered again
            assert peer.received[2][2] == f"surl=http://127.0.0.1:{server.port}/v1/table/quiet".encode()
            peer.assert_received(3, client)
            client.post("/prices", content=rows(1))
            assert peer.wait(4)[3][0] == "/nurl"
            assert len(advertised(client, "/prices")) == 1


def test_a_nurl_that_never_responds_is_dropped(peer: Receiver) -> None:
    peer.statuses = [500] * 1000
    retries = ("--limit", "notify_retry_s=0.05", "--limit", "notify_give_up_s=0.5")
    with headwater("--memory", *retries) as server, opened(server) as client:
        client.put("/prices", headers=SCHEMA)
        advertise(client, "/prices", peer.nurl())
        client.post("/prices", content=rows(1))
        reason = "no success for 0.5 s: answered 500"
        wait_for(lambda: advertised(client, "/prices"), [["+", "rows", peer.nurl()], ["-", "rows", reason]])
        count = len(peer.received)
        client.post("/prices", content=rows(1))
        peer.assert_received(count, client)


def test_the_number_of_nurls_is_bounded() -> None:
    bounds = ("--limit", "nurls_per_table_max=2", "--limit", "nurls_max=3")
    with headwater("--memory", *bounds) as server, opened(server) as client:
        for name in ("/a", "/b"):
            client.put(name, headers=SCHEMA)
        for table, number in (("/a", 1), ("/a", 2), ("/b", 3), ("/a", 1)):
            advertise(client, table, f"https://example.com/{number}")
        for table, limit in (("/a", "nurls_per_table_max"), ("/b", "nurls_max")):
            refused = client.post(f"{table}/notify", content="rows=https://example.com/more", headers=FORM)
            assert (refused.status_code, problem(refused)) == (409, "too-many-nurls")
            assert limit in refused.json()["detail"]


def test_notifications_have_the_public_url(peer: Receiver) -> None:
    with headwater_at("https://tables.example/base", "--memory") as server, opened(server) as client:
        client.put("/prices", headers=SCHEMA)
        advertise(client, "/prices", peer.nurl())
        client.post("/prices", content=rows(1))
        assert peer.wait(1)[0][2] == b"surl=https://tables.example/base/v1/table/prices"


def test_names_that_make_the_surl_too_long(client: httpx.Client) -> None:
    """The recipient would refuse the form, so the NURL is refused when it is advertised."""
    name = "/" + "/".join(["%C3%A9" * 120] * 4)
    assert client.put(name, headers=SCHEMA).status_code == 201
    refused = client.post(f"{name}/notify", content="rows=https://example.com/", headers=FORM)
    assert (refused.status_code, problem(refused)) == (400, "invalid-notify")


def test_the_table_of_nurls_is_not_forked(client: httpx.Client, table: str) -> None:
    advertise(client, table, "https://example.com/nurl")
    source = client.base_url.path.rstrip("/") + table + "/notify"
    refused = client.put(f"{table}-fork", headers={"stream-forked-from": source})
    assert (refused.status_code, problem(refused)) == (400, "invalid-header")


def test_a_killed_server_notifies_again(peer: Receiver) -> None:
    """Notifications are delivered at least once: the server was killed before the response to the first one."""
    with tempfile.TemporaryDirectory() as directory:
        options = ("--data-dir", f"{directory}/data")
        with headwater(*options) as server, opened(server) as client:
            client.put("/prices", headers=SCHEMA)
            advertise(client, "/prices", peer.nurl())
            peer.hold.clear()
            client.post("/prices", content=rows(1))
            peer.wait(1)
            os.kill(server.pid, signal.SIGKILL)
        peer.hold.set()
        with headwater(*options) as server, opened(server) as client:
            assert peer.wait(2)[1][2] == f"surl=http://127.0.0.1:{server.port}/v1/table/prices".encode()
            peer.assert_received(2, client)
            assert len(advertised(client, "/prices")) == 1


def test_a_stopping_server_does_not_wait_for_nurls(peer: Receiver) -> None:
    """It ends before the POST gets its response, which would have ten minutes to arrive."""
    with headwater("--memory", "--limit", "outbound_request_s=600") as server, opened(server) as client:
        client.put("/prices", headers=SCHEMA)
        advertise(client, "/prices", peer.nurl())
        peer.hold.clear()
        client.post("/prices", content=rows(1))
        peer.wait(1)
        client.close()
        server.terminate()
        wait_until(lambda: exit_code_of(server) == 0, "the server ends")
        assert not peer.hold.is_set()
