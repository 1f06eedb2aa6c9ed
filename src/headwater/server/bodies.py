"""A large body, written in pieces as the client reads them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import TypeAlias

from headwater.errors import HeadwaterError
from headwater.limits import BODY_PIECE_BYTES
from headwater.server.compression import Encoder
from headwater.server.http import Buffer, Frame, Sink
from headwater.server.turns import Turns

log = logging.getLogger("headwater.server")

Pieces: TypeAlias = AsyncGenerator[bytes, None]


class BodyFeed:
    """A body as pieces that are not empty. If it cannot be completed, it is aborted, so that the client notices.

    `held` keeps the bytes of the body in the memory budget until they are written.
    """

    def __init__(self, turns: Turns, pieces: Pieces, held: object = None) -> None:
        self._turns = turns
        self._pieces: Pieces | None = pieces
        self._held = held
        self._drained = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    def open(self, sink: Sink, now_s: float) -> None:
        if self._pieces is not None:
            self._writing = asyncio.create_task(self._write(sink, self._pieces))

    def drained(self) -> None:
        self._drained.set()

    def tick(self, now_s: float) -> None:
        """Nothing to do: a body has no keep-alive."""

    def finish(self) -> None:
        """Nothing to do: a client that reads gets the whole body."""

    def cancel(self) -> None:
        self._pieces = self._held = None
        if self._writing is not None:
            self._writing.cancel()

    async def _write(self, sink: Sink, pieces: Pieces) -> None:
        try:
            async for piece in pieces:
                while sink.blocked:
                    self._drained.clear()
                    await self._drained.wait()
                await self._turns.run(partial(sink.write, Frame(piece)))
                del piece  # its memory can be used for the next one
        except HeadwaterError as error:
            log.info("a response could not be completed: %s", error)
            sink.abort()
        except Exception:
            log.exception("a response could not be completed")
            sink.abort()
        else:
            sink.end()
        finally:
            self._pieces = self._held = None
            await pieces.aclose()


async def cut(body: tuple[Buffer, ...]) -> Pieces:
    """The pieces of a body in memory."""
    for part in body:
        view = memoryview(part)
        for start in range(0, len(view), BODY_PIECE_BYTES):
            yield bytes(view[start : start + BODY_PIECE_BYTES])


async def gathered(parts: Sequence[bytes]) -> Pieces:
    """Join many small parts into pieces."""
    first = 0
    while first < len(parts):
        size_bytes, last = 0, first
        while last < len(parts) and size_bytes < BODY_PIECE_BYTES:
            size_bytes += len(parts[last])
            last += 1
        yield b"".join(parts[first:last])
        first = last


async def encoded(pieces: Pieces, encoder: Encoder, inline_bytes: int) -> Pieces:
    """Compress pieces, in a thread if they are larger than what may be encoded at once."""
    try:
        async for piece in pieces:
            if len(piece) <= inline_bytes:
                data = encoder.encode(piece)
            else:
                data = await asyncio.get_running_loop().run_in_executor(None, encoder.encode, piece)
            if data:
                yield data
        if data := encoder.finish():
            yield data
    finally:
        await pieces.aclose()
