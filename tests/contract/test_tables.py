"""Tables over every edge: each test names the sentence of the STP specification that it shows, or our own part.

MUST, SHOULD and MAY are those of the draft; writing, closing, expiry and lists are ours.
"""

from __future__ import annotations

import gzip
import re
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from bench.servers import headwater

from tests.edges import EDGES, edge, root_of

SCHEMA = {"content-type": "text/sequence; schema=endpoint_manifest; version=1"}
WHOLE_TYPE = "text/sequence; charset=utf-8; schema=endpoint_manifest; version=1"
NOW = {"timeout": "0"}
STAMP = rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z"


@pytest.fixture(scope="module", params=EDGES)
def client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with edge(request.param) as server:
        root = root_of(request.param, server).replace("/v1/stream", "/v1/table")
        with httpx.Client(base_url=root, timeout=10) as client:
            yield client


@pytest.fixture
def table(client: httpx.Client) -> str:
    name = f"/t/{uuid.uuid4().hex}"
    assert client.put(name, headers=SCHEMA).status_code == 201
    return name


def rows(count: int, first: int = 1) -> bytes:
    return b"".join(b"+\tkey%d\trecord %d\n" % (n, n) for n in range(first, first + count))


def seqnos(body: bytes) -> list[int]:
    assert body == b"" or body.endswith(b"\n")
    return [int(line.split(b"\t")[0]) for line in body.splitlines()]


def problem(response: httpx.Response) -> str:
    assert response.headers["content-type"] == "application/problem+json"
    return str(response.json()["type"]).removeprefix("urn:headwater:")


@contextmanager
def meanwhile(*steps: object) -> Iterator[None]:
    """Run steps one after the other beside the test, 0.1 s apart."""

    def run() -> None:
        for step in steps:
            time.sleep(0.1)
            step()  # type: ignore[operator]

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()


# Row format and content type


def test_each_row_is_a_tsv_line(client: httpx.Client, table: str) -> None:
    """Each row is a TSV line: SeqNo \\t Timestamp \\t Action \\t PrimaryKey \\t Record."""
    body = "+\tfhir_read\thttps://prov.com/fhir/read\n-\tfhir_read\t\n+\tcafé\tfree form, with spaces\n"
    assert client.post(table, content=body.encode()).status_code == 204
    read = client.get(table, params=NOW)
    lines = read.content.split(b"\n")
    assert lines.pop() == b""
    for number, (line, change) in enumerate(zip(lines, body.encode().splitlines(), strict=True), 1):
        assert re.fullmatch(rb"%d\t%b\t%b" % (number, STAMP, re.escape(change)), line)


def test_responses_must_include_the_content_type(client: httpx.Client, table: str) -> None:
    """STP responses MUST include: Content-Type: text/sequence; charset=utf-8; schema=<schema_id>; version=<n>."""
    client.post(table, content=rows(3))
    for response in (
        client.get(table, params=NOW),
        client.get(table, params={"since_id": "99", **NOW}),
        client.get(table, params={"idle": "0.1"}),
        client.get(table, params={"until_id": "2"}),
        client.head(table),
    ):
        assert (response.status_code, response.headers["content-type"]) == (200, WHOLE_TYPE)


def test_servers_may_include_the_last_seqno(client: httpx.Client, table: str) -> None:
    """Servers MAY also include: STP-Last-SeqNo: <n>. Ours count without gaps and say so."""
    assert client.head(table).headers["stp-last-seqno"] == "0"
    assert client.post(table, content=rows(3)).headers["stp-last-seqno"] == "3"
    for query in ({"since_id": "2", "idle": "0.1"}, {"until_id": "1"}, NOW):
        read = client.get(table, params=query)
        assert (read.headers["stp-last-seqno"], read.headers["stp-gapless"]) == ("3", "true")


def test_rows_in_strictly_increasing_order(client: httpx.Client, table: str) -> None:
    """Servers SHOULD return rows in strictly increasing SeqNo order for any response."""
    for number in range(5):
        client.post(table, content=rows(number + 1))
    for query in (NOW, {"idle": "0.1"}, {"since_id": "-7", **NOW}):
        found = seqnos(client.get(table, params=query).content)
        assert found == list(range(found[0], 16))


