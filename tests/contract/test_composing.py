"""Composes: appends that take their data from streams of the same server, over every edge."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard

from headwater.limits import CHANGES_MAX, COMPOSE_FORM_BYTES_MAX, COMPOSE_SOURCES_MAX
from headwater.server.auth.editing import add_token
from tests.contract.tables import SCHEMA
from tests.edges import EDGES_OF_SHARED, NATIVE, edge, root_of
from tests.waiting import LIMIT_S, wait_until

BODY_BYTES = 300_000
COMPOSE = {"content-type": "application/vnd.headwater.compose+json"}
JSON = {"content-type": "application/json"}
TEXT = {"content-type": "text/plain"}
ZSTD = {"content-type": "application/zstd"}
CHANGES = {"content-type": "text/tab-separated-values"}


@pytest.fixture(scope="module", params=EDGES_OF_SHARED)
def client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with edge(request.param, body_bytes_max=BODY_BYTES) as server:
        root = root_of(request.param, server).removesuffix("/v1/stream")
        with httpx.Client(base_url=root, timeout=LIMIT_S) as client:
            yield client


@pytest.fixture
def mount(client: httpx.Client) -> str:
    """Where the app is mounted: sources are named by their URL paths."""
    return client.base_url.path.rstrip("/")


def made(client: httpx.Client, content_type: dict[str, str], *bodies: bytes) -> tuple[str, list[str]]:
    """A stream with a record for each body: its URL path, and the offsets before and after each record."""
    path = f"/v1/stream/compose/{uuid.uuid4().hex}"
    offsets = [tail(client.put(path, headers=content_type))]
    for body in bodies:
        offsets.append(tail(client.post(path, headers=content_type, content=body)))
    return client.base_url.path.rstrip("/") + path, offsets


def made_table(client: httpx.Client, **headers: str) -> str:
    path = f"/v1/table/compose/{uuid.uuid4().hex}"
    assert client.put(path, headers={**SCHEMA, **headers}).status_code == 201
    return client.base_url.path.rstrip("/") + path


def tail(response: httpx.Response) -> str:
    assert response.is_success, response.text
    return response.headers["stream-next-offset"]


def below(client: httpx.Client, path: str) -> str:
    """The path relative to the root of the client."""
    return path.removeprefix(client.base_url.path.rstrip("/"))


def compose(client: httpx.Client, target: str, *sources: Any, **headers: str) -> httpx.Response:
    named = [{"stream": source} if isinstance(source, str) else source for source in sources]
    sent = {**COMPOSE, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return client.post(below(client, target), headers=sent, content=json.dumps({"sources": named}))


def content(client: httpx.Client, path: str) -> bytes:
    return client.get(below(client, path), params={"offset": "-1"}).content


def problem(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, str(response.json()["type"]).removeprefix("urn:headwater:")


def detail(response: httpx.Response) -> str:
    return str(response.json()["detail"])


def producer(seq: int, epoch: int = 0) -> dict[str, str]:
    return {"producer_id": "p", "producer_epoch": str(epoch), "producer_seq": str(seq)}


def test_the_data_of_ranges_is_appended_in_their_order_as_one_record(client: httpx.Client) -> None:
    one, offsets = made(client, JSON, b"[1,2]", '"é"'.encode(), b"[4]")
    other, _ = made(client, JSON, b'{"other": true}')
    target, before = made(client, JSON, b"0")
    done = compose(client, target, {"stream": one, "offset": offsets[1], "until": offsets[2]}, other, one)
    assert done.status_code == 204
    assert content(client, target).decode() == '[0,"é",{"other": true},1,2,"é",4]'
    records = client.get(
        "/v1/stream/__ds/records", params={"path": below(client, target).removeprefix("/v1/stream/")}
    ).json()["records"]
    assert [record["next_offset"] for record in records] == [before[1], tail(done)]
    assert content(client, one).decode() == '[1,2,"é",4]'


def test_text_and_bytes(client: httpx.Client) -> None:
    for content_type in (TEXT, {"content-type": "application/x-own"}):
        one, _ = made(client, content_type, b"a\n", b"b")
        target, _ = made(client, content_type)
        assert compose(client, target, one, one).status_code == 204
        assert content(client, target) == b"a\nba\nb"


def test_compressed_bodies(client: httpx.Client) -> None:
    packed = zstandard.ZstdCompressor()
    frames, offsets = made(client, ZSTD, packed.compress(b"[10 , 11]"), packed.compress(b'{"a":1}'))
    plain, _ = made(client, JSON, b"[12]")
    target, _ = made(client, JSON)
    first = {"stream": frames, "until": offsets[1]}
    second = {"stream": frames, "offset": offsets[1], "until": offsets[2]}
    assert compose(client, target, first, plain, second).status_code == 204
    assert content(client, target) == b'[10,11,12,{"a":1}]'
    same, _ = made(client, ZSTD)
    assert compose(client, same, frames).status_code == 204  # of one type: nothing is decompressed
    assert content(client, same) == content(client, frames)


def test_changes_become_rows_of_the_target(client: httpx.Client) -> None:
    table = made_table(client)
    assert client.post(below(client, table), content=b"+\tk0\tr0\n").is_success
    one, _ = made(client, CHANGES, b"+\tk1\t100 %d\n", b"-\tk0\n+\tk2\tr2")
    other, _ = made(client, ZSTD, zstandard.ZstdCompressor().compress(b"+\tk3\tr3"))
    done = compose(client, table, one, other, **producer(0))
    assert (done.status_code, done.headers["stp-last-seqno"]) == (200, "5")
    rows = [
        line.split(b"\t") for line in client.get(below(client, table), params={"timeout": "0"}).content.splitlines()
    ]
    assert [(row[0], *row[2:]) for row in rows] == [
        (b"1", b"+", b"k0", b"r0"),
        (b"2", b"+", b"k1", b"100 %d"),
        (b"3", b"-", b"k0", b""),
        (b"4", b"+", b"k2", b"r2"),
        (b"5", b"+", b"k3", b"r3"),
    ]
    assert len({row[1] for row in rows[1:]}) == 1  # one append, one time


def test_a_repeated_compose_is_a_duplicate_even_if_its_sources_are_gone(client: httpx.Client) -> None:
    one, _ = made(client, JSON, b"[1]")
    lines, _ = made(client, CHANGES, b"+\tk\tr\n")
    target, table = made(client, JSON)[0], made_table(client)
    for whole, source in ((target, one), (table, lines)):
        assert compose(client, whole, source, **producer(0)).status_code == 200
        assert compose(client, whole, source, **producer(0)).status_code == 204
        assert client.delete(below(client, source)).is_success
        repeated = compose(client, whole, source, **producer(0))
        assert (repeated.status_code, repeated.headers["producer-seq"]) == (204, "0")
        gone = compose(client, whole, source, **producer(1))
        assert problem(gone) == (404, "compose-source-not-found")
        assert source in detail(gone)
        assert problem(compose(client, whole, source, **producer(3))) == (409, "sequence-gap")
    assert content(client, target) == b"[1]"
    next_one, _ = made(client, JSON, b"[2]")
    assert compose(client, target, next_one, **producer(1)).status_code == 200
    assert compose(client, target, next_one, **producer(0, epoch=1)).status_code == 200
    assert problem(compose(client, target, next_one, **producer(2))) == (403, "stale-epoch")
    assert content(client, target) == b"[1,2,2]"


def test_a_repeated_compose_is_a_duplicate_whatever_its_sources_have_now(client: httpx.Client) -> None:
    def trim(source: str, tail: str) -> None:
        path = source.partition("/v1/stream/")[2]
        assert client.post("/v1/stream/__ds/trim", params={"path": path, "before": tail}).is_success

    def grow(source: str, _: str) -> None:
        for _number in range(2):
            text = f'"{"x" * (BODY_BYTES // 2)}"'
            assert client.post(below(client, source), headers=JSON, content=text).is_success

    def make_again(content_type: dict[str, str]) -> Callable[[str, str], None]:
        def again(source: str, _: str) -> None:
            assert client.delete(below(client, source)).is_success
            assert client.put(below(client, source), headers=content_type).is_success

        return again

    changes = ((trim, "empty-body"), (grow, "body-too-large"), (make_again(JSON), "empty-body"))
    for change, code in (*changes, (make_again(TEXT), "content-type")):
        source, offsets = made(client, JSON, b"[1]")
        target, _ = made(client, JSON)
        assert compose(client, target, source, **producer(0)).status_code == 200
        change(source, offsets[-1])
        assert compose(client, target, source, **producer(0)).status_code == 204, code
        assert problem(compose(client, target, source, **producer(1)))[1] == code
        assert content(client, target) == b"[1]"


def test_conditions_and_closing(client: httpx.Client) -> None:
    one, _ = made(client, JSON, b"[1]")
    target, offsets = made(client, JSON)
    closed = compose(client, target, one, stream_closed="true", if_match=f'"{offsets[0]}"')
    assert closed.headers["stream-closed"] == "true"
    assert problem(compose(client, target, one)) == (409, "stream-closed")
    moved, _ = made(client, JSON, b"[0]")
    assert problem(compose(client, moved, one, if_match=f'"{offsets[0]}"')) == (412, "tail-moved")
    client.delete(below(client, one))
    assert problem(compose(client, target, one)) == (409, "stream-closed")


def test_ranges_that_are_not_there(client: httpx.Client) -> None:
    target, _ = made(client, JSON)
    one, offsets = made(client, JSON, b"[1,2,3]", b"[4]")
    inside = f"{offsets[0][:-1]}2"
    ahead = f"{offsets[0][:-3]}999"
    for wrong in ({"offset": inside}, {"until": inside}, {"until": ahead}, {"until": "now"}, {"offset": "x"}):
        refused = compose(client, target, {"stream": one, **wrong})
        assert problem(refused) == (400, "invalid-offset"), wrong
        assert detail(refused).startswith(f"source 1 ({one})")
    assert problem(compose(client, target, {"stream": one, "offset": "now"})) == (400, "empty-body")
    name = below(client, one).removeprefix("/v1/stream/")
    assert client.post("/v1/stream/__ds/trim", params={"path": name, "before": offsets[1]}).is_success
    trimmed = compose(client, target, one, {"stream": one, "offset": offsets[0], "until": offsets[2]})
    assert problem(trimmed) == (410, "compose-source-gone")
    assert detail(trimmed).startswith(f"source 2 ({one}): ")
    assert client.delete(below(client, one)).is_success
    assert client.put(below(client, one), headers=JSON, content=b"[7]").is_success
    again = compose(client, target, {"stream": one, "offset": offsets[1], "until": offsets[2]})
    assert problem(again) == (410, "compose-source-gone")
    assert "a stream that was deleted" in detail(again)
    assert content(client, target) == b"[]"


def test_other_content_types(client: httpx.Client) -> None:
    text, _ = made(client, TEXT, b"[1]")
    one, _ = made(client, JSON, b"[1]")
    target, table = made(client, JSON)[0], made_table(client)
    for whole, source in ((target, text), (table, one)):
        refused = compose(client, whole, source)
        assert problem(refused) == (409, "content-type")
        assert detail(refused).startswith(f"source 1 ({source}) is ")
    for damaged in (b"no zstd", zstandard.ZstdCompressor().compress(b"[1]" * 1000)[:-3]):
        frames, _ = made(client, ZSTD, damaged)
        assert problem(compose(client, target, frames)) == (400, "invalid-compose")
    frames, _ = made(client, ZSTD, zstandard.ZstdCompressor().compress(b"no JSON"))
    assert problem(compose(client, target, frames)) == (400, "invalid-json")
    assert problem(compose(client, table, frames)) == (400, "invalid-change")
    assert problem(client.put("/v1/stream/compose/own", headers=COMPOSE)) == (400, "invalid-header")


def test_targets_that_take_no_appends(client: httpx.Client) -> None:
    one, _ = made(client, JSON, b"[1]")
    lines, _ = made(client, CHANGES, b"+\tk\tr\n")
    assert problem(compose(client, f"{one}-none", one)) == (404, "stream-not-found")
    assert problem(compose(client, one, one)) == (400, "invalid-compose")
    mirror = made_table(client, **{"stp-mirror": "true"})
    assert problem(compose(client, mirror, lines)) == (409, "conflict")
    source = made_table(client)
    view = f"/v1/stream/compose/{uuid.uuid4().hex}"
    made_view = client.put(view, headers={**JSON, "stream-view-of": source, "stream-view-type": "row"})
    assert made_view.status_code == 201, made_view.text
    assert problem(compose(client, view, one)) == (409, "read-only")


def test_forms_that_are_refused(client: httpx.Client) -> None:
    target, _ = made(client, JSON)
    for body, expected in (
        (b"", (400, "empty-body")),
        (b"{}", (400, "invalid-compose")),
        (b"[", (400, "invalid-compose")),
        (b'{"sources":[]}', (400, "invalid-compose")),
        (b'{"sources":[{"stream":"/v1/stream/a","from":"-1"}]}', (400, "invalid-compose")),
        (b'{"sources":[{"stream":"http://elsewhere/v1/stream/a"}]}', (400, "invalid-header")),
        (b'{"sources":[{"stream":"/v1/stream/__ds/jwks.json"}]}', (400, "invalid-header")),
        (b" " * (COMPOSE_FORM_BYTES_MAX + 1), (413, "body-too-large")),
    ):
        refused = client.post(below(client, target), headers=COMPOSE, content=body)
        assert problem(refused) == expected, body[:60]
    many = [{"stream": "a"}] * (COMPOSE_SOURCES_MAX + 1)
    assert problem(compose(client, target, *many)) == (400, "invalid-compose")


def test_the_data_is_as_large_as_a_body_at_most(client: httpx.Client) -> None:
    target, table = made(client, TEXT)[0], made_table(client)
    half, _ = made(client, TEXT, b"x" * (BODY_BYTES // 2))
    assert compose(client, target, half, half).status_code == 204
    assert problem(compose(client, target, half, half, half)) == (413, "body-too-large")
    bomb, _ = made(client, ZSTD, zstandard.ZstdCompressor().compress(bytes(1 << 30)))
    assert problem(compose(client, target, bomb)) == (413, "body-too-large")
    assert len(content(client, target)) == BODY_BYTES // 2 * 2
    lines = zstandard.ZstdCompressor().compress(b"-\t1\n" * (BODY_BYTES // 4))
    assert BODY_BYTES // 4 < CHANGES_MAX
    assert compose(client, table, made(client, ZSTD, lines)[0]).status_code == 204


def test_a_reader_sees_all_of_a_compose_or_nothing(client: httpx.Client) -> None:
    sources = [made(client, JSON, b"[%d]" % number, b"[%d]" % number)[0] for number in range(20)]
    target, _ = made(client, JSON)
    whole = [number // 2 for number in range(40)]
    for seq in range(10):
        assert compose(client, target, *sources, **producer(seq)).status_code == 200
        messages = json.loads(content(client, target))
        assert messages == whole * (seq + 1)
    with client.stream("GET", below(client, target), params={"offset": "-1", "live": "sse"}) as feed:
        events = [json.loads(line[5:]) for line in _data_lines(feed, 10)]
    assert [message for event in events for message in event] == whole * 10


def _data_lines(feed: httpx.Response, composes: int) -> Iterator[str]:
    """The data of events until all messages have arrived. Each event has whole composes."""
    count = 0
    kind = ""
    for line in feed.iter_lines():
        if line.startswith("event:"):
            kind = line[6:].strip()
        elif line.startswith("data:") and kind == "data":
            messages = json.loads(line[5:])
            assert len(messages) % 40 == 0
            count += len(messages)
            yield line
            if count == composes * 40:
                return


def test_a_head_says_that_the_server_composes(client: httpx.Client) -> None:
    one, _ = made(client, JSON)
    accepted = client.head(below(client, one)).headers["accept-post"]
    assert accepted == "application/json, application/vnd.headwater.compose+json"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Path]]:
    file = tmp_path_factory.mktemp("auth") / "auth.json"
    admin, _ = add_token(file, "admin", ["admin:**"], None)
    with edge(NATIVE, auth=file) as server, httpx.Client(base_url=root_of(NATIVE, server), timeout=LIMIT_S) as client:
        client.base_url = client.base_url.join("/")
        client.headers["authorization"] = f"Bearer {admin}"
        yield client, file


def test_the_caller_must_be_allowed_to_read_the_sources_and_append_to_the_target(
    guarded: tuple[httpx.Client, Path],
) -> None:
    client, file = guarded
    for name in ("in/a", "hidden/b", "out/c"):
        assert client.put(f"/v1/stream/{name}", headers=JSON, content=b"[1]").is_success
    token, _ = add_token(file, "composer", ["read:in/**", "append:out/**"], None)
    own = {"authorization": f"Bearer {token}"}

    def composed(target: str, *sources: str) -> httpx.Response:
        named = [{"stream": f"/v1/stream/{source}"} for source in sources]
        body = json.dumps({"sources": named})
        return client.post(f"/v1/stream/{target}", headers={**COMPOSE, **own}, content=body)

    wait_until(lambda: composed("out/c", "in/a").status_code != 401, "the server knows the token")
    assert composed("out/c", "in/a").status_code == 204
    assert composed("out/c", "in/a", "hidden/b").status_code == 403
    assert composed("out/c", "hidden/none").status_code == 403  # not even whether it exists
    assert composed("in/a", "in/a").status_code == 403
