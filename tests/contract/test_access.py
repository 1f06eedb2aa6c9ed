"""Who may do what: every route of the table with every kind of credential, over both edges.

The requests are made from the route table, so that a route that is added is tested without a word here, unless it names
a stream or table in a way of its own.
"""

from __future__ import annotations

import dataclasses
import re
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from headwater.limits import LIST_PAGE_MAX
from headwater.server.auth.editing import add_token, revoke_token
from headwater.server.auth.route_rules import WAKE, Rule, Subject
from headwater.server.auth.scopes import ON_PATHS, Action
from headwater.server.auth.tokens import new_token
from headwater.server.routes import CONTROL_ROOT, NURL_TEMPLATE, ROUTES, SUBSCRIPTION, TABLE_CONTROL_ROOT, Route
from tests.edges import NATIVE, TOGETHER, UVICORN, edge, root_of
from tests.metrics import LONG_POLL, SSE, value_in
from tests.metrics import TABLE as TABLE_READER
from tests.waiting import wait_for, wait_until

PATH = "a/b"
STREAM, TABLE, NURL = f"/v1/stream/{PATH}", f"/v1/table/{PATH}", f"/v1/table/{PATH}/notify"
FORM = {"content-type": "application/x-www-form-urlencoded"}
JSON = {"content-type": "application/json"}
ROWS = {"content-type": "text/sequence; schema=x"}
# `test_subscription_access.py` has the routes of subscriptions, which have scopes and tokens of their own.
MATRIX = [route for route in ROUTES if not route.template.startswith(SUBSCRIPTION)]
IDS = [f"{route.method} {route.template}" for route in MATRIX]


@dataclasses.dataclass(frozen=True)
class World:
    """A server with access control, and its auth file."""

    http: httpx.Client
    file: Path
    tokens: dict[str, str]

    def token(self, *scopes: str, expires_s: float | None = None) -> str:
        """A token that the server knows."""
        key = " ".join(scopes)
        if expires_s is not None or key not in self.tokens:
            expires = None if expires_s is None else datetime.now(UTC) + timedelta(seconds=expires_s)
            token, entry = add_token(self.file, f"t{uuid.uuid4().hex[:8]}", list(scopes), expires)
            self.tokens[key], self.tokens[token] = token, entry.name
            self.wait_for(token)
            return token
        return self.tokens[key]

    def wait_for(self, token: str, *, known: bool = True) -> None:
        """Wait until the server has read the file, or both of two."""
        url = f"{CONTROL_ROOT}streams"
        wait_for(lambda: {self.send("GET", url, token).status_code != 401 for _ in range(2)}, {known})

    def wait_for_readers(self, kind: str, count: int) -> None:
        """Wait until so many live readers wait for data."""

        def readers() -> float:
            return value_in(self.send("GET", "/metrics", self.admin).text, "headwater_live_readers", kind=kind)

        wait_until(lambda: readers() >= count, f"{count} readers of kind {kind}")

    def revoke(self, token: str) -> None:
        revoke_token(self.file, self.tokens[token])

    def send(self, method: str, path: str, token: str | None = None, **more: object) -> httpx.Response:
        headers = dict(more.pop("headers", {}))  # type: ignore[call-overload]
        if token is not None:
            headers["authorization"] = f"Bearer {token}".strip()
        return self.http.request(method, path, headers=headers, **more)  # type: ignore[arg-type]

    @property
    def admin(self) -> str:
        return self.tokens["admin:**"]


@pytest.fixture(scope="module", params=[NATIVE, UVICORN, pytest.param(TOGETHER, marks=pytest.mark.slow)])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    file = tmp_path_factory.mktemp("auth") / "auth.toml"
    tokens = {}
    for action in Action:  # all at once: the server has to read the file only once for the matrix
        for glob in globs_of(action):
            tokens[f"{action}:{glob}"], _ = add_token(file, None, [f"{action}:{glob}"], None)
    tokens["expired"], _ = add_token(file, None, ["admin:**"], datetime.now(UTC) - timedelta(seconds=1))
    with edge(request.param, file, long_poll_s=600, sse_lifetime_s=600) as server:
        base = root_of(request.param, server).removesuffix("/v1/stream")
        with httpx.Client(base_url=base, timeout=60) as http:
            yield World(http, file, tokens)


