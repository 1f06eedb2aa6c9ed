"""Bad events that a query skips: they are counted, and written to a dead letter stream if one is given."""

from __future__ import annotations

import hashlib
import logging

import msgspec
import pyarrow as pa

from headwater import limits
from headwater.client import Client, ProducerTuple
from headwater.errors import StreamNotFoundError
from headwater.spark.positions import StreamRange

log = logging.getLogger(__name__)

_JSON = "application/json"


class SkippedEvents:
    """The bad events of one range.

    They are appended by a producer whose id depends only on the range and the schema, in batches that depend on nothing
    else. If the range is read again, by a retried task or a replayed batch, the server recognises the duplicates.
    """

    def __init__(self, client: Client, part: StreamRange, dead_letters: str | None, fitting: str) -> None:
        self._client = client
        self._part = part
        self._fitting = fitting
        self._dead_letters = dead_letters
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._count = 0
        self._appended = 0

    def add(self, bad: pa.RecordBatch) -> None:
        self._count += bad.num_rows
        if self._dead_letters is None:
            return
        columns = (bad.column(name).to_pylist() for name in ("position", "bad", "message"))
        for position, reason, message in zip(*columns, strict=True):
            place = {"stream": self._part.path, "offset": self._part.start.offset, "position": position}
            text = msgspec.json.encode({**place, "reason": reason, "message": msgspec.Raw(message)})
            if self._held and self._held_bytes + len(text) > limits.SPARK_INLINE_BYTES:
                self._append()
            self._held.append(text)
            self._held_bytes += len(text) + 1

    def finish(self) -> None:
        if self._held:
            self._append()
        if self._count:
            part = self._part
            log.warning("%s: skipped %d bad events from %s to %s", part.path, self._count, part.start, part.end)

    def _append(self) -> None:
        stream = self._client.stream(self._dead_letters or "", content_type=_JSON)
        body = b"[" + b",".join(self._held) + b"]"
        producer = ProducerTuple(f"spark-bad-{_name(self._part, self._fitting)}", 0, self._appended)
        try:
            stream.append_body(body, producer=producer)
        except StreamNotFoundError:
            stream.create(content_type=_JSON)
            stream.append_body(body, producer=producer)
        self._held, self._held_bytes, self._appended = [], 0, self._appended + 1


def _name(part: StreamRange, fitting: str) -> str:
    named = msgspec.json.encode([part.path, str(part.start), part.end.offset, part.end.skip, fitting])
    return hashlib.sha256(named).hexdigest()[:24]
