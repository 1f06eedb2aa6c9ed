"""Tables with Delta features that the jobs do not know are refused, with the name of the feature."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from headwater.errors import UnsupportedTableError
from headwater.pipeline.lake import Lake, TableBatch
from tests.unit.pipeline.delta_logs import ROWS, add_features, delete_rows, table_at

READER = ["columnMapping", "deletionVectors", "typeWidening", "v2Checkpoint", "variantType", "somethingNew"]
WRITER = ["checkConstraints", "generatedColumns", "icebergCompatV2", "identityColumns", "rowTracking", "somethingNew"]


@pytest.mark.parametrize("feature", READER)
def test_a_table_with_an_unknown_reader_feature_is_refused(tmp_path: Path, feature: str) -> None:
    table = table_at(tmp_path / "t")
    Lake(str(table)).open()
    add_features(table, reader=[feature], writer=[])
    with pytest.raises(UnsupportedTableError, match=rf"cannot be read.*{feature}"):
        Lake(str(table)).open()
    Lake(str(table)).open(0)  # the version before the feature


def test_a_deletion_vector_is_refused_by_every_read(tmp_path: Path) -> None:
    table = table_at(tmp_path / "t")
    delete_rows(table, 1, 3)
    query = QueryBuilder().register("t", DeltaTable(table)).execute("SELECT key FROM t ORDER BY key")
    assert pa.table(query.read_all())["key"].to_pylist() == ["a", "c", "e"]  # the fixture is a valid table
    with pytest.raises(UnsupportedTableError, match="deletionVectors"):
        Lake(str(table)).open()


def test_column_mapping_of_an_old_protocol_is_refused(tmp_path: Path) -> None:
    table = table_at(tmp_path / "t")
    add_features(table, reader=[], writer=[], delta_columnMapping_mode="name")
    with pytest.raises(UnsupportedTableError, match="columnMapping"):
        Lake(str(table)).open()


@pytest.mark.parametrize("feature", WRITER)
def test_a_table_with_an_unknown_writer_feature_can_be_read_but_not_written(tmp_path: Path, feature: str) -> None:
    table = table_at(tmp_path / "t")
    lake = Lake(str(table))
    before = lake.open()
    add_features(table, reader=[], writer=[feature])
    assert lake.open().version() == before.version() + 1
    with pytest.raises(UnsupportedTableError, match=rf"cannot be written.*{feature}"):
        lake.create(ROWS.schema)
    with pytest.raises(UnsupportedTableError, match=feature):
        lake.commit(lake.open(), [lake.write(ROWS, {})], batch=TableBatch("job", 0, 0))


def test_features_that_are_known(tmp_path: Path) -> None:
    table = table_at(tmp_path / "t")
    add_features(table, reader=["timestampNtz"], writer=["appendOnly", "changeDataFeed", "invariants"])
    lake = Lake(str(table))
    lake.commit(lake.create(ROWS.schema), [lake.write(ROWS, {})], batch=TableBatch("job", 0, 0))
    assert lake.open().count() == 10


@pytest.mark.parametrize("line", ["{", '{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}'])
def test_a_log_that_is_damaged_is_not_taken_for_an_unknown_feature(tmp_path: Path, line: str) -> None:
    table = table_at(tmp_path / "t")
    (table / "_delta_log" / f"{0:020d}.json").write_text(line)
    with pytest.raises(DeltaError):
        Lake(str(table)).open()


def test_a_version_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(DeltaError):
        Lake(str(table_at(tmp_path / "t"))).open(7)
