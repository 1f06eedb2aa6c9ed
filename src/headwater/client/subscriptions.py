"""Flows of subscriptions: create, read, list, delete, membership, claim, ack, release."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from headwater.client.codecs import JSON
from headwater.client.effects import Flow, HttpReply, HttpRequest
from headwater.client.session import Session, exchange, with_query
from headwater.errors import (
    FencedError,
    HeadwaterError,
    MethodNotAllowedError,
    OffsetGoneError,
    OffsetTrimmedError,
    ProtocolError,
    StreamGoneError,
    StreamNotFoundError,
    SubscriptionNotFoundError,
    UnknownRouteError,
)
from headwater.log.json_framing import UNREADABLE
from headwater.protocol.streams.paths import RESERVED, check_path

T = TypeVar("T")


class StreamLink(msgspec.Struct, frozen=True):
    """A stream of a subscription, and the offset up to which it was processed.

    `link_type` is "explicit" if the stream was named, and "glob" if the pattern matches it.
    """

    path: str
    link_type: str
    acked_offset: str


class PendingStream(StreamLink, frozen=True):
    """A stream of a subscription at the time of a wake. If `has_pending`, it has events after `acked_offset`."""

    tail_offset: str
    has_pending: bool


class WebhookSigning(msgspec.Struct, frozen=True):
    """The algorithm and key with which a server signs webhooks now, and the URL of all its keys."""

    alg: str
    kid: str
    jwks_url: str


class Webhook(msgspec.Struct, frozen=True):
    """The URL to which a server sends the wakes of a subscription."""

    url: str
    signing: WebhookSigning | None = None


class SubscriptionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription: its configuration, its streams, and `status`, which is "failed" while a webhook is retried."""

    id: str
    type: str
    pattern: str | None = None
    streams: list[StreamLink] = []
    webhook: Webhook | None = None
    wake_stream: str | None = None
    lease_ttl_ms: int
    created_at: str
    status: str = "active"
    description: str | None = None


class SubscriptionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription in the list: its configuration, how much is pending, who holds the lease, and failures.

    `pending_count` counts streams with pending events, `lag_bytes` the bytes of these events; it is None if there are
    very many streams. `stream_count` is None if the subscription has a pattern. `failures` are failed deliveries of a
    webhook in a row.
    """

    id: str
    type: str
    pattern: str | None = None
    wake_stream: str | None = None
    webhook: Webhook | None = None
    status: str = "active"
    description: str | None = None
    created_at: str = ""
    created_by: str | None = None
    lease_ttl_ms: int = 0
    stream_count: int | None = None
    pending_count: int = 0
    lag_bytes: int | None = None
    generation: int = 0
    holder: str | None = None
    lease_expires_at: str | None = None
    failures: int = 0
    last_failure: str | None = None
    next_attempt_at: str | None = None


class SubscriptionPage(msgspec.Struct):
    subscriptions: list[SubscriptionStatus]
    next_after: str | None = None


class ClaimedWake(msgspec.Struct, frozen=True):
    """The response to a claim."""

    wake_id: str
    generation: int
    token: str
    streams: list[PendingStream]
    lease_ttl_ms: int


class Wake(msgspec.Struct, frozen=True):
    """The body of a webhook: which streams of a subscription have events to process.

    `generation` increases with every wake of the subscription, so it can fence writes to other systems.
    """

    subscription_id: str
    wake_id: str
    generation: int
    streams: list[PendingStream]
    callback_url: str
    callback_token: str


class AckResult(msgspec.Struct, frozen=True):
    """The result of an ack. `next_wake` with `done`: whether there are more events, for which another wake follows.

    `next_wake` is None if it is not known, because the response was lost; the acks were applied.
    """

    next_wake: bool | None


class WakeKey(msgspec.Struct, frozen=True):
    """What a request about a wake has to name: the subscription's URL, the route, and the wake with its token."""

    url: str
    action: str  # the route of acks: `ack` or `callback`
    wake_id: str
    generation: int
    token: str


