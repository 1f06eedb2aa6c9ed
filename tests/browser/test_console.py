"""The console in a real browser, against a real server."""

from __future__ import annotations

import contextlib
import json
import shlex
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from bench.servers import Server, headwater

from headwater.server.auth.editing import add_token
from headwater.server.auth.tokens import new_token
from tests.browser.console import GRID, JSON, ROWS, ConsolePage, fill_shop, payment
from tests.browser.pages import Browser, browser, serving, website
from tests.certificates import make_pair
from tests.edges import GRANIAN, MOUNTED, UVICORN, edge, free_port
from tests.nurls import receiver
from tests.proxies import below_a_prefix
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as program:
        yield program


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the data of a shop, which tests may append to."""
    with headwater("--data-dir", str(tmp_path_factory.mktemp("shop") / "data")) as server:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=30) as http:
            fill_shop(http)
        yield server


@pytest.fixture
def http(shop: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{shop.port}", timeout=30) as client:
        yield client


@pytest.fixture
def console(chromium: Browser, shop: Server, tmp_path: Path) -> Iterator[ConsolePage]:
    page = ConsolePage(chromium, uuid.uuid4().hex, shop, tmp_path / "screenshots")
    yield page
    assert page.said() == [], "the console of the browser is silent"
    chromium.close(page.name)


def pressed(console: ConsolePage, group: str) -> str:
    return console.text(f"{group} [aria-pressed=true]")


# Overview


def test_the_overview_lists_and_searches(console: ConsolePage) -> None:
    console.open()
    console.wait_rows(lambda rows: len(rows) == 5, "the first level of the tree")
    assert [row[0].strip("▸") for row in console.rows()] == ["logs/", "notes/", "shop/", "tenants/", "wakes"]
    console.click(f"{GRID} .twist >> nth=2")
    console.wait_rows(lambda rows: any("orders-test" in row[0] for row in rows), "the folder is open")
    console.wait_text(".health", "Nothing is wrong right now.")
    console.wait_text(".side", "mailer")
    console.wait_text(".side", "orders-view")
    console.check()
    console.shot("overview")
    console.fill("input[type=search]", "tenants/t0")
    rows = console.wait_rows(lambda rows: all("tenants" in row[0] for row in rows), "the paths with this beginning")
    assert [row[0] for row in rows] == [f"tenants/t0{number}/events" for number in range(10)]
    console.fill("input[type=search]", "EVENTS")
    console.wait_rows(lambda rows: not rows, "no path begins with this")
    console.click("text=anywhere in a path")
    console.wait_rows(lambda rows: len(rows) == 12, "the paths that contain it")
    console.click("text=Tables")
    console.fill("input[type=search]", "")
    console.wait_rows(lambda rows: [row[0] for row in rows] == ["orders-view", "pricelist"], "the tables")


def test_the_tree_is_usable_with_the_keyboard(console: ConsolePage) -> None:
    console.open()
    console.wait_rows(lambda rows: len(rows) == 5, "the first level of the tree")
    console.run("document.querySelector('[role=treegrid]').focus()")
    console.press("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight")
    console.wait_rows(lambda rows: len(rows) == 10, "shop/ is open")
    assert console.run(f"document.querySelector('{GRID}[aria-selected=true]').ariaExpanded") == "true"
    console.press("ArrowDown", "ArrowDown", "Enter")
    console.wait_text("h1", "shop/orders")


def test_rates_are_live(console: ConsolePage, http: httpx.Client) -> None:
    console.open()

    def busy() -> bool:
        http.post("/v1/stream/wakes", headers=JSON, content=b'[{"n":1}]')
        return "/s" in console.text(".side ul") and any("/s" in row[-1] for row in console.rows())

    console.wait(busy, "the rate of a stream")


def test_a_long_list_of_streams_is_read_by_pages(console: ConsolePage, http: httpx.Client) -> None:
    """A folder costs as little as a stream, and a list that is longer than a page is read as it is scrolled."""
    for number in range(1500):
        http.put(f"/v1/stream/many/s{number:05}", headers=JSON)
    console.open("#/?prefix=many/")
    console.wait_rows(lambda rows: len(rows) > 5, "the first page")
    assert console.run("document.querySelectorAll('.grid-row').length") < 100
    count_of_lists = (
        "performance.getEntriesByType('resource').filter((one) => one.name.includes('__ds/streams')).length"
    )
    assert console.run(count_of_lists) < 4
    console.run("document.querySelector('[role=treegrid]').focus()")

    def at_last() -> bool:
        console.press("End")
        return any("s01499" in row[0] for row in console.rows())

    console.wait(at_last, "the last page")
    console.go("#/")
    console.fill("input[type=search]", "")
    top = ["logs/", "many/", "notes/", "shop/", "tenants/", "wakes"]
    console.wait_rows(lambda rows: [row[0].strip("▸") for row in rows] == top, "the tree")
    for number in range(1500):
        http.delete(f"/v1/stream/many/s{number:05}")


# A stream


def test_a_live_tail_is_paused_and_filtered(console: ConsolePage, http: httpx.Client) -> None:
    console.open("#/stream/shop%2Fprices")
    console.wait_text(".state", "Live")
    console.wait_text(".state", "loaded")
    http.post("/v1/stream/shop/prices", headers=JSON, content=b'[{"sku":"live","eur":7},{"sku":"live","eur":8}]')
    rows = console.wait_rows(lambda rows: '"eur":8' in rows[-1][1], "the message that was appended")
    assert '"eur":7' in rows[-2][1]
    console.wait_rows(lambda rows: rows[-1][0] not in ("", "…"), "the time of the append")
    console.shot("tail")
    console.click("button.live")
    console.wait_text(".state", "Paused")
    http.post("/v1/stream/shop/prices", headers=JSON, content=b'[{"sku":"paused","eur":9}]')
    console.fill("input[type=search]", "sku=live")
    console.wait_rows(lambda rows: len(rows) == 2, "the filter")
    console.wait_text(".state", "2 of")
    console.fill("input[type=search]", '/"eur": ?1\\.1[1-4]/')
    console.wait_rows(lambda rows: len(rows) == 4, "a pattern")
    console.fill("input[type=search]", "/(/")
    console.wait_text("[role=alert]", "This filter is no pattern")
    console.fill("input[type=search]", "")
    console.click("button.live")
    console.wait_rows(lambda rows: rows and "paused" in rows[-1][1], "what was appended meanwhile")
    console.wait_text(".state", "Live")
    console.check()


def test_a_message_is_looked_at_while_others_arrive(console: ConsolePage, http: httpx.Client) -> None:
    console.open("#/stream/shop%2Fpayments", height=720)
    console.wait_text(".state", "200 loaded")
    for number in range(200, 240):
        http.post("/v1/stream/shop/payments", headers=JSON, json=payment(number))
    rows = console.wait_rows(lambda rows: payment(239)["customer"]["id"] in rows[-1][1], "the last payment")
    console.wait_rows(lambda rows: "…" not in {row[0] for row in rows}, "the times of the appends")
    console.wait_text(".state", "messages/s")
    console.click(f"{GRID} >> nth={len(rows) - 4}")
    console.wait_text(".detail", "Next offset")
    console.shot("readme")
    selected = console.text(".detail .tree")
    http.post("/v1/stream/shop/payments", headers=JSON, json=payment(240))
    console.wait_text(".state", "241 loaded")
    assert console.text(".detail .tree") == selected
    assert selected.count("Customer") == 1
    console.check()


def test_a_message_is_a_tree_with_its_offset(console: ConsolePage) -> None:
    console.open("#/stream/shop%2Forders")
    console.wait_rows(bool, "messages")
    console.run("document.querySelector('[role=grid]').focus()")
    console.press("Home")
    console.wait_text(".detail", "Next offset")
    assert '"o1"' in console.text(".detail .tree")
    assert "0000000000000000" in console.text(".detail code")
    console.shot("message")
    console.check()
    console.stream("shop/prices")
    console.wait_text(".state", "Live")
    console.fill("input[type=search]", "12345678901234568189")  # not rounded
    console.wait_rows(lambda rows: len(rows) == 1, "a number that JavaScript would round")
    console.click(GRID)
    console.wait_text(".detail .tree", "12345678901234568189")


def test_bytes_are_a_hex_dump_and_text_is_text(console: ConsolePage, http: httpx.Client) -> None:
    console.open("#/stream/logs%2Fagent")
    console.wait_rows(lambda rows: len(rows) == 1, "the record")
    octets = {"content-type": "application/octet-stream"}
    http.post("/v1/stream/logs/agent", content=b"\x00\x01hello", headers=octets)
    rows = console.wait_rows(lambda rows: len(rows) == 2, "a record, live")
    assert rows[1][1:] == ["00 01 68 65 6c 6c 6f", "7"]
    console.click(f"{GRID} >> nth=0")
    console.wait_text(".detail .hex", "000000f0  f0 f1 f2")
    console.shot("bytes")
    console.stream("notes/today")
    console.wait_rows(lambda rows: len(rows) == 1, "the text")
    console.click(GRID)
    console.wait_text(".detail .plain", "first\nsecond line")
    console.check()


def test_jumps(console: ConsolePage, http: httpx.Client) -> None:
    records = http.get("/v1/stream/__ds/records?path=shop/prices&limit=200").json()["records"]
    console.open("#/stream/shop%2Fprices")
    console.wait_text(".state", "Live")
    console.click(".menu summary")
    console.fill(".menu input[type=text]", records[150]["offset"])
    console.click("text=Go to offset")
    console.wait(lambda: any('"eur": 2.5,' in text for text in console.first_in_view()), "the message at the offset")
    console.wait_text(".state", "Paused")
    console.click(".menu summary")
    console.click("text=First message")
    console.wait_rows(lambda rows: rows and '"eur": 1.0' in rows[0][1], "the first message")
    console.click(".menu summary")
    console.fill(".menu input[type=datetime-local]", "2001-01-01T00:00:00")
    console.click("text=Go to time")
    console.wait_rows(lambda rows: rows and '"eur": 1.0' in rows[0][1], "the first message after a time")
    console.click(".menu summary")
    console.fill(".menu input[type=text]", "nonsense")
    console.click("text=Go to offset")
    console.wait_text("[role=alert]", "expected -1, now or an offset from the server, got 'nonsense'")
    console.expect_refusals(400)


def test_older_messages_are_read_when_they_are_scrolled_to(console: ConsolePage, http: httpx.Client) -> None:
    path = f"long/{uuid.uuid4().hex}"
    http.put(f"/v1/stream/{path}", headers=JSON)
    for start in range(0, 9000, 1000):
        body = [{"n": number, "pad": "x" * 40} for number in range(start, start + 1000)]
        http.post(f"/v1/stream/{path}", headers=JSON, json=body)
    console.open(f"#/stream/{quote(path, safe='')}")
    console.wait_text(".state", "Live")
    console.wait_rows(lambda rows: rows and '"n":8999' in rows[-1][1], "the newest messages")
    assert console.run("document.querySelectorAll('.grid-row').length") < 60
    console.run("document.querySelector('[role=grid]').focus()")

    def at_first() -> bool:
        console.press("Home")
        return '"n":0,' in console.rows()[0][1]

    console.wait(at_first, "the first message, page by page")
    console.wait_text(".state", "9,000 loaded")


def test_a_full_window_goes_on_with_the_tail_and_keeps_what_is_read(console: ConsolePage, http: httpx.Client) -> None:
    path = f"full/{uuid.uuid4().hex}"
    http.put(f"/v1/stream/{path}", headers=JSON)
    console.open(f"#/stream/{quote(path, safe='')}")
    console.wait_text(".state", "Live")

    def append(start: int, stop: int) -> None:
        """In appends of different sizes, so that the window becomes shorter now and then."""
        while start < stop:
            end = min(stop, start + (1500 if start % 2 else 401))
            http.post(f"/v1/stream/{path}", headers=JSON, json=[{"n": number} for number in range(start, end)])
            start = end
            last = f'{{"n":{end - 1}}}'
            console.wait_rows(lambda rows: rows and rows[-1][1] == last, f"{last} is the last row")  # noqa: B023

    append(0, 24_000)
    loaded = int(console.text(".state").split(" · ")[-1].split()[0].replace(",", ""))
    assert 15_000 < loaded <= 20_000
    console.run("document.querySelector('[role=grid]').focus()")
    console.press("PageUp", "PageUp")
    shown = console.rows()[0][1]
    console.run("document.querySelector('[role=grid]').scrollTop = 3200")
    console.wait_rows(lambda rows: rows[0][1] != shown, "rows at the front")
    for start in range(24_000, 32_000, 1000):
        http.post(f"/v1/stream/{path}", headers=JSON, json=[{"n": number} for number in range(start, start + 1000)])
    console.wait_text(".state", "Paused while you read older messages")
    console.click("button.live")
    console.wait_rows(lambda rows: rows and rows[-1][1] == '{"n":31999}', "the tail again")


def test_appends_and_what_the_server_says_of_them(console: ConsolePage) -> None:
    console.open("#/stream/shop%2Fcustomers")
    console.wait_text(".state", "Live")
    console.fill("textarea", '{"name": "Zoë", "note": "<b>bold</b>"}')
    console.click("text=Append >> nth=-1")
    console.wait_text(".result", "Appended. The stream ends at")
    console.wait_rows(lambda rows: rows and "<b>bold</b>" in rows[-1][1], "the message")
    console.fill("textarea", '{"name": ')
    console.run("document.querySelector('textarea').focus()")
    console.press("Control+Enter")
    console.wait_text(".result [role=alert]", "JSON")
    console.shot("refused")
    console.check()
    console.expect_refusals(400)


def test_what_a_stream_is(console: ConsolePage) -> None:
    console.open("#/stream/shop%2Forders/about")
    console.wait_text("main", "shop/orders-test")
    assert "shop-1" in console.text("main table")
    assert "Everything is kept" in console.text("main")
    console.check()
    console.shot("about")
    console.stream("shop/orders-test", "/about")
    console.wait_text(".forks", "shop/orders")


def change_what_is_kept(console: ConsolePage, name: str, value: str) -> None:
    """Fill in a field of the form that changes the retention, and save it."""
    if not console.run("document.querySelector('.keeping').closest('details').open"):
        console.click("text=Change what is kept")
    console.fill(f".keeping label:has-text('{name}') input", value)
    console.click(".keeping button")


def test_what_is_kept_is_changed(console: ConsolePage, http: httpx.Client) -> None:
    path = f"kept/{uuid.uuid4().hex}"
    http.put(f"/v1/stream/{path}", headers=JSON)
    for number in range(3):
        event = {"type": "a", "key": "k", "headers": {"operation": "upsert"}, "value": number}
        http.post(f"/v1/stream/{path}", headers=JSON, json=[event])
    console.open()
    console.wait_rows(bool, "the overview")
    console.stream(path, "/about")
    console.wait_text("main", "Everything is kept")
    change_what_is_kept(console, "Seconds", "86400")
    console.wait_text(".result", "Saved.")
    console.wait_text("main", "24 h of messages")
    assert http.head(f"/v1/stream/{path}").headers["stream-retain-seconds"] == "86400"
    console.click("text=Change what is kept")
    console.shot("retention")
    console.check()
    console.click(".keeping input[type=checkbox]")
    change_what_is_kept(console, "Seconds", "")
    console.wait_text("main", "to the current state")
    kept = http.head(f"/v1/stream/{path}").headers
    assert (kept.get("stream-retain-seconds"), kept["stream-compact"]) == (None, "true")
    console.click("text=Compact now")
    console.wait_text(".result", "compacted")
    change_what_is_kept(console, "Messages", "99999999999999999")
    console.wait_text(".result [role=alert]", "Stream-Retain-Messages must be a decimal number of messages from 1 to")
    console.expect_refusals(400)


def test_what_is_on_the_screen_as_code(console: ConsolePage, shop: Server, http: httpx.Client) -> None:
    console.open("#/stream/shop%2Fprices")
    console.wait_text(".state", "Live")
    console.click("text=As curl, Python or JavaScript")
    console.wait_text(".snippets", "EventSource")
    url = f"http://127.0.0.1:{shop.port}/v1/stream/shop/prices"
    assert f"curl -sN '{url}?offset=" in console.text(".snippets")
    assert f'Client("http://127.0.0.1:{shop.port}")' in console.text(".snippets")
    code = console.run("document.querySelectorAll('.snippet code')[1].textContent")
    code = code.replace(", live=True", "")
    printed: list[Any] = []
    exec(code, {"print": printed.append})
    assert printed[-1] == http.get("/v1/stream/shop/prices").json()[-1]


# State


def test_state_and_time_travel(console: ConsolePage) -> None:
    console.open("#/stream/shop%2Forders/state")
    console.wait_text(".kinds", "order")
    console.click(".kinds >> text=order")
    rows = console.wait_rows(lambda rows: len(rows) == 11, "the orders")
    head = console.run("[...document.querySelectorAll('[role=columnheader]')].map((cell) => cell.textContent.trim())")
    assert head == ["Key", "no", "item", "count", "total", "status", "address"]
    assert rows[0][:3] == ["o1", "1", "salt"]
    console.click("[role=columnheader] >> text=no")
    console.click("[role=columnheader] >> text=no")  # descending
    console.wait_rows(lambda rows: rows[0][0] == "o11", "sorted by number, not by text")
    assert console.run("document.querySelectorAll('[role=columnheader]')[1].ariaSort") == "descending"
    console.fill("input[type=search]", "Tromsø")
    console.wait_rows(lambda rows: {row[0] for row in rows} == {"o2", "o5", "o8", "o11"}, "the search")
    console.fill("input[type=search]", "")
    console.wait_rows(lambda rows: len(rows) == 11, "all")
    console.act("slide", selector="input[type=range]", value=17)
    console.wait_rows(lambda rows: len(rows) == 12, "o12 was there before it was deleted")
    console.shot("time-travel")
    assert "newest" not in console.text(".moment")
    console.act("slide", selector="input[type=range]", value=3)
    rows = console.wait_rows(lambda rows: len(rows) == 4, "the first four")
    assert {row[5] for row in rows} == {"new"}
    console.check()
    console.click("text=Now")
    console.wait_rows(lambda rows: len(rows) == 11, "the newest state")
    console.wait_text(".moment", "newest")


def is_past(moment: datetime) -> bool:
    return datetime.now(UTC) > moment


def test_a_past_state_as_code(console: ConsolePage, http: httpx.Client) -> None:
    """The request for what is on the screen has the state that is there."""
    path = f"past-{uuid.uuid4().hex}"
    http.put(f"/v1/stream/{path}", headers=JSON)
    for key in ("a", "b", "c"):
        event = {"type": "t", "key": key, "value": 1, "headers": {"operation": "insert"}}
        http.post(f"/v1/stream/{path}", headers=JSON, json=[event])
        record = http.get("/v1/stream/__ds/records", params={"path": path}).json()["records"][-1]
        later = datetime.fromisoformat(record["time"]) + timedelta(milliseconds=1)
        wait_until(partial(is_past, later), "the next record has another time")
    console.open(f"#/stream/{path}/state")
    console.wait_rows(lambda rows: len(rows) == 3, "the newest state")
    console.act("slide", selector="input[type=range]", value=1)
    console.wait_rows(lambda rows: len(rows) == 2, "the first two")
    console.click("text=As curl, Python or JavaScript")
    console.wait_text(".snippets", "&at=")
    code = console.run("document.querySelectorAll('.snippet code')[0].textContent")
    assert [one["key"] for one in http.get(shlex.split(code)[-1]).json()["entities"]] == ["a", "b"]


def test_the_history_of_a_key(console: ConsolePage) -> None:
    console.open("#/stream/shop%2Forders/state?type=order")
    console.wait_rows(lambda rows: len(rows) == 11, "the orders")
    console.fill("input[type=search]", "o6")
    console.wait_rows(lambda rows: len(rows) == 1, "the order")
    console.click(GRID)
    console.wait_text(".history", "upsert")
    steps = console.run("[...document.querySelectorAll('.history > li')].map((one) => one.textContent)")
    assert len(steps) == 3
    assert 'changedstatus"paid""sent"' in steps[0]
    assert 'changedstatus"new""paid"' in steps[1]
    assert "addedvalue" in steps[2]
    console.check()
    console.shot("history")


def test_a_large_state_is_asked_for(console: ConsolePage, http: httpx.Client) -> None:
    """Beyond what the page folds itself, in pages of the server's state."""
    path = f"large/{uuid.uuid4().hex}"
    http.put(f"/v1/stream/{path}", headers=JSON)

    def append(key: str, value: object) -> None:
        event = {"type": "user", "key": key, "headers": {"operation": "upsert"}, "value": value}
        assert http.post(f"/v1/stream/{path}", headers=JSON, json=[event]).is_success

    for number in range(6):
        append(f"k{number % 2}", {"n": 12345678901234567890 + number, "x": "x" * 900_000})
    http.post(f"/v1/stream/{path}", headers=JSON, content=b'["no event"]')
    append("k2", {"n": 1})
    console.open(f"#/stream/{quote(path, safe='')}/state")
    rows = console.wait_rows(lambda rows: len(rows) == 3, "all entities, of several pages")
    assert [row[:2] for row in rows] == [["k0", "12345678901234567894"], ["k1", "12345678901234567895"], ["k2", "1"]]
    requests = (
        "performance.getEntriesByType('resource').map((one) => one.name).filter((name) => /__ds.state/.test(name))"
    )
    assert len(console.run(requests)) >= 2
    console.wait_text("main", "1 message is no state event")
    console.click(f"{GRID} >> nth=0")
    console.wait_text(".history", "upsert")
    assert console.run("document.querySelectorAll('.history > li').length") == 3
    console.act("slide", selector="input[type=range]", value=0)
    console.wait_rows(lambda rows: [row[0] for row in rows] == ["k0"], "the state after the first append")
    console.check()