def prepare(world: World) -> None:
    """Create the stream and the table for every request of the matrix."""
    assert world.send("PUT", STREAM, world.admin, headers=JSON).is_success
    assert world.send("PUT", TABLE, world.admin, headers=ROWS).is_success
    advertised = {"nurl": "https://nurl.invalid/nurl"}
    assert world.send("POST", NURL, world.admin, data=advertised).is_success


def sent(world: World, route: Route, token: str | None) -> httpx.Response:
    """A request to a route that succeeds if it is allowed."""
    path = route.template.replace("{path}", "x/app.js" if route.template.startswith("/console/") else PATH)
    if route.action.subject is Subject.NAMED:
        name = {f"{CONTROL_ROOT}sign": f"url={STREAM}"}.get(route.template, f"path={PATH}&parts=1")
        if route.template in [f"{CONTROL_ROOT}{api}" for api in ("records", "details", "forks")]:
            name = f"path={PATH}"
        elif route.template == f"{CONTROL_ROOT}trim":
            name = f"path={PATH}&before=now"
        elif route.template in (f"{TABLE_CONTROL_ROOT}nurls", f"{TABLE_CONTROL_ROOT}details"):
            name = f"name={PATH}"
        path += f"?{name}"
    content, headers = b"", JSON
    if route.template == NURL_TEMPLATE:
        headers = FORM
        queries = {"GET": "?timeout=0", "DELETE": f"?nurl={quote('https://nurl.invalid/nurl', safe='')}"}
        path += queries.get(route.method, "")
    elif route.method == "PATCH":
        headers = {"stream-retain-seconds": "90"}
    elif route.template.endswith(("/trim", "/compact")) and path.startswith(TABLE):
        headers = {}
        path += "?before=1" if route.template.endswith("/trim") else ""
    elif path.startswith(TABLE):
        headers = ROWS if route.method == "PUT" else {"content-type": "text/sequence"}
        content = b"+\tk\tv\n" if route.method == "POST" else b""
        path += "?timeout=0" if route.method == "GET" else ""
    elif route.method == "POST" and path == STREAM:
        content = b"[1]"
    if route.action.subject is Subject.MANY:
        return opened(world, route.method, path, token)
    return world.send(route.method, path, token, content=content, headers=headers)


def opened(world: World, method: str, path: str, token: str | None) -> httpx.Response:
    """The head of a response that stays open, and the body of a refusal."""
    headers = {} if token is None else {"authorization": f"Bearer {token}".strip()}
    query = f"stream={PATH}@now"
    url, data = (path, query) if method == "POST" else (f"{path}?{query}", "")
    with world.http.stream(method, url, headers={**headers, **FORM}, content=data) as answer:
        if not answer.is_success:
            answer.read()
    return answer


def globs_of(action: Action) -> tuple[str, ...]:
    """Globs that scopes of an action can have."""
    return ("**", PATH, "elsewhere/**") if action in ON_PATHS else ("**",)


def is_allowed(rule: Rule, action: Action, glob: str) -> bool:
    """The rule of the route table, implemented a second time."""
    if rule.action is None or rule.subject is Subject.LIST:
        return True
    if rule.subject in (Subject.SERVER, Subject.METRICS):
        return action in (rule.action, Action.ADMIN) and glob == "**"
    return action in (rule.action, Action.ADMIN) and glob in ("**", PATH)


