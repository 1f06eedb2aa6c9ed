"""A browser that does what it is told, through Node: for benches, and for the tests of pages."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.servers import NODE_DIR


class NoBrowserError(Exception):
    """There is no browser, no Node, or no driver of browsers for it."""


class Browser:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def open(self, page: str, url: str, context: str | None = None) -> int:
        """Show a URL in a page of that name; the status of its answer. Pages of a context are tabs of one browser."""
        return int(self._ask(page=page, context=context or page, goto=url))

    def close(self, page: str) -> None:
        self._ask(page=page, close="now")

    def run(self, page: str, script: str) -> Any:
        """What an expression of JavaScript comes to, promises awaited."""
        return self._ask(page=page, run=script)

    def screenshot(self, page: str, path: Path) -> None:
        """What the page looks like, as a PNG file."""
        self._ask(page=page, screenshot=str(path))

    def act(self, page: str, name: str, **more: Any) -> Any:
        """Do something as a person would; `ACTS` in `tests/node/browser.mjs` lists what there is."""
        return self._ask(page=page, act=name, **{"with": more})

    def _ask(self, **command: Any) -> Any:
        if self._process.stdin is None:
            raise RuntimeError("no standard input to write to")
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()["result"]

    def _answer(self) -> dict[str, Any]:
        if self._process.stdout is None:
            raise RuntimeError("no standard output to read from")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the browser ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def wait_until_ready(self) -> None:
        answer = self._answer()
        if "missing" in answer:
            raise NoBrowserError(f"{answer['missing']}; set HEADWATER_BROWSER")


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    node = shutil.which("node")
    if node is None or not (NODE_DIR / "node_modules" / "playwright-core").exists():
        raise NoBrowserError("Node or playwright-core is not installed")
    process = subprocess.Popen(
        [node, "browser.mjs"], cwd=NODE_DIR, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        browser = Browser(process)
        browser.wait_until_ready()
        yield browser
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
