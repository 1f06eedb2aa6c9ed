"""HTTP behaviour over every edge that the official suite does not test: extensions and details."""

from __future__ import annotations

import gzip
import itertools
import json
import threading
import uuid
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import brotli
import httpx
import pytest
import zstandard
from bench.servers import headwater

from headwater.limits import TTL_RENEWAL_PARTS
from tests.edges import EDGES_OF_SHARED, TOGETHER, edge, root_of
from tests.metrics import LONG_POLL, SSE, wait_for_readers
from tests.waiting import wait_until

JSON = {"content-type": "application/json"}
TEXT = {"content-type": "text/plain"}


@pytest.fixture(scope="module", params=EDGES_OF_SHARED)
def client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with edge(request.param) as server, httpx.Client(base_url=root_of(request.param, server), timeout=60) as client:
        yield client


@pytest.fixture
def path() -> str:
    return f"/t/{uuid.uuid4().hex}"


def next_offset(response: httpx.Response) -> str:
    return response.headers["stream-next-offset"]


def problem(response: httpx.Response) -> str:
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == response.status_code
    return str(response.json()["type"]).removeprefix("urn:headwater:")


def test_a_stream_from_creation_to_deletion(client: httpx.Client, path: str) -> None:
    created = client.put(path, headers=JSON, content=b'[{"n":1}]')
    assert created.status_code == 201
    assert created.headers["location"] == str(client.base_url.join(str(client.base_url) + path.lstrip("/")))
    appended = client.post(path, headers=JSON, content=b'[ {"n": 2},\n{"n":3} ]')
    assert appended.status_code == 204
    read = client.get(path)
    assert read.content == b'[{"n":1},{"n": 2},{"n":3}]'
    assert next_offset(read) == next_offset(appended)
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == 404


def test_bytes_are_kept_as_received(client: httpx.Client, path: str) -> None:
    odd = b'{"n" : 1.0e+0, "s":"\\u00e9\\/"}'
    client.put(path, headers=JSON)
    client.post(path, headers=JSON, content=odd)
    assert client.get(path).content == b"[" + odd + b"]"


@pytest.mark.parametrize("body", [b"{", b'"\xff"', b"1 2", b"", b"[]", b"[1,]"])
def test_bad_bodies_change_nothing(client: httpx.Client, path: str, body: bytes) -> None:
    before = next_offset(client.put(path, headers=JSON))
    producer = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}
    for more in ({}, producer):
        response = client.post(path, headers={**JSON, **more}, content=body)
        assert response.status_code == 400
        assert problem(response) in ("invalid-json", "empty-body")
    assert next_offset(client.head(path)) == before
    assert client.post(path, headers={**JSON, **producer}, content=b"1").status_code == 200


def test_until_bounds_a_read(client: httpx.Client, path: str) -> None:
    offsets = [next_offset(client.put(path, headers=JSON))]
    offsets += [next_offset(client.post(path, headers=JSON, content=str(n).encode())) for n in range(4)]
    read = client.get(path, params={"until": offsets[2]})
    assert read.json() == [0, 1]
    assert next_offset(read) == offsets[2]
    assert "stream-up-to-date" not in read.headers
    assert client.get(path, params={"offset": offsets[1], "until": offsets[3]}).json() == [1, 2]
    assert client.get(path, params={"offset": offsets[3], "until": offsets[2]}).json() == []
    whole = client.get(path, params={"until": offsets[4]})
    assert whole.json() == [0, 1, 2, 3]
    assert whole.headers["stream-up-to-date"] == "true"
    for bad in ("x", "now", "-1", f"{offsets[0][:17]}{'9' * 16}"):
        assert problem(client.get(path, params={"until": bad})) == "invalid-offset"
    inside = f"{offsets[0][:17]}{1:016d}"
    assert problem(client.get(path, params={"until": inside})) == "invalid-offset"
    with client.stream("GET", path, params={"offset": "-1", "live": "sse", "until": offsets[2]}) as feed:
        text = "".join(feed.iter_text())
    assert "data:[0,1]" in text
    assert "[2" not in text


