"""Archive and replay restore streams byte for byte, even if jobs are killed."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bench.servers import Server
from pyspark.sql import SparkSession

from headwater.client import Client
from headwater.errors import BatchReusedError, DataLossError, JobConflictError, NetworkError, OptionError, ReplayError
from headwater.pipeline import archive, replay
from headwater.pipeline.archive import _Streams
from headwater.pipeline.lake import Lake
from headwater.pipeline.running import cause_of


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
    with pytest.raises(ReplayError, match="lacks its first 6 bytes"):
        back(to=f"second-{path}")
    with pytest.raises(OptionError, match=f"no stream that matches typo; it has {name}"):
        back(streams="typo")


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
