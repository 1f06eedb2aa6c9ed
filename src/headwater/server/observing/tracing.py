"""Traces: the trace of a request, and spans for an OpenTelemetry collector.

`notify` and `following` pass a `traceparent` on to the requests that they send as a result, even if no spans are
exported. Export needs the extra `otel`, and is off unless `--otel-endpoint` is set.
"""

from __future__ import annotations

import importlib.util
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headwater import __version__
from headwater.limits import ROUTES_MAX
from headwater.protocol.trace_context import TRACEPARENT, TraceContext, parse_traceparent
from headwater.server.http import NO_ROUTE, Request, Response

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

_ERROR = 500
_SECOND_NS = 1_000_000_000
_TRACES_PATH = "/v1/traces"


def context_of(request: Request) -> TraceContext | None:
    """The trace of a request, if it has a valid `traceparent`."""
    traceparent = request.headers.get(TRACEPARENT)
    return None if traceparent is None else parse_traceparent(traceparent)


def next_header(context: TraceContext | None) -> dict[str, str]:
    """The header for a request that is sent as a result: the same trace, another span."""
    if context is None:
        return {}
    return {TRACEPARENT: context._replace(span_id=f"{random.getrandbits(64) or 1:016x}").header()}


class Tracer:
    """A watcher of an observer that creates a span for each sampled request. Made by `open_tracer`.

    A request with a `traceparent` is sampled if its sender samples it; of the others a share is sampled.
    """

    def __init__(
        self,
        provider: TracerProvider,
        share: float,
        chance: Callable[[], float] = random.random,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.spans = 0
        self._provider = provider
        self._tracer = provider.get_tracer("headwater", __version__)
        self._share = share
        self._chance = chance
        self._now_ns = now_ns

    def note(self, request: Request, response: Response, took_s: float) -> None:
        context = context_of(request)
        if context.sampled if context is not None else self._chance() < self._share:
            self._record(request, response, took_s, context)

    def _record(self, request: Request, response: Response, took_s: float, context: TraceContext | None) -> None:
        from opentelemetry import trace

        ended_ns = self._now_ns()
        method, template = self._described(request.route)
        span = self._tracer.start_span(
            f"{method} {template}",
            context=None if context is None else _parent(context),
            kind=trace.SpanKind.SERVER,
            start_time=ended_ns - int(took_s * _SECOND_NS),
            attributes={
                "http.request.method": method,
                "http.route": template,
                "url.path": request.path[:1_024],
                "url.scheme": request.scheme,
                "http.response.status_code": response.status,
                "headwater.request_id": request.id,
            },
        )
        if response.status >= _ERROR:
            span.set_status(trace.StatusCode.ERROR)
        span.end(ended_ns)
        self.spans += 1

    def _described(self, route: int) -> tuple[str, str]:
        from headwater.server.routes import ROUTES

        if route == NO_ROUTE:
            return "_OTHER", "none"
        entry = ROUTES[route % ROUTES_MAX]
        return entry.method, entry.template

    def reopen(self) -> None:
        """Nothing to do: there is no file."""

    def close(self) -> None:
        """Send queued spans. It blocks until the exporter is done."""
        self._provider.shutdown()


def _parent(context: TraceContext) -> Any:
    from opentelemetry import trace

    parent = trace.SpanContext(
        int(context.trace_id, 16), int(context.span_id, 16), is_remote=True, trace_flags=trace.TraceFlags(context.flags)
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(parent))


def open_tracer(endpoint: str, share: float, exporter: SpanExporter | None = None) -> Tracer:
    """A tracer that sends spans by OTLP over HTTP, in a thread. ValueError if OpenTelemetry is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        way_out = "pip install '.[otel]' in a checkout of Headwater"
        raise ValueError(f"traces need OpenTelemetry: {way_out} ({error})") from None
    resource = Resource.create({"service.name": "headwater", "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter(endpoint=traces_url(endpoint))))
    return Tracer(provider, share)


def check_endpoint(endpoint: str | None) -> None:
    """Check an endpoint. ValueError if it cannot be used."""
    if endpoint is None:
        return
    traces_url(endpoint)
    if importlib.util.find_spec("opentelemetry") is None or importlib.util.find_spec("opentelemetry.sdk") is None:
        raise ValueError("traces need OpenTelemetry: pip install '.[otel]' in a checkout of Headwater")


def traces_url(endpoint: str) -> str:
    """The URL for spans, from the base URL of a collector, such as `http://127.0.0.1:4318`, or from the full URL."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"an OpenTelemetry endpoint is like http://127.0.0.1:4318, got {endpoint[:80]!r}")
    return endpoint if parts.path.strip("/") else f"{endpoint.rstrip('/')}{_TRACES_PATH}"
