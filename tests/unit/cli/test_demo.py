"""What the demo shows, on terminals of some widths and as lines."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headwater.cli.demo import _board, _line
from headwater.demo.watching import Flow, Spark, SparkPhase, Status

LONG = '{"type":"order","key":"order-1","value":"\x1b[2J' + "x" * 300 + '"}'


def status(phase: SparkPhase) -> Status:
    has_begun = phase is not SparkPhase.STARTING
    spark = Spark(
        phase=phase,
        taken=Flow("taken", 1_000 if has_begun else 0, 90.0),
        lag_s=7.25,
        lag_events=500,
        version=3 if has_begun else None,
        versions_behind={"to-stream": 0, "to-table": 2} if has_begun else {},
        quarantined=12,
    )
    streams = [Flow(name, 375, 50.0, LONG) for name in ("shop/customers", "shop/orders")]
    return Status(
        seconds=12.0,
        fed=Flow("fed", 1_500, 200.0),
        late=1,
        repeated=2,
        bad=3,
        streams=streams,
        spark=spark,
        published=Flow("published/shop", 1_234_567, 80.0),
        table=Flow("shop", 700, 70.0),
    )


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_board_fits_and_shows_every_flow(width: int) -> None:
    text = io.StringIO()
    Console(file=text, width=width, highlight=False).print(_board(status(SparkPhase.CATCHING_UP)))
    lines = text.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    assert "\x1b" not in text.getvalue()
    for part in (
        "shop         shop/customers        375       50  {",
        "Delta table         1,000       90  Spark is catching up",
        "Delta table  published/shop  1,234,567       80  version 3",
        "2 versions behind",
    ):
        assert part in text.getvalue()


def test_a_lag_is_shown_before_spark_has_begun() -> None:
    assert _line(status(SparkPhase.STARTING)) == " 12.0 s  shop 1,500 (200/s)  Spark starting, 7.2 s behind"


def test_a_line_has_everything() -> None:
    line = _line(status(SparkPhase.FOLLOWING))
    assert "Spark following, 7.2 s behind  Delta 1,000 (90/s), version 3, 12 bad  published 1,234,567  STP" in line
    assert line.endswith("  STP 700, 2 versions behind")