# Tables, subscriptions, the server


def test_a_table(console: ConsolePage, http: httpx.Client) -> None:
    console.open("#/table/pricelist")
    console.wait_rows(lambda rows: rows and rows[-1][0] == "61", "the last row")
    http.post("/v1/table/pricelist", headers=ROWS, content='+\tnew\t{"name":"milk"}\n')
    console.wait_rows(lambda rows: rows[-1][3] == "new", "a row, live")
    console.click("button.live")
    console.fill("input[type=search]", "sku7")
    console.wait_rows(lambda rows: len(rows) == 3, "the filter")
    console.click(GRID)
    console.wait_text(".detail .tree", "price")
    console.fill("input[type=search]", "")
    console.fill("input[type=number]", "5")
    console.click("text=Go")
    console.wait(lambda: console.first_in_view()[:1] == ["5"], "from SeqNo 5")
    console.check()
    console.shot("table")
    console.go("#/table/pricelist/active")
    console.wait_text(".state", "20 live keys")
    console.fill("form input", "sku3")
    console.click("text=Find")
    console.wait_rows(lambda rows: len(rows) == 1, "one key")


def test_who_follows_a_table(console: ConsolePage, http: httpx.Client) -> None:
    with receiver() as posts:
        http.post(
            "/v1/table/pricelist/notify", data={"rows": posts.nurl(), "other": f"http://127.0.0.1:{free_port()}/x"}
        )
        http.post("/v1/table/pricelist", headers=ROWS, content='+\tnew\t{"name":"cream"}\n')
        http.patch("/v1/table/pricelist", headers={"stream-retain-messages": "1000000"})

        console.open("#/table/pricelist")

        def told() -> bool:
            console.go("#/table/pricelist")  # an address that is shown already is not loaded again
            console.wait_text("h1", "pricelist")
            console.go("#/table/pricelist/about")
            console.wait_text("main", posts.nurl())
            return "delivered" in console.text("table") and "failing" in console.text("table")

        console.wait(told, "what came of the POSTs")
    assert f"{console.base}/v1/table/pricelist" in console.text("main")
    console.wait_text("main", "1,000,000 rows")
    console.check()
    console.shot("followers")
    change_what_is_kept(console, "Rows", "")
    console.wait_text("main", "Everything is kept")
    console.click("text=Change what is kept")
    console.check()