@pytest.mark.parametrize("route", MATRIX, ids=IDS)
def test_a_route_refuses_requests_without_a_valid_token(world: World, route: Route) -> None:
    prepare(world)
    bad = {
        "none": None,
        "wrong": new_token(),
        "expired": world.tokens["expired"],
        "jwt": "eyJhbGciOiJub25lIn0.eyJpc3MiOiJ4In0.",
        "empty": "",
    }
    for kind, token in bad.items():
        answer = sent(world, route, token)
        if route.action.action is None:
            assert answer.is_success, kind
            continue
        assert answer.status_code == 401, kind
        assert answer.headers["www-authenticate"].startswith("Bearer"), kind
        assert answer.headers["cache-control"].startswith("private"), kind
        assert not token or token not in answer.text, kind
    if route.action.action is not None:
        raw = world.http.request(
            route.method, route.template.replace("{path}", PATH), headers={"authorization": "Basic YTpi"}
        )
        assert raw.status_code == 401


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("route", MATRIX, ids=IDS)
def test_a_route_accepts_tokens_with_the_required_scope_only(world: World, route: Route, action: Action) -> None:
    for glob in globs_of(action):
        if is_allowed(route.action, action, glob):
            prepare(world)
            answer = sent(world, route, world.tokens[f"{action}:{glob}"])
            assert answer.is_success, (glob, answer.text)
        else:
            answer = sent(world, route, world.tokens[f"{action}:{glob}"])
            assert answer.status_code == 403, (glob, answer.text)
            if route.method != "HEAD":
                assert f"lacks the scope {route.action.action}:" in answer.json()["detail"]


def test_a_route_without_a_rule_is_an_error() -> None:
    with pytest.raises(TypeError):
        Route("GET", "/v1/new")  # type: ignore[call-arg]
    assert all(isinstance(route.action, Rule) for route in ROUTES)
    writing = [route for route in ROUTES if route.method not in ("GET", "HEAD") and route.action is not WAKE]
    assert all(route.action.action is not None for route in writing)


def test_the_open_routes_are_few() -> None:
    """A route without access control must be listed here."""
    open_routes = {route.template for route in ROUTES if route.action.action is None and route.action is not WAKE}
    public = {"/", "/healthz", "/readyz", "/console", "/console/{path}", f"{CONTROL_ROOT}jwks.json"}
    assert open_routes <= public
    assert {route.template.rpartition("/")[2] for route in ROUTES if route.action is WAKE} == {
        "callback",
        "ack",
        "release",
    }


# What is not decided by the route alone


def _told(response: httpx.Response) -> str:
    """The body of a response without its request id."""
    return re.sub('"request_id":"[0-9a-f]+"', "", response.text)


def test_a_forbidden_path_gets_the_same_response_whether_it_exists_or_not(world: World) -> None:
    prepare(world)
    token = world.tokens["read:elsewhere/**"]
    for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
        for path in (STREAM, TABLE):
            there = world.send(method, path, token)
            missing = world.send(method, path[:-1] + "c", token)
            assert there.status_code == missing.status_code == 403
            assert _told(there).replace("a/b", "a/c") == _told(missing)
    for api in ("splits?parts=1&", "records?"):
        assert world.send("GET", f"{CONTROL_ROOT}{api}path={PATH}", token).status_code == 403
        assert world.send("GET", f"{CONTROL_ROOT}{api}path=a/c", token).status_code == 403
    assert world.send("GET", f"/v1/stream/{PATH.replace('a', '%61')}", token).status_code == 403


def test_a_list_has_readable_streams_only_on_full_pages(world: World) -> None:
    below = f"l{uuid.uuid4().hex[:6]}"
    for number in range(12):
        for kind in ("mine", "other"):
            name = f"{below}/{kind}-{number:02}"
            assert world.send("PUT", f"/v1/stream/{name}", world.admin, headers=JSON).is_success
            assert world.send("PUT", f"/v1/table/{name}", world.admin, headers=ROWS).is_success
    token = world.token(f"read:{below}/mine-*", f"read:{below}/mine-0*", "append:**")
    for root, key in ((f"{CONTROL_ROOT}streams", "path"), (f"{TABLE_CONTROL_ROOT}tables", "name")):
        after: str | None = ""
        pages = []
        while after is not None:
            page = world.send("GET", f"{root}?limit=5&after={quote(after)}&prefix={below}", token).json()
            pages.append([item[key] for item in next(iter(page.values()))])
            after = page["next_after"]
            assert after is None or "mine" in after
        assert [len(page) for page in pages] == [5, 5, 2]
        assert [name for page in pages for name in page] == [f"{below}/mine-{number:02}" for number in range(12)]
        everything = world.send("GET", f"{root}?limit={LIST_PAGE_MAX}&prefix={below}", world.admin).json()
        assert len(next(iter(everything.values()))) == 24


