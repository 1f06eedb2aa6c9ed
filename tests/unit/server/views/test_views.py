"""Views without an edge: what fails, what is interrupted, and what races."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from headwater import limits
from headwater.engine import Engine
from headwater.engine.committer import Answer, Answered
from headwater.engine.messages import Read
from headwater.engine.preparing import Preparer
from headwater.errors import ConflictError, OverloadedError, ReadOnlyError, StreamGoneError, TooManyViewsError
from headwater.log.commands import Append, Command, Create, Delete, WriteDocument, WriteDocuments
from headwater.log.content import ContentKind
from headwater.log.events import Keeper
from headwater.protocol.state.as_events import RecordFormat
from headwater.protocol.streams.offsets import format_offset
from headwater.server.compacting.compactor import Compactor
from headwater.server.tables.active import ActiveViews
from headwater.server.views import Views
from headwater.server.views.definition import PREFIX, Definition, ViewDocument, ViewProgress, decode, encode
from headwater.store.memory import MemoryStore
from tests.compacting import LocalContent
from tests.restores import LastingStore
from tests.unit.engine.test_engine import with_engine
from tests.waiting import wait_for_async, wait_until_async

DEFINITION = Definition("\x01v", "s", "price")
ROWS_TYPE = "text/sequence; charset=utf-8; schema=json; version=1"
RESET = b'{"headers":{"control":"reset"}}'


def event(key: str, value: int = 1, kind: str = "price") -> bytes:
    return msgspec.json.encode({"type": kind, "key": key, "value": value, "headers": {"operation": "insert"}})


async def create_stream(engine: Engine, path: str = "s") -> None:
    await engine.execute(Create(path=path, now_ms=engine.now_ms(), content_type="application/json"))


async def append(engine: Engine, *messages: bytes, path: str = "s") -> None:
    body = b"[" + b",".join(messages) + b"]"
    await engine.execute(Append(path, engine.now_ms(), body, "application/json"))


def table(engine: Engine, path: str = "\x01v") -> Create:
    return Create(path=path, now_ms=engine.now_ms(), content_type=ROWS_TYPE, kind=ContentKind.ROWS)


async def changes(engine: Engine, path: str = "\x01v") -> list[bytes]:
    reply = await engine.read(Read(path, bytes_max=1 << 24))
    return [line.split(b"\t", 2)[2] for line in reply.data.splitlines()]


async def until(engine: Engine, wanted: list[bytes]) -> None:
    await wait_for_async(lambda: changes(engine), wanted)


async def progress(engine: Engine) -> ViewProgress:
    (document,) = await engine.documents(PREFIX, "", 10)
    return decode(document.data).progress


def with_views(body: Callable[[Engine, Views], Awaitable[None]], store: MemoryStore | None = None) -> None:
    async def run(engine: Engine) -> None:
        views = Views(engine, ActiveViews())
        await views.start()
        await create_stream(engine)
        try:
            await body(engine, views)
        finally:
            await views.stop()

    with_engine(run, store)


def test_an_append_that_fails_is_tried_again_and_never_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RETRY_FIRST_S", 0.001)

    async def body(engine: Engine, views: Views) -> None:
        submit, failing = engine.submit, [True]

        def unwilling(command: Command, answered: Answered) -> None:
            if isinstance(command, Append) and command.path == "\x01v":
                failing[0] = not failing[0]
                if not failing[0]:
                    answered(OverloadedError("later"))
                    return
            submit(command, answered)

        monkeypatch.setattr(engine, "submit", unwilling)
        await views.create(table(engine), DEFINITION)
        for number in range(5):
            await append(engine, event(f"k{number}"))
            await until(engine, [b"+\tk%d\t1" % one for one in range(number + 1)])

    with_views(body)


def test_the_wait_after_a_failure_is_short_again_after_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after an error that the server does not know."""

    async def body(engine: Engine, views: Views) -> None:
        submit, failing = engine.submit, [True]

        def broken(command: Command, answered: Answered) -> None:
            if isinstance(command, Append) and command.path == "\x01v":
                failing[0] = not failing[0]
                if not failing[0]:
                    raise RuntimeError("broken")
            submit(command, answered)

        monkeypatch.setattr(engine, "submit", broken)
        await views.create(table(engine), DEFINITION)
        clock = asyncio.get_running_loop().time
        for number in range(8):
            began_s = clock()
            await append(engine, event(f"k{number}"))
            while len(await changes(engine)) <= number:
                await asyncio.sleep(limits.RETRY_FIRST_S / 10)
            assert clock() - began_s < 2 * limits.RETRY_FIRST_S

    with_views(body)


