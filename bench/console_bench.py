"""The console in a browser: a minute of a live tail at 1,000 messages a second, a stream of ten million messages, and a
list of a million streams.

The longest task is that of the main thread of the page, as the browser reports it (tasks of more than 50 ms): it is how
long the page does not answer. Memory is what the page keeps after a garbage collection. All runs on one machine with
the server and the load.
"""

from __future__ import annotations

import itertools
import socket
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from bench.browser import Browser, open_browser
from bench.load import call, request
from bench.report import Row
from bench.server_bench import BODY, Bench
from bench.servers import Server, headwater

TAIL_S = 60
PER_SECOND = 1_000
MESSAGES = 10_000_000
PER_APPEND = 100
STREAMS = 1_000_000
RUNS = 5
TASK_MS_MAX = 200
GROWTH_MB_MAX = 32
OPEN_MS_MAX = 1_000
_PIPELINED = 16
_CONNECTIONS = 32
_WRITERS = 10
_PAGE = "console"

# Before the scripts of the page: the longest task from here on.
_WATCH = """(() => {
    window.longest = 0;
    new PerformanceObserver((list) => {
        for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration);
    }).observe({ type: "longtask" });
})()"""
# Milliseconds from the navigation until rows are on the screen that contain a text.
_SHOWN = """new Promise((resolve) => {{
    const look = () => {{
        const rows = [...document.querySelectorAll(".grid-space .grid-row:not([hidden])")];
        if (rows.some((row) => row.textContent.includes({text}))) resolve(performance.now() - {since});
        else requestAnimationFrame(look);
    }};
    look();
}})"""


def run_console(bench: Bench) -> None:
    with open_browser() as browser:
        browser.act(_PAGE, "viewport", width=1280, height=860)
        with headwater("--memory") as server:
            _tail(bench, server, browser)
        with tempfile.TemporaryDirectory() as directory, headwater("--data-dir", directory) as server:
            _large_stream(bench, server, browser)
        with tempfile.TemporaryDirectory() as directory, headwater("--data-dir", directory) as server:
            _many_streams(bench, server, browser)


def _url(server: Server, place: str) -> str:
    return f"http://{server.host}:{server.port}/console{place}"


# A live tail


def _tail(bench: Bench, server: Server, browser: Browser) -> None:
    call(server, "PUT", "tail")
    browser.open(_PAGE, _url(server, "#/stream/tail"))
    _wait(browser, 'document.querySelector(".state")?.textContent.includes("Live")')
    browser.run(_PAGE, _WATCH)
    browser.run(_PAGE, "setTimeout(() => { const from = performance.now(); while (performance.now() < from + 120); })")
    _wait(browser, "window.longest >= 100")  # a long task is seen
    with _Load(server, "tail"):
        time.sleep(TAIL_S / 6)  # by then the window is nearly full
        before = browser.act(_PAGE, "heap")
        browser.run(_PAGE, "window.longest = 0")  # the collection of garbage was a task
        received = _received(browser)
        started_s = time.perf_counter()
        time.sleep(TAIL_S)
        rate = (_received(browser) - received) / (time.perf_counter() - started_s)
        longest = browser.run(_PAGE, "window.longest")
        after = browser.act(_PAGE, "heap")
    rows = browser.run(_PAGE, 'document.querySelectorAll(".grid-row").length')
    title = f"tail of {PER_SECOND:,} messages/s, {TAIL_S} s"
    bench.note(Row(f"{title}: messages shown", "console", rate, "/s", goal=f"at least {PER_SECOND * 0.9:.0f}"))
    note = "0: none was longer than 50 ms" if not longest else ""
    bench.note(Row(f"{title}: longest task", "console", longest, "ms", goal=f"at most {TASK_MS_MAX}", note=note))
    note = f"{after / 1e6:.1f} MB at the end, {rows} rows are elements"
    growth = (after - before) / 1e6
    bench.note(Row(f"{title}: growth", "console", growth, "MB", goal=f"at most {GROWTH_MB_MAX}", note=note))


def _received(browser: Browser) -> int:
    """The number of the newest message on the screen."""
    return int(
        browser.run(
            _PAGE,
            """Math.max(...[...document.querySelectorAll(".grid-space .grid-row:not([hidden])")]
                .map((row) => Number(/"n":(\\d+)/.exec(row.textContent)?.[1] ?? 0)))""",
        )
    )


class _Load:
    """Appends one message at a time, at a steady rate, over some connections."""

    def __init__(self, server: Server, path: str) -> None:
        self._server = server
        self._path = path
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(_WRITERS)]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        sent, started_s = 0, time.perf_counter()
        with socket.create_connection((self._server.host, self._server.port)) as sock:
            while not self._stopping.is_set():
                due = int((time.perf_counter() - started_s) * PER_SECOND / _WRITERS) - sent
                if due > 0:
                    some = range(sent, sent + min(due, _PIPELINED))
                    _send(sock, [self._append(one * _WRITERS + number) for one in some])
                    sent += len(some)
                time.sleep(0.01)

    def _append(self, number: int) -> bytes:
        return request("POST", self._server, self._path, b'[{"n":%d,"pad":"%b"}]' % (number, b"x" * 80))