def test_timestamps_never_run_backwards(client: httpx.Client, table: str) -> None:
    """Timestamp: RFC3339 UTC timestamp (informational; not authoritative)."""
    for _ in range(5):
        client.post(table, content=rows(2))
    times = [line.split(b"\t")[1] for line in client.get(table, params=NOW).content.splitlines()]
    assert times == sorted(times)


# Delta sync


def test_delta_sync(client: httpx.Client, table: str) -> None:
    """since_id=N returns rows with SeqNo > N; since_id=-N the last N rows; if absent, treat as since_id=0."""
    for first in range(1, 13, 3):
        client.post(table, content=rows(3, first))
    everything = list(range(1, 13))
    for since_id, expected in (
        ({}, everything),
        ({"since_id": "0"}, everything),
        ({"since_id": "-0"}, everything),
        ({"since_id": "1"}, everything[1:]),
        ({"since_id": "4"}, everything[4:]),
        ({"since_id": "11"}, [12]),
        ({"since_id": "12"}, []),
        ({"since_id": "9223372036854775807"}, []),
        ({"since_id": "-1"}, [12]),
        ({"since_id": "-5"}, everything[-5:]),
        ({"since_id": "-12"}, everything),
        ({"since_id": "-9223372036854775807"}, everything),
    ):
        read = client.get(table, params={**since_id, **NOW})
        assert (read.status_code, seqnos(read.content)) == (200, expected), since_id
    for bad in ("x", "1.0", "", "9223372036854775808"):
        assert problem(client.get(table, params={"since_id": bad})) == "invalid-query"


def test_a_long_table_is_read_from_any_row(client: httpx.Client, table: str) -> None:
    whole = 0
    for size in (1, 5_000, 1, 700, 20_000, 3, 3, 3):
        client.post(table, content=b"".join(b"+\tk%d\t%b\n" % (n, b"x" * (n % 90)) for n in range(size)))
        whole += size
    everything = client.get(table, params=NOW).content
    lines = everything.splitlines(keepends=True)
    assert seqnos(everything) == list(range(1, whole + 1))
    for since_id in (1, 4_999, 5_001, 5_002, 5_703, 17_000, whole - 4, whole - 1):
        read = client.get(table, params={"since_id": since_id, **NOW})
        assert read.content == b"".join(lines[since_id:])
        part = client.get(table, params={"since_id": since_id - 1, "until_id": since_id})
        assert part.content == lines[since_id - 1]
    assert client.get(table, params={"since_id": -6_000, **NOW}).content == b"".join(lines[-6_000:])


def test_finished_ranges_can_be_kept(client: httpx.Client, table: str) -> None:
    client.post(table, content=rows(5))
    read = client.get(table, params={"since_id": "1", "until_id": "3"})
    assert seqnos(read.content) == [2, 3]
    assert read.headers["cache-control"] == "public, max-age=31536000, immutable"
    tag = read.headers["etag"]
    client.post(table, content=rows(5))
    again = client.get(table, params={"since_id": "1", "until_id": "3"}, headers={"if-none-match": tag})
    assert (again.status_code, again.headers["etag"], again.content) == (304, tag, b"")
    assert client.get(table, params={"since_id": "3", "until_id": "3"}).content == b""
    assert client.get(table, params={"since_id": "9", "until_id": "3"}).content == b""
    beyond = client.get(table, params={"since_id": "8", "until_id": "99"})
    assert (seqnos(beyond.content), beyond.headers["cache-control"]) == ([9, 10], "no-cache")
    for bad in ("-1", "x"):
        assert problem(client.get(table, params={"until_id": bad})) == "invalid-query"


