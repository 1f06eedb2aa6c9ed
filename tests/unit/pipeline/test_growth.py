"""What batches leave on disk, as jobs estimate it."""

from __future__ import annotations

import logging

import pytest

from headwater import limits
from headwater.pipeline.growth import Growth, GrowthWatch, shown

SMALL = Growth(
    table_files=8, table_bytes=6_000_000, buckets=8, batch_files=8, batch_bytes=100_000, every_s=30, retain_hours=24
)


def test_a_table_that_stays_small_has_no_warning() -> None:
    assert SMALL.warnings("lake/t") == []


@pytest.mark.parametrize(
    ("growth", "figures"),
    [
        (
            Growth(
                table_files=64,
                table_bytes=6_000_000,
                buckets=64,
                batch_files=61,
                batch_bytes=5_500_000,
                every_s=3,
                retain_hours=168,
            ),
            [
                "a batch every 3 s writes 5.5 MB in 61 files: 158 GB in 1,756,800 files a day",
                "keeps about 1.11 TB in 12,297,600 files for 168 h",
            ],
        ),
        (
            Growth(
                table_files=8,
                table_bytes=6_000_000,
                buckets=8,
                batch_files=8,
                batch_bytes=5_500_000,
                every_s=30,
                retain_hours=None,
            ),
            ["keeps about 111 GB in 161,280 files after a week, and never deletes them"],
        ),
    ],
    ids=["many buckets and no interval", "kept for ever"],
)
def test_growth_beyond_the_bounds_is_told_with_figures(growth: Growth, figures: list[str]) -> None:
    (warning,) = growth.warnings("lake/t")
    assert warning.startswith("lake/t has 6 MB in ")
    assert all(figure in warning for figure in figures), warning


def test_buckets_that_are_too_large_are_told() -> None:
    growth = Growth(
        table_files=8, table_bytes=80_000_000_000, buckets=8, batch_files=0, batch_bytes=0, every_s=30, retain_hours=24
    )
    assert growth.warnings("t") == [
        "t has 80 GB in 8 buckets, 10 GB in each, which a task holds in memory; materialize into a new table with more "
        "buckets"
    ]


def test_the_first_batches_that_change_files_are_measured_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = GrowthWatch("t", buckets=8, every_s=1, retain_hours=24)
    with caplog.at_level(logging.WARNING, "headwater"):
        for number in range(2 * limits.PIPELINE_GROWTH_BATCHES):
            watch.note({f"{number}-{bucket}": 1_000_000 for bucket in range(8)})
            watch.note({f"{number}-{bucket}": 1_000_000 for bucket in range(8)})  # a batch without changes
            assert watch.is_done == (number >= limits.PIPELINE_GROWTH_BATCHES)
    (record,) = caplog.records
    assert "a batch every 1 s writes 8 MB in 8 files: 691 GB in 691,200 files a day" in record.message


def test_sizes_have_three_digits() -> None:
    assert [shown(size) for size in (12, 1_500, 123_456, 2_500_000_000, 3 * 10**15)] == [
        "12 bytes",
        "1.5 kB",
        "123 kB",
        "2.5 GB",
        "3,000 TB",
    ]
