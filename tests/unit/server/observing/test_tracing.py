"""Traces: which requests have a span, what it says, and how it reaches a collector."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from unittest import mock

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headwater.protocol.trace_context import TraceContext, parse_traceparent
from headwater.server.http import NO_ROUTE, Request, Response, waiting
from headwater.server.observing.tracing import Tracer, check_endpoint, next_header, open_tracer, traces_url
from headwater.server.routes import ROUTES

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
APPEND = next(route for route in ROUTES if (route.method, route.template) == ("POST", "/v1/stream/{path}"))


def request(traceparent: str | None = None, route: int = APPEND.number) -> Request:
    headers = {} if traceparent is None else {"traceparent": traceparent}
    return Request("POST", "/v1/stream/a", "sig=SECRET", headers, b"", route=route, id="the-id")


def spans(share: float, *requests: Request, status: int = 204, chance: float = 0.5) -> tuple[ReadableSpan, ...]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = Tracer(provider, share, chance=lambda: chance, now_ns=lambda: 10_000_000_000)
    for one in requests:
        tracer.note(one, Response(status), 0.5)
    tracer.close()
    assert tracer.spans == len(exporter.get_finished_spans())
    return exporter.get_finished_spans()


def test_a_span_belongs_to_the_trace_of_its_request() -> None:
    (span,) = spans(0.0, request(f"00-{TRACE}-{SPAN}-01"))
    assert span.context is not None
    assert span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, SPAN)
    assert span.name == "POST /v1/stream/{path}"
    assert (span.start_time, span.end_time) == (9_500_000_000, 10_000_000_000)
    assert span.attributes is not None
    assert span.attributes["http.response.status_code"] == 204
    assert span.attributes["headwater.request_id"] == "the-id"
    assert "SECRET" not in span.to_json()


def test_whoever_sends_a_request_decides_whether_it_is_sampled() -> None:
    assert not spans(1.0, request(f"00-{TRACE}-{SPAN}-00"))


def test_of_others_a_share_is_sampled() -> None:
    assert spans(0.6, request())
    assert not spans(0.4, request())
    assert spans(0.6, request("not a traceparent"))


def test_every_request_has_a_name_that_does_not_depend_on_its_path() -> None:
    exported = spans(1.0, request(route=NO_ROUTE), request(route=waiting(APPEND.number)), status=500)
    assert [span.name for span in exported] == ["_OTHER none", "POST /v1/stream/{path}"]
    assert {span.status.status_code.name for span in exported} == {"ERROR"}


def test_a_request_that_follows_has_the_same_trace_and_another_span() -> None:
    assert next_header(None) == {}
    context = parse_traceparent(next_header(TraceContext(TRACE, SPAN, 3))["traceparent"])
    assert context is not None
    assert (context.trace_id, context.flags) == (TRACE, 3)
    assert context.span_id != SPAN


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    received: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    server.server_close()
    thread.join()


def test_spans_reach_a_collector(collector: tuple[str, list[tuple[str, bytes]]]) -> None:
    url, received = collector
    tracer = open_tracer(url, 1.0)
    tracer.note(request(f"00-{TRACE}-{SPAN}-01"), Response(200), 0.1)
    tracer.close()
    ((path, body),) = received
    assert path == "/v1/traces"
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    assert {one.value.string_value for one in resource.resource.attributes if one.key == "service.name"} == {
        "headwater"
    }
    assert [span.trace_id.hex() for span in resource.scope_spans[0].spans] == [TRACE]


def test_where_spans_go() -> None:
    assert traces_url("http://127.0.0.1:4318") == "http://127.0.0.1:4318/v1/traces"
    assert traces_url("https://otel.example/") == "https://otel.example/v1/traces"
    assert traces_url("https://otel.example/own/path") == "https://otel.example/own/path"
    for wrong in ("127.0.0.1:4318", "grpc://127.0.0.1:4317", "http://"):
        with pytest.raises(ValueError, match="an OpenTelemetry endpoint is like"):
            check_endpoint(wrong)


def test_without_the_extra_an_endpoint_is_an_error_that_names_it() -> None:
    check_endpoint(None)
    missing = {"opentelemetry.sdk": None, "opentelemetry.sdk.trace": None}
    with mock.patch.dict(sys.modules, missing), pytest.raises(ValueError, match=r"pip install '\.\[otel\]'"):
        open_tracer("http://127.0.0.1:4318", 1.0)
    with (
        mock.patch("importlib.util.find_spec", return_value=None),
        pytest.raises(ValueError, match=r"pip install '\.\[otel\]'"),
    ):
        check_endpoint("http://127.0.0.1:4318")