def test_other_answers_are_validated_before_they_are_used_again(client: httpx.Client, table: str) -> None:
    client.post(table, content=rows(2))
    for query in (NOW, {"since_id": "1", **NOW}, {"since_id": "-1", **NOW}, {"since_id": "2", **NOW}):
        read = client.get(table, params=query)
        assert read.headers["cache-control"] == "no-cache"
        tag = read.headers["etag"]
        assert client.get(table, params=query, headers={"if-none-match": tag}).status_code == 304
    client.post(table, content=rows(1))
    changed = client.get(table, params=NOW, headers={"if-none-match": tag})
    assert (changed.status_code, seqnos(changed.content)) == (200, [1, 2, 3])


def test_answers_are_compressed_as_asked(client: httpx.Client, table: str) -> None:
    client.post(table, content=rows(500))
    plain = client.get(table, params=NOW, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    with client.stream("GET", table, params=NOW, headers={"accept-encoding": "gzip"}) as read:
        raw = b"".join(read.iter_raw())
    assert (read.headers["content-encoding"], gzip.decompress(raw)) == ("gzip", plain.content)
    assert read.headers["etag"] != plain.headers["etag"]
    known = client.get(table, params=NOW, headers={"if-none-match": read.headers["etag"]})
    assert known.status_code == 304
    record = b"r" * 90
    for _ in range(4):  # more than one piece: written as it is read
        client.post(table, content=b"".join(b"+\tkey%d\t%b\n" % (n, record) for n in range(9_000)))
    plain = client.get(table, params=NOW, headers={"accept-encoding": "identity"})
    for encoding in ("gzip", "deflate", "br", "zstd"):
        read = client.get(table, params=NOW, headers={"accept-encoding": encoding})
        assert (read.headers["content-encoding"], read.content == plain.content) == (encoding, True)


# Long-poll


def test_rows_are_streamed_until_idle(client: httpx.Client, table: str) -> None:
    """Servers SHOULD stream rows until timeout or idle, then close."""
    client.post(table, content=rows(2))
    began = time.monotonic()
    arrivals: list[tuple[list[int], float]] = []
    with meanwhile(lambda: client.post(table, content=rows(1)), lambda: client.post(table, content=rows(2))):
        with client.stream("GET", table, params={"idle": "0.3"}) as read:
            for piece in read.iter_raw():
                arrivals.append((seqnos(piece), time.monotonic() - began))
    assert [numbers for numbers, _ in arrivals] == [[1, 2], [3], [4, 5]]
    assert arrivals[0][1] < arrivals[1][1] < arrivals[2][1]
    assert 0.4 <= time.monotonic() - began < 3


def test_rows_are_streamed_until_the_time_is_up(client: httpx.Client, table: str) -> None:
    """Servers SHOULD stream rows until timeout or idle, then close."""
    began = time.monotonic()
    with meanwhile(*[lambda: client.post(table, content=rows(1))] * 5):
        read = client.get(table, params={"timeout": "0.3", "idle": "5"})
    assert time.monotonic() - began < 3
    assert seqnos(read.content) == list(range(1, len(seqnos(read.content)) + 1))
    assert 1 <= len(seqnos(read.content)) <= 4


def test_clients_reconnect_using_the_last_processed_seqno(client: httpx.Client, table: str) -> None:
    """Clients reconnect using last processed SeqNo."""
    found: list[int] = []
    with meanwhile(*[lambda: client.post(table, content=rows(2))] * 4):
        while len(found) < 8:
            since_id = found[-1] if found else 0
            found += seqnos(client.get(table, params={"since_id": since_id, "timeout": "0.15"}).content)
    assert found == list(range(1, 9))


def test_a_timeout_of_zero_answers_at_once(client: httpx.Client, table: str) -> None:
    began = time.monotonic()
    read = client.get(table, params=NOW)
    assert (read.status_code, read.content, read.headers["content-length"]) == (200, b"", "0")
    assert time.monotonic() - began < 2


def test_a_closed_table_ends_an_answer(client: httpx.Client, table: str) -> None:
    close = {"stream-closed": "true"}
    with meanwhile(
        lambda: client.post(table, content=rows(1)), lambda: client.post(table, content=rows(1), headers=close)
    ):
        read = client.get(table)
    assert seqnos(read.content) == [1, 2]
    assert client.get(table).headers["stream-closed"] == "true"
    refused = client.post(table, content=rows(1))
    assert (refused.status_code, problem(refused)) == (409, "stream-closed")
    assert client.post(table, headers=close).headers["stp-last-seqno"] == "2"


def test_a_deleted_table_ends_an_answer(client: httpx.Client, table: str) -> None:
    with meanwhile(lambda: client.post(table, content=rows(1)), lambda: client.delete(table)):
        read = client.get(table)
    assert seqnos(read.content) == [1]
    assert client.get(table).status_code == 404


def test_a_large_append_reaches_live_readers_whole(client: httpx.Client, table: str) -> None:
    body = b"".join(b"+\tkey%d\t%b\n" % (n, b"x" * 100) for n in range(8_000))
    with meanwhile(lambda: client.post(table, content=body), lambda: client.post(table, content=rows(1))):
        read = client.get(table, params={"idle": "0.3", "timeout": "5"})
    assert seqnos(read.content) == list(range(1, 8_002))


# Server-sent events


def test_rows_as_server_sent_events_resume(client: httpx.Client, table: str) -> None:
    client.post(table, content=rows(3))
    lines = client.get(table, params=NOW).text.splitlines()
    with meanwhile(lambda: client.post(table, content=rows(1))):
        feed = client.get(table, params={"live": "sse", "since_id": "1", "idle": "0.3"})
    assert feed.headers["content-type"] == "text/event-stream"
    expected = "".join(f"id: {number}\ndata: {lines[number - 1]}\n\n" for number in (2, 3))
    assert feed.text.startswith(expected + "id: 4\ndata: 4\t")
    again = client.get(table, params={"live": "sse", "timeout": "0.1"}, headers={"last-event-id": "3"})
    assert again.text.startswith("id: 4\n")
    assert again.text.count("id: ") == 1
    client.post(table, headers={"stream-closed": "true"})
    assert client.get(table, params={"live": "sse"}, headers={"last-event-id": "4"}).status_code == 204
    assert client.get(table, params={"live": "sse", "since_id": "3"}).text.startswith("id: 4\n")


# The active view


def test_the_active_view_has_the_rows_of_live_keys(client: httpx.Client, table: str) -> None:
    """+ add/replace, - delete; a view for requesting compaction is our addition."""
    active = {"view": "active"}
    assert client.get(table, params=active).content == b""
    client.post(table, content=b"+\ta\t1\n+\tb\t1\n+\tc\t1\n+\ta\t2\n-\tb\n+\td\t1\n-\td\n+\tb\t2\n-\tc\n")
    read = client.get(table, params=active)
    lines = client.get(table, params=NOW).content.splitlines(keepends=True)
    assert read.content == lines[3] + lines[7]
    assert (read.headers["content-type"], read.headers["stp-last-seqno"]) == (WHOLE_TYPE, "9")
    tag = read.headers["etag"]
    assert client.get(table, params=active, headers={"if-none-match": tag}).status_code == 304
    assert client.get(table, params={**active, "since_id": "4"}).content == lines[7]
    assert client.get(table, params={**active, "since_id": "-1"}).content == lines[7]
    assert client.get(table, params={"key": "a"}).content == lines[3]
    for absent in ("c", "d", "z"):
        assert client.get(table, params={"key": absent}).content == b""
    client.post(table, content=b"-\ta\n+\tcaf\xc3\xa9\t3\n")
    changed = client.get(table, params=active, headers={"if-none-match": tag})
    assert (changed.status_code, seqnos(changed.content)) == (200, [8, 11])
    assert seqnos(client.get(table, params={"key": "café"}).content) == [11]
    assert problem(client.get(table, params={**active, "live": "sse"})) == "invalid-query"
    assert client.get(table, params=active, headers={"accept": "text/sequence; schema=x"}).status_code == 406
    client.delete(table)
    assert client.get(table, params=active).status_code == 404


def test_a_large_active_view(client: httpx.Client, table: str) -> None:
    body = b"".join(b"+\tkey%d\t%b\n" % (n % 20_000, b"x" * 50) for n in range(30_000))
    client.post(table, content=body)
    client.post(table, content=b"-\tkey10000\n")
    expected = [*range(10_002, 30_001)]
    for encoding in ("identity", "gzip", "zstd", "br"):
        read = client.get(table, params={"view": "active"}, headers={"accept-encoding": encoding})
        assert read.headers.get("content-encoding", "identity") == encoding
        assert seqnos(read.content) == [n for n in expected if n != 10_001]


# Accept and HEAD


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("text/sequence; charset=utf-8; schema=endpoint_manifest; version=1", 200),
        ("text/sequence", 200),
        ("*/*", 200),
        ("text/html, */*;q=0.1", 200),
        ("text/sequence; schema=other", 406),
        ("text/sequence; schema=endpoint_manifest; version=2", 406),
        ("application/json", 406),
    ],
)
def test_accept(client: httpx.Client, table: str, accept: str, status: int) -> None:
    """Accept: text/sequence; charset=utf-8; schema=endpoint_manifest; version=1."""
    for query in (NOW, {"idle": "0.05"}):
        assert client.get(table, params=query, headers={"accept": accept}).status_code == status
    assert client.head(table, headers={"accept": accept}).status_code == status
    assert client.get(table, params={"live": "sse", **NOW}, headers={"accept": "text/html"}).status_code == 406


