"""Quotas: limits on the number of streams and on the size of a stream.

They are checked on the events of a decision. So a request that adds nothing (a retry, a create of an existing stream, a
close) is never refused. A fork counts as a stream. Its inherited bytes do not count.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from headwater.errors import StreamFullError, TooManyStreamsError
from headwater.log.events import Appended, Created, Deleted, Record
from headwater.log.state import StreamState


class Streams(Protocol):
    """The newest states, and their number."""

    @property
    def count(self) -> int: ...

    def get(self, stream_id: int) -> StreamState: ...


class Quotas(msgspec.Struct, frozen=True):
    """0: no limit."""

    streams_max: int = 0
    stream_bytes_max: int = 0

    def __bool__(self) -> bool:
        return bool(self.streams_max or self.stream_bytes_max)

    def check(self, streams: Streams, events: Record) -> None:
        """Raise an error if the events would exceed a quota."""
        grown = 0
        for event in events:
            if type(event) is Appended:
                self._check_bytes(streams.get(event.id), event.data)
            elif isinstance(event, Created):
                grown += 1
                self._check_size(len(event.data), len(event.data))
            elif isinstance(event, Deleted):
                grown -= 1
        if grown > 0 and self.streams_max and streams.count + grown > self.streams_max:
            raise TooManyStreamsError(
                f"there are {streams.count} streams and tables; the limit is {self.streams_max} (streams_max)"
            )

    def _check_bytes(self, state: StreamState, data: bytes) -> None:
        self._check_size(state.tail - state.start + len(data), len(data))

    def _check_size(self, size_bytes: int, added_bytes: int) -> None:
        most = self.stream_bytes_max
        if added_bytes and most and size_bytes > most:
            raise StreamFullError(
                f"the stream or table has {size_bytes - added_bytes} bytes; {added_bytes} more exceed "
                f"the limit of {most} (stream_bytes_max)"
            )
