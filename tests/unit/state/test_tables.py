"""Tables, indexes, queries, watchers and optimistic changes, against recomputing everything."""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.state import Collection, EventDecoder, StateChange, define_state
from headwater.state.database import Database

RAW = EventDecoder(msgspec.Raw)


class Item(msgspec.Struct):
    id: str
    team: str
    score: int


def database(**options: Any) -> Database:
    items = Collection("item", Item, indexes=("team",))
    return Database(define_state({"items": items, "plain": Collection("plain", int)}), **{"txids_kept": 3, **options})


def apply(db: Database, *events: Any) -> None:
    db.apply(RAW.decode_array(msgspec.json.encode(events)))


def put(key: str, team: str = "a", score: int = 0, txid: str | None = None) -> dict[str, Any]:
    headers = {"operation": "upsert", **({"txid": txid} if txid else {})}
    return {"type": "item", "key": key, "value": {"id": key, "team": team, "score": score}, "headers": headers}


def drop(key: str) -> dict[str, Any]:
    return {"type": "item", "key": key, "headers": {"operation": "delete"}}


STEPS = st.lists(
    st.one_of(
        st.builds(put, st.sampled_from("abcd"), st.sampled_from("xyz"), st.integers(0, 3)),
        st.builds(drop, st.sampled_from("abcd")),
        st.just({"headers": {"control": "reset"}}),
        st.tuples(st.just("lay"), st.sampled_from("abcd"), st.sampled_from("xyz"), st.integers(0, 3)),
        st.tuples(st.just("gone"), st.sampled_from("abcd")),
        st.just("settle"),
    ),
    max_size=30,
)


@given(STEPS)
def test_indexes_queries_and_watchers_agree_with_the_table(steps: list[Any]) -> None:
    db = database()
    table = db.tables["items"]
    mirror: dict[str, Item] = {}

    def watch(change: StateChange[Item]) -> None:
        if change.operation == "reset":
            mirror.clear()
        elif change.operation == "delete":
            assert mirror.pop(change.key) == change.old_value
        else:
            assert mirror.get(change.key) == change.old_value
            assert change.value is not None
            mirror[change.key] = change.value

    table.on_change(watch)
    ordered = table.query(lambda item: item.score > 0, order_by="score", descending=True, limit=2)
    team = table.query(team="x")
    transactions: list[str] = []
    for step in steps:
        if step == "settle":
            if transactions:
                db.settle(transactions.pop(0))
        elif isinstance(step, tuple):
            transactions.append(f"t{len(transactions)}-{id(step)}")
            transaction = db.begin(transactions[-1])
            if step[0] == "lay":
                transaction["items"].upsert({"id": step[1], "team": step[2], "score": step[3]})
            else:
                transaction["items"].delete(step[1])
        else:
            apply(db, step)
        rows = dict(table)
        assert mirror == rows == table.rows()
        assert len(table) == len(rows)
        for name in "xyz":
            assert table.by(team=name) == {key: item for key, item in rows.items() if item.team == name}
        assert {item.id for item in team} == {key for key, item in rows.items() if item.team == "x"}
        expected = sorted((item for item in rows.values() if item.score > 0), key=lambda item: (-item.score, item.id))
        assert ordered.values() == expected[:2]
        assert ordered.count() == len(expected)
        assert ordered.first() == (expected[0] if expected else None)


def test_a_transaction_is_shown_at_once_and_gives_way_to_the_stream() -> None:
    db = database()
    table = db.tables["items"]
    changes: list[tuple[str, bool]] = []
    table.on_change(lambda change: changes.append((change.operation, change.optimistic)))
    transaction = db.begin("t1")
    transaction["items"].insert({"id": "1", "team": "a", "score": 1})
    assert table["1"].score == 1
    assert table.confirmed() == {}
    apply(db, put("1", "a", 1, txid="t1"))
    assert table.confirmed() == dict(table)
    assert changes == [("insert", True)]  # what came back is what was shown
    assert db.has_seen("t1")


def test_a_failed_transaction_is_rolled_back() -> None:
    db = database()
    apply(db, put("1", score=1))
    transaction = db.begin("t1")
    transaction["items"].update({"id": "1", "team": "a", "score": 2})
    transaction["items"].delete("1")
    transaction["items"].insert({"id": "2", "team": "a", "score": 2})
    assert list(db.tables["items"]) == ["2"]
    db.settle("t1")
    assert {key: item.score for key, item in db.tables["items"].items()} == {"1": 1}


