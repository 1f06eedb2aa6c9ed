"""Table clients of a simulated server. They use the HTTP handlers, without sockets."""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from headwater import errors
from headwater.engine import Engine
from headwater.errors import HeadwaterError, InternalError, UnknownOutcomeError
from headwater.limits import Limits
from headwater.log.commands import Append, Create, Delete, ForkRequest, Reply
from headwater.log.content import ContentKind
from headwater.log.offsets import BEGINNING
from headwater.protocol.streams.headers import format_instant
from headwater.protocol.tables.content_type import parse_table_type
from headwater.protocol.tables.paths import TABLE_ROOT, name_of
from headwater.protocol.tables.rows import parse_row
from headwater.server.dispatch import Dispatcher
from headwater.server.following.mirror import open_mirror
from headwater.server.http import Frame, Request, Response
from headwater.server.service import Service
from tests.fault.oracle import BrokenPromiseError, KnownStream
from tests.fault.table_oracle import TABLE_TYPE, changes_of, check_range, live_rows, place_after, remote_rows
from tests.fault.world import MIRROR, TABLE_FORK, World

ERRORS = {
    error().code: error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, HeadwaterError)
}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes | None  # None: it was aborted

    @property
    def last_seqno(self) -> int:
        return int(self.headers["stp-last-seqno"])


class Client:
    """The client of a live response, which sometimes does not read for a while."""

    def __init__(self, rng: random.Random) -> None:
        self.blocked = False
        self.body = bytearray()
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._random = rng

    def write(self, frame: Frame) -> None:
        self.body += frame.body
        self.blocked = self.blocked or self._random.random() < 0.2

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(True)

    def abort(self) -> None:
        if not self.ended.done():
            self.ended.set_result(False)

    async def receive(self, response: Response) -> bytes | None:
        feed = response.feed
        if feed is None:
            return b"".join(response.body)
        feed.open(self, asyncio.get_running_loop().time())
        while not self.ended.done():
            await asyncio.wait((self.ended,), timeout=self._random.choice([0.001, 0.05, 0.4]))
            if self.blocked and not self.ended.done():
                self.blocked = False
                feed.drained()
        return bytes(self.body) if self.ended.result() else None


