"""Compaction without a process of its own, for tests in virtual time."""

from __future__ import annotations

from collections.abc import Iterator

from headwater.server.compacting.contents import ContentSize, SnapshotContent
from headwater.server.compacting.snapshot_worker import Begin, open_content


class LocalContent:
    """Computes a snapshot in this process."""

    def __init__(self) -> None:
        self._content: SnapshotContent | None = None
        self._records: Iterator[bytes] | None = None

    async def begin(self, begin: Begin) -> None:
        self._content = open_content(begin)

    async def add(self, data: bytes) -> None:
        assert self._content is not None
        self._content.add(data)

    async def finish(self) -> ContentSize:
        assert self._content is not None
        return self._content.finish()

    async def record(self, size_bytes: int) -> bytes:
        assert self._content is not None
        if self._records is None:
            self._records = self._content.records(size_bytes)
        return next(self._records, b"")

    async def close(self) -> None:
        self._content = self._records = None
