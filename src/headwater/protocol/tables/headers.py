"""The names of the headers of tables, and parsing of their values.

The headers of streams (`protocol.streams.headers`) for producers, expiry, closing and forks also apply to tables.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwater.errors import HeadwaterError, InvalidHeaderError, ProtocolError
from headwater.protocol.tables.rows import is_seqno

LAST_SEQNO = "stp-last-seqno"  # the SeqNo of the table's last row; 0 if it has none
FIRST_SEQNO = "stp-first-seqno"  # rows with smaller SeqNos were trimmed; 1 if none were
GAPLESS = "stp-gapless"  # `true`: SeqNos count 1, 2, 3, so a follower can tell that a row is missing
NOTIFY = "stp-notify"  # the NURL of the table: a URL, or a reference relative to the SURL

FORK_SEQNO = "stp-fork-seqno"  # of a fork: the last row that it inherits; all rows if absent

MIRROR = "stp-mirror"  # `true`: the rows of the table are numbered by another server
AFTER_SEQNO = "stp-after-seqno"  # of rows for a mirror: the SeqNo of the row before them, 0 for the first

VIEW_OF = "stp-view-of"  # of a PUT: the URL path of the stream that the table is a view of
VIEW_TYPE = "stp-view-type"  # the type of its entities, percent-encoded

REQUEST_HEADERS = (FORK_SEQNO, MIRROR, AFTER_SEQNO, VIEW_OF, VIEW_TYPE)
RESPONSE_HEADERS = (LAST_SEQNO, FIRST_SEQNO, GAPLESS, NOTIFY, MIRROR)


def parse_last_seqno(headers: Mapping[str, str]) -> int | None:
    """The last SeqNo in the headers of a response; None if the server omits it."""
    return _seqno("STP-Last-SeqNo", headers.get(LAST_SEQNO), ProtocolError)


def parse_first_seqno(headers: Mapping[str, str]) -> int | None:
    """The first SeqNo in the headers of a response; None if the server omits it."""
    return _seqno("STP-First-SeqNo", headers.get(FIRST_SEQNO), ProtocolError)


def parse_fork_seqno(headers: Mapping[str, str]) -> int | None:
    return _seqno("STP-Fork-SeqNo", headers.get(FORK_SEQNO))


def parse_after_seqno(headers: Mapping[str, str]) -> int | None:
    return _seqno("STP-After-SeqNo", headers.get(AFTER_SEQNO))


def _seqno(name: str, value: str | None, error: type[HeadwaterError] = InvalidHeaderError) -> int | None:
    if value is None:
        return None
    value = value.strip()
    if not is_seqno(value):
        raise error(f"{name} must be a SeqNo, got {value[:80]!r}")
    return int(value)


def parse_mirror(headers: Mapping[str, str]) -> bool:
    """Whether the header is `true` (case-insensitive); any other value is ignored."""
    return headers.get(MIRROR, "").strip().lower() == "true"


def parse_gapless(headers: Mapping[str, str]) -> bool:
    """Whether the header is `true` (case-insensitive); any other value is ignored."""
    return headers.get(GAPLESS, "").strip().lower() == "true"