def test_a_transaction_checks_what_it_is_given() -> None:
    transaction = database().begin("t")
    with pytest.raises(ValueError, match="item"):
        transaction["items"].insert({"id": "1"})
    with pytest.raises(AttributeError, match="nothing"):
        _ = transaction.nothing  # type: ignore[attr-defined]
    assert transaction.events == []


def test_only_so_many_txids_are_kept() -> None:
    db = database()
    apply(db, *(put("1", txid=f"t{number}") for number in range(100)))
    assert db.txids == ["t97", "t98", "t99"]


def test_a_callback_that_fails_does_not_stop_the_state(caplog: pytest.LogCaptureFixture) -> None:
    db = database()
    db.on_change(lambda change: 1 // 0)
    apply(db, put("1"))
    assert "1" in db.tables["items"]
    assert "a change callback failed" in caplog.text


def test_a_filter_that_fails_is_told_to_who_looks() -> None:
    db = database()
    query = db.tables["items"].query(lambda item: 1 // item.score)
    apply(db, put("1", score=0))
    with pytest.raises(ZeroDivisionError):
        query.values()


def test_watching_can_end() -> None:
    db = database()
    seen: list[str] = []
    end = db.on_change(lambda change: seen.append(change.key))
    apply(db, put("1"))
    end()
    end()
    apply(db, put("2"))
    assert seen == ["1"]


def test_types_without_a_collection_are_counted_and_left_alone() -> None:
    db = database()
    apply(db, {"type": "other", "key": "1", "value": 1, "headers": {"operation": "insert", "txid": "t"}})
    assert (db.counts.ignored, db.has_seen("t")) == (1, True)
    assert json.dumps(db.txids) == '["t"]'


def test_what_cannot_be_hashed_can_be_indexed() -> None:
    db = Database(define_state({"things": Collection("thing", dict, indexes=("a",))}), txids_kept=3)
    values = [{"x": 1, "y": 2}, [1], 1, None, "1"]
    apply(
        db,
        *(
            {"type": "thing", "key": str(n), "value": {"a": v}, "headers": {"operation": "insert"}}
            for n, v in enumerate(values)
        ),
    )
    for number, value in enumerate(values):
        assert list(db.tables["things"].by(a=value)) == [str(number)]
    assert list(db.tables["things"].by(a={"y": 2, "x": 1})) == ["0"]


def test_a_transaction_that_is_over_shows_nothing_more() -> None:
    db = database()
    transaction = db.begin("t1")
    transaction["items"].insert({"id": "1", "team": "a", "score": 1})
    apply(db, put("1", "a", 1, txid="t1"))
    with pytest.raises(RuntimeError, match="has ended"):
        transaction["items"].insert({"id": "2", "team": "a", "score": 1})
    assert list(db.tables["items"]) == ["1"]


def test_what_is_waited_for_is_not_forgotten() -> None:
    db = database()
    with db.expecting("t0"):
        apply(db, *(put("1", txid=f"t{number}") for number in range(100)))
        assert db.has_seen("t0")
    assert not db.has_seen("t0")


def test_a_filter_that_fails_at_a_reset_is_told_to_who_looks() -> None:
    db = database()
    query = db.tables["items"].query(lambda item: 1 // item.score)
    db.reset({"items": {"1": b'{"id":"1","team":"a","score":0}'}})
    assert list(db.tables["items"]) == ["1"]
    with pytest.raises(ZeroDivisionError):
        query.values()


def test_reading_while_others_lay_and_lift() -> None:
    db = Database(define_state({"items": Collection("item", Item)}), txids_kept=3, lock=threading.RLock())
    apply(db, put("1"))
    table = db.tables["items"]
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            db.begin("t")["items"].update({"id": "1", "team": "b", "score": 1})
            db.settle("t")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20_000):
            assert table["1"].id == "1"
            assert "1" in table
    finally:
        stop.set()
        writer.join()
        sys.setswitchinterval(interval)


def test_readers_in_other_threads_see_whole_appends_only() -> None:
    items = Collection("item", Item, indexes=("team",))
    state = define_state({"items": items, "plain": Collection("plain", int)})
    db = Database(state, txids_kept=3, lock=threading.RLock())
    table, plain = db.tables["items"], db.tables["plain"]
    query = table.query(lambda item: item.score > 0, order_by="id")
    both = [put(key, score=1) for key in "abcdefgh"]
    steps = [
        [*both, {"type": "plain", "key": "n", "value": 1, "headers": {"operation": "insert"}}],
        [*(drop(item["key"]) for item in both), {"type": "plain", "key": "n", "headers": {"operation": "delete"}}],
    ]
    batches = [RAW.decode_array(msgspec.json.encode(step)) for step in steps]
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for batch in batches:
                db.apply(batch)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    writer = threading.Thread(target=write)
    writer.start()
    seen: set[int] = set()
    try:
        for _ in range(3_000):
            seen |= {len(table), query.count(), len(query), len(table.by(team="a")), len(table.rows())}
            with db.lock:
                assert len(table) == 8 * len(plain)
                assert ("a" in table) == ("h" in table)
    finally:
        stop.set()
        writer.join()
        sys.setswitchinterval(interval)
    assert seen <= {0, 8}


def test_callbacks_see_all_that_arrived_together_and_what_they_change_comes_after_it() -> None:
    db = database()
    table = db.tables["items"]
    order: list[Any] = []

    def watch(change: StateChange[Item]) -> None:
        order.append((change.key, sorted(table)))
        if change.key == "1" and not change.optimistic:
            db.begin("t")["items"].insert({"id": "mine", "team": "a", "score": 1})

    db.on_change(watch)
    batches: list[list[str]] = []
    end = db.on_batch(lambda changes: batches.append([change.key for change in changes]))
    apply(db, put("1"), put("2"))
    assert order == [("1", ["1", "2"]), ("2", ["1", "2", "mine"]), ("mine", ["1", "2", "mine"])]
    assert batches == [["1", "2"], ["mine"]]
    end()
    end()
    apply(db, drop("1"))
    assert len(batches) == 2


def test_every_step_is_told_and_in_the_order_of_the_stream() -> None:
    db = database()
    plain = {"type": "plain", "key": "n", "value": 1, "headers": {"operation": "insert"}}
    seen: list[Any] = []
    db.on_change(lambda change: seen.append((change.collection, change.operation, change.key)))
    apply(db, put("1"), plain, put("1", score=2), drop("1"))
    assert seen == [
        ("items", "insert", "1"),
        ("plain", "insert", "n"),
        ("items", "update", "1"),
        ("items", "delete", "1"),
    ]
    seen.clear()
    apply(db, put("1"), {"headers": {"control": "reset"}}, put("2"))
    assert seen == [("items", "reset", ""), ("plain", "reset", ""), ("items", "insert", "2")]
    assert list(db.tables["items"]) == ["2"]
    assert len(db.tables["plain"]) == 0


def test_a_schema_that_fails_in_its_own_way_makes_a_bad_event() -> None:
    class Odd(msgspec.Struct):
        id: str

        def __post_init__(self) -> None:
            raise KeyError(self.id)

    class Decoder:
        def decode(self, text: bytes) -> Any:
            raise ZeroDivisionError

    for schema in (Odd, Decoder()):
        db = Database(define_state({"items": Collection("item", schema)}), txids_kept=3)
        apply(db, put("1"), drop("2"))
        assert (db.counts.bad, db.counts.events, len(db.tables["items"])) == (1, 2, 0)


@dataclasses.dataclass
class Point:
    x: int

    @property
    def double(self) -> int:
        return 2 * self.x


def test_an_unknown_field_is_an_error() -> None:
    db = database()
    with pytest.raises(ValueError, match="a value of type 'item' has no field 'taem'"):
        db.tables["items"].by(taem="a")
    with pytest.raises(ValueError, match="no field 'taem'"):
        db.tables["items"].query(taem="a")
    with pytest.raises(ValueError, match="no field 'scroe'"):
        db.tables["items"].query(order_by="scroe")
    with pytest.raises(ValueError, match="no field 'y'"):
        Collection("point", Point, indexes=("y",))


def test_fields_of_dataclasses_and_properties_are_known_and_dictionaries_may_have_any() -> None:
    Collection("point", Point, indexes=("x", "double"))
    db = Database(define_state({"things": Collection("thing", dict)}), txids_kept=3)
    assert db.tables["things"].by(anything=1) == {}