def test_a_fork_and_a_view_need_read_on_their_source(world: World) -> None:
    prepare(world)
    blind = world.tokens["create:**"]
    seeing = world.token("create:**", f"read:{PATH}")
    new = uuid.uuid4().hex
    requests = [
        (f"/v1/stream/{new}", {"stream-forked-from": STREAM}),
        (f"/v1/table/{new}", {"stream-forked-from": TABLE}),
        (f"/v1/table/v{new}", {"stp-view-of": STREAM, "stp-view-type": "x"}),
        (f"/v1/stream/v{new}", {"stream-view-of": TABLE, "stream-view-type": "x"}),
    ]
    for path, headers in requests:
        refused = world.send("PUT", path, blind, headers=headers)
        assert refused.status_code == 403, path
        assert f"read:{PATH}" in refused.json()["detail"]
        assert world.send("PUT", path, seeing, headers=headers).is_success, path
    views = world.send("GET", f"{TABLE_CONTROL_ROOT}views", seeing).json()["views"]
    assert views == []  # it may read the sources only
    assert len(world.send("GET", f"{TABLE_CONTROL_ROOT}views", world.admin).json()["views"]) >= 2


def test_advertising_a_nurl_needs_the_subscribe_scope(world: World) -> None:
    prepare(world)
    form = {"nurl": "https://nurl.invalid/other"}
    assert world.send("POST", NURL, world.tokens["notify:**"], data=form).status_code == 403
    both = world.token(f"notify:{PATH}", f"subscribe:{PATH}")
    assert world.send("POST", NURL, both, data=form).is_success


def test_a_server_with_tokens_does_not_call_its_own_machine(world: World) -> None:
    prepare(world)
    for host in ("127.0.0.1", "localhost", "[::1]", "x.localhost", "10.0.0.1", "169.254.169.254"):
        for scheme in ("http", "https"):
            refused = world.send("POST", NURL, world.admin, data={"nurl": f"{scheme}://{host}:65001/"})
            assert (refused.status_code, refused.json()["type"]) == (403, "urn:headwater:target-refused"), host


# Answers


def test_responses_are_private_and_vary_by_token(world: World) -> None:
    prepare(world)
    assert world.send("POST", STREAM, world.admin, content=b"[1,2]", headers=JSON).is_success
    for path in (STREAM, f"{STREAM}?offset=-1&live=long-poll", f"{TABLE}?timeout=0", f"{CONTROL_ROOT}streams"):
        answer = world.send("GET", path, world.admin)
        assert answer.is_success
        caching = [part.strip() for part in answer.headers["cache-control"].split(",")]
        assert "private" in caching
        assert "public" not in caching
        assert "authorization" in answer.headers["vary"]
        assert answer.headers["referrer-policy"] == "no-referrer"
    tag = world.send("GET", STREAM, world.admin).headers["etag"]
    assert world.send("GET", STREAM, world.admin, headers={"if-none-match": tag}).status_code == 304
    assert world.send("GET", STREAM, headers={"if-none-match": tag}).status_code == 401


@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_an_allowed_page_can_read_why_it_is_refused(world: World, method: str) -> None:
    origin = {"origin": "https://app.example", **JSON}
    answers = [
        (world.send(method, STREAM, headers=origin), 401),
        (world.send(method, STREAM, world.tokens["delete:**"], headers=origin), 403),
    ]
    for answer, status in answers:
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
    preflight = world.http.options(STREAM, headers={**origin, "access-control-request-headers": "authorization"})
    assert preflight.status_code == 204
    assert "authorization" in preflight.headers["access-control-allow-headers"]


# Signed URLs


