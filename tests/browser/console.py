"""The console in a browser, as tests drive it, and a server with something to look at."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from bench.servers import Server

from tests.browser.pages import Browser
from tests.waiting import wait_until

JSON = {"content-type": "application/json"}
ROWS = {"content-type": "text/sequence"}
SCREENSHOTS = "HEADWATER_SCREENSHOTS"  # a directory in which the tests leave what they have seen
GRID = ".grid-space .grid-row:not([hidden])"
ITEMS = ("tea", "salt", "coffee", "sugar", "rice")

# The texts of the rows of a grid that are in view and of a few around them, in their order on the screen.
_ROWS = f"""[...document.querySelectorAll({json.dumps(GRID)})]
    .sort((one, other) => one.ariaRowIndex - other.ariaRowIndex)
    .map((row) => [...row.children].map((cell) => cell.textContent))"""

_FIRST_IN_VIEW = f"""[...document.querySelectorAll({json.dumps(GRID)})]
    .sort((one, other) => one.ariaRowIndex - other.ariaRowIndex)
    .filter((row) => {{
        const head = row.closest(".grid").querySelector(".grid-head").getBoundingClientRect();
        return row.getBoundingClientRect().top >= head.bottom - 1;
    }})
    .slice(0, 1)
    .flatMap((row) => [...row.children].map((cell) => cell.textContent))"""


class ConsolePage:
    """One tab with the console."""

    def __init__(self, browser: Browser, name: str, server: Server, screenshots: Path) -> None:
        self.browser = browser
        self.name = name
        self.base = f"{server.scheme}://{server.host}:{server.port}"
        self._expected = 0
        self._screenshots = Path(os.environ.get(SCREENSHOTS, screenshots))

    def open(self, place: str = "", *, width: int = 1280, height: int = 860) -> None:
        self.browser.act(self.name, "viewport", width=width, height=height)
        assert self.browser.open(self.name, f"{self.base}/console{place}") == 200

    def go(self, place: str) -> None:
        self.run(f"location.hash = {json.dumps(place)}")

    def stream(self, path: str, part: str = "") -> None:
        self.go(f"#/stream/{quote(path, safe='')}{part}")
        self.wait_text("h1", path)

    def run(self, script: str) -> Any:
        return self.browser.run(self.name, script)

    def act(self, name: str, **more: Any) -> Any:
        return self.browser.act(self.name, name, **more)

    def click(self, selector: str) -> None:
        self.act("click", selector=selector)

    def fill(self, selector: str, text: str) -> None:
        self.act("fill", selector=selector, text=text)

    def press(self, *keys: str) -> None:
        self.act("press", keys=list(keys))

    def text(self, selector: str) -> str:
        """The text of the first element that fits; empty if there is none."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"))

    def rows(self) -> list[list[str]]:
        texts: list[list[str]] = self.run(_ROWS)
        return texts

    def first_in_view(self) -> list[str]:
        """The texts of the first row in view, if there is one. Some of those before it are elements too."""
        texts: list[str] = self.run(_FIRST_IN_VIEW)
        return texts

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        try:
            return wait_until(condition, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; the page says: {self.text('main')[:600]!r}") from None

    def wait_text(self, selector: str, part: str) -> None:
        self.wait(lambda: part in self.text(selector), f"{selector} says {part!r}")

    def wait_rows(self, condition: Callable[[list[list[str]]], Any], what: str) -> list[list[str]]:
        self.wait(lambda: condition(self.rows()), what)
        return self.rows()

    def shot(self, name: str) -> None:
        self._screenshots.mkdir(parents=True, exist_ok=True)
        self.browser.screenshot(self.name, self._screenshots / f"{name}.png")

    def check(self) -> None:
        """axe-core finds nothing, and nothing is wider than the screen."""
        violations = self.act("axe")
        assert not violations, json.dumps(violations, indent=1)
        widest = self.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert widest <= 0, f"the page is {widest} pixels too wide"

    def said(self) -> list[str]:
        """What is in the console of the browser, without the refusals that a test expected."""
        lines: list[str] = self.act("said")
        return lines[self._expected :]

    def expect_refusals(self, *statuses: int) -> None:
        """Browsers note each response that is an error, also one that the page expects and shows."""
        notes = self.said()
        assert len(notes) == len(statuses), notes
        for note, status in zip(notes, statuses, strict=True):
            assert f"the server responded with a status of {status}" in note
        self._expected += len(notes)


def order(number: int, step: int) -> dict[str, Any]:
    """The event of an order that moves on with each step."""
    value = {
        "no": number,
        "item": ITEMS[number % 5],
        "count": 1 + number % 4,
        "total": round(3.5 + number * 1.25, 2),
        "status": ("new", "paid", "sent")[min(step, 2)],
        "address": {"city": ("Oslo", "Bergen", "Tromsø")[number % 3], "zip": "0150"},
    }
    return {"type": "order", "key": f"o{number}", "headers": {"operation": "upsert"}, "value": value}


def payment(number: int) -> dict[str, Any]:
    return {
        "order": f"o{1 + number % 12}",
        "eur": round(4.2 + number * 7 % 83, 2),
        "method": ("card", "invoice", "card", "voucher")[number % 4],
        "customer": {"id": f"c{number % 8}", "name": f"Customer {number % 8}"},
        "items": [ITEMS[number % 5], ITEMS[(number * 3 + 1) % 5]],
    }


def fill_shop(http: httpx.Client) -> None:
    """A shop: state events, plain messages, text, bytes, a fork, tables, a view, a mirror's SURL and subscriptions."""

    def put(path: str, **headers: str) -> None:
        assert http.put(f"/v1/stream/{quote(path)}", headers={**JSON, **headers}).is_success, path

    def append(path: str, body: object, **headers: str) -> None:
        answer = http.post(f"/v1/stream/{quote(path)}", headers={**JSON, **headers}, content=json.dumps(body).encode())
        assert answer.is_success, answer.text

    for path in ("shop/orders", "shop/prices", "shop/customers", "wakes"):
        put(path)
    put("shop/payments")
    for number in range(200):
        append("shop/payments", payment(number))
    put("logs/agent", **{"content-type": "application/octet-stream"})
    put("notes/today", **{"content-type": "text/plain"})
    for number in range(12):
        put(f"tenants/t{number:02}/events")
    sent = 0
    for step in range(3):
        for number in range(1, 13):
            if number % (step + 1) == 0:
                producer = {"producer-id": "shop-1", "producer-epoch": "0", "producer-seq": str(sent)}
                append("shop/orders", [order(number, step)], **producer)
                sent += 1
    append("shop/orders", [{"type": "order", "key": "o12", "headers": {"operation": "delete"}}])
    customers = [
        {"type": "customer", "key": f"c{n}", "headers": {"operation": "insert"}, "value": {"name": f"Customer {n}"}}
        for n in range(8)
    ]
    append("shop/orders", customers)
    for number in range(300):
        append(
            "shop/prices", [{"sku": ITEMS[number % 5], "eur": 1 + number / 100, "big": 12345678901234567890 + number}]
        )
    http.post("/v1/stream/logs/agent", content=bytes(range(256)), headers={"content-type": "application/octet-stream"})
    http.post("/v1/stream/notes/today", content=b"first\nsecond line", headers={"content-type": "text/plain"})
    put("shop/orders-test", **{"stream-forked-from": "/v1/stream/shop/orders"})
    assert http.put(
        "/v1/table/pricelist", headers={"content-type": "text/sequence; schema=price; version=1"}
    ).is_success
    for number in range(60):
        record = json.dumps({"name": ITEMS[number % 5], "price": number / 10})
        assert http.post("/v1/table/pricelist", headers=ROWS, content=f"+\tsku{number % 20}\t{record}\n").is_success
    assert http.post("/v1/table/pricelist", headers=ROWS, content="-\tsku19\t\n").is_success
    view = {"stp-view-of": "/v1/stream/shop/orders", "stp-view-type": "order"}
    headers = {"content-type": "text/sequence; schema=order; version=1", **view}
    assert http.put("/v1/table/orders-view", headers=headers).is_success
    pull = {"type": "pull-wake", "pattern": "shop/*", "wake_stream": "wakes", "description": "sends mails"}
    assert http.put("/v1/stream/__ds/subscriptions/mailer", headers=JSON, json=pull).is_success
    append("shop/prices", [{"sku": "tea", "eur": 4.2}])
