"""What prefixes with quotas use: counted with every write, withdrawn with it, and counted again at the start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headwater.engine import Engine
from headwater.errors import QuotaExceededError, StorageFullError, TooManyStreamsError
from headwater.limits import LIST_PAGE_MAX, Limits
from headwater.log.commands import Append, Create, Delete
from headwater.log.quotas import Prefixes, PrefixQuota, TokenQuota, TokenQuotas, Usage
from headwater.store.contract import RefusedError
from headwater.store.embedded.opening import open_store
from tests.unit.engine.test_engine import SlowStore, append, create, turn, with_engine

QUOTAS = [PrefixQuota("a", streams_max=3, bytes_max=100), PrefixQuota("a/b", streams_max=1)]


def uses(engine: Engine) -> list[tuple[int, int]]:
    used = [engine.usage.of(PrefixQuota(prefix)) for prefix in ("a", "a/b")]
    return [(use.streams, use.bytes) for use in used]


def test_a_batch_that_is_refused_is_not_counted() -> None:
    store = SlowStore()

    async def body(engine: Engine) -> None:
        creating = asyncio.ensure_future(engine.execute(create(engine, "a/1", body=b"one")))
        await turn()
        store.release()
        await creating
        refused = [
            asyncio.ensure_future(engine.execute(append(engine, "a/1", b"two"))),
            asyncio.ensure_future(engine.execute(create(engine, "a/b/1"))),
        ]
        await turn()
        assert uses(engine) == [(2, 6), (1, 0)]
        store.release(RefusedError("no room"))
        await turn()
        assert [type(task.exception()) for task in refused] == [StorageFullError] * 2
        assert uses(engine) == [(1, 3), (0, 0)]
        deleting = asyncio.ensure_future(engine.execute(Delete("a/1", engine.now_ms())))
        await turn()
        assert uses(engine) == [(0, 0), (0, 0)]
        store.release()
        await deleting
        assert uses(engine) == [(0, 0), (0, 0)]

    with_engine(body, store, usage=Usage(Prefixes(QUOTAS)))


def test_the_counts_are_made_again_at_the_start(tmp_path: Path) -> None:
    many = LIST_PAGE_MAX + 10
    prefixes = Prefixes([PrefixQuota("a", streams_max=many), PrefixQuota("a/b", bytes_max=10)])

    async def life(first: bool) -> None:
        engine = Engine(open_store(tmp_path / "data", Limits()), usage=Usage(prefixes))
        await engine.start()
        try:
            if first:
                for number in range(many - 3):
                    await engine.execute(Create(path=f"a/{number:05}", now_ms=1, content_type="text/plain", body=b"x"))
                for path in ("a/gone", "a", "a/b/s", "\x01a/b/t", "ab", "\x01ab"):
                    await engine.execute(Create(path=path, now_ms=1, content_type="text/plain", body=b"12345"))
                    if path == "a/gone":
                        await engine.execute(Delete(path, 1))
            assert uses(engine) == [(many, many - 3 + 15), (2, 10)]
            with pytest.raises(TooManyStreamsError):
                await engine.execute(Create(path="a/one-more", now_ms=1, content_type="text/plain"))
            with pytest.raises(QuotaExceededError):
                await engine.execute(Append("a/b/s", 1, b"6", "text/plain"))
        finally:
            await engine.stop()

    asyncio.run(life(True))
    asyncio.run(life(False))


def test_what_owners_have_is_counted_again_at_the_start(tmp_path: Path) -> None:
    async def life(first: bool) -> None:
        tokens = TokenQuotas([TokenQuota("ci", streams_max=3, bytes_max=10)])
        usage = Usage(Prefixes(QUOTAS), tokens)
        engine = Engine(open_store(tmp_path / "data", Limits()), usage=usage)
        await engine.start()
        try:
            if first:
                for path, owner in (("a/1", "ci"), ("\x01t", "ci"), ("s", "ci"), ("gone", "ci"), ("b", "other")):
                    if path == "gone":
                        await engine.execute(Delete("s", 1))
                    await engine.execute(
                        Create(path=path, now_ms=1, content_type="text/plain", body=b"123", owner=owner)
                    )
                await engine.execute(Append("gone", 1, b"4", "text/plain"))
            assert [(use.streams, use.bytes) for use in map(usage.of, (TokenQuota("ci"), TokenQuota("other")))] == [
                (3, 10),
                (1, 3),
            ]
            assert uses(engine) == [(1, 3), (0, 0)]
            with pytest.raises(TooManyStreamsError):
                await engine.execute(Create(path="more", now_ms=1, content_type="text/plain", owner="ci"))
            with pytest.raises(QuotaExceededError):
                await engine.execute(Append("a/1", 1, b"5", "text/plain"))
        finally:
            await engine.stop()

    asyncio.run(life(True))
    asyncio.run(life(False))
