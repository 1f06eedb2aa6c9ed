"""The NURL of a table: take Notify POSTs, withdraw NURLs, and read those that were advertised as a table."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any

from headwater.errors import (
    HeadwaterError,
    InternalError,
    InvalidQueryError,
    StreamGoneError,
    StreamNotFoundError,
    UnknownRouteError,
)
from headwater.protocol.streams.reads import parse_query
from headwater.protocol.tables.notify import Notification, check_form_type, parse_notification
from headwater.protocol.tables.paths import name_of, nurls_log_path
from headwater.server.http import Request, Respond, Response
from headwater.server.notify import Notifier
from headwater.server.problems import problem
from headwater.server.service import Service
from headwater.server.streams.replies import NO_STORE
from headwater.server.tables import reads
from headwater.server.tables.replies import speaking_of, table_problem

log = logging.getLogger("headwater.server")

NURL = "nurl"  # the parameter of a withdrawal


def notify(service: Service, request: Request, path: str, respond: Respond) -> None:
    notifier = _notifier(service)
    check_form_type(request.headers.get("content-type"))
    notification = parse_notification(request.body)
    authority = request.authority or request.headers.get("host", "localhost")
    base = f"{request.scheme}://{authority}{request.mount}"
    service.in_background(_answered(path, respond, _notify(service, notifier, path, notification, base)))


async def _notify(service: Service, notifier: Notifier, path: str, notification: Notification, base: str) -> None:
    try:
        await service.engine.info(path)
    except StreamNotFoundError:
        # A table that is to be followed is made when it first answers. NURLs can be advertised for it then.
        if not _follows(notifier, path, notification) or notification.nurls:
            raise
        return
    if notification.nurls:
        await notifier.advertise(path, notification.nurls, base)
    _follows(notifier, path, notification)


def _follows(notifier: Notifier, path: str, notification: Notification) -> bool:
    """Whether the SURL of a form is followed, or was already; then its follower asks for it."""
    if notification.surl is None or notifier.surl_received is None:
        return False
    return notifier.surl_received(name_of(path), notification.surl)


def withdraw(service: Service, request: Request, path: str, respond: Respond) -> None:
    notifier = _notifier(service)
    url = parse_query(request.query).get(NURL)
    if not url:
        raise InvalidQueryError(f"name the NURL to withdraw, percent-encoded: ?{NURL}=https%3A%2F%2Fhost%2Fpath")
    service.in_background(_answered(path, respond, notifier.withdraw(path, url)))


async def _answered(path: str, respond: Respond, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except HeadwaterError as error:
        respond(table_problem(path, error))
    except Exception:
        log.exception("a Notify request failed")
        respond(problem(InternalError("the server log has the cause")))
    else:
        respond(Response(204, (NO_STORE,)))


async def read(service: Service, request: Request, path: str) -> Response:
    return await reads.read(service, request, await _advertised(service, path))


async def head(service: Service, request: Request, path: str) -> Response:
    return await reads.head(service, request, await _advertised(service, path))


async def _advertised(service: Service, path: str) -> str:
    """The path in the log of the NURLs of a table."""
    with speaking_of(path):
        await service.engine.info(path)
    found = nurls_log_path(path)
    try:
        await service.engine.info(found)
    except (StreamNotFoundError, StreamGoneError):
        raise StreamNotFoundError(f"no NURL was ever advertised for table {name_of(path)!r}") from None
    return found


def _notifier(service: Service) -> Notifier:
    if service.notifier is None:
        raise UnknownRouteError("this server takes no Notify requests")
    return service.notifier
