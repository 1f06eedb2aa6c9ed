"""The location of checkpoints, and reading the checkpoint of a query without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from headwater.errors import OptionError
from headwater.pipeline.checkpoints import beside, has_begun, position_of, range_of
from headwater.pipeline.locations import local_path
from headwater.spark.positions import StreamPlace


def test_a_checkpoint_is_beside_its_table() -> None:
    assert beside("/data/orders/", "checkpoint") == "/data/orders.checkpoint"
    assert beside("s3://bucket/orders", "checkpoint", "/here") == "/here"
    assert beside("file:///data/orders", "checkpoint") == "file:///data/orders.checkpoint"
    with pytest.raises(OptionError, match="object store"):
        beside("s3://bucket/orders", "checkpoint")


@pytest.mark.parametrize("inside", ["/data/orders/_cp", "file:///data/orders/cp", "/data/x/../orders/cp"])
def test_a_checkpoint_inside_its_table_is_refused(inside: str) -> None:
    with pytest.raises(OptionError, match="inside the table"):
        beside("/data/orders", "checkpoint", inside)
    assert beside("/data/orders", "checkpoint", "/data/orders2/cp") == "/data/orders2/cp"


def test_a_checkpoint_that_is_the_table_is_refused() -> None:
    with pytest.raises(OptionError, match="is the table itself"):
        beside("/data/orders", "checkpoint", "/data/orders/")


def test_a_checkpoint_inside_a_table_at_a_url_is_refused() -> None:
    with pytest.raises(OptionError, match="inside the table"):
        beside("hdfs://a/orders/", "checkpoint", "hdfs://a/orders/cp")
    assert beside("hdfs://a/orders", "checkpoint", "hdfs://a/orders.cp") == "hdfs://a/orders.cp"


def test_paths_of_checkpoints() -> None:
    assert local_path("/a/b") == Path("/a/b")
    assert local_path("file:///a%20b") == Path("/a b")
    assert local_path("hdfs://a/b") is None


def test_the_position_of_a_query(tmp_path: Path) -> None:
    assert position_of(tmp_path) is None
    (tmp_path / "metadata").write_text(json.dumps({"id": "x"}))
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    assert not has_begun(str(tmp_path))
    position = position_of(tmp_path)
    assert position is not None
    assert (position.job_id, position.batch, position.ends, position.is_unfinished) == ("x", None, {}, False)
    for batch in (0, 9, 10):
        ends = json.dumps({"a": f"0000000000000001_{batch:016d}+2"})
        (tmp_path / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{ends}")
    (tmp_path / "offsets" / ".10.crc").write_text("")
    (tmp_path / "commits" / "9").write_text("v1\n{}")
    position = position_of(tmp_path)
    assert position is not None
    assert position.batch == 9
    assert position.ends == {"a": StreamPlace("0000000000000001_0000000000000009", 2)}
    assert position.is_unfinished
    assert has_begun(str(tmp_path))


def test_the_hash_of_a_batch(tmp_path: Path) -> None:
    def made_of(metadata: str, end: str) -> int:
        (tmp_path / "offsets" / "7").write_text(f'v1\n{metadata}\n{{"a":"{end}"}}')
        return range_of(Mock(), str(tmp_path), 7)

    (tmp_path / "offsets").mkdir()
    assert made_of("{}", "1_5") == made_of('{"batchTimestampMs":1}', "1_5") != made_of("{}", "1_6")
    assert 0 <= made_of("{}", "1_5") < 2**63