def test_head(client: httpx.Client, table: str) -> None:
    client.post(table, content=rows(3), headers={"stream-closed": "true"})
    head = client.head(table)
    assert (head.status_code, head.content) == (200, b"")
    shown = {name: head.headers[name] for name in ("content-type", "stp-last-seqno", "stp-gapless", "stream-closed")}
    assert list(shown.values()) == [WHOLE_TYPE, "3", "true", "true"]
    assert client.head("/absent").status_code == 404


# Writing


def test_a_table_is_created_once(client: httpx.Client) -> None:
    name = f"/t/{uuid.uuid4().hex}"
    created = client.put(name, headers=SCHEMA)
    assert (created.status_code, created.headers["content-type"]) == (201, WHOLE_TYPE)
    assert created.headers["location"] == f"{str(client.base_url).rstrip('/')}{name}"
    assert client.get(created.headers["location"], params=NOW).status_code == 200
    for same in (WHOLE_TYPE, 'text/sequence;version=1;schema="endpoint_manifest"'):
        again = client.put(name, headers={"content-type": same})
        assert (again.status_code, again.headers["content-type"]) == (200, WHOLE_TYPE)
    for other in ("text/sequence; schema=other; version=1", "text/sequence; schema=endpoint_manifest; version=2"):
        refused = client.put(name, headers={"content-type": other})
        assert (refused.status_code, problem(refused)) == (409, "configuration")
    assert problem(client.put(name, headers={**SCHEMA, "stream-ttl": "60"})) == "configuration"
    assert problem(client.put(f"{name}x", headers={"content-type": "text/plain"})) == "invalid-header"
    plain = client.put(f"{name}y")
    assert plain.headers["content-type"] == "text/sequence; charset=utf-8; schema=text; version=1"


