from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from headwater.engine.messages import VisibleStream
from headwater.log.commands import ForkRequest
from headwater.log.content import ContentKind
from headwater.log.offsets import Names, Span, Timeline
from headwater.server.subscriptions import links
from headwater.server.subscriptions.links import acked_position, cursor_at, is_cursor_of
from headwater.server.subscriptions.records import StreamCursor
from tests import virtual_time
from tests.fault.subscription_oracle import matches
from tests.unit.server.subscriptions.rig import WAKE_STREAM, Rig


def run(test: Coroutine[Any, Any, None]) -> None:
    virtual_time.run(test)


@pytest.mark.parametrize("page", [1, 2, 1_000])
@pytest.mark.parametrize("pattern", ["**", "*", "e/*", "e/**", "nothing", None])
def test_links_are_in_order_from_any_path_on_whatever_the_size_of_a_page(
    pattern: str | None, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "LIST_PAGE_MAX", page)
    paths = ["a", "a/b", "a0", "e", "e/1", "e/1/2", "e/3", "z"]
    members = ("0", "e/1", "missing", "zz")

    async def test() -> None:
        async with Rig() as rig:
            for path in paths:
                await rig.create(path, b"1")
            subscription = await rig.subscribe(pattern, *members)
            expected = sorted({path for path in paths if pattern is not None and matches(pattern, path)} | {*members})
            for after in ["", "a", "b", "e/1", "e/2", "missing", "zz", "zzz"]:
                listed = [link async for link in subscription.links.after(after)]
                assert [link.path for link in listed] == [path for path in expected if path > after]
                assert [link.is_member for link in listed] == [link.path in members for link in listed]
                assert [link.stream is not None for link in listed] == [link.path in paths for link in listed]
                for link in listed:
                    assert link.lag_bytes == 0
                    assert link == await subscription.links.find(link.path)
            assert not subscription.links.has_by_pattern(WAKE_STREAM)

    run(test())


def test_a_cursor_belongs_to_one_stream_at_its_path() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create("e/1", b"1")
            before = await rig.engine.info("e/1")
            cursor = cursor_at(before, before.tail)
            assert (acked_position(before, None), acked_position(before, cursor)) == (0, before.tail)
            await rig.delete("e/1")
            await rig.create("e/1", b"1")
            after = await rig.engine.info("e/1")
            assert is_cursor_of(before, cursor)
            assert not is_cursor_of(after, cursor)
            assert acked_position(after, cursor) == 0

    run(test())


def test_a_fork_is_unread_from_where_its_own_data_begins() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create("source", b"1")
            source = await rig.engine.info("source")
            await rig.create("fork", fork=ForkRequest("source", None, 0))
            await rig.append("fork")
            fork = await rig.engine.info("fork")
            assert acked_position(fork, None) == source.tail
            assert acked_position(fork, cursor_at(fork, fork.tail)) == fork.tail
            assert acked_position(fork, StreamCursor(1, 1, 1)) == source.tail  # of an earlier stream at its path

    run(test())


def test_a_cursor_of_a_timeline_that_several_streams_have_belongs_to_one_of_them() -> None:
    def stream(names: Names) -> VisibleStream:
        return VisibleStream(
            names.stream_id, "e/1", "text/plain", ContentKind.BINARY, 0, None, None, None, names, 300, False
        )

    timeline = Timeline(10, 50)  # of the store, after a restore: both streams were appended to in it
    before = stream(Names(6, timelines=(timeline,)))
    fork = stream(Names(20, (Span(5, 0, 100),), (timeline,)))  # of another stream, created at the same path
    cursor = cursor_at(before, 200)
    assert (cursor.id, acked_position(before, cursor)) == (timeline.id, 200)
    assert not is_cursor_of(fork, cursor)
    assert acked_position(fork, cursor) == 100  # nothing of its own data is skipped
    assert acked_position(fork, cursor_at(before, 80)) == 100
