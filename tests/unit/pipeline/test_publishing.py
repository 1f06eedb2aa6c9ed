"""The parts of `publish` that need no Spark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headwater.client import Client, Put
from headwater.errors import DataLossError, OptionError
from headwater.pipeline.lake import Lake
from headwater.pipeline.options import TargetOptions
from headwater.pipeline.publishing import STATE_FILE, Shape, _Publishing, published_version
from headwater.pipeline.targets import PublishTarget, TargetIdentity
from tests.restores import Restorable
from tests.servers import Server
from tests.trimming import keep_last
from tests.unit.pipeline.kills.stages import PublishedRows, PublishedRowsToTable

THINGS = PublishTarget(TargetOptions(url="http://127.0.0.1:9", type="thing", to="things"))


class _NoSpark:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"spark.{name}")


def test_a_version_without_other_files_is_published_without_spark(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "table"))
    table = lake.create(pa.schema([("id", pa.string()), ("name", pa.string())]))
    target = THINGS
    publishing = _Publishing(_NoSpark(), lake, target, Shape(["id"], None, None), tmp_path)  # type: ignore[arg-type]
    assert [step.rows for step in publishing.steps()] == [0]
    assert published_version(tmp_path) == 0
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    assert [step.rows for step in publishing.steps()] == [0]
    assert published_version(tmp_path) == 1
    assert list(publishing.steps()) == []
    assert (tmp_path / STATE_FILE).exists()


def test_each_step_starts_at_the_checkpoint(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "table"))
    table = lake.create(pa.schema([("id", pa.string()), ("name", pa.string())]))
    target = THINGS
    first, second = (
        _Publishing(_NoSpark(), Lake(lake.uri), target, Shape(["id"], None, None), tmp_path)  # type: ignore[arg-type]
        for _ in range(2)
    )
    assert len(list(first.steps())) == 1
    assert list(second.steps()) == []
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    assert len(list(second.steps())) == 1
    assert list(first.steps()) == []


class _Moments:
    """A table that was published, and its target."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lake = Lake(str(directory / "table"))
        self._table = self._lake.create(pa.schema([("id", pa.string()), ("name", pa.string())]))
        self._wanted = Shape(["id"], None, None)

    def change(self) -> None:
        self._table.alter.set_table_properties({"delta.appendOnly": "false"})

    def run(self, target: PublishTarget, shape: Shape | None = None, *, rows: int = 0) -> int:
        publishing = _Publishing(_NoSpark(), self._lake, target, shape or self._wanted, self._directory)  # type: ignore[arg-type]
        publishing._send = lambda *_: rows  # type: ignore[method-assign]
        return len(list(publishing.steps()))


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    moments, target = (
        _Moments(tmp_path),
        THINGS,
    )
    assert moments.run(target) == 1
    moments.change()
    others = {
        "keys": Shape(["name"], None, None),
        "columns": Shape(["id"], ["name"], None),
        "value_column": Shape(["id"], None, "name"),
    }
    for name, shape in others.items():
        with pytest.raises(OptionError, match=f"belongs to a job with {name} .*use another checkpoint"):
            moments.run(target, shape)
    with pytest.raises(OptionError, match="with type thing, not other"):
        moments.run(PublishTarget(TargetOptions(url=target.options.url, type="other", to="things")))
    assert moments.run(target) == 1


def test_a_checkpoint_of_an_earlier_version_is_accepted(tmp_path: Path) -> None:
    moments, target = (
        _Moments(tmp_path),
        THINGS,
    )
    moments.run(target)
    file = tmp_path / STATE_FILE
    saved = json.loads(file.read_text())
    del saved["settings"], saved["sent_to"]
    file.write_text(json.dumps(saved))
    moments.change()
    assert moments.run(target) == 1
    assert json.loads(file.read_text())["settings"]["keys"] == ["id"]


@pytest.mark.parametrize("is_table", [False, True])
def test_a_deleted_or_replaced_target_is_refused(server: Server, tmp_path: Path, *, is_table: bool) -> None:
    name = f"published-{is_table}".lower()
    moments = _Moments(tmp_path)
    target = (
        PublishTarget(TargetOptions(url=server.url, to_table=name))
        if is_table
        else PublishTarget(TargetOptions(url=f"{server.url}/", type="thing", to=f"/{name}"))
    )
    with Client(server.url) as client:
        there = client.table(name) if is_table else client.stream(name)
        there.create()
        assert moments.run(target, rows=1) == 1
        moments.change()
        assert moments.run(target, rows=1) == 1
        moved = msgspec.structs.replace(target.options, url=server.url.replace("127.0.0.1", "localhost"))
        assert moments.run(PublishTarget(moved)) == 0
        there.delete()
        with pytest.raises(DataLossError, match="does not exist any more; start with a new checkpoint"):
            moments.run(target)
        there.create()
        moments.change()
        with pytest.raises(DataLossError, match="deleted and created again"):
            moments.run(target)


def test_a_target_that_was_trimmed_is_the_same(server: Server) -> None:
    """Its first offset changes, also to that of a snapshot."""
    with Client(server.url) as client:
        stream = client.stream("publishing/trimmed")
        stream.create()
        stream.append(1)
        target = PublishTarget(TargetOptions(url=server.url, type="thing", to=stream.path))
        before, end = target.identity(), stream.append(2).offset
        stream.append(3)
        keep_last(stream, 1)
        assert before is not None
        assert not target.check_kept(before, end).is_other_than(before)
        keep_last(stream, 1)
        stream.append(4)
        keep_last(stream, 1)
        with pytest.raises(DataLossError, match="was trimmed"):
            target.check_kept(before, end)


