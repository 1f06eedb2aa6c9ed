"""Repeated batch numbers: with the same rows it is the same batch, with other rows it is an error."""

from __future__ import annotations

import contextlib
import itertools
import random
from pathlib import Path

import httpx
import msgspec
import pyarrow as pa
import pytest

from headwater.errors import BatchReusedError, SchemaError
from headwater.log.content import ContentKind
from headwater.spark.ledger import ListLifetime
from headwater.spark.options import JOURNAL_ROOT, WriteOptions, write_options
from headwater.spark.publishing import Publisher
from headwater.spark.sinks import offsets_directory, offsets_of
from headwater.spark.staging import Content, Gatherer, RowChunk, place_of, sum_of
from tests.servers import Server
from tests.unit.spark.test_publishing import Killed, client_of

_numbers = itertools.count()


class Writer:
    """Publishes batches like a sink that identifies them by their rows or by their offsets."""

    def __init__(self, server: Server, keep: ListLifetime, transport: httpx.BaseTransport | None = None) -> None:
        self._server = server
        self._transport = transport
        self._keep = keep
        self.writer = f"ledger-{next(_numbers)}"
        self.options = self.for_target(f"targets/{self.writer}")

    def for_target(self, target: str) -> WriteOptions:
        return write_options({"url": self._server.url, "stream": target})

    def publish(self, batch: int, rows: list[int], parts: int = 1, offsets: str = "") -> None:
        with client_of(self._server, self._transport) as client:
            gatherers = []
            for part in range(parts):
                place = place_of(self.writer, batch, part)
                gatherer = Gatherer(client, ContentKind.JSON, 1 << 20, place, summed=not offsets)
                own = [b"%d" % row for row in rows[part::parts]]
                gatherer.add(self.options.target or "", pa.array(own, pa.binary()))
                gatherers.append(gatherer)
            gathered = [gatherer.finish() for gatherer in gatherers]
            content = str(sum_of(gatherer.content for gatherer in gatherers if gatherer.content is not None))
            Publisher(client, self.options, self.writer, self._keep).publish(batch, gathered, offsets or content)

    def published(self) -> list[int]:
        with client_of(self._server) as client:
            return client.stream(self.options.target or "").read().all()

    def kept(self) -> list[str]:
        with client_of(self._server) as client:
            return [info.path for info in client.list(f"{JOURNAL_ROOT}/{self.writer}/")]

    def lists(self) -> list[str]:
        return [path for path in self.kept() if path.endswith("/list")]

    def stored(self) -> list[str]:
        return [path for path in self.kept() if not path.endswith(("/list", "/fence"))]


@pytest.mark.parametrize("keep", [ListLifetime.UNTIL_NEXT_BATCH, ListLifetime.FOREVER])
def test_the_same_rows_in_another_order_are_the_same_batch(server: Server, keep: ListLifetime) -> None:
    writer = Writer(server, keep)
    rows = list(range(50))
    writer.publish(0, rows)
    random.Random(1).shuffle(rows)
    writer.publish(0, rows, parts=3)
    assert writer.published() == list(range(50))


def test_two_dataframes_with_one_write_id(server: Server) -> None:
    writer = Writer(server, ListLifetime.FOREVER)
    writer.publish(4, [1, 2])
    with pytest.raises(
        BatchReusedError, match=r"writeVersion 4 was recorded.*with 2 rows.*a different writeId for each DataFrame"
    ):
        writer.publish(4, [1, 3])
    with pytest.raises(BatchReusedError, match="now has other rows: 0 rows"):
        writer.publish(4, [])
    assert writer.published() == [1, 2]
    assert writer.stored() == []
    writer.publish(5, [1, 3])
    assert writer.published() == [1, 2, 1, 3]


def test_a_batch_number_that_is_used_for_other_offsets(server: Server) -> None:
    """As when the last offset file of a checkpoint was deleted and the stream has grown since."""
    writer = Writer(server, ListLifetime.UNTIL_NEXT_BATCH)
    writer.publish(0, [1, 2], offsets="offsets a")
    with pytest.raises(BatchReusedError, match=r"batch 0 of this query was recorded.*restore it"):
        writer.publish(0, [1, 2, 3], offsets="offsets b")
    writer.publish(0, [7, 8, 9], offsets="offsets a")  # a query that is not deterministic, repeated: the first counts
    assert writer.published() == [1, 2]


def test_a_checkpoint_that_was_copied_to_another_target(server: Server) -> None:
    writer = Writer(server, ListLifetime.UNTIL_NEXT_BATCH)
    writer.publish(0, [1, 2])
    first, writer.options = writer.options.target, writer.for_target(f"targets/{writer.writer}-copy")
    with pytest.raises(BatchReusedError, match=f"for the stream {first}, not for the stream {first}-copy"):
        writer.publish(0, [1, 2])
    writer.publish(1, [3])
    assert writer.published() == [3]


def test_unknown_origins_are_not_compared(server: Server) -> None:
    """Lists of older versions have no origin, and a checkpoint may have moved to where it cannot be read."""
    writer = Writer(server, ListLifetime.UNTIL_NEXT_BATCH)
    writer.publish(0, [1, 2], offsets="offsets a")
    writer.publish(0, [2, 1])
    assert writer.published() == [1, 2]


def test_content() -> None:
    def content(*rows: bytes, target: str = "t") -> Content:
        return Content().with_rows(target, pa.array(rows, pa.binary()))

    assert content(b"a", b"b") == content(b"b", b"a") == sum_of([content(b"b"), content(b"a")])
    others = [content(), content(b"a"), content(b"a", b"a"), content(b"ab", b""), content(b"a", b"b", target="u")]
    assert len({str(one) for one in [*others, content(b"a", b"b")]}) == 6


