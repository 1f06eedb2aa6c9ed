"""Requests of an ASGI server: their heads, and their bodies within the limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import msgspec

from headwater.errors import (
    BodyTooLargeError,
    HeadersTooLargeError,
    OverloadedError,
    RequestTimeoutError,
)
from headwater.joining import Joined
from headwater.limits import HEADERS_MAX, SIZE_DIGITS_MAX, Limits
from headwater.server.budgets import Budget, Share
from headwater.server.dispatch import Dispatcher
from headwater.server.http import Request, Response, transfer_encoding_fault, url_fault
from headwater.server.service import Service

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_WITH_BODY = ("POST", "PUT")


class DisconnectedError(Exception):
    """The client disconnected before its request was complete."""


class RequestReader:
    """Receives requests. The bodies of all requests together have a budget."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._bodies = Budget(limits.request_bytes_in_flight_max)  # of incomplete requests

    async def receive(self, scope: Scope, receive: Receive, dispatcher: Dispatcher) -> tuple[Request, Response | None]:
        """The request, and the response if it is refused before its body."""
        request, bytes_max = self._request(scope), self._limits.body_bytes_max
        if not _is_without_body(request):
            # A copy, because the check changes it: it removes a signature from the query, for example.
            head = msgspec.structs.replace(request)
            refusal = dispatcher.check_head(head)
            if refusal is not None:
                return request, refusal
            bytes_max = dispatcher.body_bytes_max(head)
        request.body = await self._body(request.headers, receive, dispatcher.service, bytes_max)
        return request, None

    def _request(self, scope: Scope) -> Request:
        """A request without its body."""
        headers = _read_headers(scope["headers"], self._limits)
        version = scope.get("http_version", "1.1")
        if "transfer-encoding" in headers:
            fault = transfer_encoding_fault(headers["transfer-encoding"], version)
            if fault is not None:
                raise fault
        raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        mount, path = _split_mount(scope.get("root_path", ""), raw_path.partition(b"?")[0].decode("latin-1"))
        query: bytes = scope.get("query_string", b"")
        error = url_fault(path, len(raw_path) + len(query), self._limits)
        if error is not None:
            raise error
        return Request(
            scope["method"],
            path,
            query.decode("latin-1"),
            headers,
            b"",
            version=version,
            scheme=scope.get("scheme", "http"),
            mount=mount,
            peer=peer_of(scope),
            began_s=time.perf_counter(),
        )

    async def _body(self, headers: dict[str, str], receive: Receive, service: Service, bytes_max: int) -> bytes:
        limits = self._limits
        too_large = BodyTooLargeError(f"the body of this request may have {bytes_max} bytes")
        length = headers.get("content-length", "")
        if length.isdecimal() and (len(length) > SIZE_DIGITS_MAX or int(length) > bytes_max):
            raise too_large
        loop, body, held = asyncio.get_running_loop(), Joined(), Share(self._bodies)
        deadline_s = loop.time() + limits.body_stall_s
        try:
            while True:
                message = await _receive_until(receive, deadline_s)
                piece = message.get("body", b"")
                body.add(piece)
                if body.size > bytes_max:
                    raise too_large
                if not message.get("more_body", False):
                    return body.take()
                short = service.memory is not None and service.memory.short
                if not held.hold(body.size) or short:
                    raise OverloadedError("bodies of other requests take all the memory for them; try again shortly")
                # The rate of the last `body_stall_s`, as on the native edge.
                gained_s = len(piece) / limits.body_bytes_per_s_min
                deadline_s = min(loop.time() + limits.body_stall_s, deadline_s + gained_s)
        finally:
            held.hold(0)


async def _receive_until(receive: Receive, deadline_s: float) -> Message:
    try:
        async with asyncio.timeout_at(deadline_s):
            message = await receive()
    except TimeoutError:
        raise RequestTimeoutError("the rest of the request did not arrive in time") from None
    if message["type"] == "http.disconnect":
        raise DisconnectedError
    return message


def _is_without_body(request: Request) -> bool:
    headers = request.headers
    return headers.get("content-length") == "0" or (
        request.method not in _WITH_BODY and "content-length" not in headers and "transfer-encoding" not in headers
    )


def peer_of(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _split_mount(root_path: str, raw_path: str) -> tuple[str, str]:
    """The mount point, percent-encoded as in the URL, and the path below it. ASGI gives the mount point decoded."""
    depth = root_path.rstrip("/").count("/")
    segments = raw_path.split("/")
    mount = "/".join(segments[: depth + 1])
    if unquote(mount) != root_path.rstrip("/"):
        return "", raw_path  # the ASGI server has removed the mount point from the path
    return mount, "/" + "/".join(segments[depth + 1 :])


def _read_headers(raw: Iterable[tuple[bytes, bytes]], limits: Limits) -> dict[str, str]:
    headers: dict[str, str] = {}
    size = 0
    for count, (name, value) in enumerate(raw, 1):
        size += len(name) + len(value)
        if count > HEADERS_MAX:
            raise HeadersTooLargeError(f"a request may have {HEADERS_MAX} headers")
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    if size > limits.header_bytes_max:
        raise HeadersTooLargeError(f"the headers may have {limits.header_bytes_max} bytes")
    return headers
