"""Retention over every edge: headers of PUT, PATCH and HEAD, what readers see of trimmed streams and tables."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import httpx
import pytest

from tests.contract.tables import NOW, SCHEMA, rows, seqnos
from tests.edges import EDGES_OF_SHARED, edge, root_of
from tests.waiting import wait_until

JSON = {"content-type": "application/json"}
TEXT = {"content-type": "text/plain"}
STREAM, TABLE = "/v1/stream", "/v1/table"
FIRST = "stream-first-offset"


@pytest.fixture(scope="module", params=EDGES_OF_SHARED)
def client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with edge(request.param) as server:
        root = root_of(request.param, server).removesuffix(STREAM)
        with httpx.Client(base_url=root, timeout=60) as client:
            yield client


@pytest.fixture
def name() -> str:
    return f"t/{uuid.uuid4().hex}"


@pytest.fixture
def stream(name: str) -> str:
    return f"{STREAM}/{name}"


@pytest.fixture
def table(name: str) -> str:
    return f"{TABLE}/{name}"


def problem(response: httpx.Response) -> str:
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == response.status_code
    return str(response.json()["type"]).removeprefix("urn:headwater:")


def fill(client: httpx.Client, path: str, count: int, **headers: str) -> list[str]:
    """A text stream with records of two bytes. Returns where it begins, and the offset after each."""
    created = client.put(path, headers=TEXT | retention(**headers))
    assert created.status_code == 201
    offsets = [created.headers["stream-next-offset"]]
    for n in range(count):
        offsets.append(client.post(path, headers=TEXT, content=b"%02d" % n).headers["stream-next-offset"])
    return offsets


def retention(**values: str) -> dict[str, str]:
    return {f"stream-{name.replace('_', '-')}": value for name, value in values.items()}


def retained(response: httpx.Response) -> dict[str, str]:
    """The retention that a response names."""
    assert response.is_success, response.text
    kinds = ("stream-retain-", "stream-compact")
    return {name.removeprefix("stream-"): response.headers[name] for name in response.headers if name.startswith(kinds)}


# PUT


def test_a_stream_says_what_it_retains(client: httpx.Client, stream: str) -> None:
    headers = retention(
        retain_seconds="60", retain_bytes="1000", retain_messages="10", compact="True", compact_after="5"
    )
    expected = {
        "retain-seconds": "60",
        "retain-bytes": "1000",
        "retain-messages": "10",
        "compact": "true",
        "compact-after": "5",
    }
    created = client.put(stream, headers=JSON | headers)
    assert created.status_code == 201
    assert retained(created) == retained(client.head(stream)) == expected
    assert client.head(stream).headers[FIRST] == created.headers["stream-next-offset"]
    again = client.put(stream, headers=JSON | headers)
    assert (again.status_code, retained(again)) == (200, expected)
    assert client.put(stream, headers=JSON).status_code == 200  # it says nothing of retention
    other = client.put(stream, headers=JSON | headers | retention(retain_bytes="1001"))
    assert (other.status_code, problem(other)) == (409, "configuration")
    assert "retention" in other.json()["detail"]


def test_a_table_says_what_it_retains(client: httpx.Client, table: str) -> None:
    headers = retention(retain_messages="10", compact="true")
    created = client.put(table, headers=SCHEMA | headers)
    assert retained(created) == retained(client.head(table)) == {"retain-messages": "10", "compact": "true"}
    assert client.head(table).headers["stp-first-seqno"] == "1"
    assert client.put(table, headers=SCHEMA | headers).status_code == 200
    assert client.put(table, headers=SCHEMA | retention(retain_messages="9")).status_code == 409


def test_an_empty_value_is_no_limit(client: httpx.Client, stream: str) -> None:
    created = client.put(stream, headers=TEXT | retention(retain_seconds="", retain_bytes="5"))
    assert retained(created) == {"retain-bytes": "5"}
    other = f"{stream}-2"
    assert retained(client.put(other, headers=TEXT | retention(retain_seconds=""))) == {}
    assert client.put(other, headers=TEXT | retention(retain_bytes="")).status_code == 200
    assert client.put(other, headers=TEXT | retention(retain_bytes="1")).status_code == 409


BAD = [
    ("Stream-Retain-Seconds", "0"),
    ("Stream-Retain-Seconds", "-1"),
    ("Stream-Retain-Seconds", "1.5"),
    ("Stream-Retain-Seconds", "7d"),
    ("Stream-Retain-Seconds", "9" * 40),
    ("Stream-Retain-Bytes", "1e3"),
    ("Stream-Retain-Bytes", "010"),
    ("Stream-Retain-Bytes", str(2**53)),
    ("Stream-Retain-Messages", "0"),
    ("Stream-Retain-Messages", "many"),
    ("Stream-Compact", "yes"),
    ("Stream-Compact-After", "-1"),
]


@pytest.mark.parametrize(("header", "value"), BAD)
def test_a_bad_value_is_refused_by_name(client: httpx.Client, stream: str, header: str, value: str) -> None:
    for root in (stream, stream.replace(STREAM, TABLE)):
        kind = SCHEMA if TABLE in root else JSON
        client.put(root, headers=kind)
        for send in (client.put, client.patch):
            answer = send(root, headers={**kind, header: value})
            assert (answer.status_code, problem(answer)) == (400, "invalid-header")
            assert header in answer.json()["detail"]
            assert value[:40] in answer.json()["detail"]
        assert retained(client.head(root)) == {}


def test_only_json_streams_and_tables_can_be_compacted(client: httpx.Client, stream: str) -> None:
    refused = client.put(stream, headers=TEXT | retention(compact="true"))
    assert (refused.status_code, problem(refused)) == (400, "invalid-retention")
    alone = client.put(stream, headers=JSON | retention(compact_after="5"))
    assert (alone.status_code, problem(alone)) == (400, "invalid-retention")
    assert client.head(stream).status_code == 404
    client.put(stream, headers=TEXT)
    assert problem(client.patch(stream, headers=retention(compact="true"))) == "invalid-retention"


def test_a_fork_has_a_retention_of_its_own(client: httpx.Client, stream: str) -> None:
    fill(client, stream, 3, retain_bytes="100")
    fork = f"{stream}-fork"
    forked = {"stream-forked-from": stream}
    assert retained(client.put(fork, headers=forked)) == {}
    other = client.put(f"{fork}-2", headers=forked | retention(retain_bytes="4"))
    assert retained(other) == {"retain-bytes": "4"}
    assert client.put(f"{fork}-2", headers=forked | retention(retain_bytes="5")).status_code == 409


# PATCH


def test_a_patch_changes_what_it_names(client: httpx.Client, stream: str) -> None:
    offsets = fill(client, stream, 5, retain_seconds="1000")
    patched = client.patch(stream, headers=retention(retain_bytes="4"))
    assert patched.status_code == 204
    assert retained(patched) == retained(client.head(stream)) == {"retain-seconds": "1000", "retain-bytes": "4"}
    assert patched.headers[FIRST] == client.head(stream).headers[FIRST] == offsets[3]
    assert patched.headers["stream-next-offset"] == offsets[5]
    assert client.get(stream, params={"offset": "-1"}).content == b"0304"
    assert retained(client.patch(stream, headers=retention(retain_seconds="", retain_bytes=""))) == {}
    assert client.patch(stream, headers=retention(retain_bytes="")).status_code == 204  # it can be repeated
    assert client.head(stream).headers[FIRST] == offsets[3]


def test_a_patch_of_a_table(client: httpx.Client, table: str) -> None:
    client.put(table, headers=SCHEMA, content=rows(3))
    client.post(table, content=rows(4))
    patched = client.patch(table, headers=retention(retain_messages="4"))
    assert (patched.status_code, retained(patched)) == (204, {"retain-messages": "4"})
    assert (patched.headers["stp-first-seqno"], patched.headers["stp-last-seqno"]) == ("4", "7")
    read = client.get(table, params=NOW)
    assert (seqnos(read.content), read.headers["stp-first-seqno"]) == ([4, 5, 6, 7], "4")


def test_a_patch_that_would_do_nothing_is_refused(client: httpx.Client, stream: str) -> None:
    client.put(stream, headers=TEXT)
    for headers, named in (
        ({}, "Stream-Retain-Seconds"),
        ({"stream-ttl": "5"}, "stream-ttl"),
        (retention(retain_bytes="5", closed="true"), "stream-closed"),
        (retention(retain_bytes="5") | {"if-match": "*"}, "If-Match"),
        (retention(retain_byte="5"), "stream-retain-byte"),
    ):
        refused = client.patch(stream, headers=headers)
        assert (refused.status_code, problem(refused)) == (400, "invalid-header")
        assert named in refused.json()["detail"]
    with_body = client.patch(stream, headers=retention(retain_bytes="5"), content=b"{}")
    assert problem(with_body) == "bad-request"
    assert retained(client.head(stream)) == {}
    missing = client.patch(f"{stream}-none", headers=retention(retain_bytes="5"))
    assert (missing.status_code, problem(missing)) == (404, "stream-not-found")
    missing = client.patch(f"{TABLE}/none", headers=retention(retain_bytes="5"))
    assert (missing.status_code, "table 'none'" in missing.json()["detail"]) == (404, True)


# Readers


def test_an_offset_that_was_trimmed_is_gone(client: httpx.Client, stream: str) -> None:
    offsets = fill(client, stream, 6)
    client.patch(stream, headers=retention(retain_bytes="4"))
    for query in ({}, {"live": "long-poll"}, {"live": "sse"}, {"until": offsets[5]}):
        gone = client.get(stream, params={"offset": offsets[1], **query})
        assert (gone.status_code, problem(gone)) == (410, "offset-trimmed")
        assert gone.headers[FIRST] == gone.json()["first_offset"] == offsets[4]
        assert "beginning" in gone.json()["detail"]
        assert gone.headers["cache-control"] == "no-store"
    named = stream.removeprefix(f"{STREAM}/")
    for control in ("records", "splits"):
        query = {"path": named, "offset": offsets[1], **({"parts": "2"} if control == "splits" else {})}
        gone = client.get(f"{STREAM}/__ds/{control}", params=query)
        assert (gone.status_code, gone.headers[FIRST]) == (410, offsets[4])
        query["offset"] = "-1"
        assert client.get(f"{STREAM}/__ds/{control}", params=query).json()["offset"] == offsets[4]
    for query in ({}, {"offset": "-1"}, {"offset": offsets[4]}):
        assert client.get(stream, params=query).content == b"0405"
    gone = client.put(f"{stream}-fork", headers={"stream-forked-from": stream, "stream-fork-offset": offsets[1]})
    assert (gone.status_code, gone.headers[FIRST]) == (410, offsets[4])
    listed = client.get(f"{STREAM}/__ds/streams", params={"prefix": named}).json()["streams"][0]
    assert (listed["first_offset"], listed["tail_offset"], listed["bytes"]) == (offsets[4], offsets[6], 4)
    assert listed["retention"] == {"bytes": 4}


def test_rows_that_were_trimmed_are_gone(client: httpx.Client, table: str) -> None:
    client.put(table, headers=SCHEMA)
    for _ in range(6):
        client.post(table, content=rows(1))
    client.patch(table, headers=retention(retain_messages="2"))
    for query in ({}, NOW, {"live": "sse"}, {"until_id": "6"}):
        gone = client.get(table, params={"since_id": "3", **query})
        assert (gone.status_code, problem(gone)) == (410, "offset-trimmed")
        assert gone.headers["stp-first-seqno"] == str(gone.json()["first_seqno"]) == "5"
        assert "view=active" in gone.json()["detail"]
    for since_id in ("0", "4", "-9"):
        assert seqnos(client.get(table, params={"since_id": since_id, **NOW}).content) == [5, 6]
    listed = client.get(f"{TABLE}/__stp/tables", params={"prefix": table.removeprefix(f"{TABLE}/")}).json()["tables"][0]
    assert (listed["first_seqno"], listed["last_seqno"], listed["retention"]["messages"]) == (5, 6, 2)


def test_entity_tags_follow_the_beginning(client: httpx.Client, stream: str, table: str) -> None:
    fill(client, stream, 3)
    client.put(table, headers=SCHEMA)
    for _ in range(3):
        client.post(table, content=rows(1))
    for path, query in ((stream, {"offset": "-1"}), (table, NOW)):
        whole = client.get(path, params=query)
        assert client.head(path).headers["etag"] == whole.headers["etag"]
        client.patch(path, headers=retention(retain_messages="1"))
        trimmed = client.get(path, params=query, headers={"if-none-match": whole.headers["etag"]})
        assert (trimmed.status_code, len(trimmed.content) < len(whole.content)) == (200, True)
        assert client.head(path).headers["etag"] == trimmed.headers["etag"]


# Trims


def trim(client: httpx.Client, path: str, before: str) -> httpx.Response:
    if path.startswith(TABLE):
        return client.post(f"{path}/trim", params={"before": before})
    return client.post(f"{STREAM}/__ds/trim", params={"path": path.removeprefix(f"{STREAM}/"), "before": before})


def test_a_trim_by_offset_can_be_repeated(client: httpx.Client, stream: str) -> None:
    offsets = fill(client, stream, 6)
    for _ in range(2):
        trimmed = trim(client, stream, offsets[2])
        assert (trimmed.status_code, trimmed.headers[FIRST]) == (204, offsets[2])
        assert client.get(stream, params={"offset": "-1"}).content == b"02030405"
    for before in (offsets[1], offsets[0], "-1"):  # is trimmed already
        assert trim(client, stream, before).headers[FIRST] == offsets[2]
    assert trim(client, stream, "now").headers[FIRST] == offsets[6]
    assert client.get(stream, params={"offset": "-1"}).content == b""
    assert client.post(stream, headers=TEXT, content=b"more").status_code == 204
    assert client.get(stream, params={"offset": offsets[6]}).content == b"more"
    client.post(stream, headers={"stream-closed": "true"})
    closed = trim(client, stream, "now")
    assert closed.status_code == 204
    assert client.get(stream, params={"offset": "-1"}).headers["stream-closed"] == "true"


def test_a_trim_by_time(client: httpx.Client, stream: str, table: str) -> None:
    fill(client, stream, 3)
    client.put(table, headers=SCHEMA, content=rows(3))
    query = {"path": stream.removeprefix(f"{STREAM}/")}
    last = client.get(f"{STREAM}/__ds/records", params=query).json()["records"][-1]["time"]
    assert trim(client, stream, "2020-01-01T00:00:00Z").status_code == 204
    assert client.get(stream).content == b"000102"
    assert trim(client, stream, last).status_code == 204
    assert client.get(stream).content.endswith(b"02")  # others may have the same millisecond
    for path in (stream, table):
        assert trim(client, path, "2099-01-01T00:00:00+01:00").status_code == 204
        assert client.get(path, params=NOW if path is table else {}).content == b""


def test_a_trim_of_a_table(client: httpx.Client, table: str) -> None:
    client.put(table, headers=SCHEMA)
    for _ in range(4):
        client.post(table, content=rows(2))
    for before, first in (("3", "3"), ("6", "5"), ("4", "5"), ("0", "5"), ("9", "9"), ("now", "9")):
        trimmed = trim(client, table, before)  # row 6 is in the record of row 5
        assert (trimmed.status_code, trimmed.headers["stp-first-seqno"]) == (204, first)
        assert trimmed.headers["stp-last-seqno"] == "8"
        assert seqnos(client.get(table, params=NOW).content) == list(range(int(first), 9))
        assert client.get(table, params={"view": "active"}).status_code == 200
    client.post(table, content=rows(1))
    assert seqnos(client.get(table, params={"since_id": "8", **NOW}).content) == [9]


def test_bad_trims(client: httpx.Client, stream: str, table: str) -> None:
    offsets = fill(client, stream, 3)
    client.put(table, headers=SCHEMA, content=rows(3))
    inside, beyond = f"{offsets[1][:-1]}3", f"{offsets[1][:-1]}9"
    for path, before, kind in (
        (stream, inside, "invalid-offset"),
        (stream, beyond, "invalid-offset"),
        (stream, "yesterday", "invalid-offset"),
        (stream, "2026-13-01T00:00:00Z", "invalid-query"),
        (stream, "2026-11-15", "invalid-query"),
        (table, "5", "invalid-offset"),
        (table, offsets[1], "invalid-query"),
        (table, "-1", "invalid-query"),
        (table, "2026-11-15T00:00:00", "invalid-query"),
    ):
        refused = trim(client, path, before)
        assert (refused.status_code, problem(refused)) == (400, kind), before
    for url in (f"{STREAM}/__ds/trim?path={stream.removeprefix(f'{STREAM}/')}", f"{table}/trim?"):
        assert problem(client.post(url)) == "invalid-query"
        assert problem(client.post(f"{url}&before=now", content=b"x")) == "bad-request"
    assert client.get(stream).content == b"000102"
    assert problem(trim(client, f"{stream}-none", "now")) == "stream-not-found"
    assert problem(trim(client, f"{table}-none", "now")) == "stream-not-found"
    client.delete(stream)
    fill(client, stream, 3)
    assert problem(trim(client, stream, offsets[2])) == "offset-gone"
    assert problem(client.put(f"{table}/trim", headers=SCHEMA)) == "method-not-allowed"
    assert problem(client.put(f"{TABLE}/trim", headers=SCHEMA)) == "invalid-path"


def test_views_and_mirrors_are_trimmed_by_themselves(client: httpx.Client, stream: str, table: str) -> None:
    client.put(stream, headers=JSON)
    for n in range(4):
        event = {"type": "a", "key": "k", "value": n, "headers": {"operation": "upsert"}}
        client.post(stream, headers=JSON, json=event)
    assert client.put(table, headers={"stp-view-of": stream, "stp-view-type": "a"}).status_code == 201
    wait_until(lambda: client.head(table).headers["stp-last-seqno"] == "4")
    assert trim(client, table, "now").headers["stp-first-seqno"] == "5"
    assert client.patch(table, headers=retention(retain_messages="1")).status_code == 204
    assert len(client.get(stream).json()) == 4
    event = {"type": "a", "key": "k", "value": "last", "headers": {"operation": "upsert"}}
    client.post(stream, headers=JSON, json=event)
    wait_until(lambda: seqnos(client.get(table, params=NOW).content) == [5])


def test_a_stream_of_one_large_message(client: httpx.Client, stream: str) -> None:
    """At least the last record is kept."""
    client.put(stream, headers=TEXT | retention(retain_bytes="1", retain_messages="1"))
    body = b"x" * (16 << 20)
    for _ in range(2):
        assert client.post(stream, headers=TEXT, content=body).status_code == 204
        assert client.patch(stream, headers=retention(retain_bytes="1")).status_code == 204
        assert len(client.get(stream).content) == len(body)
    assert trim(client, stream, "now").status_code == 204
    assert client.get(stream).content == b""
