"""The number of buckets of new and of existing tables."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from headwater.pipeline.materialize.layout import Layout
from headwater.pipeline.materialize.settings import MaterializeSettings
from headwater.pipeline.materialize.tables import buckets_for, prepare, tables_at

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