def test_a_server_that_does_not_identify_targets() -> None:
    known, silent = TargetIdentity("1", "2026"), TargetIdentity(None, None)
    assert not silent.is_other_than(known)
    assert not silent.is_surely(silent)
    assert known.is_other_than(TargetIdentity("1", "2027"))
    assert known.is_other_than(TargetIdentity("2", None))


@pytest.mark.parametrize("is_table", [False, True])
@pytest.mark.parametrize("grown", [0, 1, 9])
def test_a_target_that_lost_published_rows_in_a_restore_is_refused(tmp_path: Path, is_table: bool, grown: int) -> None:
    servers, moments = Restorable(), _Moments(tmp_path)

    def append(url: str, count: int) -> None:
        with Client(url) as client:
            if is_table:
                client.table("t").append([Put(f"k{count}", f"{count} {n}") for n in range(count)])
            else:
                client.stream("t").append_many([f"{count} {n}" for n in range(count)])

    def target(url: str) -> PublishTarget:
        return (
            PublishTarget(TargetOptions(url=url, to_table="t"))
            if is_table
            else PublishTarget(TargetOptions(url=url, type="thing", to="t"))
        )

    with servers.serve() as server, Client(server.url) as client:
        (client.table("t") if is_table else client.stream("t")).create()
        append(server.url, 2)
        moments.run(target(server.url), rows=1)
        servers.save()
    servers.restore()
    with servers.serve() as server:  # nothing that was published is lost
        append(server.url, 3)
        moments.change()
        assert moments.run(target(server.url), rows=1) == 1
        moments.change()
        assert moments.run(target(server.url), rows=1) == 1
    servers.restore()
    with servers.serve() as server:
        if grown:
            append(server.url, grown)
        for _ in range(2):
            with pytest.raises(DataLossError, match="lacks rows that were published, after a restore"):
                moments.run(target(server.url), rows=1)
            moments.change()


LOSSES = {
    "deleted": "does not exist any more; start with a new checkpoint",
    "created again": "was deleted and created again",
    "restored": "lacks rows that were published, after a restore",
    "restored and grown": "lacks rows that were published, after a restore",
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", [PublishedRows, PublishedRowsToTable])
def test_a_query_whose_target_lost_published_rows_ends(tmp_path: Path, kind: type[PublishedRows], loss: str) -> None:
    servers = Restorable()
    with servers.serve() as server, Client(server.url) as client:
        scene = kind(tmp_path, server.url, client)
        target = client.table(scene.target["to_table"]) if scene.to_table else client.stream(scene.target["to"])
        target.create()
        servers.save()
        scene.begin(0)
        with scene.patched():
            scene.run(0)
        assert len(scene.texts()) == 2
        if loss in ("deleted", "created again"):
            target.delete()
        if loss == "created again":
            target.create()
    if loss.startswith("restored"):
        servers.restore()
    with servers.serve() as server, Client(server.url) as client:
        scene.url, scene.client = server.url, client
        if loss == "restored and grown":
            _grow(scene)
        has = None if loss == "deleted" else scene.texts()
        for _ in range(2):
            scene.begin(1)
            with scene.patched(), pytest.raises(DataLossError, match=LOSSES[loss]):
                scene.run(1)
        assert has is None or scene.texts() == has


def test_a_checkpoint_of_a_query_with_another_target_is_refused(server: Server, tmp_path: Path) -> None:
    with Client(server.url) as client:
        scene = PublishedRows(tmp_path, server.url, client)
        scene.begin(0)
        with scene.patched():
            scene.run(0)
            target = scene.target["to"]
            scene.prefix = "others"
            scene.begin(1)
            with pytest.raises(OptionError, match=f"belongs to the stream {target}; use another one"):
                scene.run(1)
        assert [stream.path for stream in client.list("others")] == []


def _grow(scene: PublishedRows) -> None:
    for key in "pqrs":
        if scene.to_table:
            scene.client.table(scene.target["to_table"]).append([Put(key, "1")])
        else:
            scene.client.stream(scene.target["to"]).append({"key": key, "value": 1})


def test_a_table_that_was_set_back_and_grew_again_is_refused(tmp_path: Path) -> None:
    moments, target = (
        _Moments(tmp_path),
        THINGS,
    )
    table, saved = tmp_path / "table", tmp_path / "saved"
    shutil.copytree(table, saved)
    rows = pa.table({"id": ["a"], "name": ["b"]})
    write_deltalake(table, rows, mode="append")
    moments.run(target)
    shutil.rmtree(table)
    with pytest.raises(DataLossError, match="table does not exist any more; restore it"):
        moments.run(target)
    shutil.copytree(saved, table)
    with pytest.raises(DataLossError, match=r"version 1 of .* which was published last, is not in its log"):
        moments.run(target)
    for _ in range(2):
        write_deltalake(table, rows, mode="append")
        with pytest.raises(DataLossError, match=r"version 1 of .* has other files than when it was published"):
            moments.run(target)