def subscription_url(session: Session, id: str) -> str:  # noqa: A002
    if not id or id in (".", ".."):
        raise ValueError(f"not the id of a subscription: {id!r}")
    return f"{session.root}{RESERVED}/subscriptions/{quote(id, safe='')}"


def create(
    session: Session,
    url: str,
    *,
    pattern: str | None,
    streams: Iterable[str],
    webhook_url: str | None,
    wake_stream: str | None,
    lease_s: float | None,
    description: str | None,
) -> Flow[bool]:
    """Create a subscription. False if it exists with the same configuration."""
    if (webhook_url is None) == (wake_stream is None):
        raise ValueError("a subscription needs either webhook_url or wake_stream")
    if lease_s is not None and not math.isfinite(lease_s):
        raise ValueError(f"lease_s is a number of seconds, got {lease_s}")
    paths = _checked_paths(streams)
    if pattern is None and not paths:
        raise ValueError("a subscription needs a pattern, or streams, or both")
    configuration = {
        "type": "webhook" if wake_stream is None else "pull-wake",
        "pattern": pattern,
        "streams": paths or None,
        "webhook": None if webhook_url is None else {"url": webhook_url},
        "wake_stream": wake_stream,
        "lease_ttl_ms": None if lease_s is None else round(lease_s * 1000),
        "description": description,
    }
    members = {name: value for name, value in configuration.items() if value is not None}
    reply = yield from exchange(session, _json("PUT", url, members))
    return reply.status == 201


class _Record(SubscriptionInfo, frozen=True, kw_only=True):
    """The record of a subscription, with a page of its streams. Headwater sends several pages if there are many."""

    streams_next_after: str | None = None


def get(session: Session, url: str) -> Flow[SubscriptionInfo]:
    streams: list[StreamLink] = []
    after: str | None = None
    while True:
        request = HttpRequest("GET", with_query(url, after=after))
        reply = yield from exchange(session, request)
        record = _decoded(request, reply, _Record)
        streams += record.streams
        after = record.streams_next_after
        if after is None:
            members = {name: getattr(record, name) for name in SubscriptionInfo.__struct_fields__}
            return SubscriptionInfo(**members | {"streams": streams})


def delete(session: Session, url: str) -> Flow[None]:
    try:
        yield from exchange(session, HttpRequest("DELETE", url))
    except SubscriptionNotFoundError as error:
        if error.attempts == 1:  # otherwise an earlier attempt succeeded and its response was lost
            raise


def add_streams(session: Session, url: str, streams: Iterable[str]) -> Flow[None]:
    paths = _checked_paths(streams)
    if not paths:
        raise ValueError("no streams to add")
    yield from exchange(session, _json("POST", f"{url}/streams", {"streams": paths}))


def remove_stream(session: Session, url: str, stream: str) -> Flow[None]:
    (path,) = _checked_paths((stream,))
    yield from exchange(session, HttpRequest("DELETE", f"{url}/streams/{quote(path, safe='')}"))


def list_page(session: Session, prefix: str, after: str | None, limit: int) -> Flow[SubscriptionPage]:
    url = with_query(f"{session.root}{RESERVED}/subscriptions", prefix=prefix or None, after=after, limit=str(limit))
    try:
        reply = yield from exchange(session, HttpRequest("GET", url))
        return msgspec.json.decode(reply.body, type=SubscriptionPage)
    except (
        SubscriptionNotFoundError,
        StreamNotFoundError,
        UnknownRouteError,
        MethodNotAllowedError,
        *UNREADABLE,
    ) as error:
        raise ProtocolError(f"this server has no list of subscriptions: {error}") from None


def claim(session: Session, url: str, worker: str, claim_id: str) -> Flow[ClaimedWake]:
    """Claim a subscription. Headwater answers a repeated `claim_id` with the same wake, so the request is retried.

    Other servers ignore the `claim_id`. Then a claim whose response was lost is refused until its lease ends.
    """
    if not worker:
        raise ValueError("a worker needs a name")
    request = _json("POST", f"{url}/claim", {"worker": worker, "claim_id": claim_id})
    reply = yield from exchange(session, request)
    return _decoded(request, reply, ClaimedWake)


