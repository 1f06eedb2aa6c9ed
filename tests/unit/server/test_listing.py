from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headwater import limits
from headwater.engine import Engine
from headwater.errors import InvalidQueryError
from headwater.log.commands import Create
from headwater.server.auth.callers import Caller
from headwater.server.auth.scopes import parse_scopes
from headwater.server.listing import Lists, ReadablePage, readable_page
from headwater.store.memory import MemoryStore


def with_engine(body: Callable[[Engine], Awaitable[None]]) -> None:
    async def run() -> None:
        engine = Engine(MemoryStore())
        await engine.start()
        try:
            await body(engine)
        finally:
            await engine.stop()

    asyncio.run(run())


async def fill(engine: Engine, count: int) -> None:
    for number in range(count):
        await engine.execute(Create(path=f"many/{number:04}/x", now_ms=engine.now_ms(), content_type="text/plain"))


async def pages(engine: Engine, caller: Caller, prefix: str = "") -> list[ReadablePage]:
    streams, lists = [], Lists()
    after: str | None = ""
    while after is not None:
        page = await readable_page(engine, lists, caller, prefix, lists.read(after), 10)
        streams.append(page)
        after = None if page.next_after is None else lists.write(page.next_after, hidden=page.hidden)
        assert after is None or after.startswith("/") == page.hidden
    return streams


def test_a_glob_that_matches_nothing_gets_empty_pages_of_bounded_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LIST_MATCHES_MAX", 50)
    sizes: list[int] = []

    async def body(engine: Engine) -> None:
        await fill(engine, 200)
        page_of = engine.page

        async def counted(prefix: str, after: str, limit: int) -> object:
            sizes.append(limit)
            return await page_of(prefix, after, limit)

        monkeypatch.setattr(engine, "page", counted)
        answers = await pages(engine, Caller("x", parse_scopes(["read:**/nothing-here"])))
        assert len(answers) == 5
        assert all(page.streams == () for page in answers)
        assert all(page.hidden for page in answers[:-1])
        assert max(sizes) <= 50

    with_engine(body)


def test_pages_of_few_readable_streams_are_complete_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LIST_MATCHES_MAX", 30)

    async def body(engine: Engine) -> None:
        await fill(engine, 200)
        caller = Caller("x", parse_scopes(["read:many/??7?/*", "read:many/0012/x", "read:elsewhere/*"]))
        paths = [stream.path for page in await pages(engine, caller) for stream in page.streams]
        expected = [f"many/{number:04}/x" for number in range(200) if number // 10 % 10 == 7 or number == 12]
        assert paths == expected
        below = [stream.path for page in await pages(engine, caller, "many/01") for stream in page.streams]
        assert below == [path for path in expected if path.startswith("many/01")]

    with_engine(body)


def test_an_unlimited_caller_gets_paths_as_lists() -> None:
    async def body(engine: Engine) -> None:
        await fill(engine, 25)
        answers = await pages(engine, Caller("", None))
        assert [len(page.streams) for page in answers] == [10, 10, 5]

    with_engine(body)


def test_a_cursor_hides_its_path_and_its_length() -> None:
    lists = Lists()
    short, long = lists.write("a", hidden=True), lists.write("secret/path", hidden=True)
    assert len(short) == len(long)
    assert short != lists.write("a", hidden=True)
    assert lists.read(long) == "secret/path"
    assert lists.read("a/path") == lists.write("a/path", hidden=False) == "a/path"


@pytest.mark.parametrize("after", ["/", "/abc", "/!!", "/é", f"/{'A' * 80}", Lists().write("a", hidden=True)])
def test_a_cursor_of_another_process_is_refused(after: str) -> None:
    with pytest.raises(InvalidQueryError, match="begin again"):
        Lists().read(after)
