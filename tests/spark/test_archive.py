"""Archive and replay restore streams byte for byte, even if jobs are killed."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bench.servers import Server
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from headwater.client import Client
from headwater.errors import (
    BatchReusedError,
    CheckpointMismatchError,
    DataLossError,
    IncompleteArchiveError,
    JobConflictError,
    NetworkError,
    OptionError,
    ReplayError,
    SchemaError,
)
from headwater.limits import Limits
from headwater.pipeline import archive, replay
from headwater.pipeline.archiving import _Streams
from headwater.pipeline.lake import Lake
from headwater.pipeline.running import cause_of
from tests.restores import Restorable
from tests.servers import serving


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "archive")


@pytest.fixture
def run(spark: SparkSession, server: Server, table: str, path: str) -> Callable[..., Any]:
    def run(**options: Any) -> Any:
        job = archive(spark, **{"url": server.url, "streams": f"{path}/**", "table": table, "once": True, **options})
        job.wait()
        return job.progress()

    return run


@pytest.fixture
def back(spark: SparkSession, server: Server, table: str) -> Callable[..., int]:
    def back(**options: Any) -> int:
        job = replay(spark, url=server.url, table=table, **options)
        job.wait()
        return job.progress().rows

    return back


def _whole(client: Client, path: str) -> tuple[str, bool, list[bytes] | bytes, list[int]]:
    """Content type, closure, messages or bytes, and for bytes the sizes of the appends."""
    stream = client.stream(path)
    info = stream.head()
    items = stream.read(type=bytes).all()
    if info.content_type == "application/json":
        return info.content_type, info.closed, items, []
    ends = [int(record.offset.partition("_")[2]) for record in stream.records()]
    return info.content_type, info.closed, b"".join(items), ends


def _fill(client: Client, path: str, seed: int) -> list[str]:
    """Streams of all kinds: JSON, text cut inside characters, bytes, empty ones, closed ones."""
    chance = random.Random(seed)
    json_ = client.stream(f"{path}/json")
    json_.create(messages=[{"n": n, "text": "ü\n\t" * chance.randrange(5)} for n in range(50)])
    json_.append(b'{"spaces" :  [1,  2.50, 1e3], "a":1, "a":2}')
    text = client.stream(f"{path}/text")
    text.create(content_type="text/plain; charset=utf-8")
    raw = ("grün €uro 😀 " * 20).encode()
    for start in range(0, len(raw), 7):
        text.append(raw[start : start + 7])
    data = client.stream(f"{path}/bytes/deep")
    data.create(content_type="application/octet-stream")
    for _ in range(30):
        data.append(chance.randbytes(chance.randrange(1, 3000)))
    client.stream(f"{path}/empty").create(content_type="text/csv")
    client.stream(f"{path}/empty-closed").create(closed=True)
    done = client.stream(f"{path}/closed")
    done.create(messages=[1, 2, 3])
    done.close()
    return [f"{path}/{name}" for name in ("json", "text", "bytes/deep", "empty", "empty-closed", "closed")]


def test_streams_come_back_byte_for_byte(
    client: Client, path: str, table: str, run: Callable[..., Any], back: Callable[..., int]
) -> None:
    paths = _fill(client, path, 1)
    run(max_bytes=20_000)
    for name in ("json", "text", "bytes/deep"):
        stream = client.stream(f"{path}/{name}")
        stream.append({"late": True} if name == "json" else "spät".encode())
    client.stream(f"{path}/empty").close()
    client.stream(f"{path}/json").close()
    run()
    assert back(to=f"copy-{path}") > 0
    for each in paths:
        assert _whole(client, f"copy-{path}/{each}") == _whole(client, each)
    assert back(to=f"copy-{path}") == 0
    assert back() == 0  # the streams themselves have all data
    rows = Lake(table).open().to_pyarrow_table().to_pylist()
    now = datetime.now(UTC)
    assert all((now - row["timestamp"]).total_seconds() < 3600 for row in rows)
    assert {row["date"] for row in rows} <= {row["timestamp"].date() for row in rows}


def test_a_stream_that_was_created_again_and_a_fork(
    client: Client, path: str, run: Callable[..., Any], back: Callable[..., int]
) -> None:
    again, emptied = client.stream(f"{path}/again"), client.stream(f"{path}/emptied")
    again.create(messages=["old"] * 20)
    emptied.create(messages=["old"])
    source = client.stream(f"{path}/source")
    source.create(messages=[1, 2])
    fork = source.fork(f"{path}/fork")
    source.append(3)
    fork.append("own")
    run()
    for stream in (again, emptied):
        stream.delete()
        stream.create()
    again.append("new")
    fork.append("more")
    run(fail_on_data_loss=False)
    back(to=f"copy-{path}")
    for name in ("again", "emptied", "source", "fork"):
        assert _whole(client, f"copy-{path}/{path}/{name}") == _whole(client, f"{path}/{name}")


def test_a_stream_that_was_created_again_and_not_archived_completely(
    client: Client, path: str, run: Callable[..., Any], back: Callable[..., int], tmp_path: Path
) -> None:
    name = f"{path}/a"
    stream = client.stream(name)
    stream.create(messages=[{"old": n} for n in range(3)])
    run(streams=name)
    stream.delete()
    text = client.stream(name)
    text.create(content_type="text/plain", messages=["unread"])
    with pytest.raises(DataLossError):
        run(streams=name)
    back(to=f"first-{path}")
    copied = client.stream(f"first-{path}/{name}")
    assert copied.read().all() == [{"old": n} for n in range(3)]
    begin = json.dumps({name: text.head().tail_offset})
    text.append("read")
    run(streams=name, checkpoint=str(tmp_path / "second"), starting_offsets=begin)
    with pytest.raises(IncompleteArchiveError, match="lacks its first 6 bytes"):
        back(to=f"second-{path}")
    assert list(client.list(f"second-{path}")) == []
    with pytest.raises(OptionError, match=f"no stream that matches typo; it has {name}"):
        back(streams="typo")


def test_an_archive_that_lacks_rows_is_replayed_only_on_request(
    client: Client, path: str, table: str, run: Callable[..., Any], back: Callable[..., int], tmp_path: Path
) -> None:
    """One of many streams lacks a row at the beginning, in the middle or at its closed end, or all of its rows."""
    paths = _fill(client, path, 3)
    run()
    whole = Lake(table).open().version()
    orders = {each: _orders(table, each) for each in paths}
    text, data, done = (f"{path}/{name}" for name in ("text", "bytes/deep", "closed"))
    for number, (each, which, message) in enumerate(
        (
            (text, [orders[text][0]], f"{text} lacks its first {orders[text][1]} bytes"),
            (data, [orders[data][3]], f"{data} lacks bytes {orders[data][3]} to {orders[data][4]}"),
            (f"{path}/json", orders[f"{path}/json"][10:12], f"{path}/json lacks bytes"),
            (done, orders[done][2:], f"{done} lacks bytes {orders[done][2]} to "),
            (done, orders[done], f"{done} lacks all rows"),
        )
    ):
        chosen = ", ".join(map(str, which))
        Lake(table).open().delete(f"stream = '{each}' and `order` in ({chosen})")
        to = f"partial-{number}-{path}"
        with pytest.raises(IncompleteArchiveError, match=message):
            back(to=to)
        assert list(client.list(to)) == []
        back(to=f"others-{number}-{path}", streams=f"{path}/empty*")
        back(to=to, allow_gaps=True)
        for one in paths:
            if one != each:
                assert _whole(client, f"{to}/{one}") == _whole(client, one)
        left = [row for row in Lake(table).open().to_pyarrow_table().to_pylist() if row["stream"] == each]
        content = client.stream(f"{to}/{each}").read(type=bytes).all()
        expected = [row["value"] for row in sorted(left, key=lambda row: row["order"])]
        assert b"".join(content) == b"".join(expected)
        Lake(table).open().restore(whole)
    back(to=f"copy-{path}")
    for each in paths:
        assert _whole(client, f"copy-{path}/{each}") == _whole(client, each)


def _orders(table: str, stream: str) -> list[int]:
    rows = Lake(table).open().to_pyarrow_table().to_pylist()
    return sorted(row["order"] for row in rows if row["stream"] == stream)


def test_an_archive_of_two_versions_of_a_stream(
    client: Client, path: str, table: str, run: Callable[..., Any], back: Callable[..., int]
) -> None:
    client.stream(f"{path}/a").create(messages=[1, 2, 3])
    run()
    rows = Lake(table).open().to_pyarrow_table()
    write_deltalake(table, rows, mode="append")  # as an archive with a new checkpoint does
    back(to=f"twice-{path}")
    assert client.stream(f"twice-{path}/{path}/a").read().all() == [1, 2, 3]
    other = rows.set_column(rows.schema.get_field_index("value"), "value", pa.array([b"1", b"9", b"3"]))
    write_deltalake(table, other, mode="append")
    for allow_gaps in (False, True):
        with pytest.raises(IncompleteArchiveError, match="two rows with different data at byte 2"):
            back(to=f"mixed-{path}", allow_gaps=allow_gaps)
    assert list(client.list(f"mixed-{path}")) == []


def test_a_table_that_does_not_belong_to_the_checkpoint(
    client: Client, path: str, table: str, run: Callable[..., Any], back: Callable[..., int], tmp_path: Path
) -> None:
    stream, saved = client.stream(f"{path}/a"), tmp_path / "saved"
    stream.create(messages=[1])
    run()
    shutil.copytree(table, saved / "0")
    shutil.copytree(f"{table}.streams", saved / "streams")
    stream.append(2)
    run()
    before = _files(tmp_path)

    def refused(message: str, **options: Any) -> None:
        stream.append("more")
        with pytest.raises(CheckpointMismatchError, match=message):
            run(**options)

    moved = tmp_path / "moved"
    shutil.move(table, moved)
    refused(f"{table} does not exist, but {table}.checkpoint is at batch 1")
    assert not Path(table).exists()
    shutil.copytree(saved / "0", table)
    refused("was set back: .* continues with batch 2, and its last one is batch 0")
    shutil.rmtree(table)
    shutil.move(moved, table)
    shutil.move(f"{table}.streams", moved)
    refused(f"{table}.streams, which belongs to {table}, does not exist")
    with pytest.raises(IncompleteArchiveError, match=f"lacks its table of streams, {table}.streams"):
        back(to=f"copy-{path}")
    Lake(f"{table}.streams").create(pa.schema([("stream", pa.string())]))
    refused(f"{table}.streams is not the table that belongs to {table}: it was replaced")
    shutil.rmtree(f"{table}.streams")
    shutil.move(moved, f"{table}.streams")
    other = str(tmp_path / "other")
    refused(f"{other} does not exist, but", table=other, checkpoint=f"{table}.checkpoint")
    run(table=other, checkpoint=f"{other}.checkpoint")
    refused(f"{other} is not the table of the checkpoint", table=other, checkpoint=f"{table}.checkpoint")
    shutil.rmtree(other)
    shutil.rmtree(f"{other}.checkpoint")
    refused(f"{other}.streams belongs to {other}, which does not exist", table=other)
    shutil.rmtree(f"{other}.streams")
    assert _files(tmp_path) == before
    run()
    back(to=f"copy-{path}")
    assert _whole(client, f"copy-{path}/{path}/a") == _whole(client, f"{path}/a")


def _files(directory: Path) -> set[str]:
    return {str(path) for path in directory.rglob("*") if path.is_file() and "checkpoint" not in str(path)}


def test_a_table_that_is_deleted_during_a_run(
    client: Client, path: str, table: str, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    client.stream(f"{path}/a").create(messages=list(range(9)))
    commit = Lake.commit

    def deleting(self: Lake, *args: Any, **named: Any) -> None:
        commit(self, *args, **named)
        shutil.rmtree(table)

    monkeypatch.setattr(Lake, "commit", deleting)
    with pytest.raises(CheckpointMismatchError, match="was deleted while the job was running"):
        run(max_records=5, compact_every=0)


def test_a_table_that_is_no_archive(client: Client, path: str, table: str, run: Callable[..., Any]) -> None:
    client.stream(f"{path}/a").create(messages=[1])
    write_deltalake(table, pa.table({"stream": ["x"]}))
    with pytest.raises(SchemaError, match="than a table of this job; use another table"):
        run()
    assert not Path(f"{table}.streams").exists()


@pytest.mark.parametrize("grown", [0, 1, 9])
def test_a_server_that_was_restored(spark: SparkSession, path: str, table: str, grown: int) -> None:
    """What the archive has that the server lost is told, however much the stream has grown since."""
    servers = Restorable()

    def run(url: str) -> None:
        archive(spark, url=url, streams="**", table=table, once=True).wait()

    with servers.serve() as server, Client(server.url) as client:
        for name in ("s", "t"):
            client.stream(name).create(messages=["kept"])
        run(server.url)
    servers.save()
    with servers.serve() as server, Client(server.url) as client:
        client.stream("s").append_many(["lost 1", "lost 2"])
        run(server.url)
    servers.restore()
    streams = Lake(f"{table}.streams").open().version()
    with servers.serve() as server, Client(server.url) as client:
        for number in range(grown):
            client.stream("s").append(f"new {number}")
            client.stream("t").append(f"new {number}")
        with pytest.raises(DataLossError, match="s: unread data after"):
            run(server.url)
        assert Lake(f"{table}.streams").open().version() == streams
        replay(spark, url=server.url, table=table, to="copy").wait()  # a record of what was lost
        assert client.stream("copy/s").read().all() == ["kept", "lost 1", "lost 2"]


def test_a_server_that_was_restored_to_what_is_archived(spark: SparkSession, path: str, table: str) -> None:
    servers = Restorable()
    for life in range(3):
        with servers.serve() as server, Client(server.url) as client:
            for name, kind in (("json", "application/json"), ("text", "text/plain")):
                stream = client.stream(name)
                if not life:
                    stream.create(content_type=kind)
                for number in range(3):
                    stream.append(f"{life} {number}")
            archive(spark, url=server.url, streams="**", table=table, once=True).wait()
            if life == 2:
                client.stream("json").close()
                archive(spark, url=server.url, streams="**", table=table, once=True).wait()
            servers.save()
            replay(spark, url=server.url, table=table, to=f"copy-{life}", streams="*").wait()
            for name in ("json", "text"):
                assert _whole(client, f"copy-{life}/{name}") == _whole(client, name)
            for info in list(client.list("copy")):
                client.stream(info.path).delete()
        servers.restore()


def test_another_server_at_the_same_address(
    spark: SparkSession, client: Client, path: str, server: Server, table: str
) -> None:
    """An empty one, and one with other streams of the same names, also empty ones."""
    client.stream(f"{path}/a").create(messages=[1, 2, 3])
    archive(spark, url=server.url, streams=f"{path}/**", table=table, once=True).wait()
    streams = Lake(f"{table}.streams").open().version()
    for messages in (None, [], [7], list(range(9))):
        with serving(Limits()) as other, Client(other.url) as at_other:
            if messages is not None:
                at_other.stream(f"{path}/a").create(messages=messages)
            with pytest.raises(DataLossError, match=f"{path}/a: unread data after"):
                archive(spark, url=other.url, streams=f"{path}/**", table=table, once=True).wait()
            assert Lake(f"{table}.streams").open().version() == streams
            replay(spark, url=other.url, table=table, to="copy").wait()
            assert at_other.stream(f"copy/{path}/a").read().all() == [1, 2, 3]


def test_a_commit_that_is_lost_or_repeated_changes_nothing(
    client: Client,
    path: str,
    run: Callable[..., Any],
    back: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver is killed before and after each commit of a batch, and the replay after some appends."""
    paths = _fill(client, path, 2)

    class KilledError(Exception):
        pass

    def dying(real: Callable[..., Any], at: int, *, after: bool) -> Callable[..., Any]:
        calls = iter(range(1000))

        def call(*args: Any, **named: Any) -> Any:
            dies = next(calls) == at
            if dies and not after:
                raise KilledError
            result = real(*args, **named)
            if dies:
                raise KilledError
            return result

        return call

    for owner, name, at in ((Lake, "commit", 0), (Lake, "commit", 1), (_Streams, "_merge", 1)):
        for after in (False, True):
            with monkeypatch.context() as patched:
                patched.setattr(owner, name, dying(getattr(owner, name), at, after=after))
                with contextlib.suppress(KilledError):
                    run(max_bytes=20_000)
            client.stream(f"{path}/json").append({"after": name, "at": at})
    run()
    back(to=f"copy-{path}")
    for each in paths:
        assert _whole(client, f"copy-{path}/{each}") == _whole(client, each)