def signed(world: World, token: str, path: str = STREAM, seconds: int = 60, action: str = "read") -> str:
    answer = world.send("POST", f"{CONTROL_ROOT}sign?url={quote(path)}&expires={seconds}&action={action}", token)
    assert answer.status_code == 200, answer.text
    return httpx.URL(answer.json()["url"]).raw_path.decode()


def test_a_signed_url_reads_one_path_with_any_offset_and_nothing_else(world: World) -> None:
    prepare(world)
    url = signed(world, world.tokens[f"read:{PATH}"])
    query = url.partition("?")[2]
    offset = world.send("GET", url).headers["stream-next-offset"]
    world.send("POST", STREAM, world.admin, content=b"[1]", headers=JSON)
    assert world.send("GET", f"{url}&offset={offset}&live=long-poll").status_code == 200
    assert world.send("GET", f"{STREAM}?offset=-1&{query}&until={offset}").status_code == 200
    assert world.send("HEAD", url).status_code == 200
    assert world.send("GET", f"{STREAM.replace('a/b', '%61/b')}?{query}").status_code == 200  # the same path
    for method, path in (
        ("POST", STREAM),
        ("PUT", STREAM),
        ("DELETE", STREAM),
        ("GET", f"{STREAM}2"),
        ("GET", TABLE),
        ("GET", f"{CONTROL_ROOT}streams"),
        ("POST", f"{CONTROL_ROOT}sign"),
    ):
        assert world.send(method, f"{path}?{query}", headers=JSON).status_code == 401, (method, path)
    with_query = signed(world, world.tokens[f"read:{PATH}"], f"{STREAM}?offset=now&live=false")
    assert world.send("GET", with_query).headers["stream-up-to-date"] == "true"
    until, signer, mac = query.removeprefix("signed=").split(".")
    later = str(int(until) + 60)
    other = "A" + mac[1:] if mac[0] != "A" else "B" + mac[1:]
    for forged in (
        f"{later}.{signer}.{mac}",
        f"{until}.{signer}.{other}",
        f"{until}.{signer[:-1]}.{mac}",
        "",
        "x",
        mac,
    ):
        assert world.send("GET", f"{STREAM}?signed={forged}").status_code == 401, forged
    assert world.send("GET", f"{url}&{query}").status_code == 401  # twice
    table = signed(world, world.tokens[f"read:{PATH}"], TABLE)
    assert world.send("GET", f"{table}&timeout=0").status_code == 200


def test_a_signature_needs_the_read_scope(world: World) -> None:
    prepare(world)
    for scope in ("read:elsewhere/**", "append:**", "create:**"):
        response = world.send("POST", f"{CONTROL_ROOT}sign?url={STREAM}", world.tokens[scope])
        assert response.status_code == 403
    token = world.token(f"read:{PATH}", "read:x", expires_s=30)
    until_s = int(signed(world, token, seconds=86_400).partition("signed=")[2].partition(".")[0])
    assert until_s <= time.time() + 30


def test_a_signed_url_ends_with_its_time_and_with_its_signer(world: World) -> None:
    prepare(world)
    token = world.token(f"read:{PATH}", "read:y")
    short, long = signed(world, token, seconds=1), signed(world, token)
    wait_for(lambda: world.send("GET", short).status_code, 401)
    assert world.send("GET", long).status_code == 200
    world.revoke(token)
    world.wait_for(token, known=False)
    assert world.send("GET", long).status_code == 401


