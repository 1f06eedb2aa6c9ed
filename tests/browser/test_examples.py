"""The examples with a page, in a real browser. Screenshots go to the directory HEADWATER_SCREENSHOTS."""

from __future__ import annotations

import contextlib
import os
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.servers import headwater

from headwater.client import Client
from tests.browser.pages import Browser, browser, gateway
from tests.browser.pages import website as page_server
from tests.edges import free_port
from tests.example_commands import EXAMPLES, ROOT, commands, started
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as program:
        yield program


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    return Path(os.environ.get("HEADWATER_SCREENSHOTS", tmp_path))


@contextlib.contextmanager
def website(command: str) -> Iterator[str]:
    """The web server of an example, on a free port."""
    assert command.endswith(" 8000")
    with started(f"{command[:-4]}0") as (_, line):
        port = re.search(r"port (\d+)", line)
        assert port is not None, line
        yield f"http://localhost:{port[1]}/"


def test_the_page_of_the_guide_reconnects_after_a_502(chromium: Browser) -> None:
    """Its own `EventSource` gives up then; nothing is lost and nothing is shown twice."""
    [page] = re.findall(r"^```html\n(.*?)^```", (ROOT / "docs/howto/browser.md").read_text(), re.MULTILINE | re.DOTALL)
    with headwater("--memory", "--limit", "sse_keep_alive_s=0.2") as server, gateway(server.port) as front:
        shown = page.replace("127.0.0.1:4437", f"127.0.0.1:{front.server_port}")
        with page_server(shown) as web, Client(f"http://127.0.0.1:{server.port}") as client:
            stream = client.stream("prices")
            stream.create(messages=[{"sku": "tea", "eur": 1}])

            def lines() -> list[str]:
                texts: list[str] = chromium.run(
                    "guide", "[...document.querySelectorAll('li')].map((li) => li.textContent)"
                )
                return texts

            chromium.open("guide", f"http://localhost:{web}/")
            wait_until(lambda: lines() == ["tea: 1"])
            for number in (2, 3):
                front.refused, front.is_broken = 0, True
                wait_until(lambda: front.refused >= 2)  # it gave up and tried again
                stream.append({"sku": "tea", "eur": number})
                front.is_broken = False
                wait_until(lambda number=number: len(lines()) == number)  # type: ignore[misc]
            assert lines() == ["tea: 1", "tea: 2", "tea: 3"]


def test_live_prices_are_shown_once_each_without_a_replay(chromium: Browser, screenshots: Path, tmp_path: Path) -> None:
    serve, feed, web = commands("live-prices")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    options = ("--port", str(port), "--data-dir", str(tmp_path / "data"))

    def counts() -> dict[str, int]:
        total: dict[str, int] = chromium.run("prices", "({...counts})")
        return total

    def status() -> str:
        return str(chromium.run("prices", "document.getElementById('status').textContent"))

    def prices() -> dict[str, str]:
        total: dict[str, str] = chromium.run(
            "prices",
            "Object.fromEntries([...rows].map(([product, row]) => [product, row.cells[1].textContent]))",
        )
        return total

    with website(web) as page, Client(url) as client, contextlib.ExitStack() as server:
        table = client.table("prices")
        server.enter_context(started(serve, *options))
        with started(feed, HEADWATER_URL=url):
            wait_until(lambda: (table.info().last_seqno or 0) > 15)
            chromium.open("prices", f"{page}?server={url}")
            wait_until(lambda: counts()["shown"] >= 10)
            chromium.screenshot("prices", screenshots / "live-prices.png")
            total = counts()
            before = total["last"] - total["shown"]
            assert before > 10  # rows that were there before the page, and were not read
            server.close()
            wait_until(lambda: "lost" in status())
            shown = counts()["shown"]
            server.enter_context(started(serve, *options))
            wait_until(lambda: counts()["connections"] == 2 and counts()["shown"] >= shown + 5)
        wait_until(lambda: counts()["last"] == table.info().last_seqno)
        assert counts()["wrong"] == 0
        assert counts()["last"] - counts()["shown"] == before
        assert prices() == {key: row.record for key, row in table.active().items()}


