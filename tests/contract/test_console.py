"""The page of the console and its files, over every edge: their headers, and that they are found at the mount point."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import httpx
import pytest

from headwater.console import load_files
from headwater.limits import Limits
from headwater.server.asgi import App
from tests.edges import EDGES_OF_SHARED, edge, root_of


@pytest.fixture(scope="module", params=EDGES_OF_SHARED)
def root(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with (
        edge(request.param) as server,
        httpx.Client(base_url=root_of(request.param, server).removesuffix("/v1/stream"), timeout=60) as client,
    ):
        yield client


def policy_of(answer: httpx.Response) -> dict[str, str]:
    return dict(
        part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";") if part
    )


def test_the_page_allows_nothing_but_its_own_files(root: httpx.Client) -> None:
    answer = root.get("/console")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = policy_of(answer)
    nonce = policy.pop("script-src")
    assert policy == {
        "default-src": "'none'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    own = f'nonce="{nonce[7:-1]}"'
    scripts = re.findall(r"<script[^>]*>", answer.text)
    assert scripts == [f'<script type="module" {own} src="console/{load_files().version}/app.js">']
    assert all(own in link for link in re.findall(r"<link rel=.modulepreload[^>]*>", answer.text))
    assert 'data-token="none"' in answer.text
    assert root.get("/console").headers["content-security-policy"] != answer.headers["content-security-policy"]
    for name, value in {
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "x-frame-options": "DENY",
    }.items():
        assert answer.headers[name] == value


@pytest.mark.parametrize("name", ["", "/{version}/app.js"])
def test_head_has_the_headers_of_get(root: httpx.Client, name: str) -> None:
    path = f"/console{name.format(version=load_files().version)}"
    head, get = root.head(path), root.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    assert head.headers["cache-control"] == get.headers["cache-control"]


def test_files_are_kept_by_browsers_for_ever(root: httpx.Client) -> None:
    """Their path changes with them."""
    known = load_files()
    assert {"app.js", "console.css"} <= {*known.files}
    page = root.get("/console").text
    for name, file in known.files.items():
        assert f'"console/{known.version}/{name}"' in page
        answer = root.get(f"/console/{known.version}/{name}")
        assert (answer.status_code, answer.content) == (200, file.body)
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["vary"].startswith("accept-encoding")
    for encoding in ("gzip", "br", "zstd"):
        encoded = root.get(f"/console/{known.version}/app.js", headers={"accept-encoding": encoding})
        assert encoded.headers["content-encoding"] == encoding
        assert encoded.content == known.files["app.js"].body
    assert root.get("/console/0123456789abcdef/app.js").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["index.html", "x/index.html", "x/__init__.py", "../console", "x/y/app.js", "app.js"])
def test_there_are_no_other_files(root: httpx.Client, path: str) -> None:
    answer = root.get(f"/console/{path.replace('..', '%2e%2e')}")
    assert answer.status_code == 404
    assert root.post("/console").status_code == 405


def test_a_slash_too_many(root: httpx.Client) -> None:
    answer = root.get("/console/")
    assert answer.status_code == 308
    assert answer.next_request is not None
    assert str(answer.next_request.url) == str(root.base_url).rstrip("/") + "/console"
    assert root.get("/console/", follow_redirects=True).status_code == 200


def test_the_index_names_it(root: httpx.Client) -> None:
    index = root.get("/").json()
    assert root.get(httpx.URL(root.base_url).join(index["console"])).status_code == 200
    assert index["token"] == "none"


def test_an_app_without_console() -> None:
    asyncio.run(_without_console())


async def _without_console() -> None:
    app = App(limits=Limits(), console=False)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        for path in ("/console", "/console/app.js", "/console/"):
            answer = await client.get(path)
            assert answer.status_code == 404
            assert "has no console" in answer.json()["detail"]
        assert (await client.get("/")).json()["console"] is None
    await app.stop()
