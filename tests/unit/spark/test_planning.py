"""Planning and reading together, as the driver and its tasks do it, without Spark."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator

import httpx
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headwater.client import Client, Position
from headwater.errors import DataLossError, MessageError, StreamNotFoundError
from headwater.protocol.globs import glob
from headwater.spark.columns import RangeReader
from headwater.spark.formats import DurableStreamsFormat, StreamStateFormat
from headwater.spark.options import ReadOptions, read_options
from headwater.spark.planning import Places, Planner, from_json, to_json
from headwater.spark.positions import StreamPlace, StreamRange
from headwater.spark.sources import StreamReader
from tests.restores import Restorable
from tests.servers import Server

_numbers = itertools.count()
VALUES = StructType(
    [StructField("offset", StringType()), StructField("position", LongType()), StructField("value", StringType())]
)
STATES = StructType([StructField("order", LongType()), StructField("key", StringType())])


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


class Plain(httpx.HTTPTransport):
    """The same server without our extensions: no splits, no list of streams, no `until`."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if "/__ds/" in request.url.path:
            return httpx.Response(404, request=request)
        request.url = request.url.copy_remove_param("until")
        return super().handle_request(request)


@pytest.fixture
def reader(server: Server, extended: bool) -> Iterator[Client]:
    """The client of a query, of a server with our extensions or without them."""
    with httpx.Client(transport=(httpx.HTTPTransport if extended else Plain)(verify=False)) as http:
        yield Client(server.url, http=http)


