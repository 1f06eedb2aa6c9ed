"""The guarantees that clients can check: it only knows their requests and the replies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from headwater.engine.messages import Reason, Slice, VisibleStream
from headwater.limits import TTL_RENEWAL_PARTS
from headwater.log.offsets import Offset
from headwater.log.state import Document
from headwater.protocol.tables.paths import LOG_PREFIX
from headwater.store.pieces import RecordEnd

MESSAGE = re.compile(rb"<(w\d+@\d+):(\d+)\.*>")  # the writer, the stream that it meant, the number


class BrokenPromiseError(AssertionError):
    """A guarantee is violated."""


@dataclass
class Lifetime:
    """The earliest and latest time at which a stream expires, depending on which uses are stored."""

    ttl_s: int | None = None
    expires_ms: int | None = None
    recorded_ms: int = 0
    used_ms: int = 0

    def has_ended(self, now_ms: int) -> bool:
        if self.ttl_s is not None:
            return now_ms >= self.used_ms + self.ttl_s * 1000
        return self.expires_ms is not None and now_ms >= self.expires_ms

    def may_have_ended(self, now_ms: int) -> bool:
        if self.ttl_s is not None:
            return now_ms >= self.recorded_ms + self.ttl_s * 1000
        return self.expires_ms is not None and now_ms >= self.expires_ms

    def record(self, at_ms: int) -> None:
        self.recorded_ms = max(self.recorded_ms, at_ms)

    def record_read(self, at_ms: int) -> None:
        """Record a read. Renewals are stored in steps, so a crash can lose the last one."""
        if self.ttl_s is not None:
            self.record(at_ms - self.ttl_s * 1000 // TTL_RENEWAL_PARTS)


@dataclass(eq=False)
class KnownStream:
    """The known facts on one incarnation of the stream at a path."""

    path: str
    generation: int
    life: Lifetime | None = None  # None: unknown
    id: int | None = None
    kind: str = "text/plain"
    acknowledged: list[int] = field(default_factory=list)  # numbers of messages
    tails: list[Offset] = field(default_factory=list)  # offsets from the server
    seen: bytes = b""  # the longest content that any reader has seen
    times: tuple[RecordEnd, ...] = ()
    closed: bool = False
    may_be_closed: bool = False
    may_be_deleted: bool = False
    is_mirror: bool = False
    last_seqno: int = 0  # of a table: the largest acknowledged SeqNo
    last_seqnos: dict[int, int] = field(default_factory=dict)  # message number → SeqNo

    @property
    def is_table(self) -> bool:
        return self.path.startswith(LOG_PREFIX)

    def must_exist(self, now_ms: int) -> bool:
        return self.life is not None and not self.may_be_deleted and not self.life.may_have_ended(now_ms)

    def check_seen(self, whole: bytes, closed: bool, before: tuple[bytes, bool]) -> None:
        """Check the content of a read that began after others had seen `before`."""
        if not whole.startswith(before[0]):
            raise BrokenPromiseError(f"{self.path}: data that a reader saw disappeared")
        if before[1] and not closed:
            raise BrokenPromiseError(f"{self.path} was closed but is open")
        self.seen = max(self.seen, whole, key=len)
        self.closed = self.closed or closed

    def check_whole(self, whole: bytes) -> None:
        """Check that all acknowledged messages are stored once and in order."""
        messages = check_messages(self.path, whole)
        missing = set(self.acknowledged) - messages
        if missing:
            raise BrokenPromiseError(f"{self.path}: {len(missing)} acknowledged messages are lost")

    def check_times(self, records: tuple[RecordEnd, ...], tail: int) -> None:
        if any(one.position >= other.position or one.at_ms > other.at_ms for one, other in pairwise(records)):
            raise BrokenPromiseError(f"{self.path}: records or their times decrease")
        if (records[-1].position if records else 0) != tail:
            raise BrokenPromiseError(f"{self.path}: its records do not end at its tail")
        shorter = min(len(records), len(self.times))
        if records[:shorter] != self.times[:shorter]:
            raise BrokenPromiseError(f"{self.path}: the records of a stream changed")
        self.times = max(self.times, records, key=len)


def check_messages(path: str, whole: bytes) -> set[int]:
    """Check that messages are unique, and in order those that a writer meant for one stream. Returns their numbers.

    An append that waits may reach the next stream at its path. If that is a fork, it can have later messages of the
    writer, which were sent to its source.
    """
    by_writer: dict[bytes, list[int]] = {}
    for writer, number in MESSAGE.findall(whole):
        by_writer.setdefault(writer, []).append(int(number))
    for numbers in by_writer.values():
        if len(numbers) != len(set(numbers)):
            raise BrokenPromiseError(f"{path}: a message is stored twice")
        if numbers != sorted(numbers):
            raise BrokenPromiseError(f"{path}: the messages of a writer are out of order")
    return {number for numbers in by_writer.values() for number in numbers}


class Follower:
    """A live reader of a stream."""

    kind = "simulated"

    def __init__(self, known: KnownStream, stream_id: int) -> None:
        self.position = 0
        self.broken: BrokenPromiseError | None = None
        self._known = known
        self._id = stream_id

    def deliver(self, update: Slice) -> None:
        known = self._known
        if update.stream_id != self._id or update.start != self.position:
            self.broken = BrokenPromiseError(f"{known.path}: an update from {update.start} after {self.position}")
        if len(known.seen) == update.start:
            known.seen += update.data
        self.position = update.next

    def ended(self, reason: Reason) -> None:
        """The stream was deleted, or the server stops."""


class Names:
    """Checks that an id always belongs to the same stream and the same bytes."""

    def __init__(self) -> None:
        self._owners: dict[int, int] = {}  # id → generation
        self.contents: dict[int, bytes] = {}  # the longest content of each, including inherited bytes

    def note(self, stream: VisibleStream, generation: int, whole: bytes) -> None:
        if self._owners.setdefault(stream.id, generation) != generation:
            raise BrokenPromiseError(f"the id {stream.id} was used twice")
        before = self.contents.get(stream.id, b"")
        if not (whole.startswith(before) or before.startswith(whole)):
            raise BrokenPromiseError(f"offsets of {stream.path} have two meanings")
        self.contents[stream.id] = max(before, whole, key=len)
        for span in stream.lineage:
            known = self.contents.get(span.id, b"")[: span.end]
            if whole[: len(known)] != known:
                raise BrokenPromiseError(f"{stream.path} does not have the bytes of the stream it was forked from")


@dataclass(eq=False)
class KnownDocument:
    """A document to which each conditional write adds one number, unless it is deleted."""

    key: str
    incarnation: int = 0
    data: bytes = b""  # the longest content that is certain
    may_be_deleted: bool = False
    asking: int = 0

    def check(self, document: Document | None, before: bytes) -> None:
        """Check a read that began after `before` was certain."""
        data = b"" if document is None else document.data
        if document is not None and document.version != len(data.split()):
            raise BrokenPromiseError(f"document {self.key}: version {document.version} of {len(data.split())} writes")
        if not data.startswith(before) and not self.may_be_deleted:
            raise BrokenPromiseError(f"document {self.key}: a write was lost")
        if data.startswith(self.data):
            self.data = data

    def settle(self, document: Document | None) -> None:
        """After a crash, the current content is certain."""
        self.check(document, self.data)
        data = b"" if document is None else document.data
        if self.may_be_deleted and not (data and data.startswith(self.data)):
            self.deleted()
        self.data = data
        self.may_be_deleted = False
        self.asking = 0

    def deleted(self) -> None:
        self.incarnation += 1
        self.data = b""
        self.may_be_deleted = False


@dataclass(frozen=True)
class JointWrite:
    """A request that changed several streams and documents atomically."""

    number: int
    streams: tuple[KnownStream, ...]
    documents: tuple[tuple[KnownDocument, int], ...]  # each with its incarnation


def check_joint(
    writes: Sequence[JointWrite], streams: Mapping[KnownStream, bytes], documents: Mapping[str, bytes]
) -> None:
    """Check that a request was atomic, for the streams and documents that still exist."""
    messages = {known: {int(number) for _, number in MESSAGE.findall(whole)} for known, whole in streams.items()}
    numbers = {key: set(map(int, data.split())) for key, data in documents.items()}
    for write in writes:
        outcomes = {write.number in messages[known] for known in write.streams if known in messages}
        outcomes |= {
            write.number in numbers.get(known.key, set())
            for known, incarnation in write.documents
            if known.incarnation == incarnation and not known.may_be_deleted
        }
        if len(outcomes) > 1:
            raise BrokenPromiseError(f"request {write.number} was stored in part")
