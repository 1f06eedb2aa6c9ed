"""A schema that changed: what does not match it is counted, and if that is most of the state, it is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from headwater.client import Stream
from headwater.errors import SchemaMismatchError
from headwater.state import Collection, control_event, define_state
from tests.shells import database_of
from tests.waiting import wait_until


class Price(msgspec.Struct):
    id: str
    eur: float


class Stocked(msgspec.Struct):
    id: str
    eur: float
    qty: int


old = Collection("price", Price)
new = Collection("price", Stocked)
GROWN = define_state({"prices": new})
OLD = [old.insert(Price(str(n), n)) for n in range(10)]


def test_a_schema_that_nothing_matches_is_an_error(stream: Stream, tmp_path: Path) -> None:
    stream.append_many(OLD)
    for _ in range(2):  # no checkpoint is saved that would hide it from the second start
        with database_of(stream, GROWN, checkpoint=tmp_path / "state") as db:
            with pytest.raises(SchemaMismatchError, match=r"10 of 10 keys of 'prices'.*`qty`") as refused:
                db.preload(60)
            assert "docs/schemas.md" in "".join(refused.value.__notes__)
            with pytest.raises(SchemaMismatchError):
                db.await_txid("any", 1)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("policy", ["skip", "callback"])
def test_with_a_policy_it_is_counted(stream: Stream, policy: str) -> None:
    stream.append_many(OLD)
    letters: list[Any] = []
    with database_of(stream, GROWN, on_bad_event=letters.append if policy == "callback" else policy) as db:
        loaded = db.preload(60)
        assert (loaded.events, loaded.bad, loaded.rows, loaded.unfit) == (10, 10, {"prices": 0}, {"prices": 10})
    assert len(letters) == (10 if policy == "callback" else 0)


def test_less_than_most_is_counted_by_key_also_after_a_restart(stream: Stream, tmp_path: Path) -> None:
    stream.append_many(OLD)
    stream.append_many([new.upsert(Stocked(str(n), n, n)) for n in range(6)])  # replaces the old events
    for events, bad in ((16, 10), (0, 0)):  # the second time from the checkpoint
        with database_of(stream, GROWN, checkpoint=tmp_path / "state") as db:
            loaded = db.preload(60)
            assert (loaded.events, loaded.bad, loaded.rows, loaded.unfit) == (events, bad, {"prices": 6}, {"prices": 4})
            assert db.table(new).unfit == {"6", "7", "8", "9"}


def test_a_key_fits_again_once_its_newest_value_does(stream: Stream) -> None:
    stream.append(new.insert(Stocked("1", 1, 1)))
    with database_of(stream, GROWN) as db:
        assert db.preload(60).unfit == {"prices": 0}
        prices = db.table(new)
        stream.append_many([old.update(Price("1", 2)), old.insert(Price("2", 2)), old.insert(Price("3", 2))])
        wait_until(lambda: prices.unfit == {"1", "2", "3"})
        assert prices["1"].eur == 1  # the value before
        stream.append_many([new.upsert(Stocked("1", 3, 3)), old.delete("2")])
        wait_until(lambda: prices.unfit == {"3"})
        assert db.error is None
        stream.append(control_event("reset"))
        wait_until(lambda: prices.unfit == frozenset())


def test_a_stream_of_other_messages_is_an_error(stream: Stream) -> None:
    stream.append_many([{"some": "thing"}] * 3 + OLD[:2])
    with (
        database_of(stream, define_state({"prices": old})) as db,
        pytest.raises(SchemaMismatchError, match="3 of 5 messages are not state events"),
    ):
        db.preload(60)


def test_a_type_that_no_event_has_is_told(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    stream.append_many(OLD)
    with database_of(stream, define_state({"prices": Collection("prise", Price)})) as db:
        loaded = db.preload(60)
        assert (loaded.ignored, loaded.rows) == (10, {"prices": 0})
    assert "none of 10 events has a type of the state: prise" in caplog.text


def test_an_empty_stream_is_no_error(stream: Stream) -> None:
    with database_of(stream, GROWN) as db:
        assert db.preload(60).rows == {"prices": 0}
