"""The number of buckets of new and of existing tables."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from headwater.pipeline.materializing.layout import Layout
from headwater.pipeline.materializing.settings import MaterializeSettings
from headwater.pipeline.materializing.tables import buckets_for, prepare, tables_at

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("stream_bytes", "buckets"),
    [(0, 8), (256 * MIB, 8), (256 * MIB + 1, 16), (1024 * MIB, 32), (1025 * MIB, 64), (10**15, 1024)],
)
def test_a_new_table_has_buckets_by_the_size_of_its_streams(stream_bytes: int, buckets: int) -> None:
    assert buckets_for(stream_bytes) == buckets


def test_an_existing_table_keeps_its_number_of_buckets(tmp_path: Path) -> None:
    tables = tables_at(str(tmp_path / "t"))
    layout = Layout(pa.schema([("key", pa.string()), ("value", pa.string())]))
    created = MaterializeSettings(buckets=64)
    assert prepare(tables, created, layout) == created
    again = prepare(tables, MaterializeSettings(buckets=8, path="buckets"), layout)
    assert again == msgspec.structs.replace(created, path="buckets")


def test_a_job_that_was_killed_twice_before_its_table_existed(tmp_path: Path) -> None:
    """The second time its schema had more fields, which the table of kept events has since."""
    tables = tables_at(str(tmp_path / "t"))
    layout = Layout(pa.schema([("key", pa.string()), ("value", pa.string())]), sequence=pa.int64(), is_history=True)
    grown = msgspec.structs.replace(layout, payload=layout.payload.append(pa.field("extra", pa.int64())))
    settings = MaterializeSettings(buckets=8, scd=2)
    for one in (layout, grown):
        prepare(tables, settings, one)
        shutil.rmtree(tables.rows.uri)  # as if it had not been created
    assert tables.remembered.open().version() == 1
    assert prepare(tables, settings, grown) == settings