def test_subscriptions(console: ConsolePage) -> None:
    console.open("#/subscriptions")
    rows = console.wait_rows(lambda rows: len(rows) == 1, "the subscription")
    assert rows[0][:3] == ["mailer", "active", "shop/*"]
    console.check()
    console.click(f"{GRID} a")
    console.wait_text("h1", "mailer")
    console.wait_text(".wakes", "wake")
    console.wait_text("main", "sends mails")
    assert "shop/prices" in console.text("table")
    console.check()
    console.shot("subscription")


def test_the_server(console: ConsolePage, http: httpx.Client) -> None:
    console.open("#/server")

    def shown() -> bool:
        http.post("/v1/stream/wakes", headers=JSON, content=b'[{"n":1}]')
        return not console.text(".chart .value").startswith(("–", "0"))

    console.wait(shown, "the chart of appends")
    console.wait_text("main", "Free disk")
    assert len(console.run("[...document.querySelectorAll('.chart svg')].map((one) => one.ariaLabel)")) == 10
    console.wait_text(".settings", "data_dir")
    assert "--data-dir" in console.text(".settings")
    assert "long_poll_s" not in console.text(".settings")
    console.check()
    console.shot("server")
    console.fill("input[type=search]", "long_poll_s")
    console.wait(lambda: console.run("document.querySelectorAll('.settings tbody tr').length") == 1, "the one setting")
    console.wait_text(".settings", "default")


