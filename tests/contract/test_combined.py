"""Many streams over one connection, over every edge."""

from __future__ import annotations

import base64
import contextlib
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest

from headwater.server.auth.editing import add_token, revoke_token
from tests.combined import CombinedEvents
from tests.edges import DURABLE, EDGES_OF_SHARED, NATIVE, TOGETHER, UVICORN, edge, root_of
from tests.metrics import COMBINED, metric
from tests.waiting import LIMIT_S, wait_for, wait_until

JSON = {"content-type": "application/json"}
TEXT = {"content-type": "text/plain"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
LIVE = "/__ds/live"


class Reader(CombinedEvents):
    """What one connection has received."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__()
        self.response = response
        self._chunks = response.iter_raw()

    def until(self, condition: Callable[[], object]) -> None:
        """Receive until a condition holds."""
        while not condition():
            self.receive(next(self._chunks))

    def to_the_end(self) -> None:
        with contextlib.suppress(StopIteration):
            self.until(lambda: False)


@contextlib.contextmanager
def subscribed(client: httpx.Client, name: str, last: str = "", **more: str) -> Iterator[Reader]:
    """A connection that follows the streams of a subscription."""
    headers = {"last-event-id": last} if last else {}
    with contextlib.ExitStack() as stack:

        def response_of_its_server() -> httpx.Response | None:
            request = client.stream("GET", LIVE, params={"subscription": name, **more}, headers=headers)
            response = stack.enter_context(request)
            if response.status_code != 200:
                response.read()
            return None if response.status_code == 503 else response  # another one of several servers has it

        yield Reader(wait_until(response_of_its_server))


@contextlib.contextmanager
def following(client: httpx.Client, *starts: str, last: str = "", post: bool = False, **more: str) -> Iterator[Reader]:
    query = urlencode([*(("stream", start) for start in starts), *more.items()])
    headers = {"last-event-id": last} if last else {}
    sent = client.stream("POST", LIVE, content=query, headers={**headers, **FORM}) if post else None
    with sent or client.stream("GET", f"{LIVE}?{query}", headers=headers) as response:
        if response.status_code != 200:
            response.read()
        yield Reader(response)


@pytest.fixture(scope="module", params=EDGES_OF_SHARED)
def client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    root = edge(request.param)
    with root as server, httpx.Client(base_url=root_of(request.param, server), timeout=LIMIT_S) as client:
        yield client


@pytest.fixture
def prefix() -> str:
    return f"c/{uuid.uuid4().hex}"


def create(client: httpx.Client, *paths: str, headers: dict[str, str] = JSON) -> None:
    for path in paths:
        assert client.put(f"/{path}", headers=headers).status_code == 201


def append(client: httpx.Client, path: str, *messages: object) -> str:
    answer = client.post(f"/{path}", headers=JSON, content=json.dumps(messages, ensure_ascii=False))
    assert answer.status_code == 204
    return answer.headers["stream-next-offset"]


def refusal(client: httpx.Client, *starts: str, last: str = "") -> tuple[int, dict[str, Any]]:
    with following(client, *starts, last=last) as reader:
        return reader.response.status_code, reader.response.json()


@pytest.mark.parametrize("post", [False, True], ids=["GET", "POST"])
def test_streams_catch_up_and_are_followed(client: httpx.Client, prefix: str, post: bool) -> None:
    a, b, c = f"{prefix}/a", f"{prefix}/b", f"{prefix}/c"
    create(client, a, b, c)
    middle = append(client, a, 1)
    append(client, a, 2, {"text": "line\nline"})
    append(client, b, "before")
    with following(client, f"{a}@{middle}", f"{b}@now", c, post=post) as reader:
        assert reader.response.headers["content-type"] == "text/event-stream"
        assert reader.response.headers["cache-control"] == "no-cache"
        assert reader.response.headers["x-accel-buffering"] == "no"
        reader.until(lambda: reader.is_up_to_date(a, b, c))
        assert reader.messages(a) == [2, {"text": "line\nline"}]
        for n in range(10):
            append(client, (a, b, c)[n % 3], n)
        reader.until(lambda: reader.messages(a)[-1:] == [9] and reader.messages(c)[-1:] == [8])
        assert (reader.messages(b), reader.messages(c)) == ([1, 4, 7], [2, 5, 8])
        assert reader.offset(b) == client.head(f"/{b}").headers["stream-next-offset"]
        assert reader.received.count(b"\nid:") == len(reader.events)


def test_every_content_type_arrives_as_it_was_appended(client: httpx.Client, prefix: str) -> None:
    text, blob = f"{prefix}/text", f"{prefix}/blob"
    create(client, text, headers=TEXT)
    create(client, blob, headers={"content-type": "image/png"})
    with following(client, text, blob) as reader:
        reader.until(lambda: reader.is_up_to_date(text, blob))
        pieces = [b'a\r\nb"\x00', "grün".encode()[:3], "grün".encode()[3:]]
        for piece in pieces:
            client.post(f"/{text}", headers=TEXT, content=piece)
            client.post(f"/{blob}", headers={"content-type": "image/png"}, content=piece)
        contents: dict[str, bytes] = {text: b"", blob: b""}

        def received() -> bool:
            for path in contents:
                events = [event for name, event in reader.events if name == "data" and event["stream"] == path]
                parts = [base64.b64decode(e["base64"]) if "base64" in e else e["text"].encode() for e in events]
                contents[path] = b"".join(parts)
            return all(part == b"".join(pieces) for part in contents.values())

        reader.until(received)


def test_a_large_message_and_small_ones_beside_it(client: httpx.Client, prefix: str) -> None:
    large, small = f"{prefix}/large", f"{prefix}/small"
    create(client, large, small)
    message = "ü" * 3_000_000
    append(client, large, message)
    with following(client, large, small) as reader:
        append(client, large, message)
        for n in range(20):
            append(client, small, n)
        reader.until(lambda: len(reader.messages(large)) == 2 and len(reader.messages(small)) == 20)
        assert reader.messages(large) == [message, message]
        assert reader.messages(small) == list(range(20))


def test_a_connection_resumes_by_the_last_event_id(client: httpx.Client, prefix: str) -> None:
    paths = [f"{prefix}/{n}" for n in range(10)]
    create(client, *paths)
    starts = [f"{path}@now" if n % 2 else path for n, path in enumerate(paths)]
    got: dict[str, list[int]] = {path: [] for path in paths}
    last, count = "", 0
    for turn in range(6):
        for path in paths[turn::2]:
            if turn:
                append(client, path, count)
                count += 1
        with following(client, *starts, last=last, post=turn == 3) as reader:
            if not turn:
                reader.until(lambda: reader.is_up_to_date(*paths))
            for path in paths[turn:]:
                append(client, path, count)
                count += 1
            # Leave in the middle of what there is.
            reader.until(lambda: reader.count > 3)
            for path in paths:
                got[path] += reader.messages(path)
            last = reader.last_id
    for path in paths:
        append(client, path, "last")
    with following(client, *starts, last=last) as reader:
        reader.until(lambda: all(reader.messages(path)[-1:] == ["last"] for path in paths))
        for path in paths:
            assert got[path] + reader.messages(path) == client.get(f"/{path}").json()


def test_closing_and_deletion_of_one_stream_leave_the_others(client: httpx.Client, prefix: str) -> None:
    a, b, c = f"{prefix}/a", f"{prefix}/b", f"{prefix}/c"
    create(client, a, b, c)
    with following(client, a, b, c) as reader:
        reader.until(lambda: reader.is_up_to_date(a, b, c))
        client.post(f"/{a}", headers={**JSON, "stream-closed": "true"}, content=b"[1]")
        client.delete(f"/{b}")
        append(client, c, 2)
        reader.until(lambda: reader.messages(c) and len(reader.controls(a)) == len(reader.controls(b)) == 2)
        assert (reader.messages(a), reader.controls(a)[-1]) == ([1], {"upToDate", "streamClosed"})
        assert reader.controls(b)[-1] == {"deleted"}
        last = reader.last_id
    create(client, b)  # another stream
    with following(client, a, b, c, last=last) as reader:
        append(client, c, 3)
        reader.until(lambda: reader.messages(c) == [3])
        assert {event["stream"] for _, event in reader.events} == {c}
        client.delete(f"/{c}")
        reader.to_the_end()
        last = reader.last_id
    with following(client, a, b, c, last=last) as reader:
        assert reader.response.status_code == 204


def test_forks_and_closed_streams_from_their_beginning(client: httpx.Client, prefix: str) -> None:
    source, fork = f"{prefix}/source", f"{prefix}/fork"
    create(client, source)
    append(client, source, 1)
    at = append(client, source, 2)
    append(client, source, 3)
    forked = {**JSON, "stream-forked-from": f"/v1/stream/{source}", "stream-fork-offset": at}
    assert client.put(f"/{fork}", headers=forked).status_code in (201, 400)
    forked["stream-forked-from"] = f"{client.base_url.path.rstrip('/')}/{source}"
    assert client.put(f"/{fork}", headers=forked).status_code in (200, 201)
    client.post(f"/{fork}", headers={**JSON, "stream-closed": "true"}, content=b'["own"]')
    client.post(f"/{source}", headers={**JSON, "stream-closed": "true"})
    with following(client, source, fork) as reader:
        reader.to_the_end()
        assert (reader.messages(source), reader.messages(fork)) == ([1, 2, 3], [1, 2, "own"])


def test_a_stream_that_cannot_be_read_is_named(client: httpx.Client, prefix: str) -> None:
    a, b = f"{prefix}/a", f"{prefix}/b"
    create(client, a, b)
    old = append(client, b, 1)
    status, document = refusal(client, a, f"{prefix}/none")
    assert (status, document["stream"], document["type"]) == (404, f"{prefix}/none", "urn:headwater:stream-not-found")
    assert f"{prefix}/none" in document["detail"]
    client.delete(f"/{b}")
    create(client, b)
    status, document = refusal(client, a, f"{b}@{old}")
    assert (status, document["stream"], document["type"]) == (410, b, "urn:headwater:offset-gone")
    tail = client.head(f"/{a}").headers["stream-next-offset"]
    status, document = refusal(client, f"{a}@{tail[:-1]}7", b)
    assert (status, document["stream"], document["type"]) == (400, a, "urn:headwater:invalid-offset")


@pytest.mark.parametrize(
    ("starts", "words"),
    [
        ((), "stream=PATH@OFFSET"),
        (("a", "a@now"), "'a' is in the list twice"),
        (("a@x",), "after the last @ of 'a@x'"),
        (("/a",), "empty segments"),
        (("\x01t",), "control character"),
        (tuple(f"s{n}" for n in range(501)), "at most 500 streams (combined_streams_max)"),
    ],
)
def test_a_wrong_list_is_refused(client: httpx.Client, starts: tuple[str, ...], words: str) -> None:
    status, document = refusal(client, *starts)
    assert status == 400
    assert words in document["detail"]


def test_a_wrong_id_is_refused(client: httpx.Client, prefix: str) -> None:
    a, b = f"{prefix}/a", f"{prefix}/b"
    create(client, a, b)
    with following(client, a, b) as reader:
        reader.until(lambda: reader.is_up_to_date(a, b))
    for starts in ((b, a), (a,), (f"{a}@now", b)):
        status, document = refusal(client, *starts, last=reader.last_id)
        assert (status, document["type"]) == (400, "urn:headwater:invalid-header")
        assert "another list of streams" in document["detail"]
    for wrong in ("x", reader.last_id[:-1], "AAAA" * 2_000, reader.offset(a)):
        assert refusal(client, a, b, last=wrong)[0] == 400


def test_a_form_is_checked(client: httpx.Client) -> None:
    assert client.post(LIVE, headers=JSON, content=b"[]").status_code == 415
    assert client.post(LIVE, headers=FORM, content="stream=ü".encode()).status_code == 400
    assert client.post(LIVE, headers=FORM, content=b"&" * (3 << 20)).status_code == 413


def test_methods_and_pages_of_other_origins(client: httpx.Client, prefix: str) -> None:
    assert client.head(LIVE).status_code == 405
    assert client.delete(LIVE).headers["allow"] == "GET, POST, OPTIONS"
    headers = {"access-control-request-method": "GET", "access-control-request-headers": "last-event-id"}
    own = str(client.base_url).split("/v1/")[0].rstrip("/")
    allowed = client.options(LIVE, headers={"origin": own, **headers}).headers
    assert "last-event-id" in allowed.get("access-control-allow-headers", "last-event-id")
    create(client, prefix)
    answer = client.post(LIVE, headers={**FORM, "origin": "https://evil.example"}, content=f"stream={prefix}")
    assert answer.status_code in (403, 200)


def test_five_hundred_streams_with_long_paths_and_offsets_fit_into_a_url(client: httpx.Client, prefix: str) -> None:
    paths = [f"{prefix}/a-longer-name/{n}" for n in range(500)]
    create(client, *paths)
    starts = [f"{path}@{append(client, path, n)}" for n, path in enumerate(paths)]
    with following(client, *starts) as reader:
        assert reader.response.status_code == 200
        reader.until(lambda: len(reader.events) == 500)
        for path in paths:
            append(client, path, "new")
        reader.until(lambda: reader.count == 500)
        last = reader.last_id
    assert len(last) < 8_000
    append(client, paths[7], "more")
    with following(client, *starts, last=last) as reader:
        reader.until(lambda: reader.messages(paths[7]))
        assert reader.messages(paths[7]) == ["more"]


def test_without_ids(client: httpx.Client, prefix: str) -> None:
    create(client, prefix)
    append(client, prefix, 1)
    with following(client, prefix, ids="false") as reader:
        reader.until(lambda: reader.messages(prefix) == [1])
        append(client, prefix, 2)
        reader.until(lambda: reader.messages(prefix) == [1, 2])
        assert b"id:" not in reader.received


# The streams of a subscription


def subscribe(client: httpx.Client, prefix: str, **config: object) -> str:
    """A subscription of workers that pull, with a wake stream."""
    name = prefix.replace("/", "-")
    client.put(f"/{prefix}/wake", headers=JSON)
    body = {"type": "pull-wake", "wake_stream": f"{prefix}/wake", **config}
    answer = client.put(f"/__ds/subscriptions/{name}", json=body)
    assert answer.status_code == 201, answer.text
    return name


def test_the_streams_of_a_subscription_are_followed_from_where_they_are_acked(
    client: httpx.Client, prefix: str
) -> None:
    old, new, named = f"{prefix}/events/old", f"{prefix}/events/new", f"{prefix}/named"
    create(client, old, named)
    append(client, old, "before")
    name = subscribe(client, prefix, pattern=f"{prefix}/events/*", streams=[named])
    with subscribed(client, name) as reader:
        reader.until(lambda: reader.is_up_to_date(old, named))
        assert reader.count == 0  # a subscription begins at the tails
        append(client, old, 1)
        append(client, named, 2)
        create(client, new)
        append(client, new, 3)  # joins while the connection is open
        create(client, f"{prefix}/other")
        append(client, f"{prefix}/other", "not of the subscription")
        append(client, new, 4)
        reader.until(lambda: reader.count == 4)
        assert (reader.messages(old), reader.messages(named), reader.messages(new)) == ([1], [2], [3, 4])
        last = reader.last_id
    append(client, new, 5)
    create(client, f"{prefix}/events/newer")
    append(client, f"{prefix}/events/newer", 6)
    with subscribed(client, name, last) as reader:
        reader.until(lambda: reader.count == 2)
        assert (reader.messages(new), reader.messages(f"{prefix}/events/newer")) == ([5], [6])
        client.delete(f"/{new}")
        reader.until(lambda: {"deleted"} in reader.controls(new))
        create(client, new)
        append(client, new, "again")  # another stream, which matches too
        reader.until(lambda: reader.messages(new) == [5, "again"])
        assert client.delete(f"/__ds/subscriptions/{name}/streams/{quote(named, safe='')}").is_success
        reader.until(lambda: {"removed"} in reader.controls(named))
        client.post(f"/{old}", headers={**JSON, "stream-closed": "true"})
        reader.until(lambda: {"upToDate", "streamClosed"} in reader.controls(old))
        last = reader.last_id
    with subscribed(client, name, last) as reader:
        append(client, new, "last")
        reader.until(lambda: reader.messages(new) == ["last"])
        assert {event["stream"] for _, event in reader.events} == {new}
        assert client.delete(f"/__ds/subscriptions/{name}").is_success
        reader.to_the_end()
    with subscribed(client, name) as reader:
        assert reader.response.status_code == 404
        assert reader.response.json()["type"] == "urn:headwater:subscription-not-found"


def test_a_connection_waits_for_the_first_stream_of_a_subscription(client: httpx.Client, prefix: str) -> None:
    name = subscribe(client, prefix, pattern=f"{prefix}/events/**")
    with subscribed(client, name, ids="false") as reader:
        create(client, f"{prefix}/events/a/b")
        append(client, f"{prefix}/events/a/b", 1)
        reader.until(lambda: reader.messages(f"{prefix}/events/a/b") == [1])


def close(client: httpx.Client, path: str) -> None:
    assert client.post(f"/{path}", headers={**JSON, "stream-closed": "true"}).is_success


def test_a_closed_stream_of_a_subscription_is_read_once(client: httpx.Client, prefix: str) -> None:
    """The list of streams is read a second time when the connection is open, for those that joined meanwhile."""
    name = subscribe(client, prefix, pattern=f"{prefix}/jobs/*")
    paths = [f"{prefix}/jobs/{number:03}" for number in range(200)]
    for path in paths:
        assert client.put(f"/{path}", headers={**JSON, "stream-closed": "true"}, content=b"[1]").status_code == 201
    last_path = f"{prefix}/jobs/open"
    create(client, last_path)
    with subscribed(client, name) as reader:
        reader.until(lambda: reader.count >= len(paths) and reader.is_up_to_date(last_path))
        append(client, last_path, "last")
        reader.until(lambda: reader.messages(last_path))
        assert [path for path in paths if reader.messages(path) != [1]] == []
        client.delete(f"/{paths[0]}")
        create(client, paths[0])
        append(client, paths[0], 2)  # another stream at the path
        reader.until(lambda: reader.messages(paths[0]) == [1, 2])


def test_a_closed_stream_that_is_acked_is_left_out(client: httpx.Client, prefix: str) -> None:
    name = subscribe(client, prefix, pattern=f"{prefix}/jobs/*")
    done, open_ = f"{prefix}/jobs/done", f"{prefix}/jobs/open"
    create(client, done, open_)
    tail = append(client, done, 1)
    close(client, done)
    with subscribed(client, name) as reader:
        reader.until(lambda: reader.controls(done) and reader.is_up_to_date(open_))
        last = reader.last_id
    wake = client.post(f"/__ds/subscriptions/{name}/claim", json={"worker": "w"}).json()
    ack = {"wake_id": wake["wake_id"], "generation": wake["generation"], "acks": [{"stream": done, "offset": tail}]}
    headers = {"authorization": f"Bearer {wake['token']}"}
    assert client.post(f"/__ds/subscriptions/{name}/ack", json=ack, headers=headers).status_code == 200
    for known in (last, ""):
        with subscribed(client, name, known) as reader:
            append(client, open_, 2)
            reader.until(lambda: 2 in reader.messages(open_))
            assert reader.controls(done) == []


def test_ids_do_not_grow_with_streams_that_are_gone(client: httpx.Client, prefix: str) -> None:
    name = subscribe(client, prefix, pattern=f"{prefix}/jobs/*")
    lengths, last = [], ""
    for number in range(4):
        path = f"{prefix}/jobs/{number}"
        create(client, path)
        append(client, path, number)
        with subscribed(client, name, last) as reader:
            reader.until(lambda: reader.messages(path))  # noqa: B023
            last = reader.last_id
        client.delete(f"/{path}")
        lengths.append(len(last))
    assert max(lengths) - min(lengths) <= 2, lengths


# Access and limits


@pytest.fixture(
    scope="module", params=[NATIVE, *(pytest.param(name, marks=pytest.mark.slow) for name in (UVICORN, TOGETHER))]
)
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[httpx.Client, Path]]:
    file = tmp_path_factory.mktemp("auth") / "auth.toml"
    admin, _ = add_token(file, "admin", ["admin:**"], None)
    with edge(request.param, file, sse_lifetime_s=600) as server:
        headers = {"authorization": f"Bearer {admin}"}
        with httpx.Client(base_url=root_of(request.param, server), headers=headers, timeout=LIMIT_S) as client:
            yield client, file


@contextlib.contextmanager
def known(client: httpx.Client, file: Path, name: str, *scopes: str) -> Iterator[httpx.Client]:
    """A client with a token of its own, once the server knows it, or both of two."""
    token, _ = add_token(file, name, list(scopes), None)
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=client.base_url, headers=headers, timeout=LIMIT_S) as own:
        wait_for(lambda: {own.get("/__ds/streams").status_code for _ in range(2)}, {200})
        yield own


def test_each_stream_needs_the_scope(guarded: tuple[httpx.Client, Path]) -> None:
    client, file = guarded
    create(client, "mine/a", "theirs/a")
    with known(client, file, "one", "read:mine/**") as own:
        status, document = refusal(own, "mine/a", "theirs/a")
        assert status == 403
        assert "read:theirs/a" in document["detail"]
        assert refusal(own, "mine/a", "theirs/none")[0] == 403  # whether it exists or not
        with following(own, "mine/a") as reader:
            reader.until(lambda: reader.is_up_to_date("mine/a"))
    anonymous = httpx.get(f"{client.base_url}{LIVE.lstrip('/')}?stream=mine/a")
    assert anonymous.status_code == 401


def test_a_stream_that_may_not_be_read_any_more_ends_and_a_revoked_token_ends_all(
    guarded: tuple[httpx.Client, Path],
) -> None:
    client, file = guarded
    create(client, "x/a", "x/b")
    with known(client, file, "two", "read:x/**") as own, following(own, "x/a", "x/b") as reader:
        reader.until(lambda: reader.is_up_to_date("x/a", "x/b"))
        text = file.read_text()
        file.write_text(text.replace("read:x/**", "read:x/a"))
        reader.until(lambda: {"forbidden"} in reader.controls("x/b"))
        append(client, "x/b", "secret")
        append(client, "x/a", 1)
        reader.until(lambda: reader.messages("x/a"))
        assert reader.messages("x/b") == []
        revoke_token(file, "two")
        reader.to_the_end()
        assert reader.controls("x/a") == [{"upToDate"}]
        wait_for(lambda: refusal(own, "x/a")[0], 401)


def test_a_subscription_needs_a_scope_of_its_own_and_each_stream_read(guarded: tuple[httpx.Client, Path]) -> None:
    client, file = guarded
    create(client, "s/events/a")
    name = subscribe(client, "s", pattern="s/events/*")
    with known(client, file, "reader", "read:s/**") as own, subscribed(own, name) as reader:
        assert reader.response.status_code == 403
    with known(client, file, "claimer", f"claim:__ds/subscriptions/{name}") as own, subscribed(own, name) as reader:
        assert (reader.response.status_code, reader.response.json()["stream"]) == (403, "s/events/a")
    scopes = (f"claim:__ds/subscriptions/{name}", "read:s/events/a")
    with known(client, file, "both", *scopes) as own, subscribed(own, name) as reader:
        reader.until(lambda: reader.is_up_to_date("s/events/a"))
        create(client, "s/events/secret")
        append(client, "s/events/secret", "secret")
        reader.until(lambda: {"forbidden"} in reader.controls("s/events/secret"))
        append(client, "s/events/secret", "secret")
        append(client, "s/events/a", 1)
        reader.until(lambda: reader.messages("s/events/a") == [1])
        assert reader.controls("s/events/secret") == [{"forbidden"}]
        assert reader.count == 1


def test_a_signed_url_is_for_one_stream(guarded: tuple[httpx.Client, Path]) -> None:
    client, _ = guarded
    create(client, "signed/a")
    sign = client.post("/__ds/sign", params={"url": f"{client.base_url.path}__ds/live?stream=signed/a"})
    assert (sign.status_code, sign.json()["type"]) == (400, "urn:headwater:invalid-header")
    assert "__ds" in sign.json()["detail"]
    anonymous = f"{str(client.base_url).rstrip('/')}{LIVE}?stream=signed/a&signed=1999999999.YQ.{'a' * 43}"
    refused = httpx.get(anonymous)
    assert refused.status_code == 401
    assert "sign" in refused.json()["detail"]


def test_each_stream_is_a_live_reader() -> None:
    limited = edge(DURABLE, live_readers_max=5, combined_streams_max=10, sse_lifetime_s=600)
    with limited as server, httpx.Client(base_url=server.url, timeout=LIMIT_S) as client:
        paths = [f"s{n}" for n in range(6)]
        create(client, *paths)
        status, document = refusal(client, *paths)
        assert status == 503
        assert "this connection needs 6 (live_readers_max)" in document["detail"]
        with following(client, *paths[:4]) as reader:
            reader.until(lambda: reader.is_up_to_date(*paths[:4]))
            assert metric(client, "headwater_live_readers", kind=COMBINED) == 4
            assert metric(client, "headwater_combined_connections") == 1
            assert refusal(client, *paths[:2])[0] == 503
            with following(client, paths[0]) as other:
                other.until(lambda: other.is_up_to_date(paths[0]))
        wait_for(lambda: metric(client, "headwater_live_readers", kind=COMBINED), 0.0)
        with following(client, *paths[:5]) as reader:
            assert reader.response.status_code == 200


def test_a_stream_that_leaves_a_subscription_gives_its_place_back() -> None:
    limited = edge(DURABLE, live_readers_max=3, sse_lifetime_s=600)
    with limited as server, httpx.Client(base_url=server.url, timeout=LIMIT_S) as client:
        name = subscribe(client, "places", pattern="jobs/*")
        with subscribed(client, name) as reader:
            for number in range(6):
                path = f"jobs/{number}"
                create(client, path)
                append(client, path, number)
                reader.until(lambda: reader.messages(path))  # noqa: B023
                close(client, path) if number % 2 else client.delete(f"/{path}")
                ends = ({"deleted"}, {"upToDate", "streamClosed"})
                reader.until(lambda: any(end in reader.controls(path) for end in ends))  # noqa: B023
            assert metric(client, "headwater_live_readers", kind=COMBINED) == 0
