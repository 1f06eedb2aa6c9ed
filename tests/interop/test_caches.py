"""Shared caches with their defaults in front of the server: both nginx and Varnish send GET for HEAD."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from bench.servers import headwater

from headwater.client import Client
from headwater.spark.catalogue import NamedStreams
from tests.proxies import ROOT, cache

pytestmark = pytest.mark.slow

MESSAGES = [{"n": number, "pad": "x" * 900} for number in range(6_000)]


@pytest.fixture(params=["nginx", "varnishd"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The URL of a server, and that of the cache in front of it."""
    with headwater("--memory") as server, cache(request.param, tmp_path, server.port) as cached:
        yield f"http://127.0.0.1:{server.port}", cached


def test_the_tail_through_a_cache_is_the_tail(urls: tuple[str, str]) -> None:
    with Client(urls[0]) as direct, Client(urls[1]) as cached:
        stream = direct.stream("large")
        stream.create(ttl_s=3_600)
        for first in range(0, len(MESSAGES), 500):
            stream.append_many(MESSAGES[first : first + 500])
            cached.stream("large").read().all()  # fills the cache
            httpx.get(f"{urls[1]}/v1/stream/large")  # at the URL of HEAD
            assert cached.stream("large").head() == stream.head()
            assert NamedStreams(cached).named(["large"])["large"].tail_offset == stream.head().tail_offset
        stream.close()
        assert cached.stream("large").head() == stream.head()
        assert cached.stream("large").head().closed
        assert cached.stream("large").read().all() == MESSAGES


def test_pages_come_from_the_cache(urls: tuple[str, str]) -> None:
    with Client(urls[0]) as direct:
        stream = direct.stream("pages")
        stream.create()
        first = stream.append_many(MESSAGES[:100]).offset
        for _ in range(30):
            stream.append_many(MESSAGES[:100])
        page = f"{urls[1]}/v1/stream/pages?offset={first}"
        answers = [httpx.get(page, headers={"accept-encoding": "identity"}) for _ in range(2)]
        assert answers[0].content == answers[1].content
        hit = answers[1].headers.get("x-cache-status", "")
        assert hit == "HIT" or len(answers[1].headers.get("x-varnish", "").split()) == 2


def test_the_last_row_through_a_cache_is_the_last_row(urls: tuple[str, str]) -> None:
    with Client(urls[0]) as direct, Client(urls[1]) as cached:
        table = direct.table("prices")
        table.create(schema="prices")
        for number in range(5):
            table.append([("+", f"key{number}", "record")])
            assert [row.seqno for row in cached.table("prices").rows()][-1] == number + 1
            assert cached.table("prices").info() == table.info()


@pytest.mark.parametrize(("name", "language"), [("nginx", "nginx"), ("varnishd", "vcl")])
def test_a_plain_head_is_right_with_the_settings_of_the_docs(name: str, language: str, tmp_path: Path) -> None:
    page = (ROOT / "docs/howto/caches.md").read_text()
    settings = page.partition(f"```{language}\n")[2].partition("```")[0]
    assert settings
    with headwater("--memory") as server, cache(name, tmp_path, server.port, settings) as cached:
        with Client(f"http://127.0.0.1:{server.port}") as client:
            stream = client.stream("large")
            stream.create()
            for first in range(0, len(MESSAGES), 2_000):
                stream.append_many(MESSAGES[first : first + 2_000])
            tail = stream.head().tail_offset
        url = f"{cached}/v1/stream/large"
        for _ in range(2):
            assert httpx.get(url).headers["stream-next-offset"] < tail  # the first part
            assert httpx.head(url).headers["stream-next-offset"] == tail


def test_a_reader_begins_again_behind_a_cache_with_the_settings_of_the_docs(tmp_path: Path) -> None:
    """The cache has the beginning of the stream that was deleted."""
    page = (ROOT / "docs/howto/caches.md").read_text()
    settings = page.partition("```vcl\n")[2].partition("```")[0]
    with headwater("--memory") as server, cache("varnishd", tmp_path, server.port, settings) as cached:
        with Client(f"http://127.0.0.1:{server.port}") as direct, Client(cached) as client:
            stream = direct.stream("again")
            stream.create()
            for first in range(0, len(MESSAGES), 2_000):
                stream.append_many(MESSAGES[first : first + 2_000])
            assert len(client.stream("again").read().all()) == len(MESSAGES)
            stream.delete()
            stream.create()
            stream.append({"new": True})
            read: list[object] = []
            for batch in client.stream("again").read(on_gone="restart").batches():
                read = [] if batch.restarted else [*read, *batch.items]
            assert read == [{"new": True}]