def test_the_offsets_of_a_batch(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text('v1\n{"batchTimestampMs":1}\n{"a":"7"}')
    (tmp_path / "offsets" / "4").write_text('v1\n{"batchTimestampMs":2}\n{"a":"7"}')
    (tmp_path / "offsets" / "5").write_text('v1\n{"batchTimestampMs":2}\n{"a":"8"}')
    directory = tmp_path / "offsets"
    for location in (str(tmp_path), tmp_path.as_uri()):
        assert offsets_directory(location) == directory
    assert offsets_of(directory, 3) == offsets_of(directory, 4) != offsets_of(directory, 5)
    assert offsets_of(directory, 6) == ""
    for elsewhere in ("s3://bucket/x", str(tmp_path / "no"), None):
        assert offsets_directory(elsewhere) is None


# Refused batches, lost responses, servers without a list of streams


def test_a_batch_that_a_target_refused_is_computed_again(server: Server) -> None:
    """Nothing of it was appended, so corrected options apply: another content type, another target."""
    writer = Writer(server, ListLifetime.UNTIL_NEXT_BATCH)
    with client_of(server) as client:
        client.stream(writer.options.target or "").create(content_type="text/plain")
    writer.options = msgspec.structs.replace(writer.options, content_type="application/json")  # as it was when planned
    with pytest.raises(SchemaError, match="does not accept the rows"):
        writer.publish(0, [1, 2])
    assert writer.lists() == []
    writer.options = writer.for_target(f"targets/{writer.writer}-corrected")
    writer.publish(0, [3])
    assert writer.published() == [3]


def test_a_retry_completes_a_partly_appended_batch(server: Server) -> None:
    writer = Writer(server, ListLifetime.UNTIL_NEXT_BATCH)
    other = f"targets/{writer.writer}-other"
    with client_of(server) as client:
        client.stream(other).create(closed=True)
        chunks = [RowChunk(writer.options.target or "", 1, b"1"), RowChunk(other, 1, b"2")]
        publisher = Publisher(client, writer.options, writer.writer)
        with pytest.raises(SchemaError, match="a retry appends the rest when the target accepts it"):
            publisher.publish(0, [chunks])
        client.stream(other).delete()
        publisher.publish(0, [chunks])
        assert [client.stream(path).read().all() for path in (writer.options.target or "", other)] == [[1], [2]]


class Amnesiac(httpx.HTTPTransport):
    """Loses the response to the first append to a list, so that the client retries, and crashes at the target."""

    lost = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.lost and "/targets/" in request.url.path:
            raise Killed
        response = super().handle_request(request)
        if request.method == "POST" and request.url.path.endswith("/list") and response.is_success and not self.lost:
            self.lost = True
            response.read()
            raise httpx.ReadError("the answer was lost", request=request)
        return response


def test_a_lost_response_to_a_list_that_is_stored_in_pieces(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.limits.SPARK_INLINE_BYTES", 20)
    writer = Writer(server, ListLifetime.UNTIL_NEXT_BATCH)
    writer.options = msgspec.structs.replace(writer.options, max_request_bytes=200)
    for transport in (Amnesiac(verify=False), httpx.HTTPTransport(verify=False)):
        with contextlib.suppress(Killed), client_of(server, transport) as client:
            gatherer = Gatherer(client, ContentKind.JSON, 200, place_of(writer.writer, 0, 0))
            rows = [b'"%0100d"' % number for number in range(40)]
            gatherer.add(writer.options.target or "", pa.array(rows, pa.binary()))
            Publisher(client, writer.options, writer.writer).publish(0, [gatherer.finish()])
            assert not isinstance(transport, Amnesiac)
    assert len(writer.published()) == 40


class Unlisted(httpx.HTTPTransport):
    """The same server without our extensions."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if "/__ds/" in request.url.path:
            return httpx.Response(404, request=request)
        return super().handle_request(request)


@pytest.mark.parametrize("keep", [ListLifetime.UNTIL_NEXT_BATCH, ListLifetime.FOREVER])
def test_lists_are_deleted_on_a_server_that_cannot_list_streams(server: Server, keep: ListLifetime) -> None:
    writer = Writer(server, keep, Unlisted(verify=False))
    for batch in (0, 1, 2, 40, 41):
        writer.publish(batch, [batch])
        writer.publish(batch, [batch])
    assert writer.published() == [0, 1, 2, 40, 41]
    assert writer.lists() == [f"{JOURNAL_ROOT}/{writer.writer}/{41:016d}/list"]


class Recording(Unlisted):
    def __init__(self) -> None:
        super().__init__(verify=False)
        self.created = dict[str, httpx.Headers]()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "PUT":
            self.created[request.url.path] = request.headers
        return super().handle_request(request)


def test_defaults_of_retention_do_not_apply_to_the_streams_of_a_sink(server: Server) -> None:
    recording = Recording()
    writer = Writer(server, ListLifetime.FOREVER, recording)
    with client_of(server, recording) as client:
        gatherer = Gatherer(client, ContentKind.JSON, 200, place_of(writer.writer, 0, 0))
        gatherer.add(writer.options.target or "", pa.array([b'"%0100d"' % number for number in range(40)], pa.binary()))
        Publisher(client, writer.options, writer.writer, ListLifetime.FOREVER).publish(0, [gatherer.finish()])
    journal = {path: headers for path, headers in recording.created.items() if f"/{JOURNAL_ROOT}/" in path}
    assert len(journal) >= 2  # staged rows and lists
    assert all(headers.get("stream-retain-seconds") == "" for headers in journal.values())