def test_what_is_wrong(chromium: Browser, tmp_path: Path) -> None:
    """A webhook without a receiver and a follower without a server."""
    nobody = free_port()
    with headwater("--memory", "--follow", f"stock=http://127.0.0.1:{nobody}/v1/table/stock") as server:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as http:
            http.put("/v1/stream/a", headers=JSON)
            hook = {"type": "webhook", "streams": ["a"], "webhook": {"url": f"http://127.0.0.1:{nobody}/hook"}}
            assert http.put("/v1/stream/__ds/subscriptions/billing", headers=JSON, json=hook).is_success
            http.post("/v1/stream/a", headers=JSON, content=b"[1]")
        page = ConsolePage(chromium, uuid.uuid4().hex, server, tmp_path)
        page.open()
        page.wait_text(".health", "The webhook of subscription billing fails")
        page.wait_text(".health", "The follower of stock is retrying")
        page.check()
        page.shot("troubles")
        page.click(".health a >> nth=0")
        page.wait_text("h1", "billing")
        page.wait_text("main", "Last failure")
        assert page.said() == []
        chromium.close(page.name)


# Looks

PLACES = (
    "#/",
    "#/stream/shop%2Forders",
    "#/stream/shop%2Forders/state",
    "#/stream/shop%2Forders/about",
    "#/table/pricelist",
    "#/table/pricelist/about",
    "#/subscription/mailer",
    "#/subscriptions",
    "#/server",
)


