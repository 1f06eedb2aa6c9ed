"""Any request to the routes of tables is answered, and none with an error of the server."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine import Engine
from headwater.server.dispatch import Dispatcher
from headwater.server.http import Frame, Request, Response
from headwater.server.service import Service
from tests.unit.engine.test_engine import with_engine

PATHS = ["/v1/table/t", "/v1/table/t", "/v1/table/u/v", "/v1/table/t/notify", "/v1/table/__stp/tables", "/v1/table/%ff"]
QUERIES = ["", "timeout=0", "since_id=1&timeout=0", "since_id=-2&timeout=0", "view=active", "key=k", "until_id=1"]
QUERIES += [
    "live=sse&timeout=0",
    "since_id=x",
    "view=active&live=sse",
    "limit=0",
    "after=%00",
    "since_id=9&timeout=0.01",
]
HEADERS = {
    "content-type": [
        "text/sequence",
        "text/sequence; schema=s; version=2",
        "text/html",
        ";",
        "text/sequence; escape=backslash",
    ],
    "accept": ["text/sequence", "text/sequence; version=2", "*/*;q=0", '"', "text/event-stream"],
    "stream-closed": ["true", "maybe"],
    "stream-ttl": ["0", "600", "-1"],
    "stream-forked-from": ["/v1/table/t", "/v1/table/none", "/v1/stream/t", "\x00"],
    "stp-fork-seqno": ["0", "1", "99", "x"],
    "producer-id": ["p"],
    "producer-epoch": ["0", "1", "x"],
    "producer-seq": ["0", "1", "2"],
    "if-none-match": ["*", '"x"', "W/"],
    "last-event-id": ["1", "x"],
    "accept-encoding": ["gzip", "identity;q=0", "br, zstd"],
}
BODIES = [
    b"",
    b"+\tk\tr\n",
    b"-\tk\n+\tk\t\\\\",
    b"?",
    b"+\tk\t\xff",
    b"rows=https://a.example/",
    b"\n",
    b"+\tk\tr\n" * 40,
]
REQUESTS = st.builds(
    Request,
    st.sampled_from(["GET", "GET", "HEAD", "PUT", "PUT", "POST", "POST", "DELETE", "OPTIONS", "PATCH"]),
    st.sampled_from(PATHS),
    st.sampled_from(QUERIES),
    st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in HEADERS.items()}),
    st.sampled_from(BODIES),
)


class Sink:
    blocked = False

    def __init__(self) -> None:
        self.body = b""
        self.ended = asyncio.Event()

    def write(self, frame: Frame) -> None:
        self.body += frame.body

    def end(self) -> None:
        self.ended.set()

    def abort(self) -> None:
        raise AssertionError("an answer was broken off")


async def answered(dispatcher: Dispatcher, request: Request) -> tuple[Response, bytes]:
    answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    dispatcher.dispatch(request, answer.set_result)
    response = await answer
    if response.feed is None:
        return response, b"".join(response.body)
    sink = Sink()
    response.feed.open(sink, 0.0)
    response.feed.finish()  # a live answer ends at once, a finite one when it is complete
    await sink.ended.wait()
    return response, sink.body


@settings(max_examples=300)
@given(st.lists(REQUESTS, max_size=12))
def test_no_request_is_an_error_of_the_server(requests: list[Request]) -> None:
    async def body(engine: Engine) -> None:
        dispatcher = Dispatcher(Service(engine, engine.limits))
        async with asyncio.timeout(30):
            first = Request("PUT", "/v1/table/t", "", {}, b"+\ta\t1\n+\tb\t2\n-\ta\n")
            for request in (first, *requests):
                response, _ = await answered(dispatcher, request)
                assert response.status < 500, request
            rows = await answered(dispatcher, Request("GET", "/v1/table/t", "timeout=0", {}, b""))
        if rows[0].status == 200:
            lines = rows[1].split(b"\n")
            assert lines.pop() == b""
            assert [int(line.split(b"\t")[0]) for line in lines] == list(range(1, len(lines) + 1))
            assert all(len(line.split(b"\t")) == 5 for line in lines)

    with_engine(body)
