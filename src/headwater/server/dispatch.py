"""Calls the handler of a request, and turns errors into problem documents."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from headwater.errors import (
    BodyTooLargeError,
    HeadwaterError,
    InternalError,
    MethodNotAllowedError,
    NotReadyError,
    OutOfMemoryError,
    UnknownOutcomeError,
)
from headwater.limits import RETRY_AFTER_S, SIZE_DIGITS_MAX
from headwater.protocol.streams.headers import VIEW_OF
from headwater.server.access import Access
from headwater.server.admission import Admission
from headwater.server.auth.authority import as_private
from headwater.server.auth.route_rules import APPEND
from headwater.server.compression import check_request_encoding
from headwater.server.http import NO_ROUTE, Headers, Request, Respond, Response
from headwater.server.observing.audit import audited
from headwater.server.problems import problem
from headwater.server.quotas import QuotaRates
from headwater.server.routes import ROUTES, SUBSCRIPTION_ROOT, Read, Route, resolve
from headwater.server.service import Service

log = logging.getLogger("headwater.server")


class Dispatcher:
    def __init__(self, service: Service, access: Access | None = None) -> None:
        self.service = service
        self._access = access or Access()
        self._authority = service.authority
        self._admission = Admission(service.limits, service.memory) or None
        self._identities = self._admission if self._admission and self._admission.knows_identities else None
        self._audit = service.observer.audit
        if service.relay is not None:
            service.relay.dispatch = self.dispatch
        rates = QuotaRates(service.engine.usage.prefixes, service.engine.usage.tokens)
        # Quotas of tokens may come later, but without an authority there are no tokens.
        self._quota_rates = rates if rates or self._authority is not None else None

    def trusts(self, peer: str) -> bool:
        """Whether an address is that of a trusted proxy."""
        return self._access.trusts(peer)

    def check_head(self, request: Request) -> Response | None:
        """Check a request whose body has not arrived. Returns the response if it is refused, and the body not needed.

        A request that is accepted here is checked again when it is complete, and counts for its rates only then."""
        shared: Headers = ()
        try:
            shared = self._access.check(request)
            resolved = resolve(request.path)
            routes, path = resolved.routes, resolved.path
            route = routes.get(request.method)
            if route is not None:
                request.route = route.number
                if self._authority is not None:
                    self._authority.authorize(request, route.action, path)
                if route.check is not None and not self._is_elsewhere(route, request):
                    route.check(self.service, request, path)
                if "content-encoding" in request.headers:
                    check_request_encoding(request.headers["content-encoding"])
                if route.body_bytes_max:
                    _check_size(route, _content_length(request))
            elif request.method != "OPTIONS":
                raise _not_allowed(request, routes)
            if self._admission is not None:
                self._admission.foresee(request)
            if self._quota_rates and route is not None and route.action is APPEND:
                self._quota_rates.foresee(path, request.caller.owner)
        except Exception as error:  # noqa: BLE001 - the requester and the log get it
            return self._refused(request, error, shared)
        return None

    def body_bytes_max(self, head: Request) -> int:
        """The size up to which the body of a request is read. Its head was accepted by `check_head`."""
        bytes_max = self.service.limits.body_bytes_max
        return bytes_max if head.route == NO_ROUTE else min(bytes_max, ROUTES[head.route].body_bytes_max or bytes_max)

    def _refused(self, request: Request, error: Exception, shared: Headers) -> Response:
        """The response to a request that is refused before its body has arrived. It counts for its address."""
        try:
            if self._admission is not None:
                self._admission.meet(request)
        except HeadwaterError as beyond:
            error = beyond
        response = self._finished(self._failed(request, error), shared)
        response.close = True  # the body follows
        if self._audit is not None and request.route != NO_ROUTE:
            action = audited(ROUTES[request.route], request)
            if action is not None:
                self._audit.note(action, request, response, self.service.observer.identify(request))
        return response

    def dispatch(self, request: Request, respond: Respond) -> asyncio.Task[None] | None:
        """Respond to a request by calling `respond`, now or later. Returns a task if the request can be cancelled."""
        shared: Headers = ()
        try:
            shared = self._access.check(request)
            if self._admission is not None:
                self._admission.meet(request)
            resolved = resolve(request.path)
            routes, path = resolved.routes, resolved.path
            route = routes.get(request.method)
            if route is None:
                self._answer_without_route(request, routes, shared, respond)
                return None
            request.route = route.number
            if self._audit is not None and (action := audited(route, request)) is not None:
                respond = self._audit.noting(action, request, respond, self.service.observer.identify)
            if self._authority is not None:
                self._authority.authorize(request, route.action, path)
            if self._identities is not None:
                respond = self._identities.admit(request, respond)
            if self._quota_rates and route.action is APPEND:
                self._quota_rates.take(path, request.caller.owner)
            if route.body_bytes_max or "content-encoding" in request.headers:
                _check_body(route, request)
            relay = self.service.relay
            if relay is not None and self._is_elsewhere(route, request):
                relay.pass_on(request, respond)
                return None
            if route.write is not None:
                route.write(self.service, request, path, _with_headers(shared, respond) if shared else respond)
                return None
        except Exception as error:  # noqa: BLE001 - the requester and the log get it
            respond(self._finished(self._failed(request, error), shared))
            return None
        if route.read is None:
            raise RuntimeError(f"{route.template} has no handler")
        return asyncio.create_task(self._run(route, route.read, request, path, shared, respond))

    def _is_elsewhere(self, route: Route, request: Request) -> bool:
        """Whether another server answers, because it has the role. Views of tables are made by a PUT of a stream."""
        if not (route.by_role or (route.method == "PUT" and VIEW_OF in request.headers)):
            return False
        if self.service.role.is_held and self.service.subscriptions is None:
            raise NotReadyError("this server begins or ends this work now", retry_after_s=RETRY_AFTER_S)
        return not self.service.role.is_held

    def _answer_without_route(
        self, request: Request, routes: Mapping[str, Route], shared: Headers, respond: Respond
    ) -> None:
        allowed = (*routes, "OPTIONS")
        if request.method != "OPTIONS":
            raise _not_allowed(request, routes)
        respond(Response(204, (("allow", ", ".join(allowed)), *self._access.preflight(request), *shared)))

    async def _run(
        self, route: Route, read: Read, request: Request, path: str, shared: Headers, respond: Respond
    ) -> None:
        try:
            work = read(self.service, request, path)
            authority = self._authority
            response = await (work if authority is None else authority.answer(request, route.action, path, work))
        except Exception as error:  # noqa: BLE001 - the requester and the log get it
            response = self._failed(request, error)
        respond(self._finished(response, shared))

    def _finished(self, response: Response, shared: Headers) -> Response:
        """A response with the headers that all responses have."""
        if self._authority is not None:
            response.headers = as_private(response.headers)
        response.headers += shared
        return response

    def _failed(self, request: Request, error: Exception) -> Response:
        if isinstance(error, HeadwaterError):
            return problem(error, with_code=request.path.startswith(SUBSCRIPTION_ROOT))
        if isinstance(error, MemoryError):
            log.error("%s %s: out of memory", request.method, request.path)
            return problem(OutOfMemoryError("there was no memory for the request; nothing was stored"))
        request_id = self.service.observer.identify(request)
        log.error("request %s: %s %s failed", request_id, request.method, request.path, exc_info=error)
        return problem(unexpected(request.method))


def unexpected(method: str) -> HeadwaterError:
    """The error for an exception that no code expected. A request that writes may have had an effect."""
    kind = InternalError if method in ("GET", "HEAD", "OPTIONS") else UnknownOutcomeError
    return kind("the server log has the cause")


def _not_allowed(request: Request, routes: Mapping[str, Route]) -> MethodNotAllowedError:
    allowed = (*routes, "OPTIONS")
    return MethodNotAllowedError(f"{request.method[:16]} is not one of {', '.join(allowed)}", allowed=allowed)


def _content_length(head: Request) -> int:
    """The size of the body that a head announces; 0 if it does not."""
    length = head.headers.get("content-length", "")
    return int(length[:SIZE_DIGITS_MAX]) if length.isdecimal() else 0


def _check_size(route: Route, body_bytes: int) -> None:
    if body_bytes > route.body_bytes_max:
        raise BodyTooLargeError(f"the body of this request may have {route.body_bytes_max} bytes")


def _check_body(route: Route, request: Request) -> None:
    if "content-encoding" in request.headers:
        check_request_encoding(request.headers["content-encoding"])
    if route.body_bytes_max:
        _check_size(route, len(request.body))


def _with_headers(headers: Headers, respond: Respond) -> Respond:
    def extended(response: Response) -> None:
        response.headers = (*response.headers, *headers)
        respond(response)

    return extended