@pytest.mark.parametrize(("scheme", "width"), [("dark", 1280), ("light", 360), ("dark", 360)])
def test_dark_and_narrow(console: ConsolePage, scheme: str, width: int) -> None:
    console.act("media", colorScheme=scheme)
    console.open(width=width, height=760)
    for number, place in enumerate(PLACES):
        console.go(place)
        if "about" not in place and "server" not in place and "mailer" not in place:
            console.wait_rows(bool, f"rows at {place}")
        console.wait(lambda: not console.run("document.querySelector('[aria-busy]') !== null"), place)
        console.check()
        console.shot(f"{scheme}-{width}-{number}")
        if (scheme, width, number) == ("dark", 360, 1):
            console.shot("narrow")
    dark = console.run("getComputedStyle(document.body).backgroundColor") == "rgb(15, 21, 20)"
    assert dark is (scheme == "dark")


def test_the_switch_of_colours(console: ConsolePage) -> None:
    console.act("media", colorScheme="light")
    console.open()
    console.wait_rows(bool, "the overview")
    console.run(
        """(() => { const select = document.querySelector('select'); select.value = 'dark';
        select.dispatchEvent(new Event('change')); })()"""
    )
    assert console.run("getComputedStyle(document.body).backgroundColor") == "rgb(15, 21, 20)"
    console.act("reload")
    console.wait_rows(bool, "the overview")
    assert console.run("getComputedStyle(document.body).backgroundColor") == "rgb(15, 21, 20)"
    console.run("localStorage.clear()")


