"""A real browser: a plain EventSource across reconnections and restarts, and what pages of other origins can do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from bench.servers import Server, headwater

from tests.browser.pages import Browser, browser, website
from tests.edges import free_port
from tests.waiting import wait_until

JSON = {"content-type": "application/json"}
TEXT = {"content-type": "text/plain"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as program:
        yield program


@pytest.fixture(scope="module")
def web() -> Iterator[int]:
    with website() as port:
        yield port


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


def test_an_event_source_sees_each_message_once(chromium: Browser, web: int, name: str, tmp_path: Path) -> None:
    """Feeds end after a second, the server is stopped once and killed once."""
    port = free_port()
    options = ("--port", str(port), "--data-dir", str(tmp_path / "data"), "--limit", "sse_lifetime_s=1")
    url = f"http://127.0.0.1:{port}/v1/stream/{name}"
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            assert httpx.post(url, headers=JSON, content=json.dumps({"n": sent}).encode()).status_code == 204
            sent += 1

    def seen() -> list[int]:
        seen_numbers: list[int] = chromium.run(name, "window.seen")
        return seen_numbers

    with headwater(*options) as server:
        httpx.put(url, headers=JSON)
        send(5)
        chromium.open(name, f"http://localhost:{web}/")
        chromium.run(
            name,
            f"""(() => {{
                window.seen = []; window.opened = 0;
                const source = window.source = new EventSource("{url}?offset=-1&live=sse");
                source.onopen = () => window.opened++;
                source.addEventListener("data", e => window.seen.push(...JSON.parse(e.data).map(m => m.n)));
                source.addEventListener("control", e => {{ window.control = JSON.parse(e.data); }});
            }})()""",
        )
        wait_until(lambda: len(seen()) == sent)
        for _ in range(4):  # a feed ends while messages come in, and they come in while there is none
            before = chromium.run(name, "window.opened")
            send(5)
            wait_until(lambda before=before: chromium.run(name, "window.opened") > before)  # type: ignore[misc]
        wait_until(lambda: len(seen()) == sent)
        assert chromium.run(name, "window.opened") >= 2
    with headwater(*options) as server:
        send(5)
        wait_until(lambda: len(seen()) == sent)
        send(5)
        os.kill(server.pid, signal.SIGKILL)
    with headwater(*options):
        send(5)
        wait_until(lambda: len(seen()) == sent)
        assert seen() == list(range(sent))
        httpx.delete(url)
        wait_until(lambda: bool(chromium.run(name, "window.control.streamDeleted === true")))
        wait_until(lambda: bool(chromium.run(name, "window.source.readyState === EventSource.CLOSED")))
    assert seen() == list(range(sent))


def test_an_event_source_stops_at_the_end_of_a_closed_stream(chromium: Browser, web: int, name: str) -> None:
    with headwater("--memory") as server:
        url = f"{server.url}/{name}"
        httpx.put(url, headers={**JSON, "stream-closed": "true"}, content=b"[1,2]")
        chromium.open(name, f"http://localhost:{web}/")
        chromium.run(
            name,
            f"""(() => {{
                window.seen = [];
                window.source = new EventSource("{url}?offset=-1&live=sse");
                window.source.addEventListener("data", e => window.seen.push(...JSON.parse(e.data)));
            }})()""",
        )
        wait_until(lambda: bool(chromium.run(name, "window.source.readyState === EventSource.CLOSED")))
        assert chromium.run(name, "window.seen") == [1, 2]


ATTEMPT = """async (url, options) => {
    try { const answer = await fetch(url, options); return [answer.type, answer.status, await answer.text()]; }
    catch (error) { return ["refused"]; }
}"""
LISTEN = """url => new Promise(resolve => {
    const source = new EventSource(url + "?offset=-1&live=sse");
    source.addEventListener("data", e => { source.close(); resolve(e.data); });
    source.onerror = () => { if (source.readyState === EventSource.CLOSED) resolve("refused"); };
})"""
SUBMIT = """url => new Promise(resolve => {
    const form = document.createElement("form");
    Object.assign(form, { method: "POST", action: url, enctype: "text/plain", target: "hidden" });
    form.append(Object.assign(document.createElement("input"), { name: "evil", value: "form" }));
    document.body.append(form);
    form.submit();
    setTimeout(() => resolve(true), 1000);  // a form tells nobody how it went
})"""
EMBED = """url => new Promise(resolve => {
    const script = document.createElement("script");
    Object.assign(script, { src: url, onload: () => resolve("loaded"), onerror: () => resolve("refused") });
    document.body.append(script);
})"""


class Attacker:
    """A page of some origin that tries everything on a stream."""

    def __init__(self, chromium: Browser, page: str, stream: str) -> None:
        self._chromium = chromium
        self._page = page
        self._stream = stream

    def fetch(self, method: str, url: str = "", **more: Any) -> Any:
        if method in ("PUT", "POST"):
            more = {"headers": TEXT, "body": "evil", **more}
        options = json.dumps({"method": method, **more})
        return self._chromium.run(self._page, f"({ATTEMPT})({json.dumps(url or self._stream)}, {options})")

    def tries(self, script: str, url: str = "") -> Any:
        return self._chromium.run(self._page, f"({script})({json.dumps(url or self._stream)})")


@contextlib.contextmanager
def attacked(chromium: Browser, web: int, name: str, *options: str) -> Iterator[tuple[Server, str, Attacker]]:
    with headwater("--memory", *options) as server:
        url = f"{server.url}/{name}"
        assert httpx.put(url, headers=TEXT, content=b"mine").status_code == 201
        chromium.open(name, f"http://evil.example:{web}/")
        yield server, url, Attacker(chromium, name, url)


def test_a_foreign_page_can_neither_read_nor_write(chromium: Browser, web: int, name: str) -> None:
    with attacked(chromium, web, name) as (server, url, page):
        for method in ("GET", "PUT", "POST", "DELETE"):
            assert page.fetch(method) == ["refused"]
        assert page.fetch("PUT", f"{url}-new") == ["refused"]
        assert page.fetch("GET", f"{server.url}/__ds/streams") == ["refused"]
        for method in ("GET", "POST"):  # answers that the page cannot look into, and still must not be loaded
            page.fetch(method, mode="no-cors", headers={"content-type": "text/plain"})
        assert page.fetch("GET", mode="no-cors") == ["refused"]
        assert page.tries(LISTEN) == "refused"
        assert page.tries(EMBED) == "refused"
        assert page.tries(SUBMIT)
        assert httpx.get(url).content == b"mine"
        assert httpx.head(f"{url}-new").status_code == 404


def test_a_page_whose_name_becomes_the_servers_address_gets_nothing(chromium: Browser, web: int, name: str) -> None:
    with attacked(chromium, web, name) as (server, url, page):
        rebound = f"http://evil.example:{server.port}"
        assert chromium.open(name, f"{rebound}/") == 421
        for method in ("GET", "PUT", "POST", "DELETE"):
            kind, status, text = page.fetch(method, f"{rebound}/v1/stream/{name}")
            assert (kind, status) == ("basic", 421)
            assert "--allow-host" in text
        assert httpx.get(url).content == b"mine"


def test_a_page_of_an_allowed_origin_can_do_everything(chromium: Browser, web: int, name: str) -> None:
    with attacked(chromium, web, name, "--allow-origin", f"http://evil.example:{web}") as (_, url, page):
        assert page.fetch("GET") == ["cors", 200, "mine"]
        assert page.fetch("POST") == ["cors", 204, ""]
        assert page.fetch("PUT", f"{url}-new")[:2] == ["cors", 201]
        assert page.tries(LISTEN) == "mineevil"
        assert page.tries(SUBMIT)
        wait_until(lambda: httpx.get(url).content.startswith(b"mineevilevil=form"))
        assert page.fetch("DELETE") == ["cors", 204, ""]
        assert httpx.head(url).status_code == 404


def test_a_stored_page_runs_nothing(chromium: Browser, name: str) -> None:
    with headwater("--memory") as server:
        url = f"{server.url}/{name}"
        page = b"<!doctype html><title>before</title><script>document.title = 'after'</script>"
        httpx.put(url, headers={"content-type": "text/html"}, content=page)
        assert chromium.open(name, url) == 200
        assert chromium.run(name, "document.title") == "before"
        assert chromium.run(name, "self.origin") == "null"  # and it is not of the server's origin


def test_a_page_sees_its_own_append(chromium: Browser, web: int, name: str) -> None:
    with headwater("--memory") as server:
        url = f"{server.url}/{name}"
        chromium.open(name, f"http://localhost:{web}/")
        page = Attacker(chromium, name, url)
        page.fetch("PUT")
        assert page.fetch("GET", f"{url}?offset=-1") == ["cors", 200, "evil"]
        page.fetch("POST")
        assert page.fetch("GET", f"{url}?offset=-1") == ["cors", 200, "evilevil"]
