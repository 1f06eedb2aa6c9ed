# Made by `python -m tools.twins` from aio/follow.py: change that one.
"""Many streams over one connection, blocking."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headwater.client.effects import Batch, RunningFlow
from headwater.client.following import StreamBatch, StreamFollowing
from headwater.client.forking import Unpicklable
from headwater.client.sync.transport import Transport
from headwater.positions import BEGINNING, Position

if TYPE_CHECKING:
    from headwater.client.sync.client import Client

T = TypeVar("T")


class Follow(Unpicklable, Generic[T]):
    """Many streams over one connection. Iterate over it for batches, each of which names its stream.

    Every message of a stream arrives once and in order, across lost connections; there is no order between streams.
    Streams can be added and dropped at any time, also from another thread or task. The iteration ends when no stream
    is left.

    An error that concerns one stream names it as `error.stream`. Iterating again continues with all streams; drop that
    one to continue without it.

    ```python
    with Client("http://127.0.0.1:4437") as client:
        for room in ("rooms/1", "rooms/2"):
            client.stream(room).create(messages=[{"text": "hello"}])
        with client.follow({"rooms/1": "-1"}) as follow:
            for batch in follow:
                print(batch.stream, batch.items, batch.offset, batch.up_to_date)
                if batch.stream == "rooms/2":
                    break
                if batch.up_to_date:
                    follow.add("rooms/2")
                    follow.drop("rooms/1")
    ```
    """

    def __init__(self, client: Client, following: StreamFollowing) -> None:
        self._client = client
        self._following = following
        self._transport = Transport(client._pools, client._session)
        self._arrived: Generator[Batch[Any], None, None] | None = None
        self._ended = False

    @property
    def positions(self) -> dict[str, Position]:
        """The position of each stream that is followed: everything before it was delivered. Save them to continue."""
        return self._following.positions

    def add(self, path: str, offset: str | Position = BEGINNING) -> None:
        """Follow another stream as well. The next request has the new list; the positions of the others are kept."""
        self._following.add(path, offset)
        self._reconnect()

    def drop(self, path: str) -> None:
        """Follow a stream no more. Nothing of it is delivered afterwards."""
        self._following.drop(path)
        self._reconnect()

    def _reconnect(self) -> None:
        if self._following.has_arrived:
            self._transport.hang_up()

    def __iter__(self) -> Iterator[StreamBatch[T]]:
        while (batch := self._next()) is not None:
            yield batch

    def close(self) -> None:
        """Stop reading and close the connection, even while another thread waits for the next batch."""
        self._ended = True
        self._transport.interrupt()
        if self._arrived is not None:
            with contextlib.suppress(ValueError):  # it is running and will see the interruption
                self._arrived.close()

    def _next(self) -> StreamBatch[T] | None:
        """Return the next batch. After an error, or when streams were added after the last one ended, it continues."""
        if self._ended:
            return None
        if self._arrived is None:
            self._arrived = self._client._drive(RunningFlow(self._following.flow()), self._transport)
        try:
            batch = next(self._arrived, None)
        except BaseException:
            self._arrived = None
            raise
        if batch is None:
            self._arrived = None
        return batch if isinstance(batch, StreamBatch) else None

    def __enter__(self) -> Follow[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