# Much


def _large_stream(bench: Bench, server: Server, browser: Browser) -> None:
    call(server, "PUT", "large")
    body = b"[" + b",".join([BODY] * PER_APPEND) + b"]"
    _send_all(server, (request("POST", server, "large", body) for _ in range(MESSAGES // PER_APPEND - 1)))
    call(server, "POST", "large", b'[{"last":true}]')
    server.wait_until_folded()
    title = f"stream of {MESSAGES:,} messages"
    opened = _timed(browser, server, "#/stream/large", '"last":true')
    note = f"{(MESSAGES * (len(BODY) + 1)) / 1e9:.1f} GB; from the navigation to the newest messages"
    bench.note(Row(f"{title}: open", "console", opened, "ms", goal=f"at most {OPEN_MS_MAX}", note=note))
    jumped = []
    for _ in range(RUNS):
        browser.run(_PAGE, 'document.querySelector(".menu summary").click()')
        browser.run(
            _PAGE,
            """(() => { window.from = performance.now();
            for (const button of document.querySelectorAll("button")) if (button.textContent === "First message")
                button.click(); })()""",
        )
        jumped.append(browser.run(_PAGE, _SHOWN.format(text="'pad'", since="window.from")))
    bench.note(Row(f"{title}: jump to the first message", "console", max(jumped), "ms", goal=f"at most {OPEN_MS_MAX}"))


def _many_streams(bench: Bench, server: Server, browser: Browser) -> None:
    names = (f"{number % 100:02}/stream-{number:07}" for number in range(STREAMS))
    _send_all(server, (request("PUT", server, name) for name in names))
    server.wait_until_folded()
    title = f"list of {STREAMS:,} streams"
    opened = _timed(browser, server, "#/", "00/")
    bench.note(Row(f"{title}: open the tree", "console", opened, "ms", goal=f"at most {OPEN_MS_MAX}"))
    searched = _timed(browser, server, "#/?prefix=42/stream-0", "42/stream-0")
    bench.note(Row(f"{title}: search a beginning", "console", searched, "ms", goal=f"at most {OPEN_MS_MAX}"))
    _search_anywhere(bench, server, browser, title)


def _search_anywhere(bench: Bench, server: Server, browser: Browser, title: str) -> None:
    """The page reads the whole list, a piece at a time, and stays responsive meanwhile."""
    text = f"{STREAMS - 1:07}"
    browser.open(_PAGE, _url(server, f"?{time.monotonic_ns()}#/?prefix={text}"))
    button = '[...document.querySelectorAll(".browser button")].find((one) => one.textContent.startsWith("Find"))'
    _wait(browser, button)
    browser.run(_PAGE, _WATCH)
    started_s = time.perf_counter()
    browser.run(_PAGE, f"{button}.click()")
    _wait(browser, f'document.querySelector(".browser").textContent.includes("1 of {STREAMS:,} paths contain it.")')
    took_s = time.perf_counter() - started_s
    longest = browser.run(_PAGE, "window.longest")
    bench.note(Row(f"{title}: search anywhere in the paths", "console", STREAMS / took_s, "paths/s"))
    note = "0: none was longer than 50 ms" if not longest else ""
    row = Row(
        f"{title}: search anywhere, longest task", "console", longest, "ms", goal=f"at most {TASK_MS_MAX}", note=note
    )
    bench.note(row)


def _timed(browser: Browser, server: Server, place: str, text: str) -> float:
    """The longest of some openings of a place."""
    times = []
    for _ in range(RUNS):
        browser.open(_PAGE, _url(server, f"?{time.monotonic_ns()}{place}"))
        times.append(browser.run(_PAGE, _SHOWN.format(text=repr(text), since="0")))
    return float(max(times))


def _wait(browser: Browser, condition: str) -> None:
    browser.run(
        _PAGE,
        f"""new Promise((resolve) => {{
            const look = () => ({condition}) ? resolve() : requestAnimationFrame(look); look(); }})""",
    )


def _send_all(server: Server, requests: Iterable[bytes]) -> None:
    """Send requests over many connections, because those of one connection are carried out one after the other."""
    requests, lock = iter(requests), threading.Lock()

    def work() -> None:
        with socket.create_connection((server.host, server.port)) as sock:
            while True:
                with lock:
                    some = list(itertools.islice(requests, _PIPELINED))
                if not some:
                    return
                _send(sock, some)

    with ThreadPoolExecutor(_CONNECTIONS) as workers:
        for done in [workers.submit(work) for _ in range(_CONNECTIONS)]:
            done.result()


def _send(sock: socket.socket, requests: list[bytes]) -> None:
    """Send requests, and wait for an answer without a body to each of them."""
    sock.sendall(b"".join(requests))
    answers = b""
    while answers.count(b"\r\n\r\n") < len(requests):
        data = sock.recv(1 << 16)
        if not data:
            raise RuntimeError("the server closed the connection")
        answers += data
    if answers.count(b"HTTP/1.1 2") < len(requests):
        raise RuntimeError(f"a request failed: {answers[:200]!r}")
