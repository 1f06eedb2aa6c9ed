"""A service that opens: whatever fails, nothing is left open, and the next attempt succeeds."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from headwater.engine import Engine
from headwater.limits import Limits
from headwater.outbound.client import OutboundClient
from headwater.server.asgi import App
from headwater.server.auth.fetching import RemoteKeys
from headwater.server.following import Followers
from headwater.server.following.policy import parse_policy
from headwater.server.notify import Notifier
from headwater.server.opening import ServiceOptions, open_service
from headwater.server.quotas import parse_quotas
from headwater.server.views import Views
from headwater.store.contract import Store
from headwater.store.embedded.opening import open_store
from tests.waiting import wait_until_async

PARTS = [(Engine, "start"), (Views, "start"), (Notifier, "start"), (Followers, "start")]


@pytest.mark.parametrize(("part", "method"), PARTS, ids=[part.__name__ for part, _ in PARTS])
def test_a_start_that_fails_leaves_nothing_open(
    part: type, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: set[OutboundClient] = set()
    make, close = OutboundClient.__init__, OutboundClient.aclose

    def noted(client: OutboundClient, *arguments: object, **options: object) -> None:
        opened.add(client)
        make(client, *arguments, **options)  # type: ignore[arg-type]

    async def closed(client: OutboundClient) -> None:
        opened.discard(client)
        await close(client)

    async def failing(_: object) -> None:
        raise OSError("no")

    async def fetching(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(RemoteKeys, "keep", fetching)
    monkeypatch.setattr(OutboundClient, "__init__", noted)
    monkeypatch.setattr(OutboundClient, "aclose", closed)
    tokens = tmp_path / "auth.toml"
    tokens.write_text('[[issuer]]\nissuer = "https://id.example"\naudience = "a"\njwks_url = "https://id.invalid/k"\n')
    tokens.chmod(0o600)
    limits = Limits()
    app = App(lambda: open_store(tmp_path / "data", limits), limits, auth=tokens, allow_follow=["https://a.example/"])

    async def body() -> None:
        before = asyncio.all_tasks()
        with monkeypatch.context() as patch:
            patch.setattr(part, method, failing)
            with pytest.raises(OSError, match="no"):
                await app.start()
        assert opened == set()
        assert asyncio.all_tasks() == before
        await app.start()  # the store is not locked
        assert opened
        await app.stop()
        assert opened == set()

    asyncio.run(body())


def test_a_missing_certificate_file_leaves_the_store_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits()
    app = App(lambda: open_store(tmp_path / "data", limits), limits)

    async def body() -> None:
        with monkeypatch.context() as patch:
            patch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
            with pytest.raises(FileNotFoundError):
                await app.start()
        await app.start()  # the store is not locked
        await app.stop()

    asyncio.run(body())


def test_a_stop_waits_for_a_start_that_is_under_way(tmp_path: Path) -> None:
    limits = Limits()

    def make_app() -> App:
        return App(lambda: open_store(tmp_path / "data", limits), limits)

    async def body() -> None:
        first, second = make_app(), make_app()
        starting = asyncio.create_task(first.start())
        await asyncio.sleep(0)  # the start has begun
        await first.stop()
        await starting
        await second.start()  # the store is not locked
        await second.stop()

    asyncio.run(body())


def test_a_start_that_is_cancelled_while_the_store_opens_leaves_it_closed(tmp_path: Path) -> None:
    limits = Limits()
    options = ServiceOptions(limits=limits, policy=parse_policy(), prefixes=parse_quotas(()))
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def slow() -> Store:
        begun.set()
        go_on.wait()
        store = open_store(tmp_path / "data", limits)
        done.set()
        return store

    async def body() -> None:
        starting = asyncio.create_task(open_service(options, slow))
        await wait_until_async(begun.is_set)
        for _ in range(2):
            starting.cancel()
            await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await wait_until_async(done.is_set)
        opened = await open_service(options, lambda: open_store(tmp_path / "data", limits))  # it is not locked
        await opened.close()

    asyncio.run(body())


def test_a_store_that_cannot_be_opened_leaves_no_client_for_keys_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[OutboundClient] = []
    close = OutboundClient.aclose

    async def noted(client: OutboundClient) -> None:
        closed.append(client)
        await close(client)

    monkeypatch.setattr(OutboundClient, "aclose", noted)
    tokens = tmp_path / "auth.toml"
    tokens.write_text("open_metrics = true\n")
    tokens.chmod(0o600)
    options = ServiceOptions(limits=Limits(), policy=parse_policy(), prefixes=parse_quotas(()), auth=tokens)

    def failing() -> Store:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        asyncio.run(open_service(options, failing))
    assert len(closed) == 1
