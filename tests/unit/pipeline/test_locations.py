"""Tables and checkpoints inside one another are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.cli.pipeline.config import load_pipeline
from headwater.errors import OptionError
from headwater.pipeline.locations import check_apart, check_surroundings
from tests.unit.pipeline.delta_logs import table_at


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        ("/lake/raw/orders", "/lake/raw"),
        ("/lake/raw/orders", "/lake/raw/"),
        ("file:///lake/raw/orders", "/lake/raw"),
        ("/lake/x/../raw/orders", "/lake/raw"),
        ("s3://bucket/raw/orders", "s3://bucket/raw/"),
        ("S3://bucket//raw/orders", "s3://bucket/raw"),
    ],
)
def test_a_location_inside_another_one(inner: str, outer: str) -> None:
    with pytest.raises(OptionError, match=r"the checkpoint, .*, is inside the table, "):
        check_apart({"the table": outer, "the checkpoint": inner})


def test_locations_beside_each_other(tmp_path: Path) -> None:
    check_apart({"a": "/lake/raw", "b": "/lake/raw.streams", "c": "/lake/rawer", "d": "s3://lake/raw/orders"})
    check_surroundings(str(table_at(tmp_path / "one")))
    check_surroundings(str(tmp_path / "two"))


def test_a_link_into_another_table(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "raw")
    with pytest.raises(OptionError, match="is inside"):
        check_apart({"a": str(tmp_path / "raw"), "b": str(tmp_path / "link" / "orders")})


def test_a_table_inside_an_existing_table(tmp_path: Path) -> None:
    table_at(tmp_path / "raw")
    with pytest.raises(OptionError, match=r"is inside the Delta table .*raw, whose vacuum would delete it"):
        check_surroundings(str(tmp_path / "raw" / "by-type" / "orders"))


def test_a_table_that_contains_an_existing_table(tmp_path: Path) -> None:
    table_at(tmp_path / "raw" / "by-type" / "orders")
    with pytest.raises(OptionError, match=r"contains the Delta table .*orders"):
        check_surroundings(str(tmp_path / "raw"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('job = "archive"\nstreams = "a"\ntable = "lake"', 'job = "materialize"\nstreams = "a"\ntable = "lake/a"'),
        ('job = "archive"\nstreams = "a"\ntable = "lake"', 'job = "publish"\nto = "b"\nkeys = "k"\ntable = "lake/b"'),
        (
            'job = "archive"\nstreams = "a"\ntable = "x"\ncheckpoint = "lake.quarantine/c"',
            'job = "materialize"\nstreams = "a"\ntable = "lake"',
        ),
    ],
)
def test_jobs_of_a_file(tmp_path: Path, first: str, second: str) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(f"[jobs.one]\n{first}\n[jobs.two]\n{second}\n")
    with pytest.raises(OptionError, match=r"of \[jobs\.(one|two)\], .* is inside the .* of \[jobs\.(one|two)\]"):
        load_pipeline(file)