def test_a_target_with_other_content_is_refused(
    client: Client, path: str, run: Callable[..., Any], back: Callable[..., int]
) -> None:
    client.stream(f"{path}/a").create(messages=[1, 2, 3])
    run()
    client.stream(f"other-{path}/{path}/a").create(messages=[1, 9])
    with pytest.raises(ReplayError, match=r"message 1"):
        back(to=f"other-{path}")
    client.stream(f"text-{path}/{path}/a").create(content_type="text/plain")
    with pytest.raises(ReplayError, match="text/plain"):
        back(to=f"text-{path}")


def test_a_batch_that_another_run_has_committed_is_an_error(
    client: Client, path: str, table: str, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    client.stream(f"{path}/a").create(messages=[1, 2, 3])
    commit = Lake.commit

    def twice(self: Lake, *args: Any, **named: Any) -> None:
        commit(self, Lake(self.uri).open(), *args[1:], **named)
        commit(self, *args, **named)

    monkeypatch.setattr(Lake, "commit", twice)
    with pytest.raises(JobConflictError, match="another run"):
        run()
    assert Lake(table).open().to_pyarrow_table().num_rows == 3


def test_a_checkpoint_that_was_set_back_is_an_error(
    client: Client, path: str, table: str, run: Callable[..., Any]
) -> None:
    stream = client.stream(f"{path}/a")
    stream.create(messages=[1])
    run()
    for name in ("offsets/0", "offsets/.0.crc", "commits/0", "commits/.0.crc"):
        Path(f"{table}.checkpoint", name).unlink()
    stream.append(2)
    with pytest.raises(BatchReusedError, match="set back"):
        run()


def test_small_files_are_merged(client: Client, path: str, table: str, run: Callable[..., Any]) -> None:
    client.stream(f"{path}/a").create(messages=list(range(300)))
    run(max_records=100, compact_every=3)
    assert len(Lake(table).open().file_uris()) == 1
    assert Lake(table).open().to_pyarrow_table().num_rows == 300


def test_an_archive_starts_at_a_time(client: Client, path: str, table: str, run: Callable[..., Any]) -> None:
    client.stream(f"{path}/a").create(messages=[1])
    assert run(starting_timestamp="2030-01-01").rows == 0
    client.stream(f"{path}/a").append(2)
    assert run(starting_timestamp="2030-01-01").rows == 1


def test_invalid_options(spark: SparkSession, server: Server, table: str, run: Callable[..., Any]) -> None:
    with pytest.raises(OptionError, match="checkpoint"):
        run(table="s3://bucket/archive")
    with pytest.raises(OptionError, match="retain_hours"):
        run(retain_hours=0)
    with pytest.raises(Exception, match="Connection refused") as raised:
        run(url="http://127.0.0.1:9")
    assert isinstance(cause_of(raised.value), NetworkError)
    with pytest.raises(OptionError, match="no archive"):
        replay(spark, url=server.url, table=table)
