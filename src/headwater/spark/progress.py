"""The lag of queries, from the progress that Spark reports or from a checkpoint.

Sources of the Python data source API cannot report metrics. But the progress has `latestOffset`, in which the sources
of this package report the tails of their streams. The lag is the difference to `endOffset`, the end of the batch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    SourceProgress,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from pyspark.sql.streaming.query import StreamingQuery

from headwater.client import Client
from headwater.errors import OptionError
from headwater.log.json_framing import UNREADABLE
from headwater.spark.catalogue import NamedStreams
from headwater.spark.positions import StreamPlace, bytes_between, parse_place

log = logging.getLogger(__name__)

Offsets = dict[str, StreamPlace] | int  # of streams, or the SeqNo of a table's last row


class StreamLag(msgspec.Struct, frozen=True):
    """The lag of a query behind the end of one stream or table; None where it is not known.

    `bytes` are unknown for tables, and on servers whose offsets do not count bytes. They are an upper bound if a batch
    ended inside an append. `rows` of streams are estimated from the average row size of the last batch.
    """

    stream: str | None
    bytes: int | None
    rows: int | None


def lag(
    of: StreamingQuery | StreamingQueryProgress | str | os.PathLike[str], client: Client | None = None
) -> list[StreamLag]:
    """Return the lag of a query behind each of its streams and tables, after its last batch.

    `of` is a query, a progress report of it, or the path of its checkpoint. The ends of the streams are those in the
    progress, or the current ones if a client is given. A checkpoint needs a client. The result is empty for a query
    without a finished batch. The lag of tables cannot be computed from a checkpoint.
    """
    if isinstance(of, (str, os.PathLike)):
        if client is None:
            raise OptionError("the lag of a checkpoint needs a client, to request the ends of the streams")
        return [each for read in _committed(of) for each in _lag(read, _now(client, read), None)]
    progress = of if isinstance(of, StreamingQueryProgress) else of.lastProgress
    sources: list[SourceProgress] = [] if progress is None else progress.sources
    return [each for source in sources for each in _source_lag(source, client)]


def _source_lag(source: SourceProgress, client: Client | None) -> list[StreamLag]:
    read, ends = _parse(source.endOffset), _parse(source.latestOffset)
    if isinstance(read, int) and isinstance(ends, int):
        return [StreamLag(None, None, max(0, ends - read))]
    if isinstance(ends, dict) and source.endOffset in (None, "null"):
        read = {}  # no batch has ended yet
    if isinstance(read, dict) and client is not None:
        ends = _now(client, read)
    return _lag(read, ends, _row_bytes(source)) if isinstance(read, dict) and isinstance(ends, dict) else []


class QueryProgress(StreamingQueryListener):
    """Logs a line for every batch of the queries of a session: `spark.streams.addListener(Progress())`.

    If given, `report` is called with each progress report and the lag after it.
    """

    def __init__(self, report: Callable[[StreamingQueryProgress, list[StreamLag]], None] | None = None) -> None:
        self._report = report

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        log.info("query %s started", event.name or event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        behind = lag(progress)
        log.info(
            "query %s, batch %d: %d rows in %.1f s; %s",
            progress.name or progress.id,
            progress.batchId,
            progress.numInputRows,
            progress.batchDuration / 1000,
            summary(behind),
        )
        if self._report is not None:
            self._report(progress, behind)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        log.info("query %s ended%s", event.id, f": {event.exception}" if event.exception else "")


def summary(behind: list[StreamLag]) -> str:
    """A lag as text."""
    late = [each for each in behind if each.bytes or each.rows]
    if not late:
        return "up to date"
    size, rows = sum(each.bytes or 0 for each in late), sum(each.rows or 0 for each in late)
    most = max(late, key=lambda each: (each.bytes or 0, each.rows or 0)).stream
    message = f"behind by {size:,} bytes, about {rows:,} rows, in {len(late)} of {len(behind)} streams"
    return message if most is None else f"{message}, most in {most}"


def _lag(read: dict[str, StreamPlace], ends: dict[str, StreamPlace], row_bytes: float | None) -> list[StreamLag]:
    lags = []
    for path, end in ends.items():
        place = read.get(path, StreamPlace())
        size = 0 if place.is_at(end) else bytes_between(place, end)
        rows = 0 if size == 0 else None if size is None or row_bytes is None else max(1, round(size / row_bytes))
        lags.append(StreamLag(path, size, rows))
    return lags


def _row_bytes(source: SourceProgress) -> float | None:
    """The average row size of a batch."""
    start, end = _parse(source.startOffset), _parse(source.endOffset)
    if not isinstance(start, dict) or not isinstance(end, dict) or not source.numInputRows:
        return None
    sizes = [bytes_between(start.get(path, StreamPlace()), place) for path, place in end.items()]
    total = sum(size for size in sizes if size is not None)
    return total / source.numInputRows if total else None


def _parse(text: str | None) -> Offsets | None:
    """The offset of one of our sources; None for another source."""
    try:
        offset: Any = msgspec.json.decode(text or "null")
        if isinstance(offset, dict) and offset.keys() <= {"row", "seqno"} and isinstance(offset.get("seqno"), int):
            seqno: int = offset["seqno"]
            return seqno
        if isinstance(offset, dict) and all(isinstance(place, str) for place in offset.values()):
            return {path: parse_place(place) for path, place in offset.items()}
    except (OptionError, *UNREADABLE):
        pass
    return None


def _now(client: Client, read: dict[str, StreamPlace]) -> dict[str, StreamPlace]:
    """The current tails of streams, without deleted streams."""
    return {path: StreamPlace(info.tail_offset) for path, info in NamedStreams(client).named(read).items()}


def _committed(checkpoint: str | os.PathLike[str]) -> list[dict[str, StreamPlace]]:
    """The positions of a query after its last finished batch: a map for each source."""
    parts = urlsplit(os.fspath(checkpoint))
    directory = Path(unquote(parts.path) if parts.scheme == "file" else checkpoint)
    done = [int(file.name) for file in Path(directory, "commits").glob("*") if file.name.isdigit()]
    if not done:
        return []
    lines = Path(directory, "offsets", str(max(done))).read_text().splitlines()
    return [read for line in lines[2:] if isinstance(read := _parse(line), dict)]
