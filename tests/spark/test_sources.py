"""The sources, in batch reads and streaming queries."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from bench.servers import Server
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headwater.client import Client, Put, Remove
from headwater.spark import StreamLag, current_state, lag
from tests.edges import free_port
from tests.waiting import wait_for, wait_until

Read = Callable[..., DataFrame]


def first_of(rows: DataFrame) -> Row:
    [first] = rows.take(1)
    return first


def numbers(rows: DataFrame) -> list[int]:
    return [json.loads(row.value)["n"] for row in rows.orderBy("stream", "offset", "position").collect()]


def fill(client: Client, path: str, count: int, *, first: int = 0, appends: int = 10) -> None:
    stream = client.stream(path)
    stream.create()
    step = max(1, count // appends)
    for start in range(first, first + count, step):
        stream.append_many([{"n": n} for n in range(start, min(start + step, first + count))])


class Sunk:
    """A streaming query into memory, batch by batch."""

    def __init__(self, frame: DataFrame, checkpoint: str) -> None:
        self._frame = frame
        self._checkpoint = checkpoint
        self.batches: list[list[Any]] = []

    def start(self, **trigger: Any) -> StreamingQuery:
        def take(rows: DataFrame, _: int) -> None:
            ordered = rows.orderBy("stream", "offset", "position")
            self.batches.append([row.asDict() for row in ordered.collect()])

        writer = self._frame.writeStream.foreachBatch(take).option("checkpointLocation", self._checkpoint)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def run(self) -> list[list[int]]:
        """Read the existing data, and return the numbers in each batch that has rows."""
        before = len(self.batches)
        query = self.start(availableNow=True)
        assert query.awaitTermination(60)
        return [[json.loads(row["value"])["n"] for row in rows] for rows in self.batches[before:] if rows]


@pytest.fixture
def sunk(spark: SparkSession, server: Server, checkpoint: str) -> Callable[..., Sunk]:
    def sunk(kind: str = "durable-streams", **options: Any) -> Sunk:
        return Sunk(spark.readStream.format(kind).option("url", server.url).options(**options).load(), checkpoint)

    return sunk


# Batches


def test_a_batch_has_every_message_once_with_its_position(read: Read, client: Client, path: str) -> None:
    fill(client, path, 100)
    rows = read(streams=path)
    assert rows.columns == ["stream", "offset", "position", "order", "timestamp", "value", "content_type"]
    [record, *_] = client.stream(path).records()
    first = rows.orderBy("position").first()
    assert first is not None
    beginning = client.stream(path).splits(parts=1).offset
    assert (first.stream, first.offset, first.position, first.value) == (path, beginning, 0, '{"n":0}')
    assert first.content_type == "application/json"
    assert first.order == 0
    assert first.timestamp == record.time.replace(tzinfo=None)  # the session is in UTC
    assert numbers(rows) == list(range(100))


def test_a_row_is_found_again_by_its_offset_and_position(read: Read, client: Client, path: str) -> None:
    fill(client, path, 60)
    for row in read(streams=path, minPartitions=4).collect()[::17]:
        message = next(iter(client.stream(path).read(type=bytes, offset=row.offset, skip=row.position)))
        assert message.decode() == row.value


def test_one_stream_is_split_among_tasks(read: Read, client: Client, path: str) -> None:
    fill(client, path, 1000, appends=100)
    rows = read(streams=path, minPartitions=8)
    assert rows.rdd.getNumPartitions() == 8
    assert numbers(rows) == list(range(1000))
    assert read(streams=path, maxPartitionBytes=4000).rdd.getNumPartitions() == 3
    assert read(streams=path).rdd.getNumPartitions() == 1


def test_bounds(read: Read, client: Client, path: str) -> None:
    fill(client, path, 10)
    middle = client.stream(path).head().tail_offset
    fill(client, path, 10, first=10)
    assert numbers(read(streams=path, startingOffsets=json.dumps({path: middle}))) == list(range(10, 20))
    assert numbers(read(streams=path, endingOffsets=json.dumps({path: middle}))) == list(range(10))
    inside = json.dumps({path: f"{middle}+3"})
    assert numbers(read(streams=path, startingOffsets=inside)) == list(range(13, 20))
    assert numbers(read(streams=path, endingOffsets=inside, minPartitions=3)) == list(range(13))
    both = {"startingOffsets": json.dumps({path: f"{middle}+2"}), "endingOffsets": json.dumps({path: f"{middle}+5"})}
    assert numbers(read(streams=path, **both)) == [12, 13, 14]
    assert read(streams=path, startingOffsets="latest").count() == 0
    time = max(record.time for record in client.stream(path).records())
    since = numbers(read(streams=path, startingTimestamp=time.isoformat()))
    before = numbers(read(streams=path, endingTimestamp=int(time.timestamp() * 1000)))
    assert since
    assert before + since == list(range(20))


def test_several_streams_by_list_and_by_pattern(read: Read, client: Client, path: str) -> None:
    for name in ("a", "b", "deep/c"):
        fill(client, f"{path}/{name}", 5)
    both = read(streams=f"{path}/a, {path}/b")
    assert {row.stream for row in both.collect()} == {f"{path}/a", f"{path}/b"}
    assert both.count() == 10
    assert read(streams=json.dumps([f"{path}/a"])).count() == 5
    assert {row.stream for row in read(pattern=f"{path}/*").collect()} == {f"{path}/a", f"{path}/b"}
    assert read(pattern=f"{path}/**").count() == 15
    assert read(pattern=f"{path}/[!a]").count() == 5
    assert read(pattern=f"{path}/nothing*").count() == 0


def test_a_condition_on_one_use_of_a_dataframe_does_not_affect_others(read: Read, client: Client, path: str) -> None:
    """Filter pushdown would apply to the reader that all uses of the DataFrame share."""
    event = {"key": "1", "value": {}, "headers": {"operation": "insert"}}
    messages = [{**event, "type": kind} for kind in "ab"]
    client.stream(path).create(messages=[*messages, {"headers": {"control": "reset"}}, messages[0]])
    events = read("stream-state", streams=path)
    assert events.where("type = 'a'").count() == 2
    assert events.count() == 4
    state = current_state(events)
    assert state.where("type = 'b'").count() == 0
    assert state.where(f"type = 'a' AND stream = '{path}'").count() == 1


def test_a_stream_s_own_url(spark: SparkSession, server: Server, client: Client, path: str) -> None:
    fill(client, path, 5)
    assert spark.read.format("durable-streams").option("url", client.stream(path).url).load().count() == 5


def test_a_schema_leaves_columns_out(read: Read, client: Client, path: str) -> None:
    fill(client, path, 5)
    assert first_of(read(streams=path, schema="value STRING")).asDict() == {"value": '{"n":0}'}
    assert first_of(read(streams=path, schema="value BINARY, position BIGINT")).value == b'{"n":0}'
    with pytest.raises(PySparkException, match="there is no column nothing; the columns are stream, offset"):
        read(streams=path, schema="nothing STRING").count()
    with pytest.raises(PySparkException, match="position cannot be string"):
        read(streams=path, schema="position STRING").count()


def test_text_of_every_kind(read: Read, client: Client, path: str) -> None:
    values: list[Any] = ["é", "𝄞\n\t", {"a": [1, {"b": "},{"}]}, None, 1.5, [], "\0"]
    client.stream(path).create(messages=values)
    assert [json.loads(row.value) for row in read(streams=path).orderBy("position").collect()] == values


def test_bytes_and_text(read: Read, client: Client, path: str) -> None:
    for name, content_type in (("bytes", "application/octet-stream"), ("text", "text/plain")):
        stream = client.stream(f"{path}/{name}")
        stream.create(content_type=content_type)
        for part in ("one é", "two", "three"):
            stream.append(part.encode())
    rows = read(streams=f"{path}/bytes")
    assert dict(rows.dtypes)["value"] == "binary"
    assert b"".join(row.value for row in rows.orderBy("position").collect()) == "one étwothree".encode()
    text = read(streams=f"{path}/text")
    assert dict(text.dtypes)["value"] == "string"
    assert "".join(row.value for row in text.orderBy("position").collect()) == "one étwothree"
    client.stream(f"{path}/text").append(b"\xc3")
    with pytest.raises(PySparkException, match=r"inside a character.*valueType"):
        read(streams=f"{path}/text").collect()
    assert read(streams=f"{path}/text", valueType="binary").count() == 1
    ending = json.dumps({f"{path}/bytes": "-1+7"})
    assert first_of(read(streams=f"{path}/bytes", endingOffsets=ending)).value == "one ét".encode()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "http://127.0.0.1:{free}"}, "No response"),
        ({"url": "127.0.0.1:4437"}, "url must be that of a server, such as"),
        ({"url": "http://me:secret@127.0.0.1:1"}, "use the option token"),
        ({"streams": "no/such/stream"}, "no stream at no/such/stream"),
        ({"streams": ""}, "set either streams"),
        ({"startingOffset": "latest"}, "did you mean startingOffsets"),
        ({"startingOffsets": "soon"}, "startingOffsets must be earliest or latest, or JSON"),
        ({"startingOffsets": '{"other": "-1"}'}, "names other, which the option streams does not name"),
        ({"startingOffsets": '{"PATH": "now"}'}, "a position must be earliest, latest"),
        ({"startingOffsets": '{"PATH": "0000000000000001_0000000000000009"}'}, "is not a position of"),
        ({"startingOffsets": '{"PATH": "latest"}', "endingOffsets": '{"PATH": "-1"}'}, "is before the start"),
        ({"streams": "http://127.0.0.1:1/a"}, "is not a valid path of a stream"),
        ({"minPartitions": "0"}, "minPartitions must be a number above 0"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false"),
    ],
)
def test_errors_name_the_mistake(read: Read, client: Client, path: str, options: dict[str, str], message: str) -> None:
    fill(client, path, 1)
    options = {name: value.replace("{free}", str(free_port())).replace("PATH", path) for name, value in options.items()}
    with pytest.raises(PySparkException) as caught:
        read(**{"streams": path, **options}).count()
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


# Streams


def test_limits_and_restarts(sunk: Callable[..., Sunk], client: Client, path: str) -> None:
    fill(client, path, 25, appends=5)
    query = sunk(streams=path, maxRecordsPerTrigger=10)
    batches = query.run()
    assert [len(batch) for batch in batches] == [10, 10, 5]
    fill(client, path, 3, first=25)
    assert query.run() == [[25, 26, 27]]
    assert query.run() == []
    assert [row["n"] for rows in query.batches for row in map(json.loads, (r["value"] for r in rows))] == list(
        range(28)
    )


def test_a_limit_inside_one_large_append(sunk: Callable[..., Sunk], client: Client, path: str) -> None:
    fill(client, path, 25, appends=1)
    assert [len(batch) for batch in sunk(streams=path, maxRecordsPerTrigger=10, minPartitions=3).run()] == [10, 10, 5]


def test_bytes_are_limited_at_record_boundaries(sunk: Callable[..., Sunk], client: Client, path: str) -> None:
    fill(client, path, 10, appends=10)  # of 8 bytes each
    assert [len(batch) for batch in sunk(streams=path, maxBytesPerTrigger=30).run()] == [3, 3, 3, 1]


def test_limits_are_shared_by_streams(sunk: Callable[..., Sunk], client: Client, path: str) -> None:
    counts = {"a": 100, "b": 5, "c": 100}
    for name in counts:
        client.stream(f"{path}/{name}").create()
    for n in range(100):  # at about the same time
        for name, count in counts.items():
            if n < count:
                client.stream(f"{path}/{name}").append({"n": n})
    query = sunk(pattern=f"{path}/*", maxRecordsPerTrigger=30)
    batches = query.run()
    assert [len(batch) for batch in batches[:-1]] == [30] * (len(batches) - 1)
    assert {row["stream"] for row in query.batches[0]} == {f"{path}/a", f"{path}/b", f"{path}/c"}
    for name, count in counts.items():
        rows = [row["value"] for rows in query.batches for row in rows if row["stream"] == f"{path}/{name}"]
        assert [json.loads(value)["n"] for value in rows] == list(range(count))


def test_new_streams_join_and_closed_ones_end(sunk: Callable[..., Sunk], client: Client, path: str) -> None:
    fill(client, f"{path}/a", 3)
    query = sunk(pattern=f"{path}/*", startingOffsets="latest")
    assert query.run() == []
    fill(client, f"{path}/b", 2)
    client.stream(f"{path}/b").close()
    fill(client, f"{path}/a", 1, first=3)
    assert query.run() == [[3, 0, 1]]
    assert query.run() == []


def test_a_running_query_follows(sunk: Callable[..., Sunk], client: Client, path: str) -> None:
    fill(client, path, 5)
    query = sunk(streams=path)
    running = query.start()
    try:
        wait_until(lambda: sum(map(len, query.batches)) == 5)
        fill(client, path, 1, first=5)
        wait_until(lambda: sum(map(len, query.batches)) == 6)
        tail = {path: client.stream(path).head().tail_offset}
        wait_until(lambda: json.loads(running.recentProgress[-1]["sources"][0]["latestOffset"]) == tail)
        assert lag(running) == lag(running, client) == [StreamLag(path, 0, 0)]
    finally:
        running.stop()


def test_an_idle_query_waits_instead_of_polling(sunk: Callable[..., Sunk], client: Client, path: str) -> None:
    fill(client, path, 5)
    client.stream(path).close()
    query = sunk(streams=path, longPollTimeout=1)
    running = query.start()
    try:
        wait_until(lambda: sum(map(len, query.batches)) == 5)
        before = len(running.recentProgress)
        time.sleep(2.5)  # an idle time, in which a query that polls makes hundreds; a slow machine makes fewer
        assert len(running.recentProgress) - before <= 5
    finally:
        running.stop()


# Deleted streams


def test_a_stream_that_was_created_again_fails_the_query(sunk: Callable[..., Sunk], client: Client, path: str) -> None:
    fill(client, path, 5)
    query = sunk(streams=path)
    query.run()
    client.stream(path).delete()
    fill(client, path, 9)
    with pytest.raises(PySparkException, match=f"{path}: unread data after .* is lost"):
        query.run()


def test_a_deleted_stream_fails_the_query(sunk: Callable[..., Sunk], client: Client, path: str) -> None:
    fill(client, path, 5)
    query = sunk(streams=path)
    query.run()
    client.stream(path).delete()
    with pytest.raises(PySparkException, match="the stream does not exist any more"):
        query.run()


@pytest.mark.parametrize("limit", [{}, {"maxRecordsPerTrigger": 4}])
def test_without_fail_on_data_loss_the_query_continues(
    sunk: Callable[..., Sunk], client: Client, path: str, limit: dict[str, int]
) -> None:
    fill(client, path, 5)
    query = sunk(streams=path, failOnDataLoss=False, **limit)
    query.run()
    client.stream(path).delete()
    assert query.run() == []
    fill(client, path, 9, appends=9)
    assert [n for batch in query.run() for n in batch] == list(range(9))


def test_a_restart_after_a_stream_that_ended_was_deleted(
    spark: SparkSession, server: Server, client: Client, path: str, checkpoint: str
) -> None:
    """The query is created again, as by a restarted program."""
    for name in "ab":
        fill(client, f"{path}/{name}", 3)
    client.stream(f"{path}/a").close()

    def run() -> list[list[int]]:
        streams = f"{path}/a,{path}/b"
        frame = spark.readStream.format("durable-streams").options(url=server.url, streams=streams).load()
        return Sunk(frame, checkpoint).run()

    assert run() == [[0, 1, 2, 0, 1, 2]]
    client.stream(f"{path}/a").delete()
    fill(client, f"{path}/b", 1, first=3)
    assert run() == [[3]]
    client.stream(f"{path}/b").delete()
    with pytest.raises(PySparkException, match="the stream does not exist any more"):
        run()


# State events


EVENTS: list[dict[str, Any]] = [
    {"type": "user", "key": "1", "value": {"name": "Ada", "age": 36}, "headers": {"operation": "insert", "txid": "t1"}},
    {
        "type": "user",
        "key": "1",
        "value": {"name": "Ada", "age": 37},
        "old_value": {"name": "Ada", "age": 36},
        "headers": {"operation": "update", "timestamp": "2026-01-01T00:00:00Z"},
    },
    {"type": "user", "key": "2", "value": {"name": "é"}, "headers": {"operation": "upsert", "txid": "7"}},
    {"headers": {"control": "reset", "offset": "x"}},
    {"type": "user", "key": "1", "headers": {"operation": "delete"}},
]


def test_state_events_are_decoded(read: Read, client: Client, path: str) -> None:
    client.stream(path).create()
    for event in EVENTS:
        client.stream(path).append(event)
    rows = [row.asDict() for row in read("stream-state", streams=path).orderBy("order").collect()]
    names = ("type", "key", "operation", "value", "old_value", "txid", "timestamp", "control", "control_offset")
    assert [[row[name] for name in names] for row in rows] == [
        ["user", "1", "insert", '{"name":"Ada","age":36}', None, "t1", None, None, None],
        [
            "user",
            "1",
            "update",
            '{"name":"Ada","age":37}',
            '{"name":"Ada","age":36}',
            None,
            "2026-01-01T00:00:00Z",
            *[None] * 2,
        ],
        ["user", "2", "upsert", '{"name":"é"}', None, "7", None, None, None],
        [None] * 7 + ["reset", "x"],
        ["user", "1", "delete", None, None, None, None, None, None],
    ]


def test_the_order_of_events_does_not_depend_on_the_ranges(read: Read, client: Client, path: str) -> None:
    stream = client.stream(path)
    stream.create()
    for start in range(0, 200, 5):
        stream.append_many(
            [
                {"type": "t", "key": str(n), "value": n, "headers": {"operation": "insert"}}
                for n in range(start, start + 5)
            ]
        )
    whole = {row.key: row.order for row in read("stream-state", streams=path).collect()}
    split = {row.key: row.order for row in read("stream-state", streams=path, minPartitions=7).collect()}
    assert split == whole
    assert sorted(whole, key=whole.__getitem__) == [str(n) for n in range(200)]
    assert len(set(whole.values())) == 200
    middle = first_of(read("stream-state", streams=path, startingOffsets=json.dumps({path: "-1+7"})).orderBy("order"))
    assert (middle.key, middle.order) == ("7", whole["7"])


def test_values_by_a_schema(read: Read, client: Client, path: str) -> None:
    client.stream(path).create(messages=EVENTS)
    rows = read("stream-state", streams=path, valueSchema="name STRING, age INT").orderBy("order").collect()
    assert [(row.value.name, row.value.age) if row.value else None for row in rows] == [
        ("Ada", 36),
        ("Ada", 37),
        ("é", None),
        None,
        None,
    ]
    frame = read("stream-state", "key STRING, value STRUCT<name STRING>", streams=path)
    assert first_of(frame.where("value.name = 'é'")).key == "2"
    with pytest.raises(PySparkException, match=r"message 0 after [0-9_]+: the value does not fit the schema.*age"):
        read("stream-state", streams=path, valueSchema="age BOOLEAN").collect()


def test_a_message_that_is_not_an_event(read: Read, client: Client, path: str) -> None:
    client.stream(path).create(messages=[*EVENTS, {"type": "user"}, EVENTS[0]])
    with pytest.raises(PySparkException, match=f"{path}, message 5 after [0-9_]+: not a state event: it has no"):
        read("stream-state", streams=path).collect()
    assert read("stream-state", streams=path, badEvents="skip").count() == 6
    client.stream(f"{path}/text").create(content_type="text/plain", messages=["x"])
    with pytest.raises(PySparkException, match="state events are JSON"):
        read("stream-state", streams=f"{path}/text").collect()


# Credentials


def test_the_token_is_not_shown(
    spark: SparkSession, server: Server, client: Client, path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(client, path, 1)
    options = {"url": server.url, "streams": path, "token": "s3cr3t-token", "header.X-Api-Key": "s3cr3t-key"}
    rows = spark.read.format("durable-streams").options(**options).load()
    for mode in ("extended", "codegen", "cost", "formatted"):
        rows.explain(mode)
    assert rows.count() == 1
    spark.sparkContext.setLogLevel("INFO")
    try:
        with pytest.raises(PySparkException) as caught:
            spark.read.format("durable-streams").options(**{**options, "streams": f"{path}/no"}).load().count()
        rows.count()
    finally:
        spark.sparkContext.setLogLevel("OFF")
    shown = "".join(capfd.readouterr()) + str(caught.value)
    assert "s3cr3t" not in shown


def test_sessions_find_the_formats_by_themselves(spark: SparkSession) -> None:
    import pyspark_headwater
    import pyspark_headwater_state
    import pyspark_headwater_stp

    modules = (pyspark_headwater, pyspark_headwater_state, pyspark_headwater_stp)
    assert {module.DefaultSource.name() for module in modules} == {"durable-streams", "stream-state", "stp"}
    fresh = spark.newSession()
    with pytest.raises(PySparkException, match="url is missing"):
        fresh.read.format("stream-state").load()


def test_a_table_is_read_as_state_events_through_a_view(read: Read, client: Client, path: str) -> None:
    table, stream = client.table(path), client.stream(f"{path}/events")
    table.create()
    table.append([Put("a", '{"n":[1.10]}'), Put("b", "2"), Remove("a")])
    stamp = table.rows().all()[0].timestamp
    stream.create(view_of=table.url, entity_type="price")
    wait_for(lambda: len(list(stream.read(live=False))), 3)
    rows = read("stream-state", streams=f"{path}/events").orderBy("order").collect()
    assert [(row.type, row.key, row.operation, row.value, row.timestamp) for row in rows] == [
        ("price", "a", "upsert", '{"n":[1.10]}', stamp),
        ("price", "b", "upsert", "2", stamp),
        ("price", "a", "delete", None, stamp),
    ]
