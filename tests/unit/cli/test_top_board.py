"""What `headwater top` shows: rates of two looks, within the columns of the terminal."""

from __future__ import annotations

import msgspec
import pytest
from rich.cells import cell_len

from headwater.cli.top_board import Behind, BoardCounts, Busy, Commits, Look, Woken, lines, number, size

URL = "http://127.0.0.1:4437/v1/stream/"
BOUNDS = [0.001, 0.01, 0.1]


def look(at_ms: int, records: int = 0, counts: list[int] | None = None, **more: object) -> Look:
    seconds = BoardCounts(BOUNDS, counts or [0, 0, 0, 0])
    commits = Commits(records=records, batches=records // 2, bytes=records * 100, seconds=seconds)
    return Look(at_ms=at_ms, version="1", requests={"2xx": records, "5xx": records // 10}, commits=commits, **more)  # type: ignore[arg-type]


def shown(before: Look | None, now: Look, width: int = 80, height: int = 24) -> str:
    return "\n".join(lines(URL, before, now, width, height))


def test_rates_are_the_differences_of_two_looks() -> None:
    text = shown(look(1000, 100, [10, 0, 0, 0]), look(3000, 300, [10, 98, 2, 0]))
    assert "requests  110/s  4xx 0/s  5xx 10/s" in text
    assert "appends   100/s  10.0 kB/s  2.0 in a batch" in text
    assert "commit    p50 10 ms  p99 100 ms" in text


def test_subscriptions_show_their_lag_and_who_has_them() -> None:
    held = Woken("orders", "active", 3, 2500, "worker-7", 12_400)
    now = look(1000, subscriptions=[held, Woken("mail", "failed", 100_000)])
    rows = [line.split() for line in shown(look(0), now).splitlines()]
    assert ["SUBSCRIPTION", "STATE", "PENDING", "LAG", "LEASE"] in rows
    assert ["orders", "of", "worker-7", "active", "3", "2.5", "kB", "12", "s"] in rows
    assert ["mail", "failed", "100,000", "?", "-"] in rows
    assert "SUBSCRIPTION" not in shown(look(0), look(1000))


def test_the_first_look_has_no_rates() -> None:
    text = shown(None, look(1000, 100))
    assert "requests  -/s" in text
    assert "appends   -/s" in text


def test_a_server_that_was_started_again_has_no_rates_below_zero() -> None:
    text = shown(look(1000, 500, [9, 9, 9, 9]), look(2000, 10, [0, 1, 0, 0]))
    assert "requests  -/s" in text
    assert "p50 10 ms" in text


def test_a_value_beyond_all_bounds_is_told_as_more() -> None:
    assert "p50 more  p99 more" in shown(look(0), look(1000, 1, [0, 0, 0, 5]))


def test_what_is_behind_comes_before_streams_and_troubles_before_both() -> None:
    now = look(
        1000,
        full="no room",
        views=[Behind("v", "following", lag_bytes=5)],
        followers=[Behind("f", "retrying"), Behind("g", "following", lag_rows=7)],
        streams=[Busy("table", "prices", 2000, 10.0, 1.5, 2)],
    )
    text = shown(look(0), now)
    positions = [text.index(part) for part in ("! no room", "follower g", "view v", "follower f", "table prices")]
    assert positions == sorted(positions)
    assert "7 rows" in text
    assert "2.0 kB" in text


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_every_line_fits(width: int) -> None:
    hostile = "a[/x]\x1b[2J\x9b\n" + "長い" * 50
    streams = [Busy("stream", hostile, 10**15, 1e12, 1e9, 10**6)] * 50
    now = look(1000, streams=streams, views=[Behind(hostile, hostile, lag_bytes=10**12)], full=hostile)
    board = lines(URL, look(0), now, width, 24)
    assert len(board) == 24
    for line in board:
        assert cell_len(line) <= width
        assert line.isprintable()


def test_an_answer_with_more_than_is_known_is_taken() -> None:
    answer = msgspec.json.encode({"at_ms": 1, "new": {"a": 1}, "commits": {"new": 1}})
    assert msgspec.json.decode(answer, type=Look).at_ms == 1


def test_numbers_and_sizes() -> None:
    assert [number(value) for value in (0, 1.25, 9.96, 1234.5)] == ["0", "1.2", "10.0", "1,234"]
    assert [size(value) for value in (0, 999, 1000, 2.5e6, 1e9, 5e15)] == [
        *("0 B", "999 B", "1.0 kB", "2.5 MB", "1.0 GB"),
        "5000.0 TB",
    ]