def test_offsets_that_the_stream_does_not_have(client: httpx.Client, path: str) -> None:
    offset = next_offset(client.put(path, headers=JSON, content=b"[1,22,333]"))
    inside = f"{offset[:17]}{3:016d}"
    for token in (inside, f"{offset[:17]}{'9' * 16}", f"{'9' * 16}_{'0' * 16}", "1_2", "x" * 1000):
        for live in ({}, {"live": "long-poll"}, {"live": "sse"}):
            response = client.get(path, params={"offset": token, **live})
            assert (response.status_code, problem(response)) == (400, "invalid-offset")


def test_an_offset_of_a_stream_that_was_created_again_gets_410(client: httpx.Client, path: str) -> None:
    old = next_offset(client.put(path, headers=TEXT, content=b"old"))
    client.delete(path)
    new = next_offset(client.put(path, headers=TEXT, content=b"new"))
    assert new > old
    for live in ({}, {"live": "long-poll"}, {"live": "sse"}):
        response = client.get(path, params={"offset": old, **live})
        assert (response.status_code, problem(response)) == (410, "offset-gone")
    assert client.get(path, params={"offset": "-1"}).content == b"new"


def test_reads_come_in_bounded_pieces(client: httpx.Client, path: str) -> None:
    client.put(path, headers=JSON)
    batch = json.dumps(["x" * 98] * 5000).encode()
    for _ in range(10):
        client.post(path, headers=JSON, content=batch)

    def pieces() -> int:
        offset, messages, count = "-1", 0, 0
        while True:
            read = client.get(path, params={"offset": offset})
            assert len(read.content) <= 2 * 1024 * 1024 + 2
            messages += len(read.json())
            count += 1
            offset = next_offset(read)
            if "stream-up-to-date" in read.headers:
                break
        assert messages == 50_000
        return count

    # Of 2 MiB each, but for one that ends where the journal begins. The fold may move that place between reads.
    wait_until(lambda: 3 <= pieces() <= 5, "few pieces")