class _Acked(msgspec.Struct):
    ok: bool
    next_wake: bool = False


def ack(session: Session, wake: WakeKey, acks: Mapping[str, str], *, done: bool) -> Flow[AckResult]:
    """Ack offsets, and with `done` end the wake.

    Acks can be repeated, but `done` cannot: the wake is over, and the server says FENCED. If the first response was
    lost, the cursors of the subscription show whether the acks were applied.
    """
    entries = [{"stream": path, "offset": offset} for path, offset in acks.items()]
    request = _wake_request(wake, wake.action, {"acks": entries, "done": done} if done else {"acks": entries})
    try:
        reply = yield from exchange(session, request)
    except FencedError as error:
        if error.attempts == 1 or not done or not (yield from _is_applied(session, wake.url, acks)):
            raise
        return AckResult(None)
    return AckResult(_decoded(request, reply, _Acked).next_wake)


def existing(session: Session, acks: Mapping[str, str]) -> Flow[dict[str, str]]:
    """Those of the acks whose stream still exists, and is the one that the offset is of."""
    there: dict[str, str] = {}
    for path, offset in acks.items():
        url = with_query(session.url_of(path), offset=offset, until=offset)  # Headwater sends no data then
        try:
            yield from exchange(session, HttpRequest("GET", url))
        except OffsetTrimmedError:
            there[path] = offset
        except (StreamNotFoundError, StreamGoneError, OffsetGoneError):
            continue
        else:
            there[path] = offset
    return there


def heartbeat(session: Session, wake: WakeKey, timeout_s: float) -> Flow[None]:
    """Extend the lease. It is sent once, because the next heartbeat repeats it."""
    request = msgspec.structs.replace(_wake_request(wake, wake.action, {}), read_timeout_s=timeout_s)
    yield from exchange(session, request, attempts_max=1)


def release(session: Session, wake: WakeKey, *, attempts_max: int | None = None) -> Flow[None]:
    try:
        yield from exchange(session, _wake_request(wake, "release", {}), attempts_max=attempts_max)
    except FencedError as error:
        if error.attempts == 1:  # otherwise an earlier attempt succeeded and its response was lost
            raise


def _is_applied(session: Session, url: str, acks: Mapping[str, str]) -> Flow[bool]:
    """Whether the cursors of a subscription are at or after these offsets. False if that cannot be known."""
    if not acks:
        return True
    try:
        info = yield from get(session, url)
    except HeadwaterError:
        return False
    cursors = {link.path: link.acked_offset for link in info.streams}
    return all(path in cursors and cursors[path] >= offset for path, offset in acks.items())


def _wake_request(wake: WakeKey, action: str, members: dict[str, Any]) -> HttpRequest:
    body = {"wake_id": wake.wake_id, "generation": wake.generation, **members}
    return _json("POST", f"{wake.url}/{action}", body, authorization=f"Bearer {wake.token}")


def _json(method: str, url: str, body: object, **headers: str) -> HttpRequest:
    return HttpRequest(method, url, {"content-type": JSON, **headers}, msgspec.json.encode(body))


def _decoded(request: HttpRequest, reply: HttpReply, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(reply.body, type=kind)
    except UNREADABLE as unreadable:
        error = ProtocolError(f"not the response of a server with subscriptions: {unreadable}")
        error.url = request.url
        raise error from None


def _checked_paths(streams: Iterable[str]) -> list[str]:
    if isinstance(streams, str):
        raise TypeError("expected a list of paths, got one text; put it into a list")
    paths = [path.strip("/") for path in streams]
    if not all(paths):
        raise ValueError("a stream's path cannot be empty")
    return [check_path(path) for path in paths]  # HTTP clients resolve `..`: the URL would be that of the subscription
