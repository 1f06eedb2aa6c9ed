"""Composes in a simulated server: the data of an append is stored in a stream, which is deleted after the append."""

from __future__ import annotations

import asyncio
import contextlib
import random

import msgspec
import zstandard

from headwater.engine import Engine
from headwater.errors import ComposeSourceGoneError, ComposeSourceNotFoundError, HeadwaterError
from headwater.limits import Limits
from headwater.log.commands import Append, Reply
from headwater.log.content import ContentKind, kind_of
from headwater.protocol.streams.composing import COMPOSE_TYPE, ZSTD_TYPE, SourceRange, format_composition
from headwater.protocol.streams.offsets import parse_offset
from headwater.protocol.streams.paths import STREAM_ROOT, quote_path
from headwater.protocol.tables.content_type import CHANGES_TYPE
from headwater.protocol.tables.paths import LOG_PREFIX, TABLE_ROOT, name_of
from headwater.server.dispatch import Dispatcher
from headwater.server.http import Request, Response
from headwater.server.service import Service
from tests.fault.oracle import BrokenPromiseError
from tests.fault.table_clients import ERRORS, Answer
from tests.fault.world import World


class Composes:
    def __init__(self, world: World, engine: Engine, limits: Limits) -> None:
        self._disk = world.disk
        self._dispatcher = Dispatcher(Service(engine, limits))
        self._numbers = world.staged  # what a crash has left is not a stream of the next life

    async def append(self, command: Append, number: int) -> Reply:
        """Append the body of a command from one or two streams."""
        rng = random.Random(f"parts of {number}")
        is_table = command.path.startswith(LOG_PREFIX)
        plain_type = CHANGES_TYPE if is_table else command.content_type or ""
        staged = []
        for part in _parts(command.body, plain_type, rng):
            path = f"{STREAM_ROOT}staged/{number}-{next(self._numbers)}"
            content_type = rng.choice([plain_type, ZSTD_TYPE])
            body = zstandard.ZstdCompressor().compress(part) if content_type == ZSTD_TYPE else part
            await self._ask("PUT", path, {"content-type": content_type}, body)
            staged.append(path)
        target = TABLE_ROOT + name_of(command.path) if is_table else STREAM_ROOT + quote_path(command.path)
        body = format_composition([SourceRange(path) for path in staged])
        try:
            answer = await self._ask("POST", target, _headers(command), body)
        except (ComposeSourceNotFoundError, ComposeSourceGoneError) as error:
            raise BrokenPromiseError(f"a staged stream is gone: {error}") from error
        finally:
            if not self._disk.crashed:
                for path in staged:
                    with contextlib.suppress(HeadwaterError):  # it is not read again
                        await self._ask("DELETE", path, {}, b"")
        duplicate = command.producer is not None and answer.status == 204
        if is_table:
            return Reply(duplicate=duplicate, last_seqno=answer.last_seqno)
        return Reply(parse_offset(answer.headers["stream-next-offset"]), duplicate=duplicate)

    async def _ask(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._dispatcher.dispatch(Request(method, path, "", headers, body), answered.set_result)
        response = await answered
        whole = b"".join(response.body)
        if self._disk.crashed:
            await asyncio.sleep(1e9)
        if response.status >= 400:
            problem = msgspec.json.decode(whole)
            raise ERRORS[problem["type"].rpartition(":")[2]](problem["detail"])
        return Answer(response.status, dict(response.headers), whole)


def _headers(command: Append) -> dict[str, str]:
    sent = {"content-type": COMPOSE_TYPE}
    if command.producer is not None:
        sent["producer-id"] = command.producer.id
        sent["producer-epoch"], sent["producer-seq"] = str(command.producer.epoch), str(command.producer.seq)
    if command.ends is not None:
        is_table = command.path.startswith(LOG_PREFIX)
        tags = [f"{end.position}" if is_table else f"{end.id:016d}_{end.position:016d}" for end in command.ends]
        sent["if-match"] = ", ".join(f'"{tag}"' for tag in tags)
    return sent


def _parts(body: bytes, content_type: str, rng: random.Random) -> list[bytes]:
    """A body as one or two bodies, which have the same messages together."""
    if rng.random() < 0.5:
        return [body]
    if kind_of(content_type) is ContentKind.JSON:
        messages = msgspec.json.decode(body)
        return [msgspec.json.encode(messages[:1]), msgspec.json.encode(messages[1:])]
    if content_type == CHANGES_TYPE:
        first, newline, rest = body.partition(b"\n")
        return [first + newline, rest] if rest else [body]
    middle = len(body) // 2
    return [body[:middle], body[middle:]]