@pytest.mark.parametrize(
    ("encoding", "decode"),
    [
        ("gzip", gzip.decompress),
        ("deflate", zlib.decompress),
        ("br", brotli.decompress),
        ("zstd", lambda data: zstandard.ZstdDecompressor().decompress(data)),
    ],
)
def test_large_reads_are_compressed_as_requested(
    client: httpx.Client, path: str, encoding: str, decode: object
) -> None:
    body = json.dumps([{"n": n} for n in range(5000)]).encode()
    client.put(path, headers=JSON, content=body)
    plain = client.get(path, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert "accept-encoding" in plain.headers["vary"]
    with client.stream("GET", path, headers={"accept-encoding": f"{encoding}, identity;q=0.5"}) as read:
        raw = b"".join(read.iter_raw())
        assert read.headers["content-encoding"] == encoding
        assert read.headers["etag"] != plain.headers["etag"]
    assert decode(raw) == plain.content  # type: ignore[operator]
    for tag in (read.headers["etag"], plain.headers["etag"]):
        unchanged = client.get(path, headers={"if-none-match": tag, "accept-encoding": encoding})
        assert (unchanged.status_code, unchanged.headers["etag"]) == (304, tag)
    refused = client.get(path, headers={"accept-encoding": f"{encoding};q=0"})
    assert "content-encoding" not in refused.headers


def test_small_reads_are_not_compressed(client: httpx.Client, path: str) -> None:
    client.put(path, headers=TEXT, content=b"x" * 1000)
    assert "content-encoding" not in client.get(path).headers


def test_entity_tags_change_with_closure(client: httpx.Client, path: str) -> None:
    client.put(path, headers=TEXT, content=b"data")
    tag = client.get(path).headers["etag"]
    unchanged = client.get(path, headers={"if-none-match": f'"other", {tag}'})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    assert unchanged.headers["etag"] == tag
    client.post(path, headers={"stream-closed": "true"})
    closed = client.get(path, headers={"if-none-match": tag})
    assert closed.status_code == 200
    assert closed.headers["stream-closed"] == "true"
    assert closed.headers["etag"] != tag


def test_a_response_at_the_tail_is_revalidated(client: httpx.Client, path: str) -> None:
    tail = next_offset(client.put(path, headers=TEXT, content=b"data"))
    for query in ({}, {"offset": "-1"}, {"offset": tail}):
        read = client.get(path, params=query)
        assert read.headers["cache-control"] == "no-cache"
        assert client.get(path, params=query, headers={"if-none-match": read.headers["etag"]}).status_code == 304
    tag = client.get(path, params={"offset": "-1"}).headers["etag"]
    client.post(path, headers=TEXT, content=b" and more")
    again = client.get(path, params={"offset": "-1"}, headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (200, b"data and more")


def test_a_response_that_ends_before_the_tail_can_be_cached(
    client: httpx.Client, path: str, request: pytest.FixtureRequest
) -> None:
    is_shared = request.node.callspec.params["client"] == TOGETHER
    kinds: tuple[dict[str, str], ...] = ({}, {"stream-ttl": "90"}, {"stream-retain-seconds": "90"})
    for more in kinds:
        lasting = "public, max-age=" if more else "public, max-age=31536000, immutable"
        client.put(path, headers={**TEXT, **more})
        first, second, _ = [next_offset(client.post(path, headers=TEXT, content=b"data")) for _ in range(3)]
        bounded = client.get(path, params={"offset": first, "until": second})
        assert bounded.headers["cache-control"].startswith(lasting)
        age_s = int(bounded.headers["cache-control"].partition("max-age=")[2].partition(",")[0])
        longer_s = 90 // TTL_RENEWAL_PARTS if is_shared and "stream-ttl" in more else 0
        assert age_s <= 90 + longer_s or not more
        # Another stream may be created at this path.
        beginning = client.get(path, params={"offset": "-1", "until": second})
        assert beginning.headers["cache-control"].startswith("public, max-age=60")
        client.delete(path)
        assert ("immutable" in bounded.headers["cache-control"]) == (not more)


def test_a_response_to_get_that_is_not_at_the_tail_cannot_answer_head(client: httpx.Client, path: str) -> None:
    client.put(path, headers=TEXT)
    first, _ = [next_offset(client.post(path, headers=TEXT, content=b"data")) for _ in range(2)]
    assert client.get(path, params={"until": first}).headers["cache-control"] == "no-store"
    whole = client.get(path)  # has the tail, as HEAD does, and caches ask whether it is current
    assert whole.headers["cache-control"] == "no-cache"
    assert whole.headers["stream-next-offset"] == client.head(path).headers["stream-next-offset"]


@pytest.mark.parametrize("more", [{}, {"stream-ttl": "90"}, {"stream-closed": "true"}])
def test_a_get_at_now_has_all_headers_of_head(client: httpx.Client, path: str, more: dict[str, str]) -> None:
    client.put(path, headers={**TEXT, **more}, content=b"data")
    head, get = client.head(path), client.get(path, params={"offset": "now"})
    same = set(head.headers) - {"etag", "date", "content-length"}
    assert same <= set(get.headers)
    assert {name: head.headers[name] for name in same} == {name: get.headers[name] for name in same}


def test_caching_of_other_responses(client: httpx.Client, path: str) -> None:
    before = next_offset(client.put(path, headers=TEXT))
    client.post(path, headers=TEXT, content=b"data")
    polled = client.get(path, params={"offset": before, "live": "long-poll"})  # the cursor sets readers apart
    assert polled.headers["cache-control"] == "public, max-age=60, stale-while-revalidate=300"
    assert client.get(path, params={"offset": "now"}).headers["cache-control"] == "no-store"
    assert "etag" not in client.get(path, params={"offset": "now"}).headers
    assert client.head(path).headers["cache-control"] == "no-store"
    assert client.get(f"{path}-none").headers["cache-control"] == "no-store"


@pytest.mark.slow
def test_a_long_poll_waits_and_moves_the_cursor_on(client: httpx.Client, path: str) -> None:
    tail = next_offset(client.put(path, headers=TEXT))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, path, params={"offset": tail, "live": "long-poll"})
        wait_for_readers(client, LONG_POLL)
        empty = waiting.result()
    assert (empty.status_code, next_offset(empty)) == (204, tail)
    assert empty.headers["stream-up-to-date"] == "true"
    cursor = empty.headers["stream-cursor"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, path, params={"offset": tail, "live": "long-poll", "cursor": cursor})
        wait_for_readers(client, LONG_POLL)
        client.post(path, headers=TEXT, content=b"data")
        read = waiting.result()
    assert (read.status_code, read.content) == (200, b"data")
    assert int(read.headers["stream-cursor"]) > int(cursor)


def test_a_feed_delivers_old_data_then_new_data_then_the_end(client: httpx.Client, path: str) -> None:
    client.put(path, headers=JSON, content=b'[{"n":0}]')

    def write() -> None:
        wait_for_readers(client, SSE)
        for number in range(1, 4):
            client.post(path, headers=JSON, content=json.dumps({"n": number}).encode())
        client.post(path, headers={**JSON, "stream-closed": "true"}, content=b'{"n":"last"}')

    writer = threading.Thread(target=write)
    writer.start()
    with client.stream("GET", path, params={"offset": "-1", "live": "sse"}) as feed:
        assert feed.headers["content-type"] == "text/event-stream"
        text = "".join(feed.iter_text())
    writer.join()
    events = [block.split("\n") for block in text.split("\n\n") if block]
    data = [json.loads(lines[1].removeprefix("data:")) for lines in events if lines[0] == "event: data"]
    control = [json.loads(lines[1].removeprefix("data:")) for lines in events if lines[0] == "event: control"]
    assert [message["n"] for batch in data for message in batch] == [0, 1, 2, 3, "last"]
    assert len(control) >= len(data)
    assert control[-1] == {
        "streamNextOffset": next_offset(client.head(path)),
        "streamClosed": True,
        "upToDate": True,
    }
    assert all(entry.get("streamCursor") for entry in control[:-1])


def blocks(text: str) -> list[dict[str, str]]:
    """The events of a feed as a browser reads them: the fields by name, in order."""
    events = []
    for block in text.split("\n\n"):
        lines = [line.partition(":")[::2] for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            events.append({**dict(lines), "order": " ".join(name for name, _ in lines)})
    return events


def test_events_have_the_offset_to_resume_from(client: httpx.Client, path: str) -> None:
    first = next_offset(client.put(path, headers=JSON))
    second = next_offset(client.post(path, headers=JSON, content=b"[1,2]"))
    last = next_offset(client.post(path, headers={**JSON, "stream-closed": "true"}, content=b'"' + b"x" * 9000 + b'"'))
    with client.stream("GET", path, params={"offset": "-1", "live": "sse", "until": second}) as feed:
        data, control = blocks("".join(feed.iter_text()))
    assert (data["event"].strip(), data["id"], data["order"]) == ("data", second, "event data id")
    assert control["event"].strip() == "control"
    with client.stream("GET", path, params={"offset": "-1", "live": "sse"}) as feed:
        assert feed.headers["cache-control"] == "no-cache"
        assert [event["id"] for event in blocks("".join(feed.iter_text())) if event["event"] == " data"] == [last]
    with client.stream("GET", path, params={"offset": "-1", "live": "sse", "until": first}) as feed:
        [control] = blocks("".join(feed.iter_text()))
    assert (control["id"], control["order"]) == (first, "event data id")


def test_a_reconnection_resumes_after_the_last_event(client: httpx.Client, path: str) -> None:
    client.put(path, headers=JSON)
    offsets = [next_offset(client.post(path, headers=JSON, content=str(number).encode())) for number in range(3)]
    query = {"offset": "-1", "live": "sse", "until": offsets[2]}
    with client.stream("GET", path, params=query, headers={"last-event-id": offsets[0]}) as feed:
        assert blocks("".join(feed.iter_text()))[0]["data"] == "[1,2]"
    assert client.get(path, params=query, headers={"last-event-id": "x"}).status_code == 400
    assert client.get(path, headers={"last-event-id": offsets[0]}).json() == [0, 1, 2]  # not an event stream
    client.post(path, headers={"stream-closed": "true"})
    ended = client.get(path, params={"offset": "-1", "live": "sse"}, headers={"last-event-id": offsets[2]})
    assert (ended.status_code, ended.headers["stream-closed"]) == (204, "true")  # an EventSource stops at that


@pytest.mark.parametrize("forked", [False, True])
def test_live_readers_are_notified_of_a_deletion(client: httpx.Client, path: str, forked: bool) -> None:
    tail = next_offset(client.put(path, headers=JSON, content=b"[1]"))
    if forked:
        source = {"stream-forked-from": client.base_url.path.rstrip("/") + path}
        assert client.put(f"{path}-fork", headers=source).status_code == 201
    parts: list[str] = []
    polled: list[int] = []

    def follow() -> None:
        with client.stream("GET", path, params={"offset": "-1", "live": "sse"}) as feed:
            parts.extend(feed.iter_text())

    def poll() -> None:
        polled.append(client.get(path, params={"offset": tail, "live": "long-poll"}).status_code)

    readers = [threading.Thread(target=follow), threading.Thread(target=poll)]
    for reader in readers:
        reader.start()
    wait_for_readers(client, SSE)
    wait_for_readers(client, LONG_POLL)
    assert client.delete(path).status_code == 204
    for reader in readers:
        reader.join()
    assert polled == [410 if forked else 404]  # a long-poll that has waited for its time gets 204
    last = blocks("".join(parts))[-1]
    assert last["event"].strip() == "control"
    assert json.loads(last["data"]) == {"streamNextOffset": tail, "streamDeleted": True}


def test_the_list_of_streams(client: httpx.Client, path: str) -> None:
    for name, more in (("c", {}), ("a", {"stream-ttl": "60"}), ("b", {"stream-closed": "true"}), ("d/e f", {})):
        client.put(f"{path}/{name}", headers={**TEXT, **more}, content=b"1234")
    prefix = path.lstrip("/") + "/"
    page = client.get("/__ds/streams", params={"prefix": prefix, "limit": 3}).json()
    assert [stream["path"] for stream in page["streams"]] == [f"{prefix}a", f"{prefix}b", f"{prefix}c"]
    assert page["next_after"] == f"{prefix}c"
    first, second, _ = page["streams"]
    assert (first["ttl_seconds"], second["closed"], second["content_type"]) == (60, True, "text/plain")
    assert first["expires_at"] > first["created_at"]
    assert second["tail_offset"] == next_offset(client.head(f"{path}/b"))
    assert first["bytes"] == len("1234")
    read = client.get(f"{path}/a", params={"offset": first["first_offset"]})
    assert (read.content, first["first_offset"] != second["first_offset"]) == (b"1234", True)
    rest = client.get("/__ds/streams", params={"prefix": prefix, "after": page["next_after"], "limit": 3}).json()
    assert [stream["path"] for stream in rest["streams"]] == [f"{prefix}d/e f"]
    assert rest["next_after"] is None
    for limit in ("0", "-1", "1001", "x", "9" * 30, "000000001000000", "1" + "0" * 5000):
        assert problem(client.get("/__ds/streams", params={"limit": limit})) == "invalid-query"


def test_forks_look_one_record_ahead_and_no_further(client: httpx.Client, path: str) -> None:
    start = next_offset(client.put(path, headers=JSON))
    client.post(path, headers=JSON, content=b"[1,2]")
    client.post(path, headers=JSON, content=b"[3,4]")
    fork = {"stream-forked-from": client.base_url.path.rstrip("/") + path, "stream-fork-offset": start}
    overshoot = client.put(f"{path}-f3", headers={**fork, "stream-fork-sub-offset": "3"})
    assert (overshoot.status_code, problem(overshoot)) == (400, "invalid-fork")
    assert client.put(f"{path}-f2", headers={**fork, "stream-fork-sub-offset": "1"}, content=b"9").status_code == 201
    assert client.get(f"{path}-f2").json() == [1, 9]
    inside = client.put(f"{path}-f5", headers={**fork, "stream-fork-offset": f"{start[:17]}{1:016d}"})
    assert (inside.status_code, problem(inside)) == (400, "invalid-offset")
    again = client.put(f"{path}-f2", headers={**fork, "stream-fork-sub-offset": "1"})
    assert again.status_code == 200
    bad = client.put(f"{path}-f4", headers={"stream-forked-from": "elsewhere"})
    assert (bad.status_code, problem(bad)) == (400, "invalid-header")


def test_a_rejected_fork_leaves_no_reference(client: httpx.Client, path: str) -> None:
    client.put(path, headers=JSON, content=b"[1]")
    source = {"stream-forked-from": client.base_url.path.rstrip("/") + path}
    assert client.put(f"{path}-f", headers={**source, **JSON}, content=b"{").status_code == 400
    assert client.put(f"{path}-f", headers={**source, **TEXT}).status_code == 409
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == 404


def test_a_fork_at_the_first_offset_of_its_source_is_read_from_there(client: httpx.Client, path: str) -> None:
    first = next_offset(client.put(path, headers=TEXT))
    client.post(path, headers=TEXT, content=b"abc")
    fork = {"stream-forked-from": f"{client.base_url.path.rstrip('/')}{path}", "stream-fork-offset": first}
    assert client.put(f"{path}/f", headers={**TEXT, **fork}).status_code == 201
    assert client.put(f"{path}/f", headers={**TEXT, **fork}).status_code == 200
    client.post(f"{path}/f", headers=TEXT, content=b"own")
    assert client.get(f"{path}/f", params={"offset": first}).content == b"own"
    assert client.get(path, params={"offset": first}).content == b"abc"


def test_absurd_values_are_refused(client: httpx.Client, path: str) -> None:
    for headers in (
        {"stream-ttl": "9" * 40},
        {"stream-ttl": "-1"},
        {"stream-expires-at": "never"},
        {"stream-expires-at": "9999-99-99T00:00:00Z"},
        {"content-type": "no type"},
        {"stream-fork-offset": "-1"},
    ):
        response = client.put(path, headers=headers)
        assert (response.status_code, problem(response)) == (400, "invalid-header")
    assert client.get(path).status_code == 404


def test_a_body_over_the_limit(client: httpx.Client, path: str) -> None:
    client.put(path, headers=TEXT)
    response = client.post(path, headers=TEXT, content=b"x" * (16 * 1024 * 1024 + 1))
    assert (response.status_code, problem(response)) == (413, "body-too-large")
    assert client.get(path).content == b""


def test_the_splits_of_a_range(client: httpx.Client, path: str) -> None:
    name = path.lstrip("/")
    client.put(path, headers=JSON)
    for number in range(100):
        client.post(path, headers=JSON, content=b'{"n": %d}' % number)
    [tail] = [next_offset(client.head(path))]
    whole = client.get("/__ds/splits", params={"path": name, "parts": 4}).json()
    assert whole["until"] == tail
    assert len(whole["splits"]) == 3
    assert sorted(whole["splits"]) == whole["splits"]
    edges = [whole["offset"], *whole["splits"], tail]
    parts = [
        client.get(path, params={"offset": start, "until": end}).json() for start, end in itertools.pairwise(edges)
    ]
    assert [message["n"] for part in parts for message in part] == list(range(100))
    assert {len(part) for part in parts} <= {24, 25, 26}

    few = client.get("/__ds/splits", params={"path": name, "offset": edges[1], "bytes": 50, "limit": 2}).json()
    assert len(few["splits"]) == 2
    some = client.get(path, params={"offset": edges[1], "until": few["splits"][0]})
    assert len(some.json()) == 5  # of 10 bytes each, as stored
    tiny = client.get("/__ds/splits", params={"path": name, "bytes": 1, "until": edges[1]}).json()
    assert len(tiny["splits"]) == len(parts[0]) - 1  # a record is never cut
    assert client.get("/__ds/splits", params={"path": name, "offset": tail, "parts": 9}).json()["splits"] == []
    assert client.get("/__ds/splits", params={"path": name, "parts": 10000}).json()["splits"][:2] == tiny["splits"][:2]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({}, 400),
        ({"parts": 2, "bytes": 2}, 400),
        ({"parts": 0}, 400),
        ({"parts": 2, "limit": 10**9}, 400),
        ({"parts": 2, "path": "no such"}, 404),
        ({"parts": 2, "path": "a//b"}, 400),
        ({"parts": 2, "offset": "0000000000000001_0000000000000000"}, 410),
        ({"parts": 2, "offset": "x"}, 400),
    ],
)
def test_invalid_split_requests(client: httpx.Client, path: str, query: dict[str, str], status: int) -> None:
    client.put(path, headers=JSON, content=b"[1,2]")
    assert client.get("/__ds/splits", params={"path": path.lstrip("/"), **query}).status_code == status