def test_a_reset_that_was_interrupted_goes_on_with_the_keys_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "VIEW_BATCH_RECORDS", 2)
    monkeypatch.setattr(limits, "RETRY_FIRST_S", 0.001)

    async def body(engine: Engine, views: Views) -> None:
        await append(engine, *[event(f"k{number}") for number in range(5)])
        await views.create(table(engine), DEFINITION)
        await until(engine, [b"+\tk%d\t1" % number for number in range(5)])
        submit, count = engine.submit, [0]

        def unwilling(command: Command, answered: Answered) -> None:
            if isinstance(command, Append) and command.path == "\x01v":
                count[0] += 1
                if count[0] == 2:  # the second of three appends
                    answered(OverloadedError("later"))
                    return
            submit(command, answered)

        monkeypatch.setattr(engine, "submit", unwilling)
        await append(engine, RESET, event("new"))
        deletes = [b"-\tk%d\t" % number for number in range(5)]
        await until(engine, [*[b"+\tk%d\t1" % number for number in range(5)], *deletes, b"+\tnew\t1"])

    with_views(body)


def test_what_a_deleted_view_still_does_does_not_reach_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(engine: Engine, views: Views) -> None:
        await create_stream(engine, "other")
        await append(engine, event("other", 2), path="other")
        submit = engine.submit
        held: list[tuple[Command, Answered]] = []

        def holding(command: Command, answered: Answered) -> None:
            if isinstance(command, Append) and command.path == "\x01v":
                held.append((command, answered))
            else:
                submit(command, answered)

        monkeypatch.setattr(engine, "submit", holding)
        await append(engine, event("old"))
        await views.create(table(engine), DEFINITION)
        await wait_until_async(lambda: held)
        monkeypatch.setattr(engine, "submit", submit)
        await engine.execute(Delete("\x01v", engine.now_ms(), views.documents_of("\x01v")))
        views.deleted("\x01v")
        await views.create(table(engine), Definition("\x01v", "other", "price"))
        answers: list[Answer] = []
        submit(held[0][0], answers.append)
        await until(engine, [b"+\tother\t2"])
        assert isinstance(answers[0], StreamGoneError)

    with_views(body)


def test_a_position_is_recorded_though_nothing_was_for_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "VIEW_UNRECORDED_BYTES", 1_000)

    async def body(engine: Engine, views: Views) -> None:
        await views.create(table(engine), DEFINITION)
        await append(engine, event("k", kind="stock"))
        await wait_until_async(lambda: views.status()[0].lag_bytes == 0)
        assert (await progress(engine)).position == 0
        for _ in range(20):
            await append(engine, event("k", kind="stock"))

        async def is_recorded() -> bool:
            return (await progress(engine)).position >= 1_000

        await wait_until_async(is_recorded)

    with_views(body)


def test_the_position_of_a_view_is_an_offset_of_the_current_timeline() -> None:
    """Also if the first append after a restore came while the view followed its source."""
    store = LastingStore()

    async def created(engine: Engine, views: Views) -> None:
        await views.create(table(engine), DEFINITION)

    async def followed(engine: Engine, views: Views) -> None:
        for _ in range(2):
            await append(engine, event("k"))
            source = await engine.info("s")
            assert source.offset(source.tail).id == store.timeline
            await wait_until_async(lambda: views.status()[0].lag_bytes == 0)
            assert views.status()[0].position == format_offset(source.offset(source.tail))

    with_views(created, store)
    store.timeline = store.next_id + 10**9
    with_views(followed, store)


def test_a_position_within_a_record() -> None:
    """A server stopped between two batches of one large append."""

    async def body(engine: Engine, views: Views) -> None:
        await append(engine, *[event(f"k{number}") for number in range(5)])
        source = await engine.info("s")
        document = ViewDocument(DEFINITION, ViewProgress(source.id, taken=3))
        created = msgspec.structs.replace(
            table(engine),
            body=b"+\tk0\t1\n+\tk1\t1\n+\tk2\t1",
            documents=(WriteDocument("view/x", encode(document)),),
            keeper=Keeper("view/x", "s"),
        )
        await engine.execute(created)
        await views.start()
        await until(engine, [b"+\tk%d\t1" % number for number in range(5)])
        assert (await progress(engine)).position == source.tail

    with_views(body)


def test_a_view_whose_target_is_gone_is_forgotten_and_its_name_is_free() -> None:
    async def body(engine: Engine, views: Views) -> None:
        await views.create(table(engine), DEFINITION)
        await engine.execute(Delete("\x01v", engine.now_ms()))  # as an expiry does
        assert views.holds("\x01v")
        await views.create(table(engine), None)
        assert not views.holds("\x01v")
        assert await engine.documents(PREFIX, "", 10) == []
        await append(engine, event("k"))
        await asyncio.sleep(0.01)
        assert await changes(engine) == []

    with_views(body)


@pytest.mark.parametrize("is_created_again", [False, True])
def test_a_view_that_another_server_has_deleted_is_forgotten_when_views_are_listed(is_created_again: bool) -> None:
    """That server has no views, so it deletes the stream alone."""

    async def body(engine: Engine, views: Views) -> None:
        await views.create(table(engine), DEFINITION)
        await append(engine, event("a"))
        await until(engine, [b"+\ta\t1"])
        await views.forget_gone()
        assert len(views.status()) == 1
        await engine.execute(Delete("\x01v", engine.now_ms()))
        if is_created_again:
            await engine.execute(table(engine))
        await views.forget_gone()
        assert not views.status()
        assert not await engine.documents(PREFIX, "", 10)
        await views.create(table(engine, "\x01w"), Definition("\x01w", "s", "price"))
        assert [status.view for status in views.status()] == ["/v1/table/w"]

    with_views(body)


