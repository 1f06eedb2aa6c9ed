"""An advertised NURL as a durable document, with the schedule of its retries. Pure."""

from __future__ import annotations

import hashlib

import msgspec

from headwater.backoff import Backoff
from headwater.limits import NURL_SEEN_MS, Limits

PREFIX = "nurl/"  # of the keys of these documents

_HASH_LENGTH = 32


class NurlRecord(msgspec.Struct, frozen=True):
    """`notified_seqno` is the last notified row. It may be too low, because successes are only recorded when the server
    stops; after a crash a row can be notified twice."""

    path: str  # of the table in the log
    table_id: int
    event: str
    url: str
    base: str  # the address of this server that the advertiser used
    first_seen_ms: int
    last_seen_ms: int
    notified_seqno: int
    failures: int = 0  # in a row
    failing_since_ms: int = 0
    next_attempt_ms: int = 0

    @property
    def name(self) -> str:
        """The key of the NURL in its table: an event type and a hash, because a URL may be too long."""
        return f"{self.event}/{hashlib.sha256(self.url.encode()).hexdigest()[:_HASH_LENGTH]}"

    @property
    def shown(self) -> str:
        """The URL for logs, without its query, which may contain a secret."""
        return self.url.partition("?")[0]

    @property
    def key(self) -> str:
        """The key of the document."""
        return f"{PREFIX}{self.table_id}/{self.name}"


def encode(nurl: NurlRecord) -> bytes:
    return msgspec.json.encode(nurl)


def decode(data: bytes) -> NurlRecord:
    return msgspec.json.decode(data, type=NurlRecord)


def seen_again(nurl: NurlRecord, now_ms: int, base: str) -> NurlRecord:
    """The NURL after it was advertised again; unchanged unless it must be stored.

    A failing NURL is retried at once, because its server has just sent a request.
    """
    if not nurl.failures and nurl.base == base and now_ms - nurl.last_seen_ms < NURL_SEEN_MS:
        return nurl
    return msgspec.structs.replace(
        nurl, base=base, last_seen_ms=now_ms, failures=0, failing_since_ms=0, next_attempt_ms=0
    )


def succeeded(nurl: NurlRecord, seqno: int) -> NurlRecord:
    return msgspec.structs.replace(nurl, notified_seqno=seqno, failures=0, failing_since_ms=0, next_attempt_ms=0)


def failed(nurl: NurlRecord, now_ms: int, limits: Limits, chance: float) -> NurlRecord:
    """The NURL after another failure. Half of each wait is random, so that NURLs of one server are not all retried at
    the same time."""
    backoff = Backoff(limits.notify_retry_s, limits.notify_retry_max_s, jitter=0.5)
    return msgspec.structs.replace(
        nurl,
        failures=nurl.failures + 1,
        failing_since_ms=min(nurl.failing_since_ms or now_ms, now_ms),
        next_attempt_ms=now_ms + round(backoff.wait_s(nurl.failures + 1, chance) * 1000),
    )


def wait_s(nurl: NurlRecord, now_ms: int, limits: Limits) -> float:
    """Seconds until the next attempt, bounded in case the clock was set back."""
    if not nurl.next_attempt_ms:
        return limits.notify_retry_s
    return max(0.0, min((nurl.next_attempt_ms - now_ms) / 1000, limits.notify_retry_max_s))


def is_given_up(nurl: NurlRecord, now_ms: int, limits: Limits) -> bool:
    return nurl.failures > 0 and now_ms - nurl.failing_since_ms >= limits.notify_give_up_s * 1000