def test_the_keyboard_reaches_everything(console: ConsolePage) -> None:
    console.open("#/stream/shop%2Forders")
    console.wait_rows(bool, "messages")
    console.press("Tab")
    assert console.run("document.activeElement.textContent") == "Skip to the content"
    console.press("Enter")
    assert console.run("document.activeElement.id") == "main"
    assert console.run("location.hash") == "#/stream/shop%2Forders"
    seen = []
    for _ in range(24):
        console.press("Tab")
        seen.append(console.run("document.activeElement.tagName + ' ' + (document.activeElement.role ?? '')").strip())
        outline = console.run("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid" or seen[-1] == "BODY", f"the focus of {seen[-1]} cannot be seen"
    assert {"BUTTON", "INPUT", "SUMMARY", "DIV grid", "TEXTAREA"} <= set(seen)


# Access


@contextlib.contextmanager
def served(kind: str, directory: Path) -> Iterator[tuple[Server, str]]:
    """A server, and the URL below which browsers find it."""
    if kind == "TLS":
        pair = make_pair(directory)
        tls = ("--tls-certificate", str(pair.certificate), "--tls-key", str(pair.key))
        with headwater("--memory", *tls) as server:
            yield server, f"https://127.0.0.1:{server.port}"
    elif kind == "prefix":
        with headwater("--memory", "--trusted-proxy", "127.0.0.1") as server:
            with below_a_prefix(directory, server.port, "/data/shop") as url:
                yield server, url
    else:
        with edge(kind) as server:
            yield server, f"http://127.0.0.1:{server.port}{'/streams' if kind == MOUNTED else ''}"


@pytest.mark.parametrize("kind", ["TLS", "prefix", UVICORN, GRANIAN, MOUNTED])
def test_every_edge_has_a_console_that_works(chromium: Browser, tmp_path: Path, kind: str) -> None:
    with served(kind, tmp_path) as (server, base):
        assert httpx.put(f"{base}/v1/stream/a", headers=JSON, content=b'[{"n":1}]', verify=False).is_success
        page = ConsolePage(chromium, uuid.uuid4().hex, server, tmp_path)
        page.base = base
        page.open("/")  # goes to the page without the slash
        page.wait_rows(lambda rows: [row[0] for row in rows] == ["a"], "the stream")
        page.stream("a")
        page.wait_rows(lambda rows: len(rows) == 1, "the message")
        page.wait_text(".state", "Live")
        page.fill("textarea", '{"n": 2}')
        page.click("text=Append >> nth=-1")
        page.wait_rows(lambda rows: rows and rows[-1][1] == '{"n": 2}', "what was appended, live")
        page.click("text=As curl, Python or JavaScript")
        page.wait_text(".snippets", f"{base}/v1/stream/a")
        page.go("#/server")
        page.wait_text(".settings", "development" if kind in (UVICORN, GRANIAN, MOUNTED) else "--memory")
        assert page.said() == []
        chromium.close(page.name)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str, str]]:
    """A server with tokens: that of the administrator, and one that reads a part."""
    auth = tmp_path_factory.mktemp("guarded") / "auth.toml"
    admin, _ = add_token(auth, "admin", ["admin:**"], None)
    reader, _ = add_token(auth, "reader", ["read:shop/**"], None)
    with headwater("--memory", "--auth", str(auth)) as server:
        headers = {"authorization": f"Bearer {admin}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", headers=headers) as http:
            for path in ("shop/orders", "secret/plans"):
                http.put(f"/v1/stream/{path}", headers=JSON, content=b'[{"n":1}]')
        yield server, admin, reader


def test_a_token_is_asked_for_and_refused(chromium: Browser, guarded: tuple[Server, str, str], tmp_path: Path) -> None:
    server, _, reader = guarded
    page = ConsolePage(chromium, uuid.uuid4().hex, server, tmp_path)
    page.open()
    page.wait_text("h1", "Headwater")
    assert page.said() == []  # it asks before it is refused
    page.check()
    page.shot("token")
    page.fill("input[type=password]", "with spaces")
    page.click("text=Continue")
    page.wait_text("[role=alert]", "This is not a token")
    page.fill("input[type=password]", new_token())
    page.click("text=Continue")
    page.wait_text("[role=alert]", "the token is not known; it may have been revoked")
    page.shot("token-refused")
    page.fill("input[type=password]", reader)
    page.press("Enter")
    page.wait_rows(lambda rows: [row[0].strip("▸") for row in rows] == ["shop/"], "only what the token may read")
    assert "Busiest" not in page.text("main")
    assert reader not in page.run("location.href + document.documentElement.textContent + document.cookie")
    assert page.run("localStorage.length") == 0
    page.go("#/stream/shop%2Forders")
    page.wait_text(".state", "Live")
    page.wait_rows(lambda rows: len(rows) == 1, "the messages")
    assert page.run("document.querySelector('textarea')") is None  # it may not append
    page.click("text=As curl, Python or JavaScript")
    page.wait_text(".snippets", "Authorization: Bearer $TOKEN")
    assert reader not in page.text(".snippets")
    page.act("reload")
    page.wait_text("h1", "shop/orders")  # the token is kept in the tab
    page.go("#/stream/secret%2Fplans")
    page.wait_text("[role=alert]", "'reader' lacks the scope read:secret/plans")
    page.go("#/table/secret")
    page.wait_text("[role=alert]", "'reader' lacks the scope read:secret")
    page.go("#/table/shop%2Fnone")
    page.wait_text("[role=alert]", "table 'shop/none' does not exist")
    page.go("#/server")
    page.wait_text("[role=alert]", "lacks the scope admin:**")
    page.wait_text("main", "Only tokens with the scope settings:** see the settings")
    page.click("text=Forget the token")
    page.wait_text("h1", "Headwater")
    assert page.run("sessionStorage.length") == 0
    chromium.close(page.name)


