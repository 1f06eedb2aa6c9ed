"""SQL: queries over a stream, beside DuckDB reading the same messages from a file of JSON lines.

On both sides each query has a database of its own, as with the commands `headwater sql` and `duckdb`.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from bench.report import Row
from bench.server_bench import Bench
from bench.servers import headwater
from headwater.client import Client
from headwater.sql import SqlSession

MESSAGES = 2_000_000
APPENDED = 2_000  # messages in a request
CUSTOMERS = 5_000
RUNS = 5
GOAL = ">= 0.5"
STATUSES = ("placed", "paid", "shipped")
QUERIES = {
    "count": "SELECT count(*) FROM {orders}",
    "filter on a field": "SELECT count(*) FROM {orders} WHERE status = 'paid'",
    "join and sum": "SELECT city, count(*), sum(pieces) FROM {orders} JOIN {customers} ON customer = name GROUP BY 1",
    "all columns": "SELECT max(columns(*)) FROM {orders}",
}


def run_sql(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as directory, headwater("--data-dir", f"{directory}/data") as server:
        file, customers = Path(directory) / "orders.ndjson", Path(directory) / "customers.csv"
        cities = (f"customer-{number},city-{number % 7}\n" for number in range(CUSTOMERS))
        customers.write_text(f"name,city\n{''.join(cities)}")
        with Client(server.url) as client:
            _fill(client, file)
            server.wait_until_folded()
            for what, query in QUERIES.items():
                own = query.format(orders="'orders'", customers=f"'{customers}'")
                other = query.format(orders=f"'{file}'", customers=f"'{customers}'")
                _compare(bench, what, partial(_ours, client, own), partial(_theirs, other))


def _compare(bench: Bench, what: str, ours: Callable[[], list[Any]], theirs: Callable[[], list[Any]]) -> None:
    """Run both in turns, and compare the medians of their rates."""
    rates: dict[str, list[float]] = {"ours": [], "theirs": []}
    results = []
    for _ in range(RUNS):
        for name, work in (("ours", ours), ("theirs", theirs)):
            started_s = time.perf_counter()
            results.append(sorted(map(str, work())))
            rates[name].append(MESSAGES / (time.perf_counter() - started_s))
    if any(result != results[0] for result in results):
        raise AssertionError(f"{what}: the results differ: {results[:2]}")
    own, other = statistics.median(rates["ours"]), statistics.median(rates["theirs"])
    bench.note(Row(what, "headwater sql", own, "rows/s"))
    note = f"best {max(rates['ours']):,.0f} and {max(rates['theirs']):,.0f}"
    bench.note(Row(what, "DuckDB over NDJSON", other, "rows/s", own / other, GOAL, note))


def _ours(client: Client, query: str) -> list[Any]:
    with SqlSession(client) as session:
        return [tuple(map(_plain, row.values())) for row in session.query(query).arrow().to_pylist()]


def _theirs(query: str) -> list[Any]:
    with duckdb.connect() as connection:
        return [tuple(map(_plain, row.values())) for row in connection.sql(query).to_arrow_table().to_pylist()]


def _plain(value: Any) -> str:
    return str(value)


def _fill(client: Client, file: Path) -> None:
    stream = client.stream("orders")
    stream.create()
    with file.open("wb") as lines:
        for texts in _messages():
            stream.append_body(b"[" + b",".join(texts) + b"]")
            lines.write(b"\n".join(texts) + b"\n")


def _messages() -> Iterator[list[bytes]]:
    chance = random.Random(1)
    encode = msgspec.json.Encoder().encode
    for first in range(0, MESSAGES, APPENDED):
        yield [
            encode(
                {
                    "id": number,
                    "customer": f"customer-{chance.randrange(CUSTOMERS)}",
                    "item": "blue-bench",
                    "pieces": chance.randint(1, 3),
                    "total_cents": chance.randint(500, 9000),
                    "status": chance.choice(STATUSES),
                }
            )
            for number in range(first, first + APPENDED)
        ]