def test_tokens_reach_every_tab_once_although_the_model_is_killed(
    chromium: Browser, screenshots: Path, tmp_path: Path
) -> None:
    serve, model, web = commands("token-stream")
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    def text(tab: str) -> str:
        return str(chromium.run(tab, "answers[0]?.text.textContent ?? ''"))

    def whole(tab: str) -> bool:
        return bool(chromium.run(tab, "answers[0]?.text.classList.contains('done')"))

    def ask(tab: str, prompt: str) -> None:
        chromium.run(
            tab, f"document.querySelector('input').value = '{prompt}'; document.querySelector('form').requestSubmit()"
        )

    with website(web) as page, started(serve, "--port", str(port), "--data-dir", str(tmp_path / "data")):
        address = f"{page}?server={url}"
        with started(model, HEADWATER_URL=url) as (process, _):
            for tab in ("first", "second"):
                chromium.open(tab, address)
            ask("first", "What are you?")
            wait_until(lambda: len(text("first").split()) > 12 and len(text("second").split()) > 12)
            process.kill()
        chromium.open("second", address)  # reloaded, while there is no model
        wait_until(lambda: text("second").startswith("You asked: “What are you?”. I am"))
        assert not whole("second")
        with started(model, HEADWATER_URL=url) as (process, line):
            assert re.fullmatch(r"answer 0 after \d\d tokens\n", line)
            chromium.open("late", address)
            wait_until(lambda: len(text("late").split()) > 70)
            chromium.screenshot("late", screenshots / "token-stream.png")
            wait_until(lambda: all(whole(tab) for tab in ("first", "second", "late")))
        expected = runpy.run_path(str(EXAMPLES / "token-stream" / "model.py"))["TEXT"].format(prompt="What are you?")
        assert [text(tab) for tab in ("first", "second", "late")] == [expected] * 3


@pytest.mark.timeout(600)
def test_five_hundred_rooms_are_shown_over_one_connection_although_the_server_is_killed(
    chromium: Browser, screenshots: Path, tmp_path: Path
) -> None:
    serve, feed, web = commands("many-rooms")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    options = ("--port", str(port), "--data-dir", str(tmp_path / "data"))

    def counts() -> dict[str, int]:
        shown: dict[str, int] = chromium.run("rooms", "({...counts})")
        return shown

    def shown() -> dict[str, int]:
        last: dict[str, int] = chromium.run(
            "rooms", "Object.fromEntries([...rooms].map(([path, room]) => [path, room.next]))"
        )
        return last

    with website(web) as page, Client(url) as client, contextlib.ExitStack() as stack:
        process, _ = stack.enter_context(started(serve, *options))
        with started(feed, HEADWATER_URL=url, PER_SECOND="1000"):
            chromium.open("rooms", f"{page}?server={url}")
            wait_until(lambda: counts()["rooms"] == 500 and counts()["shown"] > 200)
            chromium.screenshot("rooms", screenshots / "many-rooms.png")
            for kill in range(3):
                before = counts()
                process.kill()
                process.wait()
                process, _ = stack.enter_context(started(serve, *options))
                wait_until(
                    lambda before=before: (
                        counts()["connections"] > before["connections"]  # type: ignore[misc]
                        and counts()["shown"] > before["shown"] + 200
                    )
                )
                for number in range(kill, 500, 50):
                    chromium.run("rooms", f"toggle('rooms/{number}')")  # dropped
            for kill in range(3):
                for number in range(kill, 500, 50):
                    chromium.run("rooms", f"toggle('rooms/{number}')")  # and followed again, from where it was
        stored = dict.fromkeys(shown(), 0)
        with client.follow(dict.fromkeys(stored, "-1")) as follow:
            for batch in follow:
                stored[batch.stream] += len(batch.items)
                if batch.up_to_date:
                    follow.drop(batch.stream)
        wait_until(lambda: shown() == stored)
        assert counts()["wrong"] == 0
        assert counts()["shown"] == sum(stored.values())
        client.stream("rooms/7").delete()
        wait_until(lambda: chromium.run("rooms", "rooms.get('rooms/7').box.classList.contains('dropped')"))
        client.stream("rooms/8").append({"n": stored["rooms/8"]})
        wait_until(lambda: shown()["rooms/8"] == stored["rooms/8"] + 1)


def test_an_event_source_follows_many_streams_and_resumes(chromium: Browser, tmp_path: Path) -> None:
    """The browser's own reconnect, by the id of the last event."""
    port = free_port()
    options = ("--port", str(port), "--data-dir", str(tmp_path / "data"))
    url = f"http://127.0.0.1:{port}"
    paths = [f"es/{number}" for number in range(500)]
    page = f"""<!doctype html><script>
      const got = {{}}; let opened = 0;
      const source = new EventSource("{url}/v1/stream/__ds/live?{"&".join(f"stream={path}" for path in paths)}");
      source.onopen = () => {{ opened += 1; }};
      source.addEventListener("data", (message) => {{
        const event = JSON.parse(message.data);
        (got[event.stream] ??= []).push(...event.messages);
      }});
    </script>"""
    with page_server(page) as web, Client(url) as client, contextlib.ExitStack() as stack:
        process, _ = stack.enter_context(started("headwater serve", *options))
        for path in paths:
            client.stream(path).create(messages=[0])
        chromium.open("source", f"http://localhost:{web}/")
        for kill in range(1, 4):
            wait_until(lambda: chromium.run("source", "Object.values(got).flat().length") == 500 * kill)  # noqa: B023
            process.kill()
            process.wait()
            process, _ = stack.enter_context(started("headwater serve", *options))
            for path in paths:
                client.stream(path).append(kill)
        wait_until(lambda: chromium.run("source", "Object.values(got).flat().length") == 2_000)
        assert chromium.run("source", "Object.values(got).every((one) => one.join() === '0,1,2,3')")
        assert chromium.run("source", "opened") >= 4