def test_a_token_that_is_revoked_is_asked_for_again(chromium: Browser, tmp_path: Path) -> None:
    auth = tmp_path / "auth.toml"
    token, _ = add_token(auth, "short", ["admin:**"], None)
    with headwater("--memory", "--auth", str(auth)) as server:
        page = ConsolePage(chromium, uuid.uuid4().hex, server, tmp_path)
        page.open()
        page.wait_text("h1", "Headwater")
        page.fill("input[type=password]", token)
        page.press("Enter")
        page.wait_text(".health", "Nothing is wrong")
        auth.unlink()
        add_token(auth, "other", ["admin:**"], None)
        page.wait_text("[role=alert]", "the token is not known")
        chromium.close(page.name)


def test_a_console_that_is_switched_off(chromium: Browser) -> None:
    with headwater("--memory", "--no-console") as server:
        for path in ("/console", "/console/app.js"):
            answer = httpx.get(f"http://127.0.0.1:{server.port}{path}")
            assert answer.status_code == 404
            assert "this server has no console" in answer.json()["detail"]
        assert httpx.get(f"http://127.0.0.1:{server.port}/").json()["console"] is None


# Hostile content

EVIL = '<img src=x onerror="window.owned=1"><script>window.owned=1</script>'


@pytest.fixture
def evil(chromium: Browser, tmp_path: Path) -> Iterator[tuple[ConsolePage, httpx.Client]]:
    with headwater("--memory") as server:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=30) as http:
            page = ConsolePage(chromium, uuid.uuid4().hex, server, tmp_path)
            yield page, http
            chromium.close(page.name)


def test_markup_is_text_everywhere(evil: tuple[ConsolePage, httpx.Client]) -> None:
    page, http = evil
    path = f"a/{EVIL.replace('/', '|')}"
    raw = quote(path)
    assert http.put(f"/v1/stream/{raw}", headers=JSON).is_success
    event = {"type": EVIL, "key": EVIL, "headers": {"operation": "insert"}, "value": {EVIL: EVIL, "list": [EVIL]}}
    named = {"producer-id": "<img src=x onerror=owned()>", "producer-epoch": "0", "producer-seq": "0"}
    assert http.post(f"/v1/stream/{raw}", headers={**JSON, **named}, json=[event, EVIL]).is_success
    assert http.put("/v1/stream/f", headers={"stream-forked-from": f"/v1/stream/{raw}"}).is_success
    typed = {"content-type": f"text/plain; x={quote(EVIL)}"}
    assert http.put("/v1/stream/t", headers=typed, content=EVIL.encode()).is_success
    schema = {"content-type": 'text/sequence; schema="<img src=x onerror=owned()>"; version=1'}
    assert http.put(f"/v1/table/{raw}", headers=schema, content=f"+\t{EVIL}\t{EVIL}\n".encode()).is_success
    wake = {"type": "pull-wake", "streams": [path], "wake_stream": "f", "description": EVIL}
    assert http.put("/v1/stream/__ds/subscriptions/evil", headers=JSON, json=wake).is_success
    page.open()
    name = quote(path, safe="")
    for place, shown in (
        ("#/?prefix=a/", ".grid-space"),
        (f"#/stream/{name}", ".grid-space"),
        (f"#/stream/{name}/state", ".grid-space"),
        (f"#/stream/{name}/about", "table"),
        ("#/stream/f/about", ".forks"),
        ("#/stream/t", ".grid-space"),
        (f"#/table/{name}", ".grid-space"),
        (f"#/table/{name}/active", ".grid-space"),
        (f"#/table/{name}/about", "main"),
        ("#/subscription/evil", "main"),
    ):
        page.go(place)
        page.wait_text(shown, "<img src=x")
        if shown == ".grid-space" and "prefix" not in place:
            page.click(GRID)
            page.wait_text(".detail", "<img src=x")
        assert page.run("document.querySelectorAll('img, iframe, object, embed, main script').length") == 0, place
        assert page.run("document.title.includes('Headwater')")
    page.go(f"#/stream/{quote('missing<img src=x onerror=owned()>', safe='')}")
    page.wait_text("[role=alert]", "no stream at this path")
    page.go(f"#/{EVIL}")
    page.wait_text("h1", "No such page")
    assert page.run("window.owned === undefined")


