"""Composes without a network: their order, how many are in memory, and appends of the same producer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headwater import limits
from headwater.engine import Engine
from headwater.engine.messages import Read, ReadReply
from headwater.log.commands import Create, Delete
from headwater.log.content import ContentKind
from headwater.protocol.streams.composing import COMPOSE_TYPE, SourceRange, format_composition
from headwater.protocol.tables.paths import log_path
from headwater.server.dispatch import Dispatcher
from headwater.server.http import Request, Response
from headwater.server.service import Service
from headwater.store.memory import MemoryStore

JSON = "application/json"


class Site:
    """A server in this loop, to which requests can be sent without waiting for the responses of earlier ones."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.service = Service(engine, engine.limits)
        self._dispatcher = Dispatcher(self.service)
        self.responses: list[int] = []

    def send(self, path: str, content_type: str, body: bytes, seq: int | None = None) -> asyncio.Future[Response]:
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        sent = {"content-type": content_type}
        if seq is not None:
            sent |= {"producer-id": "p", "producer-epoch": "0", "producer-seq": str(seq)}

        def respond(response: Response) -> None:
            self.responses.append(response.status)
            answered.set_result(response)

        self._dispatcher.dispatch(Request("POST", path, "", sent, body), respond)
        return answered

    def compose(self, path: str, *sources: str, seq: int | None = None) -> asyncio.Future[Response]:
        body = format_composition([SourceRange(f"/v1/stream/{source}") for source in sources])
        return self.send(path, COMPOSE_TYPE, body, seq)

    async def create(self, path: str, content_type: str, body: bytes, kind: ContentKind | None = None) -> None:
        await self.engine.execute(
            Create(path=path, now_ms=self.engine.now_ms(), content_type=content_type, body=body, kind=kind)
        )


def on_site(work: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        engine = Engine(MemoryStore())
        await engine.start()
        await work(Site(engine))
        await engine.stop()

    asyncio.run(main())


def test_appends_and_composes_of_a_producer_are_decided_in_the_order_of_their_arrival() -> None:
    async def work(site: Site) -> None:
        await site.create("in", JSON, b"[%s]" % b",".join([b'"a long message"'] * 10_000))
        await site.create("out", JSON, b"")
        await site.create("lines", "text/tab-separated-values", b"+\tcomposed\tr\n")
        await site.create(log_path("rows"), "text/sequence; schema=x; version=1", b"", ContentKind.ROWS)
        stream, table = "/v1/stream/out", "/v1/table/rows"
        sent = []
        for seq in range(0, 12, 3):
            sent.append(site.compose(stream, "in", seq=seq))
            sent.append(site.send(stream, JSON, b"[%d]" % seq, seq=seq + 1))
            sent.append(site.compose(stream, "in", seq=seq + 2))
            sent.append(site.compose(table, "lines", seq=seq))
            sent.append(site.send(table, "text/tab-separated-values", b"+\tsent\tr\n", seq=seq + 1))
            sent.append(site.compose(table, "lines", seq=seq + 2))
        assert [(await one).status for one in sent] == [200] * len(sent)
        rows = (await site.engine.read(Read(log_path("rows"), bytes_max=1 << 20))).data
        assert [row.split(b"\t")[3] for row in rows.splitlines()] == [b"composed", b"sent", b"composed"] * 4

    on_site(work)


def test_few_composes_are_in_memory_and_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.limits.COMPOSES_WAITING_MAX", 3)

    async def work(site: Site) -> None:
        await site.create("in", JSON, b"[1]")
        await site.create("out", JSON, b"")
        reading, most, gate = 0, 0, asyncio.Event()
        read = site.engine.read

        async def slowly(message: Read) -> ReadReply:
            nonlocal reading, most
            reading += 1
            most = max(most, reading)
            await gate.wait()
            reading -= 1
            return await read(message)

        monkeypatch.setattr(site.engine, "read", slowly)
        sent = [site.compose("/v1/stream/out", "in") for _ in range(limits.COMPOSES_AT_ONCE + 5)]
        refused = [await one for one in sent[-2:]]
        assert [one.status for one in refused] == [503, 503]
        gate.set()
        assert [(await one).status for one in sent[:-2]] == [204] * (len(sent) - 2)
        assert most == limits.COMPOSES_AT_ONCE

    on_site(work)


def test_a_compose_for_a_stream_that_is_created_again_meanwhile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(site: Site) -> None:
        await site.create("in", JSON, b"[1]")
        await site.create("out", JSON, b"")
        read = site.engine.read

        async def meanwhile(message: Read) -> ReadReply:
            assert site.service.engine.loaded("out") is not None
            await delete(site.engine, "out")
            await site.create("out", "text/plain", b"")
            return await read(message)

        monkeypatch.setattr(site.engine, "read", meanwhile)
        assert (await site.compose("/v1/stream/out", "in")).status == 410
        monkeypatch.undo()
        assert (await site.engine.info("out")).tail == 0

    on_site(work)


async def delete(engine: Engine, path: str) -> None:
    await engine.execute(Delete(path, engine.now_ms()))
