"""Time spans and timestamps as options name them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from headwater.cli import failing
from headwater.cli.moments import parse_moment
from tests.command_line import invoke

NOW = datetime(2026, 11, 15, 20, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("30s", timedelta(seconds=30)),
        ("0s", timedelta()),
        ("15m", timedelta(minutes=15)),
        ("1h", timedelta(hours=1)),
        ("1.5h", timedelta(minutes=90)),
        ("2d", timedelta(days=2)),
    ],
)
def test_time_spans_are_counted_back_from_now(text: str, ago: timedelta) -> None:
    assert parse_moment(text, NOW) == NOW - ago


@pytest.mark.parametrize(
    "text",
    ["2026-11-15T19:30:00Z", "2026-11-15t19:30:00.000z", "2026-11-15T20:30:00+01:00", "2026-11-15T19:30:00.0000Z"],
)
def test_timestamps_have_a_time_zone(text: str) -> None:
    moment = parse_moment(text, NOW)
    assert moment == datetime(2026, 11, 15, 19, 30, tzinfo=UTC)
    assert moment.tzinfo is UTC


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected 30s"),
        ("1", "expected 30s"),
        ("h", "expected 30s"),
        ("-1h", "expected 30s"),
        ("1w", "expected 30s"),
        ("1h30m", "expected 30s"),
        ("yesterday", "expected 30s"),
        ("2026-11-15", "expected 30s"),
        ("٣h", "expected 30s"),
        ("2026-11-15T19:30:00", "needs a time zone"),
        ("2026-02-30T00:00:00Z", "no such moment"),
        ("2026-11-15T25:00:00Z", "no such moment"),
        ("0001-01-01T00:00:00+10:00", "too far"),
        ("9999999999d", "too far"),
        (f"{'9' * 400}d", "too far"),
    ],
)
def test_anything_else_is_refused_with_what_to_write(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        parse_moment(text, NOW)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--since", "soon"], "headwater: --since: expected 30s, 15m, 1h, 2d or a timestamp"),
        (["--since", "1h", "--offset", "-1"], "headwater: --offset and --since exclude each other"),
    ],
)
def test_a_wrong_call_is_one_line(arguments: list[str], message: str) -> None:
    ran = invoke(["read", "orders", *arguments])
    assert ran.exit_code == failing.WRONG_CALL
    [line] = ran.stderr.splitlines()
    assert line.startswith(message)
