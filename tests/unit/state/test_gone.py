"""A StreamDB whose stream is trimmed, or replaced by a snapshot of its state: it has no rows that are left over."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headwater.client import Batch, Position, Stream
from headwater.errors import OffsetGoneError, OffsetTrimmedError
from headwater.protocol.state.events import control_event
from headwater.state import Collection, StateChange, define_state
from headwater.state.bootstrap import Start, encode_checkpoint
from headwater.state.following import EVENTS, Following, settings_of
from headwater.state.following import database_of as database_for
from tests.shells import database_of
from tests.trimming import keep_last

users = Collection("user", dict, indexes=("team",))
STATE = define_state({"users": users})
OLD = {"1": {"id": "1", "team": "red"}, "2": {"id": "2", "team": "red"}, "3": {"id": "3", "team": "blue"}}


def compact(stream: Stream, rows: dict[str, Any]) -> None:
    """Replace the content of a stream by a snapshot, as compaction does."""
    events = [control_event("snapshot-start"), *[users.insert(row) for row in rows.values()]]
    stream.append_many([*events, control_event("snapshot-end")])
    keep_last(stream, len(rows) + 2)


def event(change: Any) -> Any:
    """An event as it is read, with its value as text."""
    return EVENTS.decode_array(b"[" + msgspec.json.encode(change) + b"]")[0]


def followed(**options: Any) -> Following:
    settings = settings_of(options["live"], None, 1.0, True, None)
    return Following("http://h/s", STATE, settings, database_for(STATE, "raise", 10))


def shown(db: Any) -> dict[str, Any]:
    return dict(db.table(users))


def test_a_checkpoint_whose_position_is_gone_leaves_no_rows_over(stream: Stream, tmp_path: Path) -> None:
    stream.append_many([users.insert(row) for row in OLD.values()])
    with database_of(stream, STATE, checkpoint=tmp_path / "state") as db:
        db.preload(60)
        assert shown(db) == OLD
    stream.append(users.delete("1"))
    rows = {"2": OLD["2"], "3": {"id": "3", "team": "green"}, "4": {"id": "4", "team": "red"}}
    compact(stream, rows)
    stream.append(users.insert({"id": "5", "team": "red"}))
    changes: list[StateChange[Any]] = []
    batches: list[list[StateChange[Any]]] = []
    with database_of(stream, STATE, checkpoint=tmp_path / "state") as db:
        db.on_batch(batches.append)
        db.on_change(changes.append)
        db.preload(60)
        assert shown(db) == {**rows, "5": {"id": "5", "team": "red"}}
        assert list(db.table(users).by(team="red")) == ["2", "4", "5"]
        position = db.position
    last = [(change.operation, change.key) for change in batches[-1]]
    assert last == [("delete", "1"), ("update", "3"), ("insert", "4"), ("insert", "5")]  # and not those that stay
    assert ("insert", "1") in [(change.operation, change.key) for change in changes]  # of the checkpoint
    with database_of(stream, STATE, checkpoint=tmp_path / "state") as db:
        assert db.preload(60).events == 0  # the checkpoint is of the new state
        assert (shown(db), db.position) == ({**rows, "5": {"id": "5", "team": "red"}}, position)


def test_a_live_state_that_is_behind_is_replaced_in_one_step() -> None:
    following = followed(live=True)
    table = following.database.tables["users"]
    steps: list[tuple[dict[str, Any], list[tuple[str, str]]]] = []
    following.begin(None)
    following.apply(Batch([event(users.insert(row)) for row in OLD.values()], Position("1"), up_to_date=True))
    query = table.query(team="red", order_by="id")
    following.database.on_batch(
        lambda changes: steps.append((table.rows(), [(change.operation, change.key) for change in changes]))
    )
    following.check_gone(OffsetTrimmedError())
    following.apply(Batch([], Position(), restarted=True))
    following.apply(Batch([control_event("snapshot-start"), event(users.insert(OLD["2"]))], Position("7")))
    assert (table.rows(), following.position, following.up_to_date) == (OLD, Position("1"), False)
    following.apply(Batch([], Position(), restarted=True))  # trimmed again meanwhile
    following.apply(Batch([control_event("snapshot-start"), event(users.insert(OLD["3"]))], Position("8")))
    following.apply(
        Batch([control_event("snapshot-end"), event(users.insert(OLD["1"]))], Position("9"), up_to_date=True)
    )
    assert steps == [({"1": OLD["1"], "3": OLD["3"]}, [("delete", "2")])]
    assert (list(query), following.position) == ([OLD["1"]], Position("9"))
    following.apply(Batch([event(users.delete("1"))], Position("10"), up_to_date=True))
    assert steps[1:] == [({"3": OLD["3"]}, [("delete", "1")])]


def test_a_state_that_was_up_to_date_ends_if_its_stream_was_created_again() -> None:
    """Unlike a trim: another program may have written something else to the path."""
    following = followed(live=True)
    following.begin(None)
    following.check_gone(OffsetGoneError())
    following.apply(Batch([event(users.insert(OLD["1"]))], Position("1"), up_to_date=True))
    with pytest.raises(OffsetGoneError):
        following.check_gone(OffsetGoneError())


def test_a_stream_that_is_trimmed_keeps_the_state_of_what_is_there(stream: Stream, tmp_path: Path) -> None:
    stream.append(users.insert(OLD["1"]))
    with database_of(stream, STATE, checkpoint=tmp_path / "state") as db:
        db.preload(60)
    stream.append(users.insert(OLD["2"]))
    stream.append(users.insert(OLD["3"]))
    keep_last(stream, 1)
    with database_of(stream, STATE, checkpoint=tmp_path / "state") as db:
        db.preload(60)
        assert shown(db) == {"3": OLD["3"]}


def test_a_checkpoint_of_a_stream_that_was_created_again_is_not_used(stream: Stream, tmp_path: Path) -> None:
    stream.append_many([users.insert(row) for row in OLD.values()])
    with database_of(stream, STATE, checkpoint=tmp_path / "state") as db:
        db.preload(60)
    stream.delete()
    stream.create(messages=[users.insert({"id": "9", "team": "red"})] * 40)
    with database_of(stream, STATE, checkpoint=tmp_path / "state") as db:
        db.preload(60)
        assert list(shown(db)) == ["9"]


def test_the_state_at_an_offset_that_was_trimmed_is_an_error_that_names_the_earliest(stream: Stream) -> None:
    offsets = [stream.append(users.insert(row)).offset for row in OLD.values()]
    times = [record.time for record in stream.records()]
    keep_last(stream, 1)
    with database_of(stream, STATE, at=offsets[0]) as db, pytest.raises(OffsetTrimmedError) as caught:
        db.preload(60)
    assert caught.value.first_offset == offsets[1]
    for before in (times[0], datetime(2020, 1, 1, tzinfo=UTC)):
        if before == times[2]:
            continue  # all three were stored in one millisecond
        with database_of(stream, STATE, at=before) as db, pytest.raises(OffsetTrimmedError) as caught:
            db.preload(60)
        assert caught.value.first_offset == offsets[1]
    with database_of(stream, STATE, at=offsets[2]) as db:
        db.preload(60)
        assert list(shown(db)) == ["3"]


def test_resets_and_bad_events_in_what_is_read_again(stream: Stream, tmp_path: Path) -> None:
    offset = stream.append_many([users.insert(row) for row in OLD.values()]).offset
    file = tmp_path / "state"
    stream.append_many([users.insert({"id": "7", "team": "red"}), {"not": "an event"}, control_event("reset")])
    stream.append_many([users.insert({"id": "8", "team": "red"}), {"type": "user", "key": "9", "headers": {}}])
    keep_last(stream, 5)
    file.write_bytes(encode_checkpoint(stream.url, STATE, Start(Position("0" * 16 + "_" + "0" * 16), {}, [])))
    with database_of(stream, STATE, checkpoint=file, on_bad_event="skip") as db:
        db.preload(60)
        assert list(shown(db)) == ["8"]
    assert offset