def test_a_table_can_begin_with_rows(client: httpx.Client) -> None:
    name = f"/t/{uuid.uuid4().hex}"
    assert client.put(name, headers=SCHEMA, content=rows(2)).headers["stp-last-seqno"] == "2"
    assert seqnos(client.get(name, params=NOW).content) == [1, 2]
    assert problem(client.put(f"{name}x", headers=SCHEMA, content=b"nonsense")) == "invalid-change"


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b"+\ta\tb\n*\ta\tb\n", 2),
        (b"+\ta\tb\n+\ta\tb\n+\ta\tb\tc\n", 3),
        (b"+\t\tb\n", 1),
        (b"+\ta\n", 1),
        (b"1\t2026-01-08T00:00:00Z\t+\ta\tb\n", 1),
        (b"+\ta\t\xff\n", 1),
        (b"+\ta\tb\n\n", 2),
    ],
)
def test_a_batch_is_atomic(client: httpx.Client, table: str, body: bytes, line: int) -> None:
    """Action: + add/replace, - delete. Record: SHOULD avoid tabs; a tab or newline is refused with its line."""
    producer = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}
    for more in ({}, producer):
        refused = client.post(table, content=body, headers=more)
        assert (refused.status_code, problem(refused)) == (400, "invalid-change")
        assert refused.json()["detail"].startswith(f"line {line}: ")
    assert client.head(table).headers["stp-last-seqno"] == "0"
    assert client.post(table, content=rows(1), headers=producer).headers["stp-last-seqno"] == "1"


