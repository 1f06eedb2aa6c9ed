"""The guide for JavaScript: all its programs in Node and in a browser, with the output that their comments say."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.servers import NODE_DIR, Server, headwater

from headwater.client import Client
from headwater.server.auth.editing import add_token
from tests.browser.pages import Browser, browser, website
from tests.waiting import PROGRAM_LIMIT_S, wait_until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "javascript.md"
BLOCKS = re.findall(r"^```js\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
FOR_BROWSERS = "// in a browser\n"
PROGRAM = [block for block in BLOCKS if not block.startswith(FOR_BROWSERS)]
EXPECTED = re.findall(r"^ *console\.log\(.*\);\s*// (.*)$", "\n".join(PROGRAM), re.MULTILINE)
RUN = """(async () => {
    const lines = [];
    const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
    console.log = (...values) => lines.push(values.map(text).join(" "));
    await import(URL.createObjectURL(new Blob([%s], { type: "text/javascript" })));
    return lines;
})()"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as program:
        yield program


@contextlib.contextmanager
def servers(directory: Path, web: int = 0) -> Iterator[tuple[Server, Server, str]]:
    """The server of the page, and one with access control, with its token."""
    token, _ = add_token(directory / "auth.toml", "app", ["admin:**"], None)
    origin = ("--allow-origin", f"http://localhost:{web}")
    with (
        headwater("--memory") as server,
        headwater("--memory", "--auth", str(directory / "auth.toml"), *origin) as guarded,
    ):
        yield server, guarded, token


def program_file(blocks: list[str], server: Server, guarded: Server, token: str) -> Iterator[Path]:
    """The blocks as one program, beside the packages that it imports."""
    text = "\n".join(blocks).replace("127.0.0.1:4437", f"{server.host}:{server.port}")
    text = text.replace("127.0.0.1:4438", f"{guarded.host}:{guarded.port}").replace("hw_TOKEN", token)
    directory = NODE_DIR / "build"
    directory.mkdir(exist_ok=True)
    path = directory / f"guide-{server.port}.mjs"
    path.write_text(text)
    try:
        yield path
    finally:
        path.unlink()


written = contextlib.contextmanager(program_file)


def node(script: str, *arguments: str) -> str:
    program = shutil.which("node")
    assert program is not None, "Node is needed: run this through `make test`"
    ran = subprocess.run(
        [program, script, *arguments],
        cwd=NODE_DIR,
        capture_output=True,
        text=True,
        timeout=PROGRAM_LIMIT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_every_output_is_said() -> None:
    assert len(EXPECTED) == "\n".join(PROGRAM).count("console.log(") > 5


def test_the_guide_in_node(tmp_path: Path) -> None:
    with servers(tmp_path) as running, written(PROGRAM, *running) as path:
        assert json.loads(node("guide.mjs", str(path))) == EXPECTED


def test_the_guide_in_a_browser(chromium: Browser, tmp_path: Path) -> None:
    with website() as web, servers(tmp_path, web) as running, written(PROGRAM, *running) as path:
        bundle = node("bundle.mjs", str(path))
        chromium.open("guide", f"http://localhost:{web}/")
        assert chromium.run("guide", RUN % json.dumps(bundle)) == EXPECTED


def test_tabs_share_one_feed(chromium: Browser, tmp_path: Path) -> None:
    [tab] = [block for block in BLOCKS if block.startswith(FOR_BROWSERS)]
    start = BLOCKS[0].partition("const orders")[0]
    with website() as web, servers(tmp_path) as running, written([start, tab, "self.shown = shown;"], *running) as path:
        bundle = node("bundle.mjs", str(path))
        with Client(f"http://{running[0].host}:{running[0].port}") as client:
            stream = client.stream("orders")
            stream.create()
            for name in ("one", "two"):
                chromium.open(name, f"http://localhost:{web}/", "tabs")
                chromium.run(name, RUN % json.dumps(bundle))

            def shows(name: str, count: int) -> bool:
                ids: list[Any] = chromium.run(name, "self.shown.map((each) => each.id)")
                return ids == list(range(count))

            for number in range(3):
                stream.append({"id": number})
            wait_until(lambda: shows("one", 3) and shows("two", 3))
            chromium.close("one")  # the tab with the feed
            stream.append({"id": 3})
            wait_until(lambda: shows("two", 4))


def test_six_feeds_block_the_appends_of_a_page(chromium: Browser, tmp_path: Path) -> None:
    """As the page says. With five, an append is answered."""
    with website() as web, headwater("--memory") as server, Client(f"http://{server.host}:{server.port}") as client:
        stream = client.stream("feeds")
        stream.create()
        chromium.open("feeds", f"http://localhost:{web}/")
        append = f"""fetch("{stream.url}", {{
            method: "POST", headers: {{ "content-type": "application/json" }}, body: "1",
            signal: AbortSignal.timeout(%d),
        }}).then((answer) => answer.status, (error) => error.name)"""
        follow = f"""Promise.all(Array.from({{ length: %d }}, () => new Promise((resolve) => {{
            const source = new EventSource("{stream.url}?offset=now&live=sse");
            source.addEventListener("control", resolve, {{ once: true }});
        }}))).then(() => true)"""
        assert chromium.run("feeds", follow % 5)
        assert chromium.run("feeds", append % 20_000) == 204
        assert chromium.run("feeds", follow % 1)
        assert chromium.run("feeds", append % 2_000) == "TimeoutError"
