"""What a mirror lacks if rows of its source were removed before they were mirrored.

The lost rows may have deleted keys that the mirror still has. The live rows of the source tell which: a key that is not
among them was deleted, or its row was trimmed. For each such key the mirror gets a deletion. These rows take SeqNos
of lost rows, which no other row can have. So the mirror is never emptied, its readers see deletions as any others, and
its SeqNos increase. The live rows among the lost ones are mirrored as they are, and then the mirror continues with the
first row of which the source still has everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headwater.errors import HistoryChangedError
from headwater.protocol.tables.rows import DELETE, Row


def changes_between(mirrored: Iterable[str], last: Row, live: Iterable[Row], first_seqno: int) -> list[Row]:
    """The rows that a mirror lacks before `first_seqno`. `mirrored` are its live keys, `last` is its last row, and
    `live` are the live rows of the source.

    HistoryChangedError if there are not as many SeqNos as keys to delete, which can only be if keys were trimmed.
    """
    live_keys, kept = set(), []
    for row in live:
        live_keys.add(row.key)
        if last.seqno < row.seqno < first_seqno:
            kept.append(row)
    kept.sort(key=lambda row: row.seqno)
    gone = sorted({*mirrored} - live_keys)
    lost = first_seqno - 1 - last.seqno
    if len(gone) + len(kept) > lost:
        raise HistoryChangedError(
            f"rows {last.seqno + 1} to {first_seqno - 1} were removed from the source before they were mirrored. "
            f"{len(gone):,} keys of the mirror are not in the source any more, so more than these rows are gone"
        )
    return list(_merged(gone, kept, last))


def _merged(gone: list[str], kept: list[Row], last: Row) -> Iterator[Row]:
    """Deletions in the first SeqNos that are free, with the time of the row before, and the rows in theirs."""
    keys, seqno, timestamp = iter(gone), last.seqno, last.timestamp
    for row in [*kept, None]:
        while row is None or seqno + 1 < row.seqno:
            key = next(keys, None)
            if key is None:
                break
            seqno += 1
            yield Row(seqno, timestamp, DELETE, key, "")
        if row is not None:
            yield row
            seqno, timestamp = row.seqno, row.timestamp


def live_keys(keys: set[str], rows: Iterable[Row]) -> None:
    """Apply rows to the set of live keys."""
    for row in rows:
        if row.action == DELETE:
            keys.discard(row.key)
        else:
            keys.add(row.key)
