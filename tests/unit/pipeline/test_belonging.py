"""A job does not continue in a table that lacks what its checkpoint has passed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import Field
from deltalake.schema import PrimitiveType

from headwater.errors import CheckpointMismatchError
from headwater.pipeline.belonging import TableGroup
from headwater.pipeline.checkpoints import hash_of_range
from headwater.pipeline.lake import Lake, TableBatch

SCHEMA = pa.schema([("a", pa.string())])
JOB = "5c3a"


class Scene:
    """A table, a table beside it, and a checkpoint as Spark writes it."""

    def __init__(self, directory: Path) -> None:
        self.table, self.beside = Lake(str(directory / "t")), Lake(str(directory / "t.streams"))
        self.checkpoint = directory / "t.checkpoint"
        self.group = TableGroup(self.table, {"streams": self.beside}, str(self.checkpoint))

    def create(self) -> None:
        self.group.check()
        self.beside.create(SCHEMA)
        self.table.create(SCHEMA, configuration=self.group.properties())

    def run(self, number: int, *, is_done: bool = True, place: str = "7_5") -> None:
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text(f'{{"id": "{JOB}"}}')
        offsets = self.checkpoint / "offsets" / str(number)
        offsets.write_text(f'v1\n{{"batchTimestampMs": {number}}}\n{{"s": "{place}"}}')
        made_of = hash_of_range(self.checkpoint, number)
        assert made_of is not None
        table = self.table.open()
        self.group.check_before(table, TableBatch(JOB, number, made_of), hash_of_range(self.checkpoint, number - 1))
        self.table.commit(table, [], batch=TableBatch(JOB, number, made_of))
        if is_done:
            (self.checkpoint / "commits" / str(number)).write_text("v1\n{}")

    def refused(self, message: str) -> None:
        with pytest.raises(CheckpointMismatchError, match=message) as raised:
            self.group.check()
        for place in (self.table.uri, self.beside.uri, str(self.checkpoint)):
            assert place in str(raised.value)  # what to delete to start over


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path)
    scene.create()
    return scene


def test_the_tables_of_a_checkpoint(scene: Scene) -> None:
    for number in range(3):
        scene.group.check()
        scene.run(number, is_done=False)
        scene.group.check()
        scene.run(number)
        scene.group.check()


def test_a_table_that_was_deleted(scene: Scene) -> None:
    scene.run(0)
    shutil.rmtree(scene.table.uri)
    scene.refused(r"t does not exist, but .*t.checkpoint is at batch 0")
    shutil.rmtree(scene.checkpoint)
    scene.group.check()  # the table beside it is still empty
    scene.beside.commit(scene.beside.open(), [], batch=TableBatch(JOB, 0, 1))
    scene.refused(r"t.streams belongs to .*t, which does not exist")


def test_a_table_beside_it_that_grew_before_the_table_existed(tmp_path: Path) -> None:
    """The job was killed as it started, and again after it added a column, before it created the table."""
    scene = Scene(tmp_path)
    table = scene.beside.create(SCHEMA)
    table.alter.add_columns([Field("b", PrimitiveType("long"))])
    assert table.version() == 1
    scene.group.check()
    for number in range(12):
        table = scene.beside.open()
        table.alter.add_columns([Field(f"c{number}", PrimitiveType("long"))])
    table.create_checkpoint()
    scene.group.check()
    (tmp_path / "t.streams" / "_delta_log" / f"{0:020}.json").unlink()  # the log does not have all of it any more
    scene.refused(r"t.streams belongs to .*t, which does not exist")


def test_a_table_that_was_created_again(scene: Scene) -> None:
    scene.run(0)
    shutil.rmtree(scene.table.uri)
    scene.table.create(SCHEMA, configuration=scene.group.properties())
    scene.refused("is not the table of the checkpoint: .* continues with batch 1, and it has none of them")


def test_a_table_that_was_set_back(scene: Scene, tmp_path: Path) -> None:
    scene.run(0)
    shutil.copytree(scene.table.uri, tmp_path / "saved")
    scene.run(1)
    scene.run(2)
    shutil.rmtree(scene.table.uri)
    shutil.copytree(tmp_path / "saved", scene.table.uri)
    scene.refused("was set back: .* continues with batch 3, and its last one is batch 0")


def test_a_table_and_a_checkpoint_of_two_copies(scene: Scene, tmp_path: Path) -> None:
    """Both were copied, and both copies of the job went on with other data."""
    scene.run(0)
    shutil.copytree(scene.table.uri, tmp_path / "copy")
    scene.run(1, place="7_100")
    other = Scene(tmp_path)
    other.table = Lake(str(tmp_path / "copy"))
    other.group = TableGroup(other.table, {"streams": other.beside}, str(other.checkpoint))
    other.refused("copy was set back")
    other.run(1, place="7_200")  # the checkpoint has this one now
    other.group.check()
    scene.refused("t has other rows in batch 1 than the checkpoint")


def test_a_table_beside_it_that_is_missing_or_another_one(scene: Scene, tmp_path: Path) -> None:
    scene.run(0)
    shutil.move(scene.beside.uri, tmp_path / "moved")
    scene.refused(r"t.streams, which belongs to .*t, does not exist")
    scene.beside.create(SCHEMA)
    scene.refused(r"t.streams is not the table that belongs to .*t: it was replaced")


def test_a_table_of_an_earlier_version_does_not_name_those_beside_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.table.create(SCHEMA)
    scene.refused("does not exist")
    scene.beside.create(SCHEMA)
    scene.group.check()


def test_all_of_them_can_be_moved_together(scene: Scene, tmp_path: Path) -> None:
    scene.run(0)
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    for name in ("t", "t.streams", "t.checkpoint"):
        shutil.move(tmp_path / name, directory / name)
    moved = Scene(directory)
    moved.group.check()
    moved.run(1)


def test_a_table_that_is_deleted_during_a_run(scene: Scene) -> None:
    shutil.rmtree(scene.table.uri)
    with pytest.raises(CheckpointMismatchError, match="t was deleted while the job was running"):
        scene.group.open()
