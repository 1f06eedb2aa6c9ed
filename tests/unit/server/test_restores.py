"""Names of lost data after a restore, over HTTP: offsets get 410, entity tags and tails never match."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.restores import Restorable

TEXT = {"content-type": "text/plain"}
ROWS = {"content-type": "text/sequence; schema=prices; version=1"}
STREAM = "/v1/stream/s"
TABLE = "/v1/table/t"


class Lost:
    """What a client had of the lost data."""

    def __init__(self) -> None:
        self.servers = Restorable()
        with self.connected() as client:
            client.put(STREAM, headers=TEXT, content=b"kept")
            client.put(TABLE, headers=ROWS, content=b"+\ta\t1\n").raise_for_status()
            self.kept = client.head(STREAM).headers["stream-next-offset"]
        self.servers.save()
        with self.connected() as client:
            client.post(STREAM, headers=TEXT, content=b"lost")
            client.post(TABLE, headers=ROWS, content=b"+\tb\t2\n").raise_for_status()
            self.tail = client.head(STREAM).headers["stream-next-offset"]
            self.tags = [client.get(STREAM).headers["etag"], client.head(STREAM).headers["etag"]]
            self.table_tags = {view: client.get(TABLE, params=view).headers["etag"] for view in VIEWS}
            self.table_head = client.head(TABLE).headers["etag"]
        self.servers.restore()

    def connected(self) -> Connected:
        return Connected(self.servers)


class Connected:
    def __init__(self, servers: Restorable) -> None:
        self._serving = servers.serve()

    def __enter__(self) -> httpx.Client:
        server = self._serving.__enter__()
        self._client = httpx.Client(base_url=f"http://{server.host}:{server.port}")
        return self._client

    def __exit__(self, *error: object) -> None:
        self._client.close()
        self._serving.__exit__(None, None, None)


VIEWS = ("timeout=0", "timeout=0&until_id=2", "timeout=0&since_id=1", "view=active", "view=active&key=b")


@pytest.fixture(params=[0, 1, 3])
def restored(request: pytest.FixtureRequest) -> Iterator[tuple[Lost, httpx.Client]]:
    """A restored server, whose stream is shorter than before, has the same length, or is longer."""
    lost = Lost()
    with lost.connected() as client:
        for _ in range(request.param):
            client.post(STREAM, headers=TEXT, content=b"new!")
            client.post(TABLE, headers=ROWS, content=b"+\tb\t3\n")
        yield lost, client


def test_an_offset_of_lost_data_gets_410_wherever_it_is_sent(restored: tuple[Lost, httpx.Client]) -> None:
    lost, client = restored
    control = "/v1/stream/__ds"
    fork = {"stream-forked-from": STREAM, "stream-fork-offset": lost.tail}
    for answer in (
        client.get(STREAM, params={"offset": lost.tail}),
        client.get(STREAM, params={"offset": lost.kept, "until": lost.tail}),
        client.get(STREAM, params={"offset": lost.tail, "live": "long-poll"}),
        client.get(STREAM, params={"offset": lost.tail, "live": "sse"}),
        client.get(STREAM, params={"offset": "-1", "live": "sse"}, headers={"last-event-id": lost.tail}),
        client.get(f"{control}/splits", params={"path": "s", "offset": lost.tail, "parts": "2"}),
        client.get(f"{control}/splits", params={"path": "s", "until": lost.tail, "parts": "2"}),
        client.get(f"{control}/records", params={"path": "s", "offset": lost.tail}),
        client.put("/v1/stream/fork", headers=fork),
    ):
        assert answer.status_code == 410, answer.request.url
        problem = answer.json()
        assert problem["type"].endswith("offset-lost")
        assert "restored to an earlier state" in str(problem)
        assert answer.headers["cache-control"] == "no-store"


def test_a_compose_of_lost_data_is_refused(restored: tuple[Lost, httpx.Client]) -> None:
    lost, client = restored
    client.put("/v1/stream/composed", headers=TEXT)
    form = {"content-type": "application/vnd.headwater.compose+json"}
    body = {"sources": [{"stream": STREAM, "offset": lost.kept, "until": lost.tail}]}
    answer = client.post("/v1/stream/composed", headers=form, content=json.dumps(body))
    assert (answer.status_code, answer.json()["type"]) == (410, "urn:headwater:compose-source-gone")
    assert f"source 1 ({STREAM}): the server was restored to an earlier state" in answer.json()["detail"]


def test_the_end_of_the_restored_data_is_valid(restored: tuple[Lost, httpx.Client]) -> None:
    lost, client = restored
    whole = client.get(STREAM).content
    assert client.get(STREAM, params={"offset": lost.kept}).content == whole[4:]
    assert client.head(STREAM).headers["stream-next-offset"] >= lost.kept


def test_conditions_of_lost_data_never_match(restored: tuple[Lost, httpx.Client]) -> None:
    lost, client = restored
    for tag in lost.tags:
        assert client.get(STREAM, headers={"if-none-match": tag}).status_code == 200
    for tag in (*lost.tags, f'"{lost.tail}"'):
        assert client.post(STREAM, headers={**TEXT, "if-match": tag}, content=b"x").status_code == 412
        assert client.delete(STREAM, headers={"if-match": tag}).status_code == 412
    for view, tag in lost.table_tags.items():
        assert client.get(TABLE, params=view, headers={"if-none-match": tag}).status_code == 200, view
    for tag in (lost.table_head, lost.table_tags["timeout=0"]):
        assert client.post(TABLE, headers={**ROWS, "if-match": tag}, content=b"+\tc\t1\n").status_code == 412


def test_the_event_of_a_deletion_has_an_offset_of_the_current_timeline() -> None:
    """Also if the first append of the timeline came while the reader was connected."""
    lost = Lost()
    with lost.connected() as client, client.stream("GET", STREAM, params={"offset": lost.kept, "live": "sse"}) as feed:
        lines = feed.iter_lines()
        assert next(line for line in lines if lost.kept in line)
        client.post(STREAM, headers=TEXT, content=b"new!")
        tail = client.head(STREAM).headers["stream-next-offset"]
        assert tail != lost.tail
        client.delete(STREAM).raise_for_status()
        assert [offset for line in lines for offset in (lost.tail, tail) if offset in line][-1] == tail
