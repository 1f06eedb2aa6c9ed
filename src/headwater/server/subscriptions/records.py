"""What is durable of a subscription, as documents. Pure.

| key                        | what                                                                            |
|----------------------------|---------------------------------------------------------------------------------|
| `subscription/record/ID`   | its configuration, who created it, and the id of its life, which is never reused |
| `subscription/wakes/LIFE`  | its generation, the wake in flight with lease and holder, and the next retry     |
| `subscription/member/LIFE/PATH` | a stream that it names                                                      |
| `subscription/cursor/LIFE/PATH` | the offset up to which a stream is acked, and the id of the stream          |
| `subscription/keys`        | the keys that sign webhooks, and the secret of tokens                           |

A stream that the pattern matches and that has no cursor is unread: it was created after the subscription. The cursors
of streams that exist when a subscription is created, and of those that it names, are written with it.
"""

from __future__ import annotations

import msgspec

from headwater.log.commands import WriteDocument
from headwater.log.offsets import Offset
from headwater.protocol.subscriptions.config import Delivery, SubscriptionConfig
from headwater.server.auth.grants import Grant

ROOT = "subscription/"
RECORDS = f"{ROOT}record/"
WAKES = f"{ROOT}wakes/"
MEMBERS = f"{ROOT}member/"
CURSORS = f"{ROOT}cursor/"
KEYS = f"{ROOT}keys"


class SubscriptionRecord(msgspec.Struct, frozen=True):
    id: str
    life: str
    config: SubscriptionConfig
    created_ms: int
    grant: Grant  # what its creator may do
    base: str  # the URL of the server that the creator used

    @property
    def key(self) -> str:
        return RECORDS + self.id

    @property
    def is_webhook(self) -> bool:
        return self.config.type is Delivery.WEBHOOK


class StreamCursor(Offset, frozen=True, array_like=True, gc=False):
    """Up to where a stream is acked. The offset alone does not tell of which stream: what several of them have of a
    timeline of the store has the id of the timeline."""

    stream_id: int = 0  # 0: not known, it was written before this was noted


class WakeStream(msgspec.Struct, frozen=True, array_like=True):
    """A stream of a wake: the acked offset and the tail at the time."""

    path: str
    is_member: bool  # the subscription names it
    acked: Offset | None  # None: its beginning
    tail: StreamCursor


class WakeInFlight(msgspec.Struct, frozen=True, omit_defaults=True):
    """A wake in flight."""

    id: str
    generation: int
    streams: tuple[WakeStream, ...] = ()  # what a webhook is sent, and acks with `done`
    delivered: bool = False  # a webhook was accepted, and its lease runs
    holder: str | None = None  # the worker that has claimed it
    claim_id: str = ""
    lease_until_ms: int = 0  # 0: no lease runs
    trigger: str = ""  # the stream that a wake event names
    wake_stream_id: int = 0  # of the wake stream that has the wake event
    tells: int = 0  # how often it was written
    tell_ms: int = 0  # when it is written again

    def is_held(self, now_ms: int) -> bool:
        return self.lease_until_ms > now_ms


class Wakes(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a subscription between its cursors and its workers. The first generation of a subscription that was
    created in a timeline of the store, and all later ones, are larger than the timeline."""

    generation: int = 0
    wake: WakeInFlight | None = None
    failures: int = 0  # of deliveries in a row
    last_failure: str | None = None
    next_attempt_ms: int = 0  # 0: no retry is scheduled

    def in_timeline(self, timeline: int) -> Wakes:
        """The state in a timeline of the store. Wakes that were begun after the state to which the store was restored
        are forgotten, but those who have one may still be there. So generations go on above all of them: a timeline is
        the microsecond in which it began. The wake in flight ends, because it may have ended before."""
        return self if self.generation >= timeline else Wakes(timeline)

    def issued(self, wake: WakeInFlight) -> Wakes:
        return msgspec.structs.replace(self, generation=wake.generation, wake=wake, next_attempt_ms=0)

    def over(self) -> Wakes:
        """The wake is done, released or has expired."""
        return msgspec.structs.replace(self, wake=None, next_attempt_ms=0)

    def succeeded(self) -> Wakes:
        return msgspec.structs.replace(self, failures=0, last_failure=None, next_attempt_ms=0)

    def due_ms(self) -> int | None:
        """When a lease ends, a retry begins or a wake event is written again; None: never."""
        if self.next_attempt_ms:
            return self.next_attempt_ms
        if self.wake is None:
            return None
        return self.wake.lease_until_ms or self.wake.tell_ms or None


class SigningKeys(msgspec.Struct, frozen=True):
    """The secret of tokens, and the private keys, the newest last. `retired_ms` is when a newer one replaced a key."""

    secret: bytes
    keys: tuple[SigningKey, ...] = ()


class SigningKey(msgspec.Struct, frozen=True):
    private: bytes
    created_ms: int
    retired_ms: int = 0


_records = msgspec.msgpack.Decoder(SubscriptionRecord)
_wakes = msgspec.msgpack.Decoder(Wakes)
_keys = msgspec.msgpack.Decoder(SigningKeys)
_cursors = msgspec.msgpack.Decoder(StreamCursor)
encode = msgspec.msgpack.Encoder().encode
decode_record = _records.decode
decode_wakes = _wakes.decode
decode_keys = _keys.decode
decode_cursor = _cursors.decode
_PRESENT = b"\x01"


def member_key(life: str, path: str) -> str:
    return f"{MEMBERS}{life}/{path}"


def cursor_key(life: str, path: str) -> str:
    return f"{CURSORS}{life}/{path}"


def write_member(life: str, path: str) -> WriteDocument:
    return WriteDocument(member_key(life, path), _PRESENT)


def write_cursor(life: str, path: str, cursor: StreamCursor) -> WriteDocument:
    return WriteDocument(cursor_key(life, path), encode(cursor))