def test_a_view_that_is_gone_is_not_forgotten_before_its_document_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever uses the path next, or lists views, deletes the document. Otherwise it would be there for ever."""

    async def body(engine: Engine, views: Views) -> None:
        submit = engine.submit

        def refusing(command: Command, answered: Answered) -> None:
            if isinstance(command, WriteDocuments):
                answered(OverloadedError("later"))
                return
            submit(command, answered)

        await views.create(table(engine), DEFINITION)
        await append(engine, event("a"))
        await until(engine, [b"+\ta\t1"])
        await engine.execute(Delete("\x01v", engine.now_ms()))
        with monkeypatch.context() as patch:
            patch.setattr(engine, "submit", refusing)
            await views.forget_gone()
        assert views.holds("\x01v")
        await views.create(table(engine), None)
        assert await engine.documents(PREFIX, "", 10) == []

    with_views(body)


def test_a_document_without_a_target_is_deleted_at_the_start() -> None:
    async def body(engine: Engine, views: Views) -> None:
        await views.create(table(engine), DEFINITION)
        await views.stop()
        await engine.execute(Delete("\x01v", engine.now_ms()))
        again = Views(engine, ActiveViews())
        await again.start()
        await wait_for_async(again.status, [])
        assert await engine.documents(PREFIX, "", 10) == []
        await again.stop()

    with_views(body)


def test_the_number_of_views_is_bounded() -> None:
    async def body(engine: Engine, views: Views) -> None:
        engine.limits = msgspec.structs.replace(engine.limits, views_max=1)
        await views.create(table(engine), DEFINITION)
        await views.create(table(engine), DEFINITION)
        with pytest.raises(TooManyViewsError):
            await views.create(table(engine, "\x01w"), Definition("\x01w", "s", "price"))

    with_views(body)


def test_two_who_create_different_views_at_once() -> None:
    async def body(engine: Engine, views: Views) -> None:
        stock = Definition("\x01v", "s", "stock")
        answers = await asyncio.gather(
            views.create(table(engine), DEFINITION), views.create(table(engine), stock), return_exceptions=True
        )
        assert [isinstance(answer, ConflictError) for answer in answers] == [False, True]
        with pytest.raises(ReadOnlyError):
            await engine.execute(Append("\x01v", engine.now_ms(), b"+\tk\t1", ROWS_TYPE))

    with_views(body)


def test_a_large_append_does_not_land_in_a_view_that_was_created_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(engine: Engine, views: Views) -> None:
        framing, is_created = asyncio.Event(), asyncio.Event()
        framed = Preparer._framed

        async def slow(preparer: Preparer, command: Append | Create, kind: ContentKind) -> Append | Create:
            framing.set()
            await is_created.wait()
            return await framed(preparer, command, kind)

        monkeypatch.setattr(Preparer, "_framed", slow)
        await engine.execute(Create(path="\x01t", now_ms=0, content_type=ROWS_TYPE, kind=ContentKind.ROWS))
        await create_stream(engine, "v")
        appending = asyncio.create_task(append(engine, event("k" * 2 * limits.JSON_INLINE_BYTES), path="v"))
        await framing.wait()
        await engine.execute(Delete("v", engine.now_ms()))
        view = Create(path="v", now_ms=engine.now_ms(), content_type="application/json")
        await views.create(view, Definition("v", "\x01t", "price", RecordFormat.JSON))
        is_created.set()
        with pytest.raises(ReadOnlyError):
            await appending
        assert (await engine.info("v")).tail == 0

    with_views(body)


def test_a_view_whose_place_was_compacted_away_begins_again_with_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.log.state.COMPACT_GRACE_S", 0)

    async def body(engine: Engine, views: Views) -> None:
        await views.create(table(engine), DEFINITION)
        await append(engine, event("a"), event("b"))
        await until(engine, [b"+\ta\t1", b"+\tb\t1"])
        await views.stop()
        deletion = b'{"type":"price","key":"a","headers":{"operation":"delete"}}'
        await append(engine, *[event("b", number) for number in range(20)], deletion, event("c"))
        assert (await Compactor(engine, engine.limits, LocalContent).compact_now("s")).compacted
        await append(engine, event("c", 2))
        await engine._retainer.trim_due("s")
        info = await engine.info("s")
        assert (await progress(engine)).position < info.first
        again = Views(engine, ActiveViews())
        await again.start()
        behind = [b"+\ta\t1", b"+\tb\t1", b"-\ta\t", b"-\tb\t", b"+\tb\t19", b"+\tc\t1", b"+\tc\t2"]
        await until(engine, behind)
        assert (await progress(engine)).position == info.tail
        await again.stop()

    with_views(body)