def test_a_url_signed_for_appends_appends_to_one_path_and_does_nothing_else(world: World) -> None:
    prepare(world)
    query = signed(world, world.tokens[f"append:{PATH}"], action="append").partition("?")[2]
    before = world.send("HEAD", STREAM, world.admin).headers["stream-next-offset"]
    assert world.send("POST", f"{STREAM}?{query}", content=b"[1]", headers=JSON).status_code == 204
    after = world.send("HEAD", STREAM, world.admin).headers["stream-next-offset"]
    assert after > before
    for method, path, more in (
        ("GET", STREAM, {}),
        ("HEAD", STREAM, {}),
        ("PUT", STREAM, {}),
        ("PUT", f"{STREAM}/new", {}),
        ("DELETE", STREAM, {}),
        ("POST", f"{STREAM}2", {}),
        ("POST", TABLE, {}),
        ("POST", NURL, FORM),
        ("GET", f"{CONTROL_ROOT}streams", {}),
        ("POST", f"{CONTROL_ROOT}sign", {}),
    ):
        refused = world.send(method, f"{path}?{query}", content=b"[2]", headers={**JSON, **more})
        assert refused.status_code == 401, (method, path)
    for value in ("true", "TRUE", "false"):
        for content in (b"", b"[3]"):
            closing = {**JSON, "stream-closed": value}
            refused = world.send("POST", f"{STREAM}?{query}", content=content, headers=closing)
            assert refused.status_code == 403, refused.text
    reading = signed(world, world.tokens[f"read:{PATH}"])
    assert world.send("POST", reading, content=b"[4]", headers=JSON).status_code == 401
    value = query.removeprefix("signed=")
    for forged in (value.removeprefix("append."), f"append.{reading.partition('signed=')[2]}", f"append.{value}"):
        for method in ("GET", "POST"):
            refused = world.send(method, f"{STREAM}?signed={forged}", content=b"[5]", headers=JSON)
            assert refused.status_code == 401, forged
    head = world.send("HEAD", STREAM, world.admin)
    assert (head.headers["stream-next-offset"], head.headers.get("stream-closed")) == (after, None)
    table = signed(world, world.tokens[f"append:{PATH}"], TABLE, action="append")
    assert world.send("POST", table, content=b"+\tk\tv\n", headers=ROWS).status_code in (200, 204)


def test_a_signature_for_appends_needs_the_append_scope(world: World) -> None:
    prepare(world)
    for scope in (f"read:{PATH}", "read:**", "create:**", "append:elsewhere/**"):
        token = world.token(scope)
        response = world.send("POST", f"{CONTROL_ROOT}sign?url={STREAM}&action=append", token)
        assert response.status_code == 403, scope
    for action in ("create", "delete", "admin", "", "close"):
        response = world.send("POST", f"{CONTROL_ROOT}sign?url={STREAM}&action={action}", world.admin)
        assert response.status_code == 400, action
    token = world.token(f"append:{PATH}", "read:soon", expires_s=30)
    until_s = int(
        signed(world, token, seconds=86_400, action="append").partition("signed=append.")[2].partition(".")[0]
    )
    assert until_s <= time.time() + 30


def test_a_url_signed_for_appends_ends_with_its_time_and_with_its_signer(world: World) -> None:
    prepare(world)
    token = world.token(f"append:{PATH}", "read:z")
    short, long = (signed(world, token, seconds=seconds, action="append") for seconds in (1, 60))
    wait_for(lambda: world.send("POST", short, content=b"[1]", headers=JSON).status_code, 401)
    assert world.send("POST", long, content=b"[1]", headers=JSON).status_code == 204
    world.revoke(token)
    world.wait_for(token, known=False)
    assert world.send("POST", long, content=b"[1]", headers=JSON).status_code == 401


# Live reads, which would last ten minutes

LIVE = [f"{STREAM}?offset=now&live=sse", f"{TABLE}?since_id=0&timeout=300&idle=300", f"{TABLE}?live=sse&timeout=300"]
EXPIRES_S = 5  # enough for readers to begin on a busy machine


