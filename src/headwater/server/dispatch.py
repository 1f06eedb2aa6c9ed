"""From a request to its handler, and from whatever goes wrong to a problem."""

from __future__ import annotations

import asyncio
import logging

from headwater.errors import HeadwaterError, InternalError, MethodNotAllowedError
from headwater.server.access import Access
from headwater.server.compression import check_request_encoding
from headwater.server.http import Headers, Request, Respond, Response
from headwater.server.problems import problem
from headwater.server.routes import Read, resolve
from headwater.server.service import Service

log = logging.getLogger("headwater.server")


class Dispatcher:
    def __init__(self, service: Service, access: Access | None = None) -> None:
        self.service = service
        self._access = access or Access()

    def dispatch(self, request: Request, respond: Respond) -> asyncio.Task[None] | None:
        """Answer a request through `respond`, at once or later; a task is returned where one must be cancelled."""
        try:
            shared = self._access.check(request)
            routes, path = resolve(request.path)
            route = routes.get(request.method)
            if shared and (route is None or route.read is None):
                respond = _with_headers(shared, respond)
            if route is None:
                allowed = (*routes, "OPTIONS")
                if request.method == "OPTIONS":
                    respond(Response(204, (("allow", ", ".join(allowed)), *self._access.preflight(request))))
                    return None
                detail = f"{request.method[:16]} is not one of {', '.join(allowed)}"
                raise MethodNotAllowedError(detail, allowed=allowed)
            if "content-encoding" in request.headers:
                check_request_encoding(request.headers["content-encoding"])
            if route.write is not None:
                route.write(self.service, request, path, respond)
                return None
        except Exception as error:  # noqa: BLE001 - the requester and the log get it
            respond(_failed(request, error))
            return None
        if route.read is None:
            raise RuntimeError(f"{route.template} has no handler")
        return asyncio.create_task(self._run(route.read, request, path, shared, respond))

    async def _run(self, read: Read, request: Request, path: str, shared: Headers, respond: Respond) -> None:
        try:
            response = await read(self.service, request, path)
        except Exception as error:  # noqa: BLE001 - the requester and the log get it
            response = _failed(request, error)
        response.headers += shared
        respond(response)


def _with_headers(found: Headers, respond: Respond) -> Respond:
    def extended(response: Response) -> None:
        response.headers = (*response.headers, *found)
        respond(response)

    return extended


def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, HeadwaterError):
        return problem(error)
    log.error("%s %s failed", request.method, request.path, exc_info=error)
    return problem(InternalError("the server log has the cause"))
