"""What the jobs write on a disk is synced, and data files before the commit that names them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from headwater.client import Client
from headwater.pipeline.lake import Lake, TableBatch
from headwater.pipeline.upkeep import TableUpkeep
from tests.servers import Server
from tests.unit.pipeline.kills.stages import SCENES
from tests.unit.pipeline.kills.test_kills import result


class Syncs:
    """The files and directories that were synced since they changed last, and the commits of ready files."""

    def __init__(self) -> None:
        self._synced: dict[tuple[int, int], int] = {}  # by device and inode: when it had changed
        self.commits = 0
        self.too_early: list[str] = []

    def note(self, descriptor: int) -> None:
        state = os.fstat(descriptor)
        self._synced[(state.st_dev, state.st_ino)] = state.st_mtime_ns

    def is_synced(self, path: Path) -> bool:
        state = path.stat()
        return self._synced.get((state.st_dev, state.st_ino)) == state.st_mtime_ns

    def commit(self, table: Path, added: list[AddAction]) -> None:
        self.commits += 1
        for action in added:
            path = table / action.path
            places = [path, *(parent for parent in path.parents if parent == table or parent.is_relative_to(table))]
            self.too_early += [str(place) for place in places if not self.is_synced(place)]

    def missing(self, table: Path) -> list[Path]:
        """What a power loss could take from a table."""
        lake = Lake(str(table))
        log = table / "_delta_log"
        files = [Path(uri) for uri in lake.open().file_uris()]
        entries = [path for path in log.iterdir() if path.suffix in (".json", ".parquet") or path.name[0] == "_"]
        return [path for path in (*files, *(file.parent for file in files), *entries, log) if not self.is_synced(path)]


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    syncs = Syncs()
    sync, write = os.fsync, DeltaTable.create_write_transaction

    def note(descriptor: int) -> None:
        sync(descriptor)
        syncs.note(descriptor)

    def commit(table: DeltaTable, actions: list[Any], *args: Any, **kwargs: Any) -> None:
        place = Path(unquote(table.table_uri.removeprefix("file://")))
        syncs.commit(place, [action for action in actions if isinstance(action, AddAction)])
        write(table, actions, *args, **kwargs)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit)
    return syncs


MERGED = ("merge-scd1-order", "merge-scd2-sequence")
KINDS = ("buckets-scd1-order", "threads-scd2-sequence", "tasks-scd1-sequence", *MERGED)


@pytest.mark.parametrize("name", ["archive", *(f"materialize-{kind}" for kind in KINDS)])
def test_files_are_synced_before_their_commit(
    name: str, tmp_path: Path, server: Server, client: Client, syncs: Syncs
) -> None:
    result(SCENES[name], tmp_path, server, client)
    tables = [log.parent for log in tmp_path.rglob("_delta_log")]
    assert len(tables) > 1
    assert syncs.commits
    assert syncs.too_early == []
    assert {str(table): syncs.missing(table) for table in tables} == {str(table): [] for table in tables}


def test_compacted_files_and_checkpoints_are_synced(tmp_path: Path, syncs: Syncs) -> None:
    lake, rows = Lake(str(tmp_path / "t")), pa.table({"n": [1], "p q": ["a b"]})
    lake.create(rows.schema, ["p q"])
    for number in range(3):
        file = lake.write(rows.drop_columns(["p q"]), {"p q": "a b"})
        lake.commit(lake.open(), [file], batch=TableBatch("job", number, made_of=number))
    TableUpkeep(3, 1).after(2, [lake])
    assert len(lake.open().file_uris()) == 1
    assert list((tmp_path / "t" / "_delta_log").glob("*.checkpoint.parquet"))
    assert syncs.missing(tmp_path / "t") == []


def test_a_file_that_is_not_synced_is_noticed(tmp_path: Path, syncs: Syncs) -> None:
    lake, rows = Lake(str(tmp_path / "t")), pa.table({"n": [1]})
    lake.create(rows.schema)
    file = lake.write(rows, {})
    path = tmp_path / "t" / file.path
    copy = path.with_name("copy.parquet")
    copy.write_bytes(path.read_bytes())
    lake.commit(lake.open(), [msgspec.structs.replace(file, path=copy.name)], batch=TableBatch("job", 0, 0))
    assert syncs.too_early == [str(copy)]
    assert syncs.missing(tmp_path / "t") == [copy]