class Tables:
    def __init__(self, world: World, engine: Engine, limits: Limits) -> None:
        self._world = world
        self._random = world.random
        self._disk = world.disk
        self._engine = engine
        self._dispatcher = Dispatcher(Service(engine, limits))

    # Requests

    async def ask(
        self, method: str, path: str, query: str = "", headers: dict[str, str] | None = None, body: bytes = b""
    ) -> Answer:
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        request = Request(method, TABLE_ROOT + name_of(path), query, headers or {}, body)
        self._dispatcher.dispatch(request, answered.set_result)
        response = await answered
        whole = await Client(self._random).receive(response)
        if self._disk.crashed:
            await asyncio.sleep(1e9)
        if response.status >= 400:
            problem = msgspec.json.decode(whole or b"")
            raise ERRORS[problem["type"].rpartition(":")[2]](problem["detail"])
        return Answer(response.status, dict(response.headers), whole)

    async def execute(self, command: Create | Append | Delete) -> Reply:
        """Send a command as a request."""
        if isinstance(command, Create) and command.kind is ContentKind.MIRROR:
            return await self._create_mirror(name_of(command.path))
        if isinstance(command, Create):
            return await self._create(command)
        if isinstance(command, Delete):
            await self.ask("DELETE", command.path)
            return Reply()
        producer, sent = command.producer, {}
        if producer is not None:
            numbers = {"producer-epoch": str(producer.epoch), "producer-seq": str(producer.seq)}
            sent = {"producer-id": producer.id, **numbers}
        if command.ends is not None:
            sent["if-match"] = ", ".join(f'"{end.position}"' for end in command.ends)
        if command.close:
            sent["stream-closed"] = "true"
        answer = await self.ask("POST", command.path, "", sent, command.body)
        duplicate = producer is not None and answer.status == 204
        return Reply(duplicate=duplicate, last_seqno=answer.last_seqno)

    async def _create(self, command: Create) -> Reply:
        sent = {} if command.content_type is None else {"content-type": command.content_type}
        if command.ttl_s is not None:
            sent["stream-ttl"] = str(command.ttl_s)
        if command.expires_ms is not None:
            sent["stream-expires-at"] = format_instant(command.expires_ms)
        if command.fork is not None:
            sent["stream-forked-from"] = TABLE_ROOT + name_of(command.fork.source)
            if command.fork.offset is not None:
                sent["stp-fork-seqno"] = str(command.fork.last_seqno)
        answer = await self.ask("PUT", command.path, "", sent, command.body)
        return Reply(existed=answer.status == 200, last_seqno=answer.last_seqno)

    # Reads

    async def read(self, known: KnownStream) -> None:
        """Read a part of a table with a random kind of request, and compare it with all rows."""
        try:
            before = await self._engine.info(known.path)
            if before.id != known.id:
                return
            how = self._random.choice([self._range, self._range, self._live, self._live, self._active])
            if how == self._active and before.ttl_s is not None:
                return  # an active view is a live reader, which prevents the expiry of the table
            await how(known, before.last_seqno)
        except HeadwaterError as error:
            failed = isinstance(error, InternalError | UnknownOutcomeError)
            if failed and not self._disk.crashed and not self._disk.failed_syncs:
                raise BrokenPromiseError(f"a read of {known.path!r}: {error}") from error
            if isinstance(error, errors.StreamNotFoundError) and await self._is_there(known):
                raise BrokenPromiseError(f"{known.path!r} exists, but a read did not find it") from error

    async def check(self, known: KnownStream) -> None:
        """With a working disk, reads of any part and of the active view succeed."""
        await self.read(known)
        try:
            table = await self._engine.info(known.path)
            if table.ttl_s is None and table.id == known.id:
                await self._active(known, table.last_seqno)
        except HeadwaterError as error:
            if not self._disk.crashed and await self._is_there(known):
                raise BrokenPromiseError(f"{known.path!r}: the active view cannot be read: {error}") from error

    async def _is_there(self, known: KnownStream) -> bool:
        try:
            return (await self._engine.info(known.path)).id == known.id
        except HeadwaterError:
            return False

    async def _rows(self, known: KnownStream) -> bytes | None:
        """All rows, if the table is still the same incarnation."""
        whole = (await self.ask("GET", known.path, "timeout=0")).body
        return whole if await self._is_there(known) else None

    async def _range(self, known: KnownStream, last_seqno: int) -> None:
        since_id = self._random.randint(-last_seqno - 2, last_seqno + 2)
        until_id = self._random.choice([None, last_seqno // 2, last_seqno])
        query = f"since_id={since_id}&timeout=0" + ("" if until_id is None else f"&until_id={until_id}")
        answer = await self.ask("GET", known.path, query)
        whole = await self._rows(known)
        if whole is None or answer.body is None:
            return
        end = answer.last_seqno if until_id is None else min(until_id, answer.last_seqno)
        rows = whole.splitlines(keepends=True)
        shown = b"".join([row for row in rows if int(row.split(b"\t")[0]) <= answer.last_seqno])
        if since_id >= 0:
            shown = b"".join([row for row in rows if int(row.split(b"\t")[0]) <= end])
        elif until_id is not None:
            return
        check_range(known, answer.body, shown, since_id)

    async def _live(self, known: KnownStream, last_seqno: int) -> None:
        """A live response: it has all existing and new rows."""
        since_id = self._random.randint(0, last_seqno + 1)
        timeout, idle = self._random.choice([("0.3", "0.1"), ("2", "1"), ("1", "2")])
        answer = await self.ask("GET", known.path, f"since_id={since_id}&timeout={timeout}&idle={idle}")
        whole = await self._rows(known)
        if whole is None or answer.body is None:
            return
        last = answer.body.splitlines()[-1].split(b"\t")[0] if answer.body else b"0"
        end = max(int(last), answer.last_seqno)
        rows = [row for row in whole.splitlines(keepends=True) if int(row.split(b"\t")[0]) <= end]
        check_range(known, answer.body, b"".join(rows), since_id)

    async def _active(self, known: KnownStream, last_seqno: int) -> None:
        key = self._random.choice([None, None, "k1", "k4"])
        answer = await self.ask("GET", known.path, "view=active" if key is None else f"key={quote(key)}")
        whole = await self._rows(known)
        if whole is None or answer.body is None:
            return
        if answer.last_seqno < last_seqno:
            raise BrokenPromiseError(f"{known.path!r}: an active view lacks rows that existed before")
        live = live_rows(whole.splitlines(keepends=True), answer.last_seqno)
        if key is not None:
            live = [row for row in live if row.split(b"\t")[3] == key.encode()]
        if answer.body != b"".join(live):
            raise BrokenPromiseError(f"{known.path!r}: an active view is not the last row of each live key")

    # Creation, forks and mirrors

    async def creation(self, known: KnownStream, now_ms: int, ttl_s: int | None, expires_ms: int | None) -> Create:
        known.kind = TABLE_TYPE
        if known.path == MIRROR and self._random.random() < 0.7:
            known.is_mirror = True
            return Create(path=known.path, now_ms=now_ms, content_type=TABLE_TYPE, kind=ContentKind.MIRROR)
        sources = [source for source in self._world.streams.values() if source.is_table and not source.is_mirror]
        fork = None
        if known.path == TABLE_FORK and sources:
            fork = await self._fork_request(self._random.choice(sources))
        return Create(
            path=known.path,
            now_ms=now_ms,
            content_type=TABLE_TYPE,
            kind=ContentKind.ROWS,
            ttl_s=ttl_s,
            expires_ms=expires_ms,
            body=b"\n".join(changes_of("created", known.generation)) if self._random.random() < 0.5 else b"",
            fork=fork,
        )

    async def _fork_request(self, source: KnownStream) -> ForkRequest:
        """A fork with all rows, or with rows up to a SeqNo, which may be inside an append."""
        if self._random.random() < 0.3:
            return ForkRequest(source.path)
        try:
            last_seqno = (await self._engine.info(source.path)).last_seqno
        except HeadwaterError:
            last_seqno = 0
        return ForkRequest(source.path, BEGINNING, last_seqno=self._random.randint(0, last_seqno))

    async def _create_mirror(self, name: str) -> Reply:
        """Create a mirror, as a follower does after the first response of the remote table."""
        mirror = await open_mirror(self._engine, name)
        if mirror.table is not None:
            return Reply(existed=True)
        await mirror.create(parse_table_type(TABLE_TYPE))
        return Reply()

    async def extend_mirror(self, known: KnownStream) -> int:
        """Append the next rows of the remote table. Returns the last durable SeqNo."""
        mirror = await open_mirror(self._engine, name_of(known.path))
        if mirror.table is None:
            raise errors.StreamNotFoundError
        try:
            for _ in range(self._random.choice([1, 3])):
                rows = remote_rows(place_after(mirror.last_seqno), self._random.choice([1, 2, 30]))
                await mirror.add([parse_row(row[:-1].decode()) for row in rows])
                await asyncio.sleep(self._random.choice([0.0, 0.01, 0.3]))
                await mirror.flush()
        finally:
            await mirror.abandon()
        return mirror.last_seqno
