"""Clients of several servers that share a store. Each request goes to any server, as through a proxy. Every answer must
be true of a state that the database had between the request and the answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from headwater.engine import Engine
from headwater.engine.follower import Extent, StreamFollower
from headwater.engine.messages import Ended, Read, Reason, Slice, VisibleStream
from headwater.errors import (
    ConfigurationError,
    DocumentConflictError,
    HeadwaterError,
    InvalidForkError,
    InvalidOffsetError,
    OffsetGoneError,
    PathBlockedError,
    SequenceGapError,
    ServerError,
    SourceGoneError,
    StreamClosedError,
    StreamGoneError,
    StreamNotFoundError,
    TailMovedError,
    UnavailableError,
)
from headwater.log.commands import Append, Command, Create, Delete, ForkRequest, Reply, WriteDocument, WriteDocuments
from headwater.log.offsets import BEGINNING, Offset
from headwater.log.producers import ProducerTuple
from headwater.log.state import StreamState
from tests.fault.oracle import BrokenPromiseError
from tests.fault.shared_history import StateHistory
from tests.fault.shared_sim import Machine, MachineState, SimDatabase

T = TypeVar("T")

PATHS = ("a", "b", "c", "fork1", "fork2")
KEYS = ("d0", "d1")


class DeadError(Exception):
    """The server died before it answered."""


@dataclass(eq=False)
class Server:
    """An engine on a machine."""

    machine: Machine
    engine: Engine
    died: asyncio.Future[None]


@dataclass
class Writer:
    """An idempotent producer on one path, which retries until it has an answer, on any server."""

    name: str
    seq: int = 0
    unanswered: int | None = None  # the number of a message


@dataclass(frozen=True)
class Window:
    """The commits between a request and its answer."""

    since: int
    until: int


class LiveReader:
    """The consumer of a follower: it has to get every byte once, in order."""

    def __init__(self, history: StateHistory, state: StreamState, rng: random.Random, position: int) -> None:
        self._history = history
        self._state = state
        self._random = rng
        self.position = position
        self.closed = False
        self.reason: Reason | None = None
        self.broken: BrokenPromiseError | None = None
        self.follower: StreamFollower | None = None

    @property
    def ready(self) -> bool:
        return True

    def take(self, piece: Slice) -> bool:
        if self._random.random() < 0.1:
            asyncio.get_running_loop().call_later(0.05, self._resume)
            return False
        whole = self._history.content(self._newest())
        if piece.start != self.position or piece.data != whole[piece.start : piece.next]:
            self.broken = BrokenPromiseError(f"{self._state.path}: a live reader at {self.position} got {piece.start}")
        self.position = piece.next
        self.closed = self.closed or piece.closed
        return True

    def _newest(self) -> StreamState:
        states = self._history.window(self._state.path, 0, self._history.commit)
        return [one for one in states if one is not None and one.id == self._state.id][-1]

    def _resume(self) -> None:
        if self.follower is not None:
            self.follower.resume()

    def ended(self, reason: Reason) -> None:
        self.reason = reason

    def check_end(self) -> None:
        """After a while without changes it has everything."""
        if self.broken is not None:
            raise self.broken
        state = self._history.window(self._state.path, self._history.commit, self._history.commit)[0]
        is_gone = self._state.id in self._history.deleted
        if is_gone or state is None or state.id != self._state.id:
            if self.reason is None:
                raise BrokenPromiseError(f"{self._state.path}: a live reader was not told of the deletion")
            return
        if isinstance(self.reason, UnavailableError):
            return  # the client connects again
        if isinstance(self.reason, HeadwaterError):
            raise BrokenPromiseError(f"{self._state.path}: a live reader ended: {self.reason}")
        if self.position != state.tail or (state.closed and self.reason is not Ended.CLOSED):
            raise BrokenPromiseError(f"{self._state.path}: a live reader is at {self.position} of {state.tail}")


class SharedClients:
    """The clients, and what they know."""

    def __init__(self, database: SimDatabase, servers: Sequence[Server | None], rng: random.Random) -> None:
        self._database = database
        self._history = database.history
        self._servers = servers
        self._random = rng
        self._number = 0
        self._writers: dict[tuple[str, str], Writer] = {}
        self.refused: set[int] = set()  # messages that must not be stored, ever
        self.readers: list[tuple[Server, LiveReader]] = []
        self.answers = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self, count: int) -> None:
        self._tasks = [asyncio.ensure_future(self._run(f"w{number}")) for number in range(count)]

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)

    def check(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()
        for _, reader in self.readers:
            if reader.broken is not None:
                raise reader.broken
        for number in self.refused:
            if number in self._history.messages:
                raise BrokenPromiseError(f"message {number} was refused, but is stored")

    async def _run(self, name: str) -> None:
        while not self._stopping:
            await asyncio.sleep(self._random.choice([0.0, 0.001, 0.01, 0.05]))
            action = self._random.choices(
                (
                    self._create,
                    self._append,
                    self._produce,
                    self._expecting,
                    self._info,
                    self._read,
                    self._close,
                    self._delete,
                    self._page,
                    self._write_document,
                    self._read_document,
                    self._follow,
                ),
                (6, 14, 14, 8, 10, 14, 1.5, 3, 2, 5, 4, 3),
            )[0]
            try:
                await action(self._random.choice(PATHS), name)
            except DeadError:
                continue

    # Requests

    def _server(self) -> Server | None:
        servers = [one for one in self._servers if one is not None]
        return self._random.choice(servers) if servers else None

    async def _on(self, server: Server, work: Callable[[Engine], Coroutine[Any, Any, T]]) -> tuple[T, Window]:
        """Run work on a server. Returns its result and the commits meanwhile."""
        since = self._history.commit

        async def run() -> tuple[T, int]:
            result = await work(server.engine)
            return result, self._history.commit

        task = asyncio.get_running_loop().create_task(run(), context=server.machine.context())
        await asyncio.wait((task, server.died), return_when=asyncio.FIRST_COMPLETED)
        if not task.done() or server.machine.state is MachineState.DEAD:
            if task.done():
                task.exception()
            raise DeadError
        result, until = task.result()
        self.answers += 1
        return result, Window(since, until)

    async def _ask(self, server: Server, command: Command) -> tuple[Reply | HeadwaterError, Window]:
        async def execute(engine: Engine) -> Reply | HeadwaterError:
            try:
                return await engine.execute(command)
            except HeadwaterError as error:
                return error

        answer, window = await self._on(server, execute)
        if isinstance(answer, ServerError) and answer.status != 503 and answer.status != 507:
            raise BrokenPromiseError(f"{type(command).__name__} failed: {answer}")
        return answer, window

    def _states(self, path: str, window: Window) -> list[StreamState | None]:
        return self._history.window(path, window.since, window.until)

    def _check_absent(self, path: str, error: HeadwaterError, window: Window) -> bool:
        """Check a 404 or 410. Returns whether it was one."""
        ids = {state.id for state in self._states(path, window) if state is not None}
        if isinstance(error, StreamNotFoundError | StreamGoneError) and len(ids) > 1:
            return True  # the stream was replaced meanwhile, in one record
        if isinstance(error, StreamNotFoundError):
            self._must(path, window, lambda state: state is None, f"was not found: {error}")
        elif isinstance(error, StreamGoneError):
            self._must(path, window, lambda state: state is None or state.soft_deleted, f"is gone: {error}")
        else:
            return isinstance(error, ServerError)
        return True

    def _must(self, path: str, window: Window, holds: Callable[[StreamState | None], bool], what: str) -> None:
        states = self._states(path, window)
        if not any(holds(state) for state in states):
            shown = [
                None if one is None else (one.id, one.version, one.tail, one.closed, one.soft_deleted) for one in states
            ]
            raise BrokenPromiseError(f"{path} {what}; between {window.since} and {window.until} it was {shown}")

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    # Writes

    async def _create(self, path: str, name: str) -> None:
        server = self._server()
        if server is None:
            return
        now_ms = server.engine.now_ms()
        number = self._next_number()
        ttl_s, expires_ms = self._random.choice(
            [(None, None), (None, None), (2, None), (20, None), (None, now_ms + 3000)]
        )
        source = self._random.choice(PATHS)
        fork = None
        if path.startswith("fork") and source != path:
            offset = self._random.choice([None, BEGINNING, self._known_offset(source)])
            fork = ForkRequest(source, offset, self._random.choice([0, 0, 3]))
        command = Create(
            path=path,
            now_ms=now_ms,
            content_type="text/plain",
            ttl_s=ttl_s,
            expires_ms=expires_ms,
            body=f"<{name}:{number}>".encode(),
            fork=fork,
        )
        answer, window = await self._ask(server, command)
        if isinstance(answer, Reply):
            self._check_created(path, number, answer, window)
            return
        self.refused.add(number)
        if isinstance(answer, ConfigurationError):
            self._must(path, window, lambda state: state is not None and not state.soft_deleted, f"exists: {answer}")
        elif isinstance(answer, PathBlockedError):
            self._must(path, window, lambda state: state is not None and state.soft_deleted, f"is blocked: {answer}")
        elif fork is not None and isinstance(answer, StreamNotFoundError):
            self._must(source, window, lambda state: state is None, f"is no source: {answer}")
        elif fork is not None and isinstance(answer, SourceGoneError):
            self._must(source, window, lambda state: state is not None and state.soft_deleted, f"is gone: {answer}")
        elif fork is not None and isinstance(answer, InvalidOffsetError | OffsetGoneError | InvalidForkError):
            """The offset was one of another stream at that path, or the fork has many ancestors."""
        elif not isinstance(answer, ServerError):
            raise BrokenPromiseError(f"{path} was not created: {answer!r}")

    def _check_created(self, path: str, number: int, reply: Reply, window: Window) -> None:
        if reply.existed:
            self.refused.add(number)
            self._must(
                path,
                window,
                lambda state: state is not None and not state.soft_deleted and self._history.tail(state) == reply.tail,
                f"exists with the tail {reply.tail}",
            )
            return
        self._check_stored(path, number, reply, window)

    def _check_stored(self, path: str, number: int, reply: Reply, window: Window) -> None:
        stored = self._history.messages.get(number)
        if stored is None:
            raise BrokenPromiseError(f"{path}: message {number} was acknowledged, but is not stored")
        if not window.since < stored.commit <= window.until:
            raise BrokenPromiseError(f"{path}: message {number} was stored at another time")
        if reply.tail != Offset(stored.id, stored.end):
            raise BrokenPromiseError(f"{path}: message {number} ends at {stored.end} of {stored.id}, not {reply.tail}")

    def _known_offset(self, path: str) -> Offset | None:
        """The tail of some state of a path, perhaps an old one."""
        states = [state for _, state in self._history.paths.get(path, ())[-4:] if state is not None]
        return self._history.tail(self._random.choice(states)) if states else None

    async def _append(self, path: str, name: str) -> None:
        number = self._next_number()
        await self._send(path, f"<{name}:{number}>", number, None, None)

    async def _expecting(self, path: str, name: str) -> None:
        number, end = self._next_number(), self._known_offset(path)
        if end is not None:
            await self._send(path, f"<{name}:{number}>", number, None, end)

    async def _produce(self, path: str, name: str) -> None:
        writer = self._writers.setdefault((path, name), Writer(f"{name}@{path}@0"))
        if writer.unanswered is None:
            writer.unanswered = self._next_number()
        number = writer.unanswered
        producer = ProducerTuple(writer.name, 0, writer.seq)
        try:
            is_stored = await self._send(path, f"<{name}:{number}>", number, producer, None)
        except DeadError:
            return
        if is_stored is None:  # the stream is not there, or closed
            del self._writers[path, name]
            generation = self._next_number()
            self._writers[path, name] = Writer(f"{name}@{path}@{generation}")
        elif is_stored:
            writer.unanswered = None
            writer.seq += 1

    async def _send(
        self, path: str, body: str, number: int, producer: ProducerTuple | None, end: Offset | None
    ) -> bool | None:
        """Append a message. Returns whether it was acknowledged; None if it cannot be."""
        server = self._server()
        if server is None:
            return False
        ends = None if end is None else (end,)
        command = Append(path, server.engine.now_ms(), body.encode(), "text/plain", producer, ends=ends)
        answer, window = await self._ask(server, command)
        if isinstance(answer, Reply):
            if answer.duplicate:
                self._check_duplicate(path, number, producer, answer, window)
            else:
                self._check_stored(path, number, answer, window)
                self._used(server, path, answer)
            return True
        if producer is None:
            self.refused.add(number)
        if self._check_absent(path, answer, window):
            return False if isinstance(answer, ServerError) else None
        if isinstance(answer, StreamClosedError):
            self._must(path, window, lambda state: state is not None and state.closed, "is closed")
        elif isinstance(answer, TailMovedError) and end is not None:
            self._must(
                path,
                window,
                lambda state: (
                    state is not None and self._history.tail(state) == Offset(*(answer.tail or (0, 0))) != end
                ),
                f"has the tail {answer.tail}, and not {end}",
            )
        elif isinstance(answer, SequenceGapError) and producer is not None:
            self._must(path, window, lambda state: _has_gap(state, producer), f"has a gap: {answer}")
        else:
            raise BrokenPromiseError(f"{path}: an append was refused: {answer!r}")
        return None

    def _check_duplicate(
        self, path: str, number: int, producer: ProducerTuple | None, reply: Reply, window: Window
    ) -> None:
        if producer is None or number not in self._history.messages:
            raise BrokenPromiseError(f"{path}: message {number} was taken for a duplicate")
        self._must(
            path,
            window,
            lambda state: (
                state is not None
                and self._history.tail(state) == reply.tail
                and (known := state.producers.get(producer.id)) is not None
                and known.seq >= producer.seq
            ),
            f"has message {number} and the tail {reply.tail}",
        )

    def _used(self, server: Server, path: str, reply: Reply) -> None:
        del server, path, reply

    async def _close(self, path: str, name: str) -> None:
        del name
        server = self._server()
        if server is None:
            return
        answer, window = await self._ask(server, Append(path, server.engine.now_ms(), b"", close=True))
        if isinstance(answer, HeadwaterError):
            if not self._check_absent(path, answer, window):
                raise BrokenPromiseError(f"{path} was not closed: {answer!r}")
            return
        self._must(
            path,
            window,
            lambda state: state is not None and state.closed and self._history.tail(state) == answer.tail,
            f"was closed at {answer.tail}",
        )

    async def _delete(self, path: str, name: str) -> None:
        del name
        server = self._server()
        if server is None:
            return
        deleting = self._history.deleting
        deleting[path] = deleting.get(path, 0) + 1
        end = self._random.choice([None, None, self._known_offset(path)])
        command = Delete(path, server.engine.now_ms(), ends=None if end is None else (end,))
        answer, window = await self._ask(server, command)  # if the server dies, it may be deleted at any time
        deleting[path] -= 1
        if isinstance(answer, TailMovedError):
            self._must(
                path, window, lambda state: state is not None and self._history.tail(state) != end, f"moved: {answer}"
            )
        elif isinstance(answer, HeadwaterError):
            if not self._check_absent(path, answer, window):
                raise BrokenPromiseError(f"{path} was not deleted: {answer!r}")
        else:
            deleted = [commit for commit in self._history.deleted.values() if window.since < commit <= window.until]
            if not deleted:
                raise BrokenPromiseError(f"{path} is said to be deleted, but was not")
            self._must(path, window, lambda state: state is None or state.soft_deleted, "was deleted")

    # Reads

    async def _info(self, path: str, name: str) -> None:
        del name
        server = self._server()
        if server is None:
            return

        async def info(engine: Engine) -> VisibleStream | HeadwaterError:
            try:
                return await engine.info(path)
            except HeadwaterError as error:
                return error

        answer, window = await self._on(server, info)
        if isinstance(answer, HeadwaterError):
            if not self._check_absent(path, answer, window):
                raise BrokenPromiseError(f"{path} has no information: {answer!r}")
            return
        self._check_shown(path, answer, window)

    def _check_shown(self, path: str, shown: VisibleStream, window: Window) -> None:
        self._must(
            path,
            window,
            lambda state: (
                state is not None
                and not state.soft_deleted
                and (state.id, state.tail, state.closed) == (shown.id, shown.tail, shown.closed)
            ),
            f"was shown as {(shown.id, shown.tail, shown.closed)}",
        )

    async def _read(self, path: str, name: str) -> None:
        del name
        server = self._server()
        if server is None:
            return
        offset = self._random.choice([BEGINNING, None, self._known_offset(path) or BEGINNING])
        wait_s = self._random.choice([0.0, 0.0, 0.5])
        message = Read(path, offset, bytes_max=self._random.choice([1, 200]), wait_s=wait_s)

        async def read(engine: Engine) -> tuple[Any, int]:
            try:
                reply = await engine.read(message)
            except HeadwaterError as error:
                return error, 0
            return reply, 0

        asked_ms = int(self._database.time_s * 1000)
        (answer, _), window = await self._on(server, read)
        if isinstance(answer, HeadwaterError):
            if isinstance(answer, InvalidOffsetError | OffsetGoneError):
                ids = {state.id for state in self._states(path, window) if state is not None}
                if offset is not None and ids == {offset.id}:
                    raise BrokenPromiseError(f"{path}: the offset {offset} was refused: {answer!r}")
            elif not self._check_absent(path, answer, window):
                raise BrokenPromiseError(f"{path} cannot be read: {answer!r}")
            return
        self._check_shown(path, answer.stream, window)
        state = next(one for one in self._states(path, window) if one is not None and one.id == answer.stream.id)
        newest = [one for one in self._states(path, window) if one is not None and one.id == state.id][-1]
        if answer.data != self._history.content(newest)[answer.start : answer.next]:
            raise BrokenPromiseError(f"{path} was read from {answer.start} with other bytes")
        if not answer.data and answer.start != answer.stream.tail:
            raise BrokenPromiseError(f"{path}: a read at {answer.start} of {answer.stream.tail} is empty")
        if answer.data and not self._database.down_until_s:
            self._history.use(state.id, path, asked_ms)

    async def _page(self, path: str, name: str) -> None:
        del path, name
        server = self._server()
        if server is None:
            return

        async def page(engine: Engine) -> list[VisibleStream] | HeadwaterError:
            try:
                return list((await engine.page("", "", 100)).streams)
            except HeadwaterError as error:
                return error

        answer, window = await self._on(server, page)
        if isinstance(answer, HeadwaterError):
            if not isinstance(answer, ServerError):
                raise BrokenPromiseError(f"the streams were not listed: {answer!r}")
            return
        shown = {stream.path: stream for stream in answer}
        for path in PATHS:
            if path in shown:
                self._check_shown(path, shown[path], window)
            else:
                self._must(path, window, lambda state: state is None or state.soft_deleted, "is not listed")

    # Documents

    async def _read_document(self, path: str, name: str) -> None:
        del path, name
        server, key = self._server(), self._random.choice(KEYS)
        if server is None:
            return

        async def document(engine: Engine) -> Any:
            try:
                return await engine.document(key)
            except ServerError as error:
                return error

        answer, window = await self._on(server, document)
        if not isinstance(answer, ServerError):
            documents = self._history.documents_in(key, window.since, window.until)
            if answer not in documents:
                raise BrokenPromiseError(f"document {key} was {documents}, not {answer}")

    async def _write_document(self, path: str, name: str) -> None:
        server, key, number = self._server(), self._random.choice(KEYS), self._next_number()
        if server is None:
            return
        documents = self._history.documents_in(key, self._history.commit - 3, self._history.commit)
        known = self._random.choice(documents)
        expected = self._random.choice([None, 0 if known is None else known.version])
        data = None if self._random.random() < 0.3 else f"{name} {number}".encode()
        write = WriteDocument(key, data, expected)
        command: Command = WriteDocuments((write,))
        if self._random.random() < 0.3:  # in one record with a message
            body = f"<{name}:{number}>".encode()
            command = Append(path, server.engine.now_ms(), body, "text/plain", documents=(write,))
        answer, window = await self._ask(server, command)
        documents = self._history.documents_in(key, window.since, window.until)
        if isinstance(answer, Reply):
            if data is not None and data not in [one.data for one in documents[1:] if one is not None]:
                raise BrokenPromiseError(f"document {key} was not written")
            if data is None and None not in documents:
                raise BrokenPromiseError(f"document {key} was not deleted")
            if isinstance(command, Append):
                self._check_stored(path, number, answer, window)
            return
        self.refused.add(number)
        if data is not None and data in [one.data for one in self._all_documents(key)]:
            raise BrokenPromiseError(f"document {key} was written, although that was refused: {answer}")
        if isinstance(answer, DocumentConflictError):
            versions = [0 if one is None else one.version for one in documents]
            if all(version == expected for version in versions):
                raise BrokenPromiseError(f"document {key} had version {expected}: {answer}")
        elif isinstance(answer, StreamClosedError):
            self._must(path, window, lambda state: state is not None and state.closed, "is closed")
        elif not self._check_absent(path, answer, window):
            raise BrokenPromiseError(f"document {key} was not written: {answer!r}")

    def _all_documents(self, key: str) -> list[Any]:
        return [document for _, document in self._history.documents.get(key, ()) if document is not None]

    # Live readers

    async def _follow(self, path: str, name: str) -> None:
        del name
        server = self._server()
        if server is None or sum(one.reason is None for _, one in self.readers) > 6:
            return

        async def follow(engine: Engine) -> None:
            try:
                stream = await engine.info(path)
            except HeadwaterError:
                return
            states = [state for _, state in self._history.paths[path] if state is not None and state.id == stream.id]
            position = self._random.choice([0, stream.tail])
            reader = LiveReader(self._history, states[-1], self._random, position)
            reader.follower = StreamFollower(
                engine, reader, "simulated", stream, position, bytes_max=200, extent=Extent.STREAM
            )
            reader.follower.open()
            self.readers.append((server, reader))

        await self._on(server, follow)


def _has_gap(state: StreamState | None, producer: ProducerTuple) -> bool:
    known = None if state is None else state.producers.get(producer.id)
    return state is not None and producer.seq > (0 if known is None else known.seq + 1)