def test_the_splits_of_a_fork(client: httpx.Client, path: str) -> None:
    client.put(path, headers=JSON)
    for number in range(10):
        client.post(path, headers=JSON, content=b"%d" % number)
    fork = {"stream-forked-from": client.base_url.path.rstrip("/") + path}
    client.put(f"{path}-fork", headers=fork)
    for number in range(10, 20):
        client.post(f"{path}-fork", headers=JSON, content=b"%d" % number)
    page = client.get("/__ds/splits", params={"path": f"{path}-fork".lstrip("/"), "parts": 5}).json()
    edges = ["-1", *page["splits"], page["until"]]
    parts = [
        client.get(f"{path}-fork", params={"offset": start, "until": end}).json()
        for start, end in itertools.pairwise(edges)
    ]
    assert [number for part in parts for number in part] == list(range(20))
    assert len(parts) == 5


def test_proxies_are_asked_not_to_buffer_events(client: httpx.Client, path: str) -> None:
    client.put(path, headers=TEXT)
    with client.stream("GET", path, params={"offset": "-1", "live": "sse"}) as feed:
        assert feed.headers["x-accel-buffering"] == "no"


def test_the_root_url_describes_the_server(client: httpx.Client) -> None:
    root = str(client.base_url).removesuffix("v1/stream/")
    answer = httpx.get(root)
    assert answer.status_code == 200
    assert answer.json()["name"] == "headwater"
    mount = client.base_url.path.removesuffix("/v1/stream/")
    assert f"GET {mount}/v1/stream/{{path}}" in answer.json()["routes"]
    assert f"GET {mount}/v1/stream/__ds/streams" in answer.json()["routes"]
    assert httpx.post(root).status_code == 405
    assert "GET /" in httpx.get(f"{root}favicon.ico").json()["detail"]


