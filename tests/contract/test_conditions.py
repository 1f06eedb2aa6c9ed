"""`If-Match` on writes to streams and tables, over every edge."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from tests.contract.tables import SCHEMA
from tests.edges import EDGES_OF_SHARED, edge, root_of
from tests.waiting import LIMIT_S

JSON = {"content-type": "application/json"}
PRODUCER = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}
CHANGE = b"+\tk\tr\n"


@pytest.fixture(scope="module", params=EDGES_OF_SHARED)
def root(request: pytest.FixtureRequest) -> Iterator[str]:
    with edge(request.param) as server:
        yield root_of(request.param, server)


@pytest.fixture(scope="module")
def client(root: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=root, timeout=LIMIT_S) as client:
        yield client


@pytest.fixture
def path(client: httpx.Client) -> str:
    name = f"/c/{uuid.uuid4().hex}"
    assert client.put(name, headers=JSON).status_code == 201
    return name


@pytest.fixture
def table(root: str) -> str:
    url = f"{root.replace('/v1/stream', '/v1/table')}/c/{uuid.uuid4().hex}"
    assert httpx.put(url, headers=SCHEMA).status_code == 201
    return url


def tail(response: httpx.Response) -> str:
    return response.headers["stream-next-offset"]


def tagged(name: object) -> dict[str, str]:
    return {"if-match": f'"{name}"'}


def problem(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, str(response.json()["type"]).removeprefix("urn:headwater:")


MOVED = (412, "tail-moved")


def test_an_append_at_the_tail(client: httpx.Client, path: str) -> None:
    first = tail(client.head(path))
    done = client.post(path, headers={**JSON, **tagged(first)}, content=b"[1,2]")
    assert done.status_code == 204
    refused = client.post(path, headers={**JSON, **tagged(first)}, content=b"3")
    assert problem(refused) == MOVED
    assert tail(refused) == tail(done) == tail(client.head(path))
    assert refused.headers["cache-control"] == "no-store"
    assert client.post(path, headers={**JSON, **tagged(tail(refused))}, content=b"3").status_code == 204
    assert client.get(path).json() == [1, 2, 3]


def test_forms_of_the_tail_in_if_match(client: httpx.Client, path: str) -> None:
    for count, name in enumerate(("-1", "0" * 16 + "_" + "0" * 16)):
        response = client.post(path, headers={**JSON, **tagged(name)}, content=b"1")
        assert response.status_code == (204 if count == 0 else 412)
    for _ in range(2):
        for method in ("HEAD", "GET"):
            tag = client.request(method, path, headers={"accept-encoding": "identity"}).headers["etag"]
            assert client.post(path, headers={**JSON, "if-match": tag}, content=b"1").status_code == 204
            assert client.post(path, headers={**JSON, "if-match": tag}, content=b"1").status_code == 412
    several = f'W/"x", "old", "{tail(client.head(path))}"'
    assert client.post(path, headers={**JSON, "if-match": several}, content=b"1").status_code == 204
    assert client.post(path, headers={**JSON, "if-match": "*"}, content=b"1").status_code == 204
    now = tail(client.head(path))
    assert problem(client.post(path, headers={**JSON, "if-match": f'W/"{now}"'}, content=b"1")) == MOVED
    for bad in (now, "", '"a', "*, *"):
        response = client.post(path, headers={**JSON, "if-match": bad}, content=b"1")
        assert problem(response) == (400, "invalid-header")


@pytest.mark.usefixtures("one_server")  # nginx refuses such a request
def test_if_match_in_two_lines(client: httpx.Client, path: str) -> None:
    now = tail(client.head(path))
    several = [("content-type", "application/json"), ("if-match", 'W/"x", "old"'), ("if-match", f'"{now}"')]
    assert client.post(path, headers=several, content=b"1").status_code == 204


def test_other_errors_come_first(client: httpx.Client, path: str) -> None:
    stale = tagged("x")
    absent = client.post(f"{path}/absent", headers={**JSON, "if-match": "*"}, content=b"1")
    assert problem(absent) == (404, "stream-not-found")
    assert problem(client.post(path, headers={**JSON, **stale}, content=b"{")) == (400, "invalid-json")
    assert problem(client.post(path, headers={"content-type": "a/b", **stale}, content=b"1"))[0] == 409
    gap = {**PRODUCER, "producer-seq": "5"}
    assert problem(client.post(path, headers={**JSON, **stale, **gap}, content=b"1")) == (409, "sequence-gap")
    client.post(path, headers={"stream-closed": "true"})
    assert problem(client.post(path, headers={**JSON, **stale}, content=b"1")) == (409, "stream-closed")


def test_a_duplicate_is_recognised_after_the_tail_has_moved(client: httpx.Client, path: str) -> None:
    headers = {**JSON, **PRODUCER, **tagged(tail(client.head(path)))}
    assert client.post(path, headers=headers, content=b"1").status_code == 200
    client.post(path, headers=JSON, content=b"2")
    assert client.post(path, headers=headers, content=b"1").status_code == 204
    later = {**headers, "producer-seq": "1"}
    refused = client.post(path, headers=later, content=b"3")
    assert problem(refused) == MOVED
    later |= tagged(tail(refused))
    assert client.post(path, headers=later, content=b"3").status_code == 200  # its sequence number was not used up
    assert client.get(path).json() == [1, 2, 3]


def test_a_close_at_the_tail(client: httpx.Client, path: str) -> None:
    before = tail(client.head(path))
    client.post(path, headers=JSON, content=b"1")
    close = {"stream-closed": "true"}
    assert problem(client.post(path, headers={**close, **tagged(before)})) == MOVED
    now = tail(client.head(path))
    assert client.post(path, headers={**close, **tagged(now)}).status_code == 204
    assert client.post(path, headers={**close, **tagged(before)}).status_code == 204  # it is as it asks for


def test_a_deletion_at_the_tail(client: httpx.Client, path: str) -> None:
    before = tail(client.head(path))
    client.post(path, headers=JSON, content=b"1")
    refused = client.delete(path, headers=tagged(before))
    assert problem(refused) == MOVED
    assert client.delete(path, headers=tagged(tail(refused))).status_code == 204
    assert client.delete(path, headers={"if-match": "*"}).status_code == 404
    assert client.put(path, headers=JSON).status_code == 201
    assert problem(client.post(path, headers={**JSON, **tagged(before)}, content=b"1")) == MOVED  # of another stream


def test_a_fork_ends_where_its_source_did(client: httpx.Client, path: str) -> None:
    there = tail(client.post(path, headers=JSON, content=b"1"))
    fork = f"{path}-fork"
    assert client.put(fork, headers={"stream-forked-from": f"/v1/stream{path}"}).status_code == 201
    tag = client.head(fork).headers["etag"]
    client.post(path, headers=JSON, content=b"2")
    assert client.post(fork, headers={**JSON, **tagged(there)}, content=b"3").status_code == 204
    for stale in (tagged(there), {"if-match": tag}):
        assert problem(client.post(fork, headers={**JSON, **stale}, content=b"4")) == MOVED
    assert client.get(fork).json() == [1, 3]


def test_a_create_refuses_a_condition(client: httpx.Client, path: str, table: str) -> None:
    assert problem(client.put(path, headers={**JSON, "if-match": "*"})) == (400, "invalid-header")
    assert problem(client.put(table, headers={**SCHEMA, "if-match": '"0"'})) == (400, "invalid-header")


def test_one_of_many_writers_wins_each_round(client: httpx.Client, path: str) -> None:
    """Every writer increments a counter with read and conditional append. No increment is lost."""
    outcomes: Counter[int] = Counter()

    def count() -> None:
        with httpx.Client(base_url=client.base_url, timeout=LIMIT_S) as own:
            done = 0
            while done < 10:
                read = own.get(path)
                value = (read.json() or [0])[-1] + 1
                headers = {**JSON, **tagged(tail(read))}
                status = own.post(path, headers=headers, content=str(value).encode()).status_code
                outcomes[status] += 1
                done += status == 204

    writers = [threading.Thread(target=count) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert client.get(path).json() == list(range(1, 41))
    assert set(outcomes) <= {204, 412}


def test_rows_after_the_last_row(table: str) -> None:
    assert httpx.post(table, headers=tagged(0), content=CHANGE * 2).status_code == 204
    refused = httpx.post(table, headers=tagged(0), content=CHANGE)
    assert problem(refused) == MOVED
    assert refused.headers["stp-last-seqno"] == "2"
    assert "stream-next-offset" not in refused.headers
    tag = httpx.head(table).headers["etag"]
    assert httpx.post(table, headers={"if-match": tag}, content=CHANGE).status_code == 204
    assert problem(httpx.post(table, headers={"if-match": tag}, content=CHANGE)) == MOVED
    large = b"+\tk\t" + b"r" * 200_000 + b"\n"
    assert problem(httpx.post(table, headers=tagged(2), content=large)) == MOVED
    assert httpx.post(table, headers=tagged(3), content=large).status_code == 204
    assert problem(httpx.post(table, headers=tagged(1), content=b"no change")) == (400, "invalid-change")
    headers = {**PRODUCER, **tagged(4)}
    assert httpx.post(table, headers=headers, content=CHANGE).status_code == 200
    assert httpx.post(table, headers=headers, content=CHANGE).status_code == 204  # a duplicate
    mirrored = {"stp-after-seqno": "0", **tagged(5)}
    assert problem(httpx.post(table, headers=mirrored, content=CHANGE)) == (400, "invalid-header")
    assert problem(httpx.post(table, headers={"if-match": "5"}, content=CHANGE)) == (400, "invalid-header")
    assert problem(httpx.delete(table, headers=tagged(4))) == MOVED
    close = {"stream-closed": "true"}
    assert problem(httpx.post(table, headers={**close, **tagged(4)})) == MOVED
    assert httpx.post(table, headers={**close, **tagged(5)}).status_code == 204
    assert httpx.delete(table, headers=tagged(5)).status_code == 204
    assert httpx.delete(table, headers=tagged(5)).status_code == 404
