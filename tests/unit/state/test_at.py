"""A StreamDB with `at`: the state that the stream had at an offset or a time."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headwater.client import Stream
from headwater.errors import ClientError, InvalidOffsetError, OffsetGoneError
from headwater.state import Collection, define_state
from headwater.state.following import Following, settings_of
from headwater.state.following import database_of as database_for
from tests.shells import database_of

counters = Collection("counter", int)
STATE = define_state({"counters": counters})


def counted(stream: Stream, **options: Any) -> dict[str, int]:
    with database_of(stream, STATE, **options) as db:
        db.preload(60)
        return dict(db.table(counters))


def put(stream: Stream, key: str, value: int) -> str:
    return stream.append(counters.upsert(value, key=key)).offset


def last_time(stream: Stream) -> datetime:
    return [record.time for record in stream.records()][-1]


@pytest.mark.parametrize("snapshot", [False, True])
def test_the_state_at_every_offset(stream: Stream, snapshot: bool) -> None:
    offsets = [stream.head().tail_offset]
    states: list[dict[str, int]] = [{}]
    for n in range(6):
        offsets.append(put(stream, str(n % 4), n))
        states.append({**states[-1], str(n % 4): n})
        if snapshot and n == 2:
            with database_of(stream, STATE, at=offsets[-1]) as db:
                db.preload(60)
                db.publish_snapshot()
    assert [counted(stream, at=offset) for offset in offsets] == states
    assert counted(stream, at="-1") == {}
    if snapshot:
        with database_of(stream, STATE, at=offsets[4]) as db:
            assert db.preload(60).events == 1  # the rest is from the snapshot
            assert (db.offset, db.up_to_date) == (offsets[4], False)


def test_the_state_at_a_time(stream: Stream) -> None:
    put(stream, "a", 1)
    put(stream, "b", 2)
    second = last_time(stream)
    while last_time(stream) <= second:  # the server's clock, in milliseconds, is not that of the test
        put(stream, "b", 2)
    put(stream, "a", 3)
    last = last_time(stream)
    assert counted(stream, at=last) == {"a": 1, "b": 2}
    assert counted(stream, at=datetime(2001, 1, 1, tzinfo=UTC)) == {}
    assert counted(stream, at=datetime(2100, 1, 1, tzinfo=UTC)) == {"a": 3, "b": 2}


def test_it_does_not_change(stream: Stream) -> None:
    offset = put(stream, "a", 1)
    with database_of(stream, STATE, at=offset) as db:
        db.preload(60)
        put(stream, "a", 2)
        assert dict(db.table(counters)) == {"a": 1}
        with pytest.raises(ClientError, match="`at` an offset"), db.transaction():
            pass


def test_an_offset_that_the_stream_does_not_have_is_an_error(stream: Stream) -> None:
    offset = put(stream, "a", 1)
    part, _, number = offset.partition("_")
    with pytest.raises(InvalidOffsetError, match="not in this stream"):
        counted(stream, at=f"{part}_{int(number) + 100:016d}")
    stream.delete()
    stream.create()
    put(stream, "a", 1)
    with pytest.raises(OffsetGoneError):
        counted(stream, at=offset)


def test_a_server_that_ignores_until_cannot_hide_that_the_stream_is_shorter() -> None:
    following = Following(
        "http://server/s", STATE, settings_of(True, None, 1, True, None, "5"), database_for(STATE, "log", 9)
    )
    following.until = "5"
    following.begin(None)
    with pytest.raises(ClientError, match="no offset 5: it ends at -1"):
        following.reach()
    assert not following.ready


def test_what_does_not_go_together_is_refused(stream: Stream, tmp_path: Path) -> None:
    for options, message in (
        ({"at": "now"}, "live=False"),
        ({"at": datetime(2026, 1, 1)}, "time zone"),
        ({"at": "-1", "checkpoint": tmp_path / "state"}, "checkpoint"),
        ({"at": "-1", "live": "sse"}, "cannot be followed"),
    ):
        with pytest.raises(ValueError, match=message):
            database_of(stream, STATE, **options)
    with pytest.raises(TypeError, match="an offset or a datetime"):
        database_of(stream, STATE, at=7)