def test_escapes_are_checked_where_a_table_opted_in(client: httpx.Client, table: str) -> None:
    name = f"/t/{uuid.uuid4().hex}"
    escaping = {"content-type": "text/sequence; schema=s; version=1; escape=backslash"}
    assert client.put(name, headers=escaping).headers["content-type"].endswith("; escape=backslash")
    assert client.post(name, content=b"+\ta\\tb\tline\\nline\n").status_code == 204
    assert problem(client.post(name, content=b"+\ta\t\\x\n")) == "invalid-change"
    assert client.post(table, content=b"+\ta\t\\x\n").status_code == 204
    assert client.get(name, params=NOW).content.endswith(b"\t+\ta\\tb\tline\\nline\n")


def test_content_types_of_appends(client: httpx.Client, table: str) -> None:
    for good in ("text/sequence", WHOLE_TYPE, "text/tab-separated-values", "TEXT/Sequence; charset=UTF-8"):
        assert client.post(table, content=rows(1), headers={"content-type": good}).status_code == 204
    other = client.post(table, content=rows(1), headers={"content-type": "text/sequence; schema=other"})
    assert (other.status_code, problem(other)) == (409, "content-type")
    refused = client.post(table, content=rows(1), headers={"content-type": "application/json"})
    assert (refused.status_code, problem(refused)) == (415, "unsupported-media-type")
    for empty in ({}, SCHEMA):
        assert problem(client.post(table, headers=empty)) == "empty-body"


def test_producers(client: httpx.Client, table: str) -> None:
    """Clients MUST handle duplicate rows (same SeqNo) idempotently; our appends are idempotent too."""

    def send(seq: int, epoch: int = 0) -> httpx.Response:
        of = {"producer-id": "p", "producer-epoch": str(epoch), "producer-seq": str(seq)}
        return client.post(table, content=rows(2), headers=of)

    first = send(0)
    assert (first.status_code, first.headers["stp-last-seqno"], first.headers["producer-seq"]) == (200, "2", "0")
    again = send(0)
    assert (again.status_code, again.headers["stp-last-seqno"]) == (204, "2")
    assert send(1).headers["stp-last-seqno"] == "4"
    gap = send(5)
    assert (gap.status_code, gap.headers["producer-expected-seq"]) == (409, "2")
    assert send(0, epoch=1).status_code == 200
    assert send(2).status_code == 403
    assert seqnos(client.get(table, params=NOW).content) == list(range(1, 7))


def test_a_large_body_is_checked_and_appended_whole(client: httpx.Client, table: str) -> None:
    body = b"".join(b"+\tkey%d\t%b\n" % (n, b"x" * 60) for n in range(20_000))
    assert len(body) > 1 << 20
    assert client.post(table, content=body).headers["stp-last-seqno"] == "20000"
    refused = client.post(table, content=body + b"?\n")
    assert refused.json()["detail"].startswith("line 20001: ")
    assert problem(client.post("/absent", content=body)) == "stream-not-found"
    assert problem(client.post(table, content=b"-\ta\n" * 100_001)) == "too-many-messages"


def test_absent_tables(client: httpx.Client) -> None:
    for answer in (
        client.get("/absent"),
        client.post("/absent", content=rows(1)),
        client.delete("/absent"),
    ):
        assert (answer.status_code, problem(answer)) == (404, "stream-not-found")
        assert answer.json()["detail"] == "table 'absent' does not exist; create it with PUT"


