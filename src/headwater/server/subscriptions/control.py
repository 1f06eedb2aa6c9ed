"""The routes of subscriptions, below `/v1/stream/__ds/`.

Requests that change something run in tasks of the service, so that a client that disconnects does not interrupt them.
Callbacks, acks and releases are allowed by the token of their wake, not by the tokens of the server.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

from headwater import limits
from headwater.errors import (
    HeadwaterError,
    InvalidSubscriptionError,
    NotReadyError,
    SubscriptionNotFoundError,
    UnknownOutcomeError,
)
from headwater.protocol.streams.headers import format_instant
from headwater.protocol.streams.paths import RESERVED
from headwater.protocol.streams.reads import parse_query
from headwater.protocol.subscriptions.config import (
    JWKS_PATH,
    AckBody,
    ClaimBody,
    decode,
    parse_config,
    parse_members,
)
from headwater.protocol.subscriptions.patterns import parse_member
from headwater.protocol.subscriptions.signatures import JWKS_MEDIA_TYPE
from headwater.server.auth.grants import grant_of
from headwater.server.auth.scopes import Action
from headwater.server.http import Request, Respond, Response
from headwater.server.problems import problem
from headwater.server.references import parse_integer
from headwater.server.service import Service
from headwater.server.streams.replies import NO_STORE, json_response
from headwater.server.subscriptions.links import Link
from headwater.server.subscriptions.records import SubscriptionRecord
from headwater.server.subscriptions.sending import shown_stream
from headwater.server.subscriptions.subscription import RunningSubscription
from headwater.server.subscriptions.subscriptions import Subscriptions
from headwater.server.subscriptions.tokens import bearer_of
from headwater.server.turns import in_turns

log = logging.getLogger("headwater.subscriptions")

PATHS = f"{RESERVED}/subscriptions/"  # before the id, in the paths of scopes


def _all(service: Service) -> Subscriptions:
    if service.subscriptions is None:
        raise NotReadyError("another server has the subscriptions now", retry_after_s=limits.RETRY_AFTER_S)
    return service.subscriptions


def _find(service: Service, path: str) -> RunningSubscription:
    return _all(service).find(path.removeprefix(PATHS))


# Reads


async def jwks(service: Service, _: Request, __: str) -> Response:
    headers = (("content-type", JWKS_MEDIA_TYPE), ("cache-control", "public, max-age=300"))
    return Response(200, headers, (_all(service).keys.jwks(),))


async def show(service: Service, request: Request, path: str) -> Response:
    _require_sight(request, path)
    try:
        query = parse_query(request.query)
        limit = parse_integer(query, "limit", limits.SUBSCRIPTION_STREAMS_SHOWN, limits.SUBSCRIPTION_STREAMS_SHOWN)
        subscription = _find(service, path)
        return json_response(await _shown(service, request, subscription, query.get("after", ""), limit))
    except HeadwaterError as error:
        return _problem(error)


async def list_all(service: Service, request: Request, _: str) -> Response:
    query = parse_query(request.query)
    limit = parse_integer(query, "limit", limits.LIST_PAGE_DEFAULT, limits.LIST_PAGE_MAX)
    budget = limits.SUBSCRIPTION_LAG_STREAMS_MAX
    listed: list[dict[str, object]] = []
    next_after, last = None, ""
    page = _all(service).page(query.get("prefix", ""), query.get("after", ""))
    async for subscription in in_turns(page, limits.SUBSCRIPTIONS_PER_TURN):
        if not _may_see(request, PATHS + subscription.record.id):
            continue
        if len(listed) == limit:
            next_after = last
            break
        budget -= len(subscription.pending)
        listed.append(_listed(subscription, await subscription.lag_bytes() if budget >= 0 else None))
        last = subscription.record.id
    return json_response({"subscriptions": listed, "next_after": next_after})


def visible_subscription(service: Service, request: Request, name: str) -> RunningSubscription:
    """The subscription with an id, if the caller may see it."""
    _require_sight(request, PATHS + name)
    return _all(service).find(name)


def _may_see(request: Request, path: str) -> bool:
    return request.caller.may(Action.SUBSCRIBE, path) or request.caller.may(Action.CLAIM, path)


def _require_sight(request: Request, path: str) -> None:
    if not _may_see(request, path):
        request.caller.require(Action.SUBSCRIBE, path)


async def _shown(
    service: Service, request: Request, subscription: RunningSubscription, after: str = "", most: int = 0
) -> dict[str, object]:
    """The record of a subscription, with a page of its streams."""
    most = most or limits.SUBSCRIPTION_STREAMS_SHOWN
    links: list[Link] = []
    async for link in subscription.links.after(after):
        if len(links) == most:
            break
        links.append(link)
    else:
        link = None
    record, config = subscription.record, subscription.record.config
    webhook = None
    if config.webhook_url is not None:
        jwks_url = _all(service).sender.url_of(_base(request), JWKS_PATH)
        signing = {"alg": "ed25519", "kid": _all(service).keys.key_id, "jwks_url": jwks_url}
        webhook = {"url": config.webhook_url, "signing": signing}
    return {
        "id": record.id,
        "subscription_id": record.id,
        "type": config.type.value,
        "pattern": config.pattern,
        "streams": [
            {
                "path": one.path,
                "link_type": "explicit" if one.is_member else "glob",
                "acked_offset": one.acked_offset,
            }
            for one in links
        ],
        "streams_next_after": links[-1].path if link is not None and links else None,
        "webhook": webhook,
        "wake_stream": config.wake_stream,
        "lease_ttl_ms": config.lease_ttl_ms,
        "created_at": format_instant(record.created_ms),
        "status": subscription.status,
        "description": config.description,
    }


def _listed(subscription: RunningSubscription, lag_bytes: int | None) -> dict[str, object]:
    record, wakes = subscription.record, subscription.wakes
    config, wake = record.config, wakes.wake
    return {
        "id": record.id,
        "type": config.type.value,
        "pattern": config.pattern,
        "wake_stream": config.wake_stream,
        "webhook": None if config.webhook_url is None else {"url": config.webhook_url},
        "status": subscription.status,
        "description": config.description,
        "created_at": format_instant(record.created_ms),
        "created_by": record.grant.name,
        "lease_ttl_ms": config.lease_ttl_ms,
        "stream_count": None if config.pattern is not None else subscription.links.member_count,
        "pending_count": len(subscription.pending),
        "lag_bytes": lag_bytes,
        "generation": wakes.generation,
        "wake_id": None if wake is None else wake.id,
        "holder": None if wake is None else wake.holder,
        "lease_expires_at": format_instant(wake.lease_until_ms) if wake is not None and wake.lease_until_ms else None,
        "failures": wakes.failures,
        "last_failure": wakes.last_failure,
        "next_attempt_at": format_instant(wakes.next_attempt_ms) if wakes.next_attempt_ms else None,
    }


def _base(request: Request) -> str:
    authority = request.authority or request.headers.get("host", "localhost")
    return f"{request.scheme}://{authority}{request.mount}"


# Changes


def create(service: Service, request: Request, path: str, respond: Respond) -> None:
    _start(service, respond, lambda: _create(service, request, path))


async def _create(service: Service, request: Request, path: str) -> Response:
    config = parse_config(request.body)
    if config.webhook_url is not None:
        _all(service).check_url(config.webhook_url)
    for member in config.streams:
        request.caller.require(Action.READ, member)
    if config.wake_stream is not None:
        request.caller.require(Action.APPEND, config.wake_stream)
    name = path.removeprefix(PATHS)
    wanted = SubscriptionRecord(name, "", config, service.now_ms, grant_of(request.caller), _base(request))
    subscription, is_new = await _all(service).create(wanted)
    response = json_response(await _shown(service, request, subscription))
    response.status = 201 if is_new else 200
    return response


def delete(service: Service, _: Request, path: str, respond: Respond) -> None:
    _start(service, respond, lambda: _without_body(_all(service).delete(path.removeprefix(PATHS))))


def add_streams(service: Service, request: Request, path: str, respond: Respond) -> None:
    _start(service, respond, lambda: _without_body(_add_streams(service, request, path)))


async def _add_streams(service: Service, request: Request, path: str) -> None:
    subscription = _find(service, path)
    members = parse_members(request.body)
    for member in members:
        request.caller.require(Action.READ, member)
        if member == subscription.record.config.wake_stream:
            raise InvalidSubscriptionError("a subscription cannot have its own wake stream as a member")
    await _all(service).name(subscription, members)


def remove_stream(service: Service, request: Request, path: str, respond: Respond) -> None:
    _start(service, respond, lambda: _without_body(_remove_stream(service, request, path)))


async def _remove_stream(service: Service, request: Request, path: str) -> None:
    subscription = _find(service, path)
    raw = request.path.partition("/subscriptions/")[2].split("/", 2)[2]
    await _all(service).unname(subscription, parse_member(_decoded(raw)))


def _decoded(raw: str) -> str:
    try:
        return unquote(raw, errors="strict")
    except UnicodeDecodeError:
        raise InvalidSubscriptionError(f"{raw[:80]!r} is not UTF-8 after percent-decoding") from None


def rotate_key(service: Service, _: Request, __: str, respond: Respond) -> None:
    """Sign webhooks with a new key. The old one stays published for a while."""
    _start(service, respond, lambda: _without_body(_all(service).keys.rotate()))


# Workers


def claim(service: Service, request: Request, path: str, respond: Respond) -> None:
    _start(service, respond, lambda: _claim(service, request, path))


async def _claim(service: Service, request: Request, path: str) -> Response:
    subscription = _find(service, path)
    if subscription.record.is_webhook:
        raise InvalidSubscriptionError("the subscription is of type webhook, which cannot be claimed")
    wake, streams = await subscription.claim(decode(request.body, ClaimBody))
    return json_response(
        {
            "wake_id": wake.id,
            "generation": wake.generation,
            "token": subscription.token(wake),
            "streams": [shown_stream(stream) for stream in streams],
            "lease_ttl_ms": subscription.record.config.lease_ttl_ms,
        }
    )


def callback(service: Service, request: Request, path: str, respond: Respond) -> None:
    _start(service, respond, lambda: _ack(service, request, path, webhook=True))


def ack(service: Service, request: Request, path: str, respond: Respond) -> None:
    _start(service, respond, lambda: _ack(service, request, path, webhook=False))


async def _ack(service: Service, request: Request, path: str, *, webhook: bool) -> Response:
    token, subscription = _with_token(service, request, path, webhook=webhook)
    next_wake = await subscription.ack(token, decode(request.body, AckBody))
    return json_response({"ok": True, "next_wake": next_wake})


def release(service: Service, request: Request, path: str, respond: Respond) -> None:
    _start(service, respond, lambda: _without_body(_release(service, request, path)))


async def _release(service: Service, request: Request, path: str) -> None:
    token, subscription = _with_token(service, request, path, webhook=False)
    await subscription.release(token, decode(request.body, AckBody))


def check_token(service: Service, request: Request, _: str) -> None:
    """Refuse a request whose token is of no wake, before its body is read and before anything is looked up."""
    _all(service).keys.check(bearer_of(request.headers.get("authorization")))


def _with_token(service: Service, request: Request, path: str, *, webhook: bool) -> tuple[str, RunningSubscription]:
    check_token(service, request, path)
    token = bearer_of(request.headers.get("authorization"))
    subscription = _find(service, path)
    if subscription.record.is_webhook is not webhook:
        kind = subscription.record.config.type.value
        raise InvalidSubscriptionError(
            f"the subscription is of type {kind}, which {'acks' if webhook else 'calls back'} at another URL"
        )
    return token, subscription


# Answers


async def _without_body(work: Awaitable[None]) -> Response:
    await work
    return Response(204, (NO_STORE,))


def _start(service: Service, respond: Respond, work: Callable[[], Awaitable[Response]]) -> None:
    async def answer() -> None:
        try:
            response = await work()
        except HeadwaterError as error:
            response = _problem(error)
        except Exception:
            log.exception("a request to a subscription failed")
            response = _problem(UnknownOutcomeError("the server log has the cause"))
        respond(response)

    service.tasks.start(answer())


def _problem(error: HeadwaterError) -> Response:
    """A problem document with the member `error`, as PROTOCOL.md has it."""
    return problem(error, with_code=True)


def unknown(name: str) -> SubscriptionNotFoundError:
    """The error for a control URL that does not exist."""
    return SubscriptionNotFoundError(f"there is no {name[:80]!r} below {RESERVED}")
