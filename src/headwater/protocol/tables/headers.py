"""The names of the headers of tables and the reading of their values.

The headers of streams (`protocol.streams.headers`) that have to do with producers, expiry, closure and forks apply to
tables as well.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwater.errors import InvalidHeaderError, ProtocolError
from headwater.protocol.tables.rows import is_seqno

LAST_SEQNO = "stp-last-seqno"  # the SeqNo of the table's last row; 0 if it has none
GAPLESS = "stp-gapless"  # `true`: SeqNos count 1, 2, 3, so a follower can tell that a row is missing
NOTIFY = "stp-notify"  # where the table's NURL is: a URL, or a reference relative to the SURL

FORK_SEQNO = "stp-fork-seqno"  # of a fork: the last row that it inherits; all rows if absent

MIRROR = "stp-mirror"  # `true`: the rows of the table are numbered elsewhere
AFTER_SEQNO = "stp-after-seqno"  # of rows for a mirror: the SeqNo in the source that they come after, 0 for the first

VIEW_OF = "stp-view-of"  # of a PUT: the URL path of the stream that the table is a view of
VIEW_TYPE = "stp-view-type"  # the type of its entities, percent-encoded

REQUEST_HEADERS = (FORK_SEQNO, MIRROR, AFTER_SEQNO, VIEW_OF, VIEW_TYPE)
RESPONSE_HEADERS = (LAST_SEQNO, GAPLESS, NOTIFY, MIRROR)


def parse_last_seqno(headers: Mapping[str, str]) -> int | None:
    """The last SeqNo that an answer names; None if it does not, because servers may leave it out."""
    value = headers.get(LAST_SEQNO)
    if value is None:
        return None
    value = value.strip()
    if not is_seqno(value):
        raise ProtocolError(f"STP-Last-SeqNo must be a SeqNo, got {value[:80]!r}")
    return int(value)


def parse_fork_seqno(headers: Mapping[str, str]) -> int | None:
    return _seqno("STP-Fork-SeqNo", headers.get(FORK_SEQNO))


def parse_after_seqno(headers: Mapping[str, str]) -> int | None:
    return _seqno("STP-After-SeqNo", headers.get(AFTER_SEQNO))


def _seqno(name: str, value: str | None) -> int | None:
    if value is None:
        return None
    value = value.strip()
    if not is_seqno(value):
        raise InvalidHeaderError(f"{name} must be a SeqNo, got {value[:80]!r}")
    return int(value)


def parse_mirror(headers: Mapping[str, str]) -> bool:
    """Only `true` in any case asks for a mirror; every other value counts as absent."""
    return headers.get(MIRROR, "").strip().lower() == "true"


def parse_gapless(headers: Mapping[str, str]) -> bool:
    """Only `true` in any case promises SeqNos without gaps; every other value counts as absent."""
    return headers.get(GAPLESS, "").strip().lower() == "true"