def test_names_and_routes(client: httpx.Client, table: str) -> None:
    assert client.put("/notify", headers=SCHEMA).status_code == 400
    assert client.post(f"{table}/notify", content=b"surl=x").status_code == 415
    assert client.put("/__stp/x", headers=SCHEMA).status_code == 404
    assert client.patch(table).status_code == 405
    assert "GET" in client.options(table).headers["allow"]
    root = str(client.base_url).removesuffix("v1/table/")
    assert any("/v1/table/" in route for route in client.get(root).json()["routes"])


# Forks


def test_a_fork_counts_on_from_the_row_where_it_leaves(client: httpx.Client, table: str) -> None:
    client.post(table, content=rows(1))
    client.post(table, content=rows(4, 2))
    client.post(table, content=rows(2, 6))
    lines = client.get(table, params=NOW).content.splitlines(keepends=True)
    source = client.base_url.raw_path.decode().rstrip("/") + table
    for seqno, more in ((3, {}), (5, SCHEMA), (7, {}), (1, {}), (0, {}), (None, {})):
        name = f"{table}-{seqno}"
        fork = {"stream-forked-from": source, **more}
        if seqno is not None:
            fork["stp-fork-seqno"] = str(seqno)
        kept = 7 if seqno is None else seqno
        created = client.put(name, headers=fork)
        assert (created.status_code, created.headers["content-type"]) == (201, WHOLE_TYPE)
        assert created.headers["stp-last-seqno"] == client.head(name).headers["stp-last-seqno"] == str(kept)
        assert client.put(name, headers=fork).status_code == 200
        assert client.post(name, content=rows(2)).headers["stp-last-seqno"] == str(kept + 2)
        read = client.get(name, params=NOW).content
        assert read.startswith(b"".join(lines[:kept]))
        assert seqnos(read) == list(range(1, kept + 3))
        for since_id in range(kept + 3):
            part = client.get(name, params={"since_id": since_id, **NOW})
            assert seqnos(part.content) == list(range(since_id + 1, kept + 3))
        assert len(seqnos(client.get(name, params={"view": "active"}).content)) == len({1, 2, *range(1, kept + 1)})
    assert client.get(table, params=NOW).content == b"".join(lines)
    wrong = {"stream-forked-from": source}
    assert problem(client.put(f"{table}-x", headers={**wrong, "stp-fork-seqno": "8"})) == "invalid-fork"
    assert problem(client.put(f"{table}-x", headers={**wrong, "stp-fork-seqno": "-1"})) == "invalid-header"
    assert problem(client.put(f"{table}-x", headers={"stp-fork-seqno": "1"})) == "invalid-header"
    other = {**wrong, "content-type": "text/sequence; schema=other"}
    assert problem(client.put(f"{table}-x", headers=other)) == "content-type"
    assert problem(client.put(f"{table}-x", headers={"stream-forked-from": "/v1/stream/x"})) == "invalid-header"


# Lists, expiry


def test_tables_have_a_list_of_their_own(client: httpx.Client) -> None:
    prefix = uuid.uuid4().hex
    for number in range(5):
        client.put(f"/{prefix}/{number}", headers={**SCHEMA, **({"stream-ttl": "600"} if number else {})})
    client.post(f"/{prefix}/0", content=rows(3), headers={"stream-closed": "true"})
    page = client.get("/__stp/tables", params={"prefix": prefix, "limit": 3}).json()
    assert [found["name"] for found in page["tables"]] == [f"{prefix}/{number}" for number in range(3)]
    first = page["tables"][0]
    assert (first["schema"], first["version"], first["last_seqno"]) == ("endpoint_manifest", 1, 3)
    assert (first["closed"], first["ttl_seconds"], page["tables"][1]["ttl_seconds"]) == (True, None, 600)
    rest = client.get("/__stp/tables", params={"prefix": prefix, "after": page["next_after"]}).json()
    assert [found["name"] for found in rest["tables"]] == [f"{prefix}/{number}" for number in (3, 4)]
    streams = str(client.base_url).replace("/v1/table", "/v1/stream")
    for query in ({}, {"prefix": "\x01"}, {"after": "\x01"}):
        listed = client.get(f"{streams}__ds/streams", params=query).json()["streams"]
        assert not [stream for stream in listed if stream["path"] < " "]
    assert client.get(f"{streams}{prefix}/0").status_code == 404


