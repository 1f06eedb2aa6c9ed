"""Requests and parsing of responses that the contract tests of tables share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import quote

import httpx

from tests.metrics import TABLE, wait_for_readers

SCHEMA = {"content-type": "text/sequence; schema=endpoint_manifest; version=1"}
WHOLE_TYPE = "text/sequence; charset=utf-8; schema=endpoint_manifest; version=1"
FORM = {"content-type": "application/x-www-form-urlencoded"}
NOW = {"timeout": "0"}
STAMP = rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z"


def rows(count: int, first: int = 1) -> bytes:
    return b"".join(b"+\tkey%d\trecord %d\n" % (n, n) for n in range(first, first + count))


def seqnos(body: bytes) -> list[int]:
    assert body == b"" or body.endswith(b"\n")
    return [int(line.split(b"\t")[0]) for line in body.splitlines()]


def problem(response: httpx.Response) -> str:
    assert response.headers["content-type"] == "application/problem+json"
    return str(response.json()["type"]).removeprefix("urn:headwater:")


@contextmanager
def meanwhile(client: httpx.Client, *steps: Callable[[], object]) -> Iterator[None]:
    """Run steps in a thread, each when a live reader waits for rows."""

    def run() -> None:
        for step in steps:
            wait_for_readers(client, TABLE)
            step()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        yield
        running.result()


def advertise(client: httpx.Client, table: str, url: str, event: str = "rows") -> None:
    answer = client.post(f"{table}/notify", content=f"{event}={quote(url, safe='')}", headers=FORM)
    assert (answer.status_code, answer.content) == (204, b""), answer.text


def advertised(client: httpx.Client, table: str) -> list[list[str]]:
    """Action, event type and record of each row of the table of NURLs."""
    lines = client.get(f"{table}/notify", params=NOW).text.splitlines()
    rows = [line.split("\t")[2:] for line in lines]
    return [[action, key.partition("/")[0], record] for action, key, record in rows]