FORWARDED = (
    {"x-forwarded-proto": "https", "x-forwarded-host": "streams.example"},
    {"forwarded": 'for=1.2.3.4;proto=http;host=other.example, for=9;host="streams.example";proto=https'},
    {"x-forwarded-proto": "http, HTTPS", "x-forwarded-host": "other.example, streams.example"},
)


@pytest.mark.parametrize("forwarded", FORWARDED)
def test_forwarding_headers_are_trusted_from_trusted_proxies_only(
    client: httpx.Client, path: str, forwarded: dict[str, str]
) -> None:
    untrusted = client.put(path, headers={**TEXT, **forwarded}).headers["location"]
    if untrusted.startswith("https:"):
        assert untrusted.startswith("https://127.0.0.1")  # uvicorn trusts what is on the same machine
        return
    assert untrusted == f"{str(client.base_url).rstrip('/')}{path}"


@pytest.mark.slow
@pytest.mark.parametrize("forwarded", FORWARDED)
@pytest.mark.parametrize("trusted", ["127.0.0.1", "127.0.0.0/8"])
def test_the_location_behind_a_trusted_proxy(path: str, forwarded: dict[str, str], trusted: str) -> None:
    with headwater("--memory", "--trusted-proxy", "10.0.0.1", "--trusted-proxy", trusted) as server:
        with httpx.Client(base_url=server.url) as client:
            created = client.put(path, headers={**TEXT, **forwarded})
            assert created.headers["location"] == f"https://streams.example/v1/stream{path}"
            page = {"origin": "https://streams.example"}  # of the same origin, whatever the proxy makes of Host
            assert client.post(path, headers={**TEXT, **forwarded, **page}, content=b"x").status_code == 204
            plain = client.put(f"{path}-plain", headers=TEXT)
            assert plain.headers["location"] == f"{server.url}{path}-plain"
            bad = {"x-forwarded-proto": "gopher", "x-forwarded-host": "a b/c"}
            assert client.put(f"{path}-bad", headers={**TEXT, **bad}).headers["location"] == f"{server.url}{path}-bad"
