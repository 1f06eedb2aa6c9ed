"""An advertised NURL as it is kept: one durable document, with the schedule of its retries. Pure."""

from __future__ import annotations

import hashlib

import msgspec

from headwater.limits import NURL_SEEN_MS, Limits

PREFIX = "nurl/"  # of the keys of all such documents

_HASH_LENGTH = 32
_DOUBLINGS_MAX = 30


class Nurl(msgspec.Struct, frozen=True):
    """`notified_seqno` is the last row that the NURL was told of. It may be behind: a success alone is not recorded
    until the server stops, and a NURL may be told twice."""

    path: str  # of the table in the log
    table_id: int
    event: str
    url: str
    base: str  # the address of this server as the advertiser knows it
    first_seen_ms: int
    last_seen_ms: int
    notified_seqno: int
    failures: int = 0  # in a row
    failing_since_ms: int = 0
    next_attempt_ms: int = 0

    @property
    def name(self) -> str:
        """Of the NURL among those of its table: an event type and a hash, since a URL is too long for a key."""
        return f"{self.event}/{hashlib.sha256(self.url.encode()).hexdigest()[:_HASH_LENGTH]}"

    @property
    def shown(self) -> str:
        """For logs: without the query, which may hold a secret."""
        return self.url.partition("?")[0]

    @property
    def key(self) -> str:
        """Of the document."""
        return f"{PREFIX}{self.table_id}/{self.name}"


def encode(nurl: Nurl) -> bytes:
    return msgspec.json.encode(nurl)


def decode(data: bytes) -> Nurl:
    return msgspec.json.decode(data, type=Nurl)


def seen_again(nurl: Nurl, now_ms: int, base: str) -> Nurl:
    """The NURL after it was advertised once more: the same one, unless there is something to record.

    A NURL that fails is tried again at once, since whoever advertises it is there.
    """
    if not nurl.failures and nurl.base == base and now_ms - nurl.last_seen_ms < NURL_SEEN_MS:
        return nurl
    return msgspec.structs.replace(
        nurl, base=base, last_seen_ms=now_ms, failures=0, failing_since_ms=0, next_attempt_ms=0
    )


def succeeded(nurl: Nurl, seqno: int) -> Nurl:
    return msgspec.structs.replace(nurl, notified_seqno=seqno, failures=0, failing_since_ms=0, next_attempt_ms=0)


def failed(nurl: Nurl, now_ms: int, limits: Limits, entropy: float) -> Nurl:
    """The NURL after one more failure. The wait doubles each time, and a random part of it, up to half, is left out:
    NURLs of one server that failed together are not tried again together."""
    delay_s = min(limits.notify_retry_max_s, limits.notify_retry_s * 2 ** min(nurl.failures, _DOUBLINGS_MAX))
    return msgspec.structs.replace(
        nurl,
        failures=nurl.failures + 1,
        failing_since_ms=min(nurl.failing_since_ms or now_ms, now_ms),
        next_attempt_ms=now_ms + round(delay_s * 1000 * (1 - entropy / 2)),
    )


def wait_s(nurl: Nurl, now_ms: int, limits: Limits) -> float:
    """Until the next attempt. The clock may have been set back since it was planned."""
    if not nurl.next_attempt_ms:
        return limits.notify_retry_s
    return max(0.0, min((nurl.next_attempt_ms - now_ms) / 1000, limits.notify_retry_max_s))


def is_given_up(nurl: Nurl, now_ms: int, limits: Limits) -> bool:
    return nurl.failures > 0 and now_ms - nurl.failing_since_ms >= limits.notify_give_up_s * 1000
