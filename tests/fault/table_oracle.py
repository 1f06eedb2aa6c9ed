"""The expected contents of tables: whole batches, byte for byte, with SeqNos without gaps."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from headwater.engine.messages import VisibleStream
from headwater.log.content import ContentKind
from tests.fault.oracle import BrokenPromiseError, KnownStream

TABLE_TYPE = "text/sequence; charset=utf-8; schema=sim; version=1"

_BATCH = re.compile(rb"\+\tk\d\t<(w\d+@\d+|created):(\d+)\.*>")
_STAMP = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")


def changes_of(writer: str, number: int) -> list[bytes]:
    """The changes of the append with a number. They are used for the request and for the check."""
    rng = random.Random(number)
    changes = [f"+\tk{rng.randrange(6)}\t<{writer}:{number}{'.' * rng.choice([0, 10, 700])}>"]
    for place in range(rng.choice([0, 0, 0, 1, 4, 20])):
        key = f"k{rng.randrange(6)}"
        changes.append(
            f"-\t{key}\t" if rng.random() < 0.4 else f"+\t{key}\té {number} {place}{'x' * rng.randrange(40)}"
        )
    return [change.encode() for change in changes]


def remote_rows(first: int, count: int) -> list[bytes]:
    """Rows of the mirrored remote table, which is endless and has gaps in its SeqNos."""
    return [
        b"%d\t2026-01-08T00:00:%02dZ\t%c\tk%d\t%b\n"
        % (place * 3 + place % 3, place % 60, b"+-"[place % 5 == 4], place % 7, b"r" * (place * 37 % 300))
        for place in range(first, first + count)
    ]


def place_after(seqno: int) -> int:
    """The index of the first row after a SeqNo in the remote table."""
    return 1 if not seqno else next(place for place in range(seqno // 4, seqno) if place * 3 + place % 3 == seqno) + 1


def check_table(stream: VisibleStream, whole: bytes, last_seqnos: Mapping[int, int]) -> None:
    """Check all bytes of a table. `last_seqnos` has the acknowledged SeqNo of each append."""
    if whole and not whole.endswith(b"\n"):
        raise BrokenPromiseError(f"{stream.path!r}: its last row is incomplete")
    if stream.kind is ContentKind.MIRROR:
        _check_mirror(stream, whole)
        return
    rows = [line.split(b"\t", 2) for line in whole.split(b"\n")[:-1]]
    if [row[0] for row in rows] != [b"%d" % seqno for seqno in range(1, len(rows) + 1)]:
        raise BrokenPromiseError(f"{stream.path!r}: its SeqNos do not count its rows")
    if len(rows) != stream.last_seqno:
        raise BrokenPromiseError(f"{stream.path!r} reports {stream.last_seqno} rows but has {len(rows)}")
    stamps = [row[1] for row in rows]
    if not all(map(_STAMP.fullmatch, stamps)) or any(one > other for one, other in pairwise(stamps)):
        raise BrokenPromiseError(f"{stream.path!r}: its timestamps decrease")
    ends = [0]
    for line in whole.split(b"\n")[:-1]:
        ends.append(ends[-1] + len(line) + 1)
    cuts = {ends.index(span.end) for span in stream.lineage if span.end in ends}
    _check_batches(stream.path, [row[2] for row in rows], cuts, last_seqnos)


def _check_batches(path: str, changes: Sequence[bytes], cuts: Collection[int], last_seqnos: Mapping[int, int]) -> None:
    """Check that each append is stored as it was sent, and complete unless a fork begins inside it."""
    done = 0
    while done < len(changes):
        head = _BATCH.fullmatch(changes[done])
        if head is None:
            raise BrokenPromiseError(f"{path!r}: no append begins at row {done + 1}")
        number = int(head[2])
        expected = changes_of(head[1].decode(), number)
        end = min((cut for cut in cuts if done < cut < done + len(expected)), default=done + len(expected))
        if list(changes[done:end]) != expected[: end - done]:
            raise BrokenPromiseError(f"{path!r}: the rows from {done + 1} on are not what was appended")
        if head[1] != b"created" and last_seqnos.get(number, end) != end:
            raise BrokenPromiseError(f"{path!r}: append {number} was not acknowledged with SeqNo {end}")
        done = end


def _check_mirror(stream: VisibleStream, whole: bytes) -> None:
    count = whole.count(b"\n")
    expected = remote_rows(1, count)
    if whole != b"".join(expected):
        raise BrokenPromiseError(f"{stream.path!r}: a mirror has other rows than its remote table")
    if stream.last_seqno != (int(expected[-1].split(b"\t")[0]) if expected else 0):
        raise BrokenPromiseError(f"{stream.path!r}: a mirror has another last SeqNo than its last row")


def live_rows(rows: Sequence[bytes], last_seqno: int) -> list[bytes]:
    """The active view of a table after the row with a SeqNo."""
    live: dict[bytes, bytes] = {}
    for row in rows:
        seqno, _, action, key, _ = row.split(b"\t", 4)
        if int(seqno) > last_seqno:
            break
        live.pop(key, None)
        if action == b"+":
            live[key] = row
    return list(live.values())


def check_range(known: KnownStream, content: bytes, whole: bytes, since_id: int) -> None:
    """Compare a read from `since_id` with all rows of the table."""
    rows = whole.splitlines(keepends=True)
    expected = rows[since_id:] if since_id < 0 else [row for row in rows if int(row.split(b"\t")[0]) > since_id]
    if content != b"".join(expected):
        raise BrokenPromiseError(f"{known.path!r}: a read from {since_id} returned other rows than the table has")
