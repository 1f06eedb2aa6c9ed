"""Active views: the last row of each key that is not deleted, in memory.

A view is built at the first request for it, by reading the table once. Then it follows the table. Views that were not
used for a while are evicted, and so are the least recently used ones if all together take too much memory.

When many more rows were applied than are live, a snapshot of the live rows is written (`snapshots.py`). A view that is
built again starts from the newest snapshot.

Rows are in the order of their SeqNos: a change removes the old row of its key and appends the new one. Rows that are
trimmed from the table are no longer live.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from bisect import bisect_right
from collections.abc import Callable

from headwater.engine import Engine
from headwater.engine.follower import Extent, Pulled
from headwater.engine.messages import Ended, Reason, Slice, VisibleStream
from headwater.errors import (
    HeadwaterError,
    InternalError,
    OffsetTrimmedError,
    OverloadedError,
    StoppingError,
    StreamNotFoundError,
    ViewTooLargeError,
)
from headwater.limits import (
    ACTIVE_ATTEMPTS,
    ACTIVE_BUILDS_AT_ONCE,
    ACTIVE_IDLE_S,
    ACTIVE_KEY_BYTES,
    ACTIVE_SNAPSHOT_BYTES_MIN,
    ACTIVE_STEP_BYTES,
    Limits,
)
from headwater.log.row_framing import last_seqno_of, seqno_of
from headwater.server.keeping import KeptViews
from headwater.server.tables import snapshots
from headwater.tasks import Tasks

log = logging.getLogger("headwater.server")


class LiveRows:
    """The rows of live keys, in the order of their SeqNos."""

    __slots__ = ("_listed", "_rows", "last_seqno", "size_bytes")

    def __init__(self, last_seqno: int = 0) -> None:
        self._rows: dict[bytes, bytes] = {}  # by key; each with its newline
        self._listed: list[bytes] | None = None
        self.last_seqno = last_seqno  # of the last applied row, including deletes
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def apply(self, rows: bytes) -> None:
        """Apply stored rows. Their SeqNos are larger than those applied before."""
        live, size_bytes = self._rows, self.size_bytes
        for line in rows[:-1].split(b"\n"):
            _, _, action, key, _ = line.split(b"\t", 4)
            before = live.pop(key, None)
            if before is not None:
                size_bytes -= len(before) + ACTIVE_KEY_BYTES
            if action == b"+":
                live[key] = row = line + b"\n"
                size_bytes += len(row) + ACTIVE_KEY_BYTES
        self.size_bytes = size_bytes
        self.last_seqno = last_seqno_of(rows)
        self._listed = None

    def trim(self, seqno: int) -> None:
        """Remove the rows up to a SeqNo."""
        trimmed = list(itertools.takewhile(lambda key: seqno_of(self._rows[key]) <= seqno, self._rows))
        for key in trimmed:  # to find the first key again after each would take quadratic time
            self.size_bytes -= len(self._rows.pop(key)) + ACTIVE_KEY_BYTES
            self._listed = None

    @property
    def row_bytes(self) -> int:
        return self.size_bytes - len(self._rows) * ACTIVE_KEY_BYTES

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def after(self, since_id: int) -> list[bytes]:
        """The rows with a larger SeqNo, or the last rows if it is negative. Do not modify the list."""
        if self._listed is None:
            self._listed = list(self._rows.values())
        if since_id < 0:
            return self._listed[since_id:]
        return self._listed[bisect_right(self._listed, since_id, key=seqno_of) :] if since_id else self._listed


class ActiveView(Pulled):
    """The live rows of one table, kept current: updates are applied as they arrive, if nothing is left to be read."""

    def __init__(
        self,
        engine: Engine,
        table: VisibleStream,
        building: asyncio.Semaphore,
        tasks: Tasks,
        applied: Callable[[ActiveView], None],
    ) -> None:
        super().__init__(engine, "active-view", table, table.begin, bytes_max=ACTIVE_STEP_BYTES, extent=Extent.LIFE)
        self._engine = engine
        self._table = table
        self._tasks = tasks  # of all views: those that write and delete snapshots
        self._building = building  # bounds how many views read their tables at the same time
        self.id = table.id
        self._applied = applied  # called after rows were applied; raises an error if the view has become too large
        self.rows = LiveRows(table.gone_seqno)
        self.position = table.begin  # up to which rows are applied
        self._waiting = 0  # requests that wait for rows to be applied
        self._reading: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None  # a snapshot
        self._restored = False  # from a snapshot, if there is one
        self._unsaved_bytes = 0  # applied since the last snapshot
        self._failure: HeadwaterError | None = None
        self.used_s = 0.0
        self.counted_bytes = 0  # of its rows, when all views were counted

    @property
    def kept_as(self) -> int:
        return self.id

    @property
    def size_bytes(self) -> int:
        return self.rows.size_bytes

    @property
    def is_busy(self) -> bool:
        return self._reading is not None

    @property
    def is_over(self) -> bool:
        """Whether it must be built again, because its table was deleted or could not be read. A view that is too large
        is kept, because otherwise every request would read the table again."""
        return self._failure is not None and not self.is_too_large

    @property
    def is_too_large(self) -> bool:
        return isinstance(self._failure, ViewTooLargeError)

    def open(self) -> None:
        self.follower.open()
        self._restored = self.follower.tail == self.position

    def close(self, error: HeadwaterError) -> None:
        """Drop the rows. Requests that wait for them, and later ones, get the error."""
        self._failure = error
        self.follower.close()
        self.rows = LiveRows()
        if self._reading is not None and self._reading is not asyncio.current_task():
            self._reading.cancel()
        if self._writing is not None:
            self._writing.cancel()

    async def current(self, tail: int) -> LiveRows:
        """The live rows, once all rows before a position are applied."""
        self._waiting += 1
        self.follower.expect(tail)
        try:
            while self.position < tail and self._failure is None:
                if self._reading is None:
                    self._reading = asyncio.create_task(self._read())
                await asyncio.wait((self._reading,))
        finally:
            self._waiting -= 1
        if self._failure is not None:
            raise self._failure
        return self.rows

    # From the follower

    def take(self, piece: Slice) -> bool:
        if self._reading is not None:
            return super().take(piece)
        if len(piece.data) > ACTIVE_STEP_BYTES:
            return False
        try:
            self._apply(piece.data)
        except HeadwaterError as error:
            self.close(error)
        else:
            self.position = piece.next
            self._unsaved_bytes += len(piece.data)
            self._write_snapshot()
        return True

    def ended(self, reason: Reason) -> None:
        super().ended(reason)
        if isinstance(reason, HeadwaterError):
            self.close(reason)
        elif reason is Ended.DELETED:
            self.close(StreamNotFoundError("the table was deleted"))
            self._tasks.start(self._delete_snapshots(self._writing))
        else:
            self.close(StoppingError("the server is stopping; try again shortly"))

    # Reading

    async def _read(self) -> None:
        try:
            async with self._building:
                await self._read_to_tail()
        except HeadwaterError as error:
            self.close(error)
        except Exception:
            log.exception("an active view failed")
            self.close(InternalError("the server log has the cause"))
        finally:
            self._reading = None
        if self._failure is None:
            self._write_snapshot()

    async def _read_to_tail(self) -> None:
        """Build the view as long as a request waits for it. The next request continues where this one stopped."""
        if not self._restored and self._waiting:
            await self._restore()
            self.follower.seek(self.position)
        while self.position < self.follower.tail and self._waiting:
            piece = await self.next()
            if piece is None:
                return
            await self._apply_in_steps(piece.data)
            self.position = piece.next
            self._unsaved_bytes += len(piece.data)

    async def _apply_in_steps(self, rows: bytes) -> None:
        start = 0
        while start < len(rows):
            end = rows.find(b"\n", min(start + ACTIVE_STEP_BYTES, len(rows) - 1)) + 1
            self._apply(rows[start:end])
            start = end
            await asyncio.sleep(0)

    async def _restore(self) -> None:
        """Start from the newest snapshot, if there is one. If it is unusable, the whole history is read."""
        try:
            snapshot = await snapshots.find(self._engine, self._table)
            if snapshot is not None:
                reader = snapshots.SnapshotReader(self._engine, snapshot)
                while rows := await reader.read(ACTIVE_STEP_BYTES):
                    await self._apply_in_steps(rows)
                self.rows.last_seqno = snapshot.last_seqno
                self.position = snapshot.position
        except ViewTooLargeError:
            raise
        except HeadwaterError as error:
            log.warning("a snapshot could not be read: %s", error)
            self.rows, self.position = LiveRows(self._table.gone_seqno), self._table.begin
        self._restored = True

    def _write_snapshot(self) -> None:
        """Write a snapshot, if enough was applied since the last one that reading it again would cost more."""
        since_bytes = self._unsaved_bytes
        if since_bytes < ACTIVE_SNAPSHOT_BYTES_MIN or since_bytes < 2 * self.rows.row_bytes or self.position < 0:
            return
        if self._writing is None and self._reading is None:
            self._unsaved_bytes = 0
            self._writing = self._tasks.start(self._snapshot())

    async def _snapshot(self) -> None:
        rows = self.rows
        try:
            await snapshots.write(self._engine, self.id, self.position, rows.last_seqno, rows.after(0))
        except HeadwaterError as error:
            log.warning("a snapshot of an active view could not be written: %s", error)
        except Exception:
            log.exception("a snapshot of an active view failed")
        finally:
            self._writing = None

    async def _delete_snapshots(self, writing: asyncio.Task[None] | None) -> None:
        """Delete all snapshots of a deleted table, once the one that was being written has been given up."""
        if writing is not None:
            await asyncio.wait((writing,))
        with contextlib.suppress(HeadwaterError):  # they expire anyway
            await snapshots.delete_all(self._engine, self.id)

    def _apply(self, rows: bytes) -> None:
        if rows:
            self.rows.apply(rows)
            self._applied(self)


class ActiveViews(KeptViews[ActiveView]):
    """The views of all tables."""

    def __init__(self) -> None:
        super().__init__(ACTIVE_IDLE_S)
        self._building = asyncio.Semaphore(ACTIVE_BUILDS_AT_ONCE)
        self._tasks = Tasks()

    async def rows_of(self, engine: Engine, limits: Limits, table: VisibleStream) -> LiveRows:
        """The live rows of a table that was just read. Use them before the next await."""
        for _ in range(ACTIVE_ATTEMPTS):
            try:
                rows = await self._current(engine, limits, table)
            except OffsetTrimmedError:  # rows that were still to be applied: build the view again from what is there
                table = await engine.info(table.path)
            else:
                rows.trim(table.gone_seqno)
                return rows
        raise OverloadedError("rows of the table are trimmed faster than its active view can be built; try again")

    async def _current(self, engine: Engine, limits: Limits, table: VisibleStream) -> LiveRows:
        view = self._views.get(table.id)
        if view is None or view.is_over:
            view = ActiveView(engine, table, self._building, self._tasks, lambda applied: self._check(applied, limits))
            view.open()
            self._keep(view)
        if not view.is_too_large:  # otherwise it is checked again later
            view.used_s = asyncio.get_running_loop().time()
        return await view.current(table.tail)

    def _check(self, view: ActiveView, limits: Limits) -> None:
        if len(view.rows) > limits.active_keys_max:
            raise ViewTooLargeError(
                f"the table has more than {limits.active_keys_max} live keys; read all its rows and fold them, "
                "or raise the limit active_keys_max"
            )
        size_bytes = self._fit(view, limits.active_bytes_max)
        if view.size_bytes > limits.active_bytes_max:
            raise ViewTooLargeError(
                f"the live rows take more than {limits.active_bytes_max} bytes of memory; read all rows and fold them, "
                "or raise the limit active_bytes_max"
            )
        if size_bytes > limits.active_bytes_max:
            raise OverloadedError("active views of other tables use all their memory (active_bytes_max); try again")