def test_a_plain_stream_of_this_type_is_no_table(client: httpx.Client) -> None:
    streams = str(client.base_url).replace("/v1/table", "/v1/stream")
    path = f"{streams}t/{uuid.uuid4().hex}"
    client.put(path, headers=SCHEMA, content=b"as it is")
    assert client.get(path).content == b"as it is"


def test_a_table_expires(client: httpx.Client) -> None:
    name = f"/t/{uuid.uuid4().hex}"
    client.put(name, headers={**SCHEMA, "stream-expires-at": "2020-01-01T00:00:00Z"})
    assert client.get(name, params=NOW).status_code == 404
    client.put(name, headers={**SCHEMA, "stream-ttl": "600"}, content=rows(1))
    assert client.head(name).headers["stream-ttl"] == "600"
    kept = client.get(name, params={"until_id": "1"}).headers["cache-control"]
    assert re.fullmatch(r"public, max-age=(599|600)", kept)


def test_a_table_that_is_deleted_begins_anew(client: httpx.Client, table: str) -> None:
    client.post(table, content=rows(3))
    tag = client.get(table, params={"until_id": "1"}).headers["etag"]
    assert client.delete(table).status_code == 204
    client.put(table, headers=SCHEMA)
    assert client.post(table, content=rows(1)).headers["stp-last-seqno"] == "1"
    assert client.get(table, params={"until_id": "1"}, headers={"if-none-match": tag}).status_code == 200


@pytest.mark.slow
def test_seqnos_go_on_after_a_restart(tmp_path: object) -> None:
    """Servers SHOULD retain historical SeqNo rows for replay."""
    with headwater("--data-dir", f"{tmp_path}/data") as server:
        url = f"http://{server.host}:{server.port}/v1/table/kept"
        httpx.put(url, headers=SCHEMA, content=rows(2))
        httpx.post(url, content=rows(3))
        before = httpx.get(url, params=NOW).content
    with headwater("--data-dir", f"{tmp_path}/data") as server:
        url = f"http://{server.host}:{server.port}/v1/table/kept"
        assert httpx.get(url, params=NOW).content == before
        assert httpx.head(url).headers["stp-last-seqno"] == "5"
        assert httpx.post(url, content=rows(1)).headers["stp-last-seqno"] == "6"
        assert seqnos(httpx.get(url, params={"since_id": "-2", **NOW}).content) == [5, 6]


@pytest.mark.slow
def test_the_active_view_survives_a_restart(tmp_path: object) -> None:
    """The second server reads the snapshot that the first wrote, and the rows after it."""
    with headwater("--data-dir", f"{tmp_path}/data") as server:
        root = f"http://{server.host}:{server.port}/v1"
        httpx.put(f"{root}/table/kept", headers=SCHEMA)
        for number in range(5):
            body = b"".join(b"+\tkey%d\t%d %b\n" % (n % 100, number, b"x" * 100) for n in range(9_000))
            httpx.post(f"{root}/table/kept", content=body)
            httpx.get(f"{root}/table/kept", params={"view": "active"})
        httpx.post(f"{root}/table/kept", content=b"-\tkey7\n")
        before = httpx.get(f"{root}/table/kept", params={"view": "active"})
        assert httpx.get(f"{root}/stream/__ds/streams").json()["streams"] == []
    with headwater("--data-dir", f"{tmp_path}/data") as server:
        root = f"http://{server.host}:{server.port}/v1"
        after = httpx.get(f"{root}/table/kept", params={"view": "active"})
        assert after.content == before.content
        assert after.headers["stp-last-seqno"] == before.headers["stp-last-seqno"] == "45001"
        assert len(seqnos(after.content)) == 99
        assert len(httpx.get(f"{root}/table/__stp/tables").json()["tables"]) == 1
