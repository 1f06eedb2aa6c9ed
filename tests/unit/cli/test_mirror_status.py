"""The lines about a mirror: when they are printed, and what they say."""

from __future__ import annotations

import pytest

from headwater.cli.mirror_status import MirrorStatus
from headwater.client import Mirrored, Report
from headwater.errors import NetworkError


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_line_for_each_state_and_every_ten_seconds_while_rows_come(
    capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    status = MirrorStatus("copy", as_json=False, clock=clock)
    for number in range(1, 41):
        clock.now_s += 0.5
        status.stored(Mirrored(10, 10 * number, 1_000))
    assert capsys.readouterr().out.splitlines() == [
        "copy: catching up, row 10, 10 new at 10 rows/s, 990 behind",
        "copy: catching up, row 210, 210 new at 22 rows/s, 790 behind",
    ]
    status.stored(Mirrored(600, 1_000, 1_000))
    for _ in range(40):
        clock.now_s += 0.5
        status.stored(Mirrored(0, 1_000, 1_000))  # nothing new: nothing to say
    assert capsys.readouterr().out == "copy: up to date, row 1,000, 1,000 new at 142 rows/s, 0 behind\n"
    assert status.text() == "copy: up to date, row 1,000, 1,000 new at 0 rows/s, 0 behind"


def test_a_failure_is_told_and_a_source_may_not_say_where_it_ends(
    capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    status = MirrorStatus("copy", as_json=False, clock=clock)
    for _ in range(2):
        status.retrying(Report(NetworkError("connection refused"), 1, 0.25))
    status.stored(Mirrored(1, 7))
    status.closed()
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "copy: retrying",
        "copy: following, row 7, 1 new at 1 rows/s",
        "copy: closed, row 7, 1 new at 1 rows/s",
    ]
    assert said.err.count("connection refused; trying again in 0.2 s\n") == 2
