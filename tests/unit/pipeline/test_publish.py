"""What publish does without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.pipeline.lake import Lake
from headwater.pipeline.publish import STATE_FILE, Shape, Target, _Publishing, published_version


class _NoSpark:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"spark.{name}")


def test_a_version_without_other_files_is_published_without_spark(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "table"))
    table = lake.create(pa.schema([("id", pa.string()), ("name", pa.string())]))
    target = Target(url="http://127.0.0.1:9", type="thing", to="things")
    publishing = _Publishing(_NoSpark(), lake, target, Shape(["id"], None, None), tmp_path)  # type: ignore[arg-type]
    assert [step.rows for step in publishing.steps()] == [0]
    assert published_version(tmp_path) == 0
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    assert [step.rows for step in publishing.steps()] == [0]
    assert published_version(tmp_path) == 1
    assert list(publishing.steps()) == []
    assert (tmp_path / STATE_FILE).exists()


def test_each_step_begins_where_the_checkpoint_is(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "table"))
    table = lake.create(pa.schema([("id", pa.string()), ("name", pa.string())]))
    target = Target(url="http://127.0.0.1:9", type="thing", to="things")
    first, second = (
        _Publishing(_NoSpark(), Lake(lake.uri), target, Shape(["id"], None, None), tmp_path)  # type: ignore[arg-type]
        for _ in range(2)
    )
    assert len(list(first.steps())) == 1
    assert list(second.steps()) == []
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    assert len(list(second.steps())) == 1
    assert list(first.steps()) == []
