"""Tables over every edge, beyond the specification: writing, closing, forks, active views, caching, expiry and lists.

`test_stp_specification.py` has what the specification says.
"""

from __future__ import annotations

import gzip
import uuid

import httpx
import pytest
from bench.servers import headwater

from tests.contract.tables import NOW, SCHEMA, WHOLE_TYPE, meanwhile, problem, rows, seqnos

# Ranges


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


def test_finished_ranges_are_revalidated(client: httpx.Client, table: str) -> None:
    client.post(table, content=rows(5))
    read = client.get(table, params={"since_id": "1", "until_id": "3"})
    assert seqnos(read.content) == [2, 3]
    assert read.headers["cache-control"] == "no-cache"  # the same URL has other rows if the table is created again
    tag = read.headers["etag"]
    client.post(table, content=rows(5))
    again = client.get(table, params={"since_id": "1", "until_id": "3"}, headers={"if-none-match": tag})
    assert (again.status_code, again.headers["etag"], again.content) == (304, tag, b"")
    assert client.get(table, params={"since_id": "3", "until_id": "3"}).content == b""
    assert client.get(table, params={"since_id": "9", "until_id": "3"}).content == b""
    beyond = client.get(table, params={"since_id": "8", "until_id": "99"})
    assert (seqnos(beyond.content), beyond.headers["cache-control"]) == ([9, 10], "no-cache")
    last = client.get(table, params={"since_id": "-2", "until_id": "10"})  # other rows when the table has grown
    assert (seqnos(last.content), last.headers["cache-control"]) == ([9, 10], "no-cache")
    for bad in ("-1", "x"):
        assert problem(client.get(table, params={"until_id": bad})) == "invalid-query"
    assert problem(client.get(table, params={"until_id": "3", "live": "sse"})) == "invalid-query"


def test_a_range_that_moves_with_the_table_is_not_cached(client: httpx.Client, table: str) -> None:
    client.post(table, content=rows(3))
    read = client.get(table, params={"since_id": "-2", "until_id": "3"})
    assert (seqnos(read.content), read.headers["cache-control"]) == ([2, 3], "no-cache")
    client.post(table, content=rows(1))
    again = client.get(
        table, params={"since_id": "-2", "until_id": "3"}, headers={"if-none-match": read.headers["etag"]}
    )
    assert (again.status_code, seqnos(again.content)) == (200, [3])


def test_cached_responses_vary_by_accept(client: httpx.Client, table: str) -> None:
    client.post(table, content=rows(3))
    for query in ({"until_id": "2"}, NOW, {"view": "active"}):
        read = client.get(table, params=query)
        assert {"accept", "accept-encoding"} <= {name.strip() for name in read.headers["vary"].split(",")}


def test_other_responses_are_revalidated(client: httpx.Client, table: str) -> None:
    client.post(table, content=rows(2))
    for query in (NOW, {"since_id": "1", **NOW}, {"since_id": "-1", **NOW}, {"since_id": "2", **NOW}):
        read = client.get(table, params=query)
        assert read.headers["cache-control"] == "no-cache"
        tag = read.headers["etag"]
        assert client.get(table, params=query, headers={"if-none-match": tag}).status_code == 304
    client.post(table, content=rows(1))
    changed = client.get(table, params=NOW, headers={"if-none-match": tag})
    assert (changed.status_code, seqnos(changed.content)) == (200, [1, 2, 3])


def test_responses_are_compressed_as_requested(client: httpx.Client, table: str) -> None:
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


def test_a_timeout_of_zero_responds_at_once(client: httpx.Client, table: str) -> None:
    """The response is complete, with its length, before anything is appended. A response that waits has no length."""
    read = client.get(table, params={**NOW, "idle": "300"})
    assert (read.status_code, read.content, read.headers["content-length"]) == (200, b"", "0")


