"""The NURL of a table: Notify POSTs, withdrawal of NURLs, and the table of advertised NURLs."""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from headwater.engine.messages import VisibleStream
from headwater.errors import (
    InvalidQueryError,
    NotFollowedError,
    OverloadedError,
    StreamGoneError,
    StreamNotFoundError,
    UnknownRouteError,
)
from headwater.limits import RETRY_AFTER_S
from headwater.log.content import ContentKind
from headwater.protocol.streams.headers import format_instant
from headwater.protocol.streams.reads import parse_query
from headwater.protocol.tables.notify import Notification, check_form_type, parse_notification
from headwater.protocol.tables.paths import name_of, nurls_log_path
from headwater.protocol.trace_context import TraceContext
from headwater.server.auth.scopes import Action
from headwater.server.http import Request, Respond, Response
from headwater.server.notify import Notifier
from headwater.server.notify.delivery import NurlDelivery
from headwater.server.observing.tracing import context_of
from headwater.server.service import Service
from headwater.server.streams.replies import NO_STORE, json_response
from headwater.server.tables import reads
from headwater.server.tables.control import named_table
from headwater.server.tables.replies import answer, speaking_of

log = logging.getLogger("headwater.following")

NURL = "nurl"  # the parameter of a withdrawal


def notify(service: Service, request: Request, path: str, respond: Respond) -> None:
    notifier = _notifier(service)
    check_form_type(request.headers.get("content-type"))
    notification = parse_notification(request.body)
    if notification.nurls:
        request.caller.require(Action.SUBSCRIBE, path)
    authority = request.authority or request.headers.get("host", "localhost")
    base = f"{request.scheme}://{authority}{request.mount}"
    may_follow = request.caller.may(Action.FOLLOW, path)
    work = _notify(service, notifier, path, notification, base, may_follow=may_follow, trace=context_of(request))
    service.tasks.start(answer(path, respond, _done(work)))


async def _notify(
    service: Service,
    notifier: Notifier,
    path: str,
    notification: Notification,
    base: str,
    *,
    may_follow: bool,
    trace: TraceContext | None,
) -> None:
    nurls, surl = notification.nurls, notification.surl
    notifier.check(nurls)
    table = missing = None
    try:
        table = await service.engine.info(path)
    except (StreamNotFoundError, StreamGoneError) as error:
        missing = error
    if nurls and missing is None:
        await notifier.advertise(path, nurls, base)
    followed = surl is not None and await _follow(service, path, table, surl, may_admit=may_follow, trace=trace)
    if followed and nurls and missing is not None:
        raise OverloadedError("the mirror does not exist yet; advertise its NURLs again", retry_after_s=RETRY_AFTER_S)
    if missing is not None and (nurls or surl is None):
        raise missing
    if surl is not None and not followed:
        reason = _why_not_followed(path, table)
        if not nurls:
            raise NotFollowedError(reason)
        log.info("NURLs were advertised, and their SURL is not read: %s", reason)


def _why_not_followed(path: str, table: VisibleStream | None) -> str:
    """STP demands that the recipient reads the SURL of a Notify. If it does not, the sender must learn why."""
    name = name_of(path)
    if table is None or table.kind is ContentKind.MIRROR:
        return f"table {name!r} is no mirror of this SURL, or is no longer kept up to date"
    return f"table {name!r} has its own rows and follows no SURL; notify a mirror, or a table that does not exist yet"


async def _follow(
    service: Service,
    path: str,
    table: VisibleStream | None,
    surl: str,
    *,
    may_admit: bool,
    trace: TraceContext | None,
) -> bool:
    """Wake the follower of the SURL, or start one if the caller may. Returns whether the SURL is followed."""
    followers, name = service.followers, name_of(path)
    if followers is None:
        return False
    if followers.wake(name, surl, trace):
        return True
    return may_admit and (table is None or table.kind is ContentKind.MIRROR) and await followers.admit(name, surl)


def withdraw(service: Service, request: Request, path: str, respond: Respond) -> None:
    notifier = _notifier(service)
    url = parse_query(request.query).get(NURL)
    if not url:
        raise InvalidQueryError(f"name the NURL to withdraw, percent-encoded: ?{NURL}=https%3A%2F%2Fhost%2Fpath")
    service.tasks.start(answer(path, respond, _done(notifier.withdraw(path, url))))


async def _done(work: Awaitable[None]) -> Response:
    await work
    return Response(204, (NO_STORE,))


async def read(service: Service, request: Request, path: str) -> Response:
    return await reads.read(service, request, await _advertised(service, path))


async def head(service: Service, request: Request, path: str) -> Response:
    return await reads.head(service, request, await _advertised(service, path))


async def list_nurls(service: Service, request: Request, _: str) -> Response:
    """The NURLs of a table, with what came of the last POST to each."""
    path = named_table(request)
    with speaking_of(path):
        table = await service.engine.info(path)
    deliveries = [] if service.notifier is None else service.notifier.of_table(table.id)
    return json_response({"nurls": [_described(delivery) for delivery in deliveries]})


def _described(delivery: NurlDelivery) -> dict[str, object]:
    nurl = delivery.nurl
    return {
        "event": nurl.event,
        "url": nurl.url,
        "state": delivery.state.value,
        "notified_seqno": nurl.notified_seqno,
        "lag_rows": delivery.lag_rows,
        "first_seen_at": format_instant(nurl.first_seen_ms),
        "last_seen_at": format_instant(nurl.last_seen_ms),
        "failures": nurl.failures,
        "failing_since": format_instant(nurl.failing_since_ms) if nurl.failing_since_ms else None,
        "next_attempt_at": format_instant(nurl.next_attempt_ms) if nurl.next_attempt_ms else None,
        "last_answer": delivery.answer or None,
        "last_answer_at": format_instant(delivery.answered_ms) if delivery.answered_ms else None,
    }


async def _advertised(service: Service, path: str) -> str:
    """The path in the log of the NURLs of a table."""
    with speaking_of(path):
        await service.engine.info(path)
    nurls_path = nurls_log_path(path)
    try:
        await service.engine.info(nurls_path)
    except (StreamNotFoundError, StreamGoneError):
        raise StreamNotFoundError(f"no NURL was ever advertised for table {name_of(path)!r}") from None
    return nurls_path


def _notifier(service: Service) -> Notifier:
    if service.notifier is None:
        raise UnknownRouteError("this server takes no Notify requests")
    return service.notifier