@pytest.mark.usefixtures("one_server")  # which counts all readers
@pytest.mark.parametrize("how", ["expires", "revoked", "signed"])
def test_live_reads_end_when_their_token_does(world: World, how: str) -> None:
    prepare(world)
    token = world.token(f"read:{PATH}", f"read:{how}", expires_s=EXPIRES_S if how == "expires" else 600)
    urls = (
        LIVE
        if how != "signed"
        else [f"{signed(world, token, url.partition('?')[0])}&{url.partition('?')[2]}" for url in LIVE]
    )
    ended: list[str] = []

    def read(url: str) -> None:
        with httpx.Client(base_url=world.http.base_url, timeout=60) as http:
            headers = {} if how == "signed" else {"authorization": f"Bearer {token}"}
            with http.stream("GET", url, headers=headers) as answer:
                assert answer.status_code == 200
                for _ in answer.iter_bytes():
                    pass
        ended.append(url)

    with ThreadPoolExecutor(len(urls)) as pool:
        reading = [pool.submit(read, url) for url in urls]
        world.wait_for_readers(SSE, 1)
        world.wait_for_readers(TABLE_READER, 2)
        if how != "expires":
            assert not ended
            world.revoke(token)
        for reader in reading:
            reader.result()
    assert world.send("GET", f"{CONTROL_ROOT}streams", token).status_code == 401  # the reads did not end before it


def test_a_long_poll_ends_with_its_token_and_returns_no_data(world: World) -> None:
    prepare(world)
    token = world.token(f"read:{PATH}", "read:long-poll", expires_s=EXPIRES_S)
    for _ in range(2):
        assert world.send("GET", f"{STREAM}?offset=now&live=long-poll", token).status_code == 401


def test_a_long_poll_returns_no_data_to_a_revoked_token_however_its_query_is_encoded(world: World) -> None:
    prepare(world)
    token = world.token(f"read:{PATH}", "read:spelled")

    def poll() -> httpx.Response:
        with httpx.Client(base_url=world.http.base_url, timeout=60) as http:
            url = f"{STREAM}?offset=now&l%69ve=long-poll"
            return http.get(url, headers={"authorization": f"Bearer {token}"})

    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(poll)
        world.wait_for_readers(LONG_POLL, 1)
        world.revoke(token)
        world.wait_for(token, known=False)
        world.send("POST", STREAM, world.admin, content=b"[1]", headers=JSON)
        assert polling.result().status_code == 401


# The file


def test_an_invalid_auth_file_changes_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "auth.toml"
    token, _ = add_token(file, "first", ["read:**"], None)
    with edge(NATIVE, file) as server, httpx.Client(base_url=server.url.removesuffix("/v1/stream"), timeout=60) as http:
        world = World(http, file, {})
        good, logged = file.read_text(), ""
        file.write_text(good + "\n[[token]]\nname = 'x'\n")

        def is_refused() -> bool:
            nonlocal logged
            logged += capfd.readouterr().err
            return "the previous content stays in use" in logged

        wait_until(is_refused)
        assert world.send("GET", f"{CONTROL_ROOT}streams", token).status_code == 200
        file.write_text(good)
        later = world.token("read:later")
        assert world.send("GET", f"{CONTROL_ROOT}streams", later).status_code == 200


def test_the_state_of_a_stream_tells_nothing_about_a_table(world: World) -> None:
    name = f"states/{uuid.uuid4().hex}"
    assert world.send("PUT", f"/v1/table/{name}", world.admin, headers=ROWS).is_success
    url = f"{CONTROL_ROOT}state?path={name}"
    assert world.send("GET", url, world.token(f"read:{name}")).status_code == 409  # it may read both
    assert world.send("GET", url, world.token("read:elsewhere")).status_code == 403
    event = '{"type":"t","key":"k","value":"secret","headers":{"operation":"insert"}}'
    for path in (name, f"{name}-other"):
        world.send("PUT", f"/v1/stream/{path}", world.admin, headers=JSON, content=event)
    for query in ("", "&type=t&key=k", "&at=-1", "&at=now&after=dAA"):
        assert world.send("GET", f"{CONTROL_ROOT}state?path={name}{query}", world.token(f"read:{name}")).is_success
        refused = world.send("GET", f"{CONTROL_ROOT}state?path={name}-other{query}", world.token(f"read:{name}"))
        assert (refused.status_code, "secret" in refused.text) == (403, False)
        refused = world.send(
            "GET", f"{CONTROL_ROOT}state?path={name}&path={name}-other{query}", world.token(f"read:{name}")
        )
        assert "secret" not in refused.text