def test_a_closed_table_ends_a_response(client: httpx.Client, table: str) -> None:
    close = {"stream-closed": "true"}
    with meanwhile(
        client, lambda: client.post(table, content=rows(1)), lambda: client.post(table, content=rows(1), headers=close)
    ):
        read = client.get(table)
    assert seqnos(read.content) == [1, 2]
    assert client.get(table).headers["stream-closed"] == "true"
    refused = client.post(table, content=rows(1))
    assert (refused.status_code, problem(refused)) == (409, "stream-closed")
    assert client.post(table, headers=close).headers["stp-last-seqno"] == "2"


def test_a_deleted_table_ends_a_response(client: httpx.Client, table: str) -> None:
    with meanwhile(client, lambda: client.post(table, content=rows(1)), lambda: client.delete(table)):
        read = client.get(table)
    assert seqnos(read.content) == [1]
    assert client.get(table).status_code == 404


def test_a_large_append_reaches_live_readers_whole(client: httpx.Client, table: str) -> None:
    body = b"".join(b"+\tkey%d\t%b\n" % (n, b"x" * 100) for n in range(8_000))
    close = {"stream-closed": "true"}
    with meanwhile(
        client, lambda: client.post(table, content=body), lambda: client.post(table, content=rows(1), headers=close)
    ):
        read = client.get(table)
    assert seqnos(read.content) == list(range(1, 8_002))


# Server-sent events


def test_rows_as_server_sent_events_resume(client: httpx.Client, table: str) -> None:
    client.post(table, content=rows(3))
    lines = client.get(table, params=NOW).text.splitlines()
    with meanwhile(client, lambda: client.post(table, content=rows(1))):
        with client.stream("GET", table, params={"live": "sse", "since_id": "1"}) as feed:
            assert feed.headers["content-type"] == "text/event-stream"
            text = ""
            for piece in feed.iter_text():
                text += piece
                if "id: 4\n" in text:
                    break
    expected = "".join(f"id: {number}\ndata: {lines[number - 1]}\n\n" for number in (2, 3))
    assert text.startswith(expected + "id: 4\ndata: 4\t")
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


# HEAD


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


def test_a_large_body_is_checked_and_appended_atomically(client: httpx.Client, table: str) -> None:
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
    assert client.request("TRACE", table).status_code == 405
    assert "GET" in client.options(table).headers["allow"]
    root = str(client.base_url).removesuffix("v1/table/")
    assert any("/v1/table/" in route for route in client.get(root).json()["routes"])


# Forks


def test_the_seqnos_of_a_fork_continue_after_its_last_inherited_row(client: httpx.Client, table: str) -> None:
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
    assert [row["name"] for row in page["tables"]] == [f"{prefix}/{number}" for number in range(3)]
    first = page["tables"][0]
    assert (first["schema"], first["version"], first["last_seqno"]) == ("endpoint_manifest", 1, 3)
    assert (first["closed"], first["ttl_seconds"], page["tables"][1]["ttl_seconds"]) == (True, None, 600)
    rest = client.get("/__stp/tables", params={"prefix": prefix, "after": page["next_after"]}).json()
    assert [row["name"] for row in rest["tables"]] == [f"{prefix}/{number}" for number in (3, 4)]
    streams = str(client.base_url).replace("/v1/table", "/v1/stream")
    for query in ({}, {"prefix": "\x01"}, {"after": "\x01"}):
        listed = client.get(f"{streams}__ds/streams", params=query).json()["streams"]
        assert not [stream for stream in listed if stream["path"] < " "]
    assert client.get(f"{streams}{prefix}/0").status_code == 404


def test_a_stream_of_this_type_is_not_a_table(client: httpx.Client) -> None:
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
    assert client.get(name, params={"until_id": "1"}).headers["cache-control"] == "no-cache"


def test_a_table_that_is_created_again_starts_at_row_1(client: httpx.Client, table: str) -> None:
    client.post(table, content=rows(3))
    tag = client.get(table, params={"until_id": "1"}).headers["etag"]
    assert client.delete(table).status_code == 204
    client.put(table, headers=SCHEMA)
    assert client.post(table, content=rows(1)).headers["stp-last-seqno"] == "1"
    assert client.get(table, params={"until_id": "1"}, headers={"if-none-match": tag}).status_code == 200


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