class _EvilSource(BaseHTTPRequestHandler):
    """A remote table, and a receiver of webhooks, whose every answer holds markup."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.dumps({"type": "x", "title": EVIL, "detail": EVIL, "status": 400}).encode()
        self.send_response(400 if self.command == "GET" else 503, EVIL)
        self.send_header("content-type", f"text/sequence; schema={EVIL}")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


def test_what_others_answer_is_text(chromium: Browser, tmp_path: Path) -> None:
    """Answers of a remote server, URLs of NURLs and webhooks, names of followers, and settings."""
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), _EvilSource)) as source:
        url = f"http://127.0.0.1:{source.server_port}"
        surl = f"{url}/v1/table/{quote(EVIL)}"
        options = ("--follow", f"<img src>follower={surl}", "--retain", "<img>/** forever")
        with headwater("--memory", *options) as server:
            with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=30) as http_client:
                assert http_client.put("/v1/table/t", headers={"content-type": "text/sequence"}).is_success
                nurls = {"rows": f"{url}/{quote(EVIL)}"}
                assert http_client.post("/v1/table/t/notify", data=nurls).is_success
                hook = {"type": "webhook", "streams": ["s"], "webhook": {"url": f"{url}/{quote(EVIL)}"}}
                assert http_client.put("/v1/stream/s", headers=JSON).is_success
                assert http_client.put("/v1/stream/__ds/subscriptions/hook", headers=JSON, json=hook).is_success
                http_client.post("/v1/stream/s", headers=JSON, content=b"[1]")
                http_client.post("/v1/table/t", headers=ROWS, content=b"+\tk\t1\n")
            page = ConsolePage(chromium, uuid.uuid4().hex, server, tmp_path)
            page.open()
            page.wait_text(".health", "<img src>follower")
            page.wait_text(".health", "hook")
            for place, shown in (
                ("#/", "<img src>follower"),
                (f"#/table/{quote('<img src>follower', safe='')}/about", quote(EVIL)),
                ("#/table/t/about", "onerror"),
                ("#/subscription/hook", quote(EVIL)),
                ("#/subscriptions", "hook"),
                ("#/server", "<img>/** forever"),
            ):
                page.go(place)
                page.wait_text("main", shown)
                assert page.run("document.querySelectorAll('img, iframe, object, embed, main script').length") == 0
            assert page.run("window.owned === undefined")
            chromium.close(page.name)


def test_no_text_becomes_markup_or_a_script(evil: tuple[ConsolePage, httpx.Client]) -> None:
    """Even code of the console could not: the browser refuses it."""
    page, http = evil
    script = {"content-type": "text/javascript"}
    http.put("/v1/stream/script.js", headers=script, content=b"window.owned = 1")
    page.open()
    page.wait_text(".health", "Nothing is wrong")
    for attempt in ("document.body.innerHTML = '<b>x</b>'", "document.write('x')"):
        refused = page.run(f"(() => {{ try {{ {attempt}; return ''; }} catch (error) {{ return error.name; }} }})()")
        assert refused in ("TypeError", "EvalError"), attempt
    # A module of the same origin with no nonce, as an injection would add it.
    page.run(
        """new Promise((resolve) => {
            const link = document.createElement("link");
            Object.assign(link, { rel: "modulepreload", href: "/v1/stream/script.js" });
            link.onload = link.onerror = resolve;
            document.head.append(link);
        })"""
    )
    outcome = page.run("import('/v1/stream/script.js').then(() => 'loaded', () => 'refused')")
    assert outcome == "refused"
    assert page.run("window.owned === undefined")


def test_a_stream_of_html_runs_nothing_in_the_origin_of_the_console(evil: tuple[ConsolePage, httpx.Client]) -> None:
    page, http = evil
    body = b"<!doctype html><title>before</title><script>document.title = 'after'; sessionStorage.x = 1</script>"
    for kind in ("text/html", "image/svg+xml", "application/xhtml+xml"):
        path = f"/v1/stream/{kind.replace('/', '-')}"
        http.put(path, headers={"content-type": kind}, content=body)
        for query in ("", "?offset=-1", "?offset=now"):
            policy = http.get(path + query).headers["content-security-policy"]
            assert policy == "sandbox; default-src 'none'"
            assert http.get(path + query).headers["x-content-type-options"] == "nosniff"
    page.browser.open(page.name, f"{page.base}/v1/stream/text-html")
    assert page.run("document.title") == "before"
    assert page.run("self.origin") == "null"
    assert page.run("(() => { try { return sessionStorage.length; } catch { return 'refused'; } })()") == "refused"


def test_another_origin_can_do_nothing_with_an_open_console(chromium: Browser, shop: Server) -> None:
    page, url = uuid.uuid4().hex, f"http://127.0.0.1:{shop.port}"
    with website("<!doctype html><title>evil</title><body></body>") as port:
        chromium.open(page, f"http://evil.example:{port}/")
        framed = chromium.run(
            page,
            f"""new Promise((resolve) => {{
                const frame = document.createElement("iframe");
                frame.onload = () => {{
                    try {{ resolve(frame.contentWindow.document.title); }} catch {{ resolve("out of reach"); }}
                }};
                frame.src = {json.dumps(f"{url}/console")};
                document.body.append(frame);
            }})""",
        )
        assert framed == "out of reach"
        frames = chromium.act(page, "frames")
        assert all(not address.startswith(url) or "Headwater" not in text for address, text in frames), frames
        for path in ("/console", "/console/app.js", "/v1/stream/__ds/streams"):
            outcome = chromium.run(page, f"fetch({json.dumps(url + path)}).then(() => 'read', () => 'refused')")
            assert outcome == "refused"
        posted = chromium.run(
            page,
            f"fetch({json.dumps(url)} + '/v1/stream/shop/orders', {{ method: 'POST', body: '[1]', "
            "headers: { 'content-type': 'application/json' } }).then(() => 'sent', () => 'refused')",
        )
        assert posted == "refused"
        # A window that it opens has nothing to do with it.
        opened = chromium.run(
            page,
            f"""new Promise((resolve) => {{
                const other = window.open({json.dumps(f"{url}/console")});
                setTimeout(() => resolve(other === null || other.closed), 2000);
            }})""",
        )
        assert opened is True
    chromium.close(page)