def rows_of(
    options: ReadOptions, client: Client, ranges: list[list[StreamRange]], schema: StructType = VALUES
) -> list[dict[str, object]]:
    reader = RangeReader(options, client, schema)
    return [row for part in ranges for one in part for batch in reader.read(one) for row in batch.to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize("extended", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_any_limits_and_any_splits_read_everything_once(
    server: Server, client: Client, seed: int, reader: Client
) -> None:
    chance = random.Random(seed)
    prefix = f"planning/{next(_numbers)}"
    paths = [f"{prefix}/{name}" for name in "abc"[: chance.randint(1, 3)]]
    numbers = dict.fromkeys(paths, 0)
    for path in paths:
        client.stream(path).create()
    if seed % 3 == 0:
        client.stream(paths[0]).append_many(range(5))
        client.stream(paths[0]).fork(f"{prefix}/fork")
        paths.append(f"{prefix}/fork")
        numbers[paths[0]] = numbers[f"{prefix}/fork"] = 5
    texts = {"url": server.url, "streams": ",".join(paths), "minPartitions": str(chance.randint(1, 5))}
    if chance.random() < 0.7:
        texts["maxRecordsPerTrigger"] = str(chance.randint(1, 40))
    if chance.random() < 0.5:
        texts["maxBytesPerTrigger"] = str(chance.randint(5, 400))
    options = read_options(texts, bounded=False, state=False)
    planner = Planner(options, reader)
    place: Places = planner.resolve(options.starting_offsets, planner.check())
    read: dict[str, list[str]] = {path: [] for path in paths}
    for _ in range(chance.randint(2, 6)):
        for path in paths:
            for _ in range(chance.randint(0, 6)):
                count = chance.choice((1, 1, 3, 50))
                client.stream(path).append_many(range(numbers[path], numbers[path] + count))
                numbers[path] += count
        for _ in range(chance.choice((1, 3, 400))):
            end = planner.advance(place, planner.tails(), limited=True)
            if to_json(end) == to_json(place):
                break
            if chance.random() < 0.3:  # the driver died, and another replays the batch
                planner = Planner(options, reader)
            rows = rows_of(options, reader, planner.partitions(from_json(to_json(place)), end))
            if options.max_records_per_trigger is not None:
                assert 0 < len(rows) <= options.max_records_per_trigger
            for path in paths:
                own = planner.partitions({path: place.get(path, StreamPlace())}, {path: end[path]})
                read[path] += [str(row["value"]) for row in rows_of(options, reader, own)]
            place = end
    while to_json(end := planner.advance(place, planner.tails(), limited=True)) != to_json(place):
        for path in paths:
            own = planner.partitions({path: place.get(path, StreamPlace())}, {path: end[path]})
            read[path] += [str(row["value"]) for row in rows_of(options, reader, own)]
        place = end
    assert read == {path: [str(number) for number in range(numbers[path])] for path in paths}


def test_offset_and_position_of_a_row_lead_to_its_message(server: Server, client: Client) -> None:
    path = f"planning/{next(_numbers)}"
    stream = client.stream(path)
    stream.create()
    for start in range(0, 90, 9):
        stream.append_many(range(start, start + 9))
    options = read_options({"url": server.url, "streams": path, "minPartitions": "4"}, bounded=True, state=False)
    planner = Planner(options, client)
    end = planner.resolve(options.ending_offsets, planner.check())
    for place in (StreamPlace(), StreamPlace("-1", 4), StreamPlace(stream.splits(parts=3).splits[0], 11)):
        for row in rows_of(options, client, planner.partitions({path: place}, end))[::5]:
            [message, *_] = stream.read(type=bytes, offset=str(row["offset"]), skip=int(str(row["position"]))).all()
            assert message.decode() == row["value"]


@pytest.mark.parametrize("extended", [True, False])
def test_the_order_of_events(server: Server, client: Client, reader: Client, extended: bool) -> None:
    """It increases along the stream for all ranges. If offsets count bytes, it does not depend on the ranges."""
    path = f"planning/{next(_numbers)}"
    stream = client.stream(path)
    stream.create()
    for start in range(0, 60, 6):
        events = [
            {"type": "t", "key": str(n), "value": "é" * n, "headers": {"operation": "insert"}}
            for n in range(start, start + 6)
        ]
        stream.append_many(events)
    every_order = []
    for parts, limit in ((1, "60"), (3, "60"), (2, "7"), (1, "1")):
        texts = {"url": server.url, "streams": path, "minPartitions": str(parts), "maxRecordsPerTrigger": limit}
        options = read_options(texts, bounded=False)
        planner = Planner(options, reader)
        place: Places = planner.resolve("earliest", planner.check())
        orders: dict[str, int] = {}
        while to_json(end := planner.advance(place, planner.tails(), limited=True)) != to_json(place):
            for row in rows_of(options, reader, planner.partitions(place, end), STATES):
                orders[str(row["key"])] = int(str(row["order"]))
            place = end
        assert sorted(orders, key=orders.__getitem__) == [str(n) for n in range(60)]
        assert len(set(orders.values())) == 60
        every_order.append(orders)
    if extended:
        assert all(orders == every_order[0] for orders in every_order)


def test_small_ranges_of_many_streams_share_tasks(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.limits.SPARK_PARTITIONS_MAX", 4)
    prefix = f"planning/{next(_numbers)}"
    for number in range(10):
        client.stream(f"{prefix}/{number}").create(messages=[number])
    options = read_options({"url": server.url, "pattern": f"{prefix}/*"}, bounded=True, state=False)
    planner = Planner(options, client)
    streams = planner.check()
    ranges = planner.partitions(planner.resolve("earliest", streams), planner.resolve("latest", streams))
    assert len(ranges) == 4
    assert [row["value"] for row in rows_of(options, client, ranges)] == [str(number) for number in range(10)]


def test_a_stream_that_is_shorter_now(server: Server, client: Client) -> None:
    """As after a restore from a backup: the same stream, truncated."""
    path = f"planning/{next(_numbers)}"
    client.stream(path).create(messages=[1, 2, 3])
    tail = client.stream(path).head().tail_offset
    beyond = StreamPlace(tail[:-4] + "9999")
    options = read_options({"url": server.url, "streams": path}, bounded=False, state=False)
    with pytest.raises(DataLossError, match=f"{path}: unread data after {beyond.offset}"):
        Planner(options, client).advance({path: beyond}, Planner(options, client).tails(), limited=True)


def test_a_stream_that_the_options_no_longer_select(server: Server, client: Client) -> None:
    """Its position is kept, in case it is selected again."""
    path = f"planning/{next(_numbers)}"
    for name in "ab":
        client.stream(f"{path}/{name}").create(messages=[1])
    for wanted in ({"streams": f"{path}/a"}, {"pattern": f"{path}/[a]"}):
        options = read_options({"url": server.url, **wanted}, bounded=False, state=False)
        planner = Planner(options, client)
        start = {f"{path}/a": StreamPlace(), f"{path}/b": StreamPlace("x")}
        end = planner.advance(start, planner.tails(), limited=True)
        assert end[f"{path}/b"] == StreamPlace("x")
        assert [row["value"] for row in rows_of(options, client, planner.partitions(start, end))] == ["1"]


def test_a_stream_that_was_created_again_is_read_from_its_beginning(server: Server, client: Client) -> None:
    """Rows have the offset of the new incarnation, not -1, which sorts before all others."""
    path = f"planning/{next(_numbers)}"
    client.stream(path).create(messages=[1, 2])
    options = read_options({"url": server.url, "stream": path, "failOnDataLoss": "false"}, bounded=False, state=False)
    before = {path: StreamPlace(client.stream(path).head().tail_offset)}
    client.stream(path).delete()
    client.stream(path).create()
    beginning = client.stream(path).head().tail_offset
    client.stream(path).append(3)
    planner = Planner(options, client)
    after = planner.advance(before, planner.tails(), limited=False)
    rows = rows_of(options, client, planner.partitions(before, after))
    assert [(row["offset"], row["value"]) for row in rows] == [(beginning, "3")]


def test_a_replayed_range_of_a_stream_that_was_created_again(server: Server, client: Client) -> None:
    """With failOnDataLoss false: the old range is lost, and the next batch reads the new stream from its beginning."""
    path = f"planning/{next(_numbers)}"
    client.stream(path).create(messages=[1])
    options = read_options({"url": server.url, "streams": path, "failOnDataLoss": "false"}, bounded=False, state=False)
    planner = Planner(options, client)
    start = planner.advance({}, planner.tails(), limited=True)
    client.stream(path).append(2)
    end = planner.advance(start, planner.tails(), limited=True)
    client.stream(path).delete()
    client.stream(path).create(messages=[3, 4])
    assert planner.partitions(start, end) == []
    now = planner.advance(end, planner.tails(), limited=True)
    assert [row["value"] for row in rows_of(options, client, planner.partitions(end, now))] == ["3", "4"]


@pytest.mark.parametrize("extended", [True, False])
def test_batches_are_limited_in_bytes(server: Server, client: Client, reader: Client, extended: bool) -> None:
    path = f"planning/{next(_numbers)}"
    stream = client.stream(path)
    stream.create(content_type="application/octet-stream")
    for _ in range(5):
        stream.append(b"0123456789")
    options = read_options({"url": server.url, "streams": path, "maxBytesPerTrigger": "25"}, bounded=False, state=False)
    planner = Planner(options, reader)
    place: Places = {path: StreamPlace()}
    sizes, read = [], ""
    while to_json(end := planner.advance(place, planner.tails(), limited=True)) != to_json(place):
        text = "".join(str(row["value"]) for row in rows_of(options, reader, planner.partitions(place, end)))
        sizes.append(len(text))
        read, place = read + text, end
    assert read == "0123456789" * 5
    assert sizes == ([20, 20, 10] if extended else [25, 25])


@pytest.mark.parametrize("extended", [False])
def test_text_is_limited_between_characters(server: Server, client: Client, reader: Client) -> None:
    for size in (1, 2, 3, 4, 7, 10):
        path = f"planning/{next(_numbers)}"
        text = "aé𝄞" * 10
        client.stream(path).create(content_type="text/plain", messages=[text])
        options = read_options(
            {"url": server.url, "streams": path, "maxBytesPerTrigger": str(size)}, bounded=False, state=False
        )
        planner = Planner(options, reader)
        place: Places = {path: StreamPlace()}
        read = ""
        while to_json(end := planner.advance(place, planner.tails(), limited=True)) != to_json(place):
            read += "".join(str(row["value"]) for row in rows_of(options, reader, planner.partitions(place, end)))
            place = end
        assert read == text


@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
def test_a_range_that_was_truncated(server: Server, client: Client, content_type: str) -> None:
    """On a server whose offsets do not show that a stream was created again."""
    path = f"planning/{next(_numbers)}"
    client.stream(path).create(content_type=content_type, messages=["123"])
    tail = client.stream(path).head().tail_offset
    options = read_options({"url": server.url, "streams": path}, bounded=False, state=False)
    for start, extra in ((StreamPlace("-1", 7), 0), (StreamPlace(), 9)):
        with pytest.raises(DataLossError):
            rows_of(options, client, [[StreamRange(path, content_type, start, Position(tail, extra))]])


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("a/*", ["a/b", "a/b.c"], ["a", "a/b/c", "b/a/b"]),
        ("a/**", ["a/b", "a/b/c"], ["b/a"]),
        ("**/c", ["c", "a/c", "a/b/c"], ["a/c/d", "ac"]),
        ("a?c", ["abc"], ["a/c", "ac"]),
        ("[ab]-[0-9]", ["a-1", "b-9"], ["c-1", "a-x"]),
        ("[!a]x", ["bx"], ["ax", "/x"]),
        ("a.b+(c)", ["a.b+(c)"], ["axb+(c)"]),
        ("a[", ["a["], ["a"]),
    ],
)
def test_patterns(pattern: str, matching: list[str], other: list[str]) -> None:
    compiled = glob(pattern)
    assert [path for path in matching if not compiled.fullmatch(path)] == []
    assert [path for path in other if compiled.fullmatch(path)] == []


# Deleted streams


def options_of(server: Server, **texts: str) -> ReadOptions:
    return read_options({"url": server.url, **texts}, bounded=False, state=False)


@pytest.mark.parametrize("limit", [{}, {"maxRecordsPerTrigger": "1"}])
@pytest.mark.parametrize("after", [False, True])
def test_a_stream_that_was_closed_read_to_its_end_and_deleted(
    server: Server, client: Client, limit: dict[str, str], after: bool
) -> None:
    """Nothing is lost, whether it was closed before or after it was read. Its position is removed from the
    checkpoint."""
    path = f"planning/{next(_numbers)}"
    for name in "abc":
        client.stream(f"{path}/{name}").create(messages=[1, 2] if name != "c" else [])
    for name in "ac":
        client.stream(f"{path}/{name}").close()
    options = options_of(server, streams=",".join(f"{path}/{name}" for name in "abc"), **limit)
    place = to_json(Planner(options, client).resolve("earliest", Planner(options, client).check()))

    def read() -> list[object]:
        nonlocal place
        planner, rows = Planner(options, client), []
        while (end := to_json(planner.advance(from_json(place), planner.tails(), limited=True))) != place:
            rows += rows_of(options, client, planner.partitions(from_json(place), from_json(end)))
            place = end
        return [row["value"] for row in rows]

    assert sorted(map(str, read())) == ["1", "1", "2", "2"]
    if after:
        client.stream(f"{path}/b").close()
        assert read() == []
    for name in "abc" if after else "ac":
        client.stream(f"{path}/{name}").delete()
    assert read() == []
    assert list(place) == ([] if after else [f"{path}/b"])
    if not after:
        client.stream(f"{path}/b").delete()
        with pytest.raises(DataLossError, match="the stream does not exist any more"):
            read()


def test_a_closed_stream_that_was_created_again(server: Server, client: Client) -> None:
    """All data of the new stream is read."""
    path = f"planning/{next(_numbers)}"
    options = options_of(server, streams=path)
    place: Places = {}
    for messages in ([1, 2, 3], [4], [5, 6]):
        client.stream(path).create(messages=messages, closed=True)
        planner = Planner(options, client)
        end = planner.advance(place, planner.tails(), limited=True)
        read = [row["value"] for row in rows_of(options, client, planner.partitions(place, end))]
        assert read == list(map(str, messages))
        place = from_json(to_json(end))
        client.stream(path).delete()


def test_a_restart_without_a_named_stream(server: Server, client: Client) -> None:
    """Spark requests the schema at every start, so only a new query needs all its streams."""
    path = f"planning/{next(_numbers)}"
    client.stream(f"{path}/a").create(messages=[1])
    client.stream(f"{path}/b").create(messages=[2])
    texts = {"url": server.url, "streams": f"{path}/a,{path}/b", "failOnDataLoss": "false"}
    options = read_options(texts, bounded=False, state=False)
    planner = Planner(options, client)
    start = planner.advance({}, planner.tails(), limited=True)
    client.stream(f"{path}/b").delete()
    for kind in (DurableStreamsFormat, StreamStateFormat):
        for lossy in (texts, {**texts, "failOnDataLoss": "true"}):
            assert "`value` STRING" in kind(lossy).schema()
    again = StreamReader(options, VALUES)
    end = again.latestOffset(to_json(start), ReadAllAvailable())
    assert list(end) == [f"{path}/a"]
    assert again.initialOffset() == {f"{path}/a": client.stream(f"{path}/a").head().first_offset}
    strict = StreamReader(options_of(server, streams=f"{path}/a,{path}/b"), VALUES)
    with pytest.raises(StreamNotFoundError, match=f"no stream at {path}/b"):
        strict.initialOffset()
    strict.stop()
    client.stream(f"{path}/b").create(messages=[3])
    after = again.latestOffset(end, ReadAllAvailable())
    again.stop()
    rows = rows_of(options, client, planner.partitions(from_json(end), from_json(after)))
    assert [row["value"] for row in rows] == ["3"]


@pytest.mark.parametrize("extended", [True, False])
@pytest.mark.parametrize("parts", ["1", "4"])
def test_text_that_was_appended_in_pieces_of_characters(
    server: Server, client: Client, reader: Client, parts: str, extended: bool
) -> None:
    """A range may end inside a character, which belongs to the range in which it starts."""
    path = f"planning/{next(_numbers)}"
    stream = client.stream(path)
    stream.create(content_type="text/plain")
    options = options_of(server, streams=path, minPartitions=parts)
    text = "aé𝄞€".encode() * 3
    planner = Planner(options, reader)
    place: Places = {path: StreamPlace()}
    inside = {at for at in range(len(text)) if not _is_text(text[: at + 1])}
    read = ""
    for start in range(len(text)):
        stream.append(text[start : start + 1])
        end = planner.advance(place, planner.tails(), limited=True)
        ranges = planner.partitions(place, end)
        if start in inside:
            with pytest.raises(MessageError, match="the rest of it has not been appended yet"):
                rows_of(options, reader, ranges)
        else:
            read += "".join(str(row["value"]) for row in rows_of(options, reader, ranges))
            place = end
    assert read.encode() == text


def _is_text(data: bytes) -> bool:
    return data.decode(errors="ignore").encode() == data


def test_a_batch_that_failed_inside_a_character_succeeds_when_the_rest_is_appended(
    server: Server, client: Client
) -> None:
    path = f"planning/{next(_numbers)}"
    stream = client.stream(path)
    stream.create(content_type="text/plain", messages=[b"a\xf0\x9d"])
    options = options_of(server, streams=path)
    planner = Planner(options, client)
    end = planner.advance({}, planner.tails(), limited=True)
    with pytest.raises(MessageError, match="inside a character"):
        rows_of(options, client, planner.partitions({}, end))
    stream.append(b"\x84")
    stream.append(b"\x9eb")
    replayed = rows_of(options, client, planner.partitions({}, end))
    assert "".join(str(row["value"]) for row in replayed) == "a𝄞"
    rest = planner.advance(end, planner.tails(), limited=True)
    assert [(row["position"], row["value"]) for row in rows_of(options, client, planner.partitions(end, rest))] == [
        (2, "b")
    ]


def test_patterns_match_no_snapshots_and_internal_streams(server: Server, client: Client) -> None:
    path = f"planning/{next(_numbers)}"
    for name in ("a", "a.snapshots/1", "b/c", "b/c.snapshots/2"):
        client.stream(f"{path}/{name}").create()
    client.stream(f"_spark/{path}/list").create()

    def matches(pattern: str) -> list[str]:
        planner = Planner(options_of(server, pattern=pattern), client)
        return [one.removeprefix(f"{path}/") for one in planner.tails() if path in one]

    assert matches(f"{path}/**") == ["a", "b/c"]
    assert matches("**") == ["a", "b/c"]
    assert matches(f"{path}/**.snapshots/*") == ["a.snapshots/1", "b/c.snapshots/2"]


# After a restore


class Restored:
    """A query that has read a stream, and a server that was restored to the state before the second message."""

    def __init__(self, **options: str) -> None:
        self._options = options
        self.servers = Restorable()

    @contextlib.contextmanager
    def planner(self) -> Iterator[tuple[Planner, Client, ReadOptions]]:
        with self.servers.serve() as server, Client(server.url) as client:
            options = read_options({"url": server.url, "streams": "s", **self._options}, bounded=False, state=False)
            yield Planner(options, client), client, options

    def lose(self, *lost: object, closed: bool = False) -> dict[str, StreamPlace]:
        """Read the stream to its end, and lose everything after the first message. Returns where the query stopped."""
        with self.planner() as (_, client, _):
            client.stream("s").create(messages=["kept"])
        self.servers.save()
        with self.planner() as (planner, client, _):
            for message in lost:
                client.stream("s").append(message)
            if closed:
                client.stream("s").close()
            start = planner.advance({}, planner.tails(), limited=True)
        self.servers.restore()
        return start


@pytest.mark.parametrize("grown", [0, 1, 9])
@pytest.mark.parametrize("closed", [True, False])
def test_a_query_that_read_lost_data_fails_after_a_restore(grown: int, closed: bool) -> None:
    query = Restored()
    start = query.lose("lost 1", "lost 2", closed=closed)
    with query.planner() as (planner, client, _):
        for number in range(grown):
            client.stream("s").append(f"new  {number}")
        with pytest.raises(DataLossError, match="unread data after"):
            planner.advance(start, planner.tails(), limited=True)


@pytest.mark.parametrize("limited", [True, False])
def test_a_query_that_read_only_restored_data_continues(limited: bool) -> None:
    query = Restored(maxRecordsPerTrigger="100") if limited else Restored()
    start = query.lose()
    with query.planner() as (planner, client, options):
        for number in range(3):
            client.stream("s").append(number)
        end = planner.advance(start, planner.tails(), limited=limited)
        rows = rows_of(options, client, planner.partitions(start, end))
        assert [row["value"] for row in rows] == ["0", "1", "2"]
        client.stream("s").append(3)
        again = planner.advance(end, planner.tails(), limited=limited)
        assert [row["value"] for row in rows_of(options, client, planner.partitions(end, again))] == ["3"]


def test_a_query_that_had_read_a_closed_stream_continues_if_only_the_close_was_lost() -> None:
    query = Restored()
    start = query.lose(closed=True)
    assert start["s"].ended
    with query.planner() as (planner, client, options):
        client.stream("s").append("new")
        end = planner.advance(start, planner.tails(), limited=True)
        assert [row["value"] for row in rows_of(options, client, planner.partitions(start, end))] == ['"new"']


@pytest.mark.parametrize("most", ["1", "2"])
def test_a_query_that_stopped_inside_a_lost_append_fails_after_a_restore(most: str) -> None:
    """Its offset is one of restored data, but the messages after it that it has read are lost."""
    query = Restored(maxRecordsPerTrigger=most)
    with query.planner() as (_, client, _):
        client.stream("s").create(messages=["kept"])
    query.servers.save()
    with query.planner() as (planner, client, _):
        client.stream("s").append_many(["lost 1", "lost 2", "lost 3"])
        start: dict[str, StreamPlace] = {}
        steps = []
        while not start or not start["s"].skip:
            end = planner.advance(start, planner.tails(), limited=True)
            steps.append((start, end))
            start = from_json(to_json(end))
    query.servers.restore()
    with query.planner() as (planner, client, options):
        client.stream("s").append_many([f"new {number}" for number in range(9)])
        with pytest.raises(DataLossError, match="unread data after"):
            planner.advance(start, planner.tails(), limited=True)
        with pytest.raises(DataLossError):  # the last batch again
            rows_of(options, client, planner.partitions(*steps[-1]))


def test_a_query_that_accepts_losses_reads_the_restored_stream_again() -> None:
    query = Restored(failOnDataLoss="false")
    start = query.lose("lost 1", "lost 2")
    with query.planner() as (planner, client, options):
        for number in range(9):
            client.stream("s").append(number)
        end = planner.advance(start, planner.tails(), limited=True)
        rows = rows_of(options, client, planner.partitions(start, end))
        assert [row["value"] for row in rows] == ['"kept"', *map(str, range(9))]
