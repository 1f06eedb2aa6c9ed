"""StreamDB over a server, both shells: preload, live changes, transactions, checkpoints, snapshots."""

from __future__ import annotations

import asyncio
import itertools
import threading
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headwater import limits
from headwater.client import AsyncClient, Client, Retry, Stream
from headwater.errors import ClientError, InvalidEventError, NetworkError, StreamClosedError, StreamNotFoundError
from headwater.state import (
    AsyncStreamDB,
    BadEvent,
    Collection,
    StateChange,
    StreamDB,
    Transaction,
    control_event,
    define_state,
)
from tests.fault.hostile import Fate, hostile
from tests.servers import Server
from tests.shells import SHELLS, client_of, database_of
from tests.waiting import wait_until, wait_until_async


class User(msgspec.Struct):
    id: str
    name: str
    team: str = ""


users = Collection("user", User, indexes=("team",))
STATE = define_state({"users": users, "counters": Collection("counter", int)})


def names(db: Any) -> dict[str, str]:
    return {key: user.name for key, user in db.users.items()}


def test_preload_and_live(stream: Stream) -> None:
    stream.append_many([users.insert(User("1", "Ann")), users.insert(User("2", "Bo"))])
    stream.append(users.delete("1"))
    with database_of(stream, STATE) as db:
        db.preload(60)
        assert names(db) == {"2": "Bo"}
        assert db.users["2"] == User("2", "Bo")
        assert "1" not in db.users
        assert len(db.users) == 1
        assert db.up_to_date
        assert db.offset == stream.head().tail_offset
        seen: list[Any] = []
        db.on_change(lambda change: seen.append((change.operation, change.key)))
        stream.append(users.update(User("2", "Bob")))
        stream.append(users.insert(User("3", "Cy", "blue")))
        wait_until(lambda: len(seen) == 2)
        assert seen == [("update", "2"), ("insert", "3")]
        assert list(db.users.query(team="blue")) == [User("3", "Cy", "blue")]
        stream.append(control_event("reset"))
        stream.append(users.insert(User("4", "Di")))
        wait_until(lambda: names(db) == {"4": "Di"})


def test_without_live_it_is_the_state_at_that_time(stream: Stream) -> None:
    stream.append(users.insert(User("1", "Ann")))
    with database_of(stream, STATE, live=False) as db:
        db.preload(60)
        stream.append(users.insert(User("2", "Bo")))
        with database_of(stream, STATE) as live:
            live.preload(60)
            wait_until(lambda: names(live) == {"1": "Ann", "2": "Bo"})
        assert names(db) == {"1": "Ann"}


def test_a_closed_stream_is_preloaded_too(stream: Stream) -> None:
    stream.append(users.insert(User("1", "Ann")), close=True)
    with database_of(stream, STATE) as db:
        db.preload(60)
        assert names(db) == {"1": "Ann"}


def test_await_txid(stream: Stream) -> None:
    with database_of(stream, STATE) as db:
        db.preload(60)
        with pytest.raises(TimeoutError):
            db.await_txid("t1", 0.05)
        later = threading.Timer(0.1, lambda: stream.append(users.insert(User("1", "Ann"), txid="t1")))
        later.start()
        db.await_txid("t1", 5)
        later.join()
        assert names(db) == {"1": "Ann"}
        db.await_txid("t1", 0)


def test_a_transaction_is_shown_appended_and_confirmed(stream: Stream) -> None:
    with database_of(stream, STATE) as db:
        db.preload(60)
        with db.transaction(10) as transaction:
            transaction.users.insert(User("1", "Ann"))
            transaction.counters.upsert(7, key="logins")
            assert names(db) == {"1": "Ann"}
            assert stream.read().all() == []
        assert [event["key"] for event in stream.read().all()] == ["1", "logins"]
        assert db.counters["logins"] == 7


def test_a_transaction_that_fails_is_rolled_back(stream: Stream) -> None:
    stream.append(users.insert(User("1", "Ann")))
    with database_of(stream, STATE) as db:
        db.preload(60)

        def change_and_fail() -> None:
            with db.transaction(10) as transaction:
                transaction.users.update(User("1", "Eve"))
                transaction.users.insert(User("2", "Bo"))
                assert names(db) == {"1": "Eve", "2": "Bo"}
                _ = 1 // 0

        with pytest.raises(ZeroDivisionError):
            change_and_fail()
        assert names(db) == {"1": "Ann"}
        stream.close()

        def change() -> None:
            with db.transaction(10) as transaction:
                transaction.users.delete("1")
                assert names(db) == {}

        with pytest.raises((StreamClosedError, ClientError)):  # refused by the server, or by us if we know already
            change()
        assert names(db) == {"1": "Ann"}


def test_an_action_commits_its_own_way_or_is_rolled_back(client: Client, stream: Stream) -> None:
    with Client(client.stream("x").url.rpartition("/")[0]) as elsewhere, database_of(stream, STATE) as db:
        db.preload(60)
        backend = elsewhere.stream(stream.url)

        def show(transaction: Transaction, name: str) -> None:
            transaction["users"].insert(User("1", name))

        def commit(transaction: Transaction, name: str) -> None:
            assert names(db) == {"1": name}
            if name == "refused":
                raise PermissionError(name)
            backend.append(users.insert(User("1", name.upper()), txid=transaction.txid))  # the backend has a say

        act = db.action(show, commit, timeout_s=10)
        with pytest.raises(PermissionError):
            act("refused")
        assert names(db) == {}
        act("ann")
        assert names(db) == {"1": "ANN"}


def test_a_checkpoint_is_resumed_without_replay(stream: Stream, tmp_path: Path) -> None:
    path = tmp_path / "state"
    stream.append_many([users.insert(User("1", "Ann"), txid="t1"), users.insert(User("2", "Bo"))])
    with database_of(stream, STATE, checkpoint=path) as db:
        db.preload(60)
    stream.append(users.delete("1"))
    with database_of(stream, STATE, checkpoint=path) as db:
        db.preload(60)
        assert names(db) == {"2": "Bo"}
        assert db.counts.events == 1  # only what came since
        db.await_txid("t1", 0)
        assert not db.save_checkpoint() or path.exists()


def test_a_checkpoint_of_a_stream_that_was_made_again_is_discarded(stream: Stream, tmp_path: Path) -> None:
    path = tmp_path / "state"
    stream.append(users.insert(User("1", "Ann")))
    with database_of(stream, STATE, checkpoint=path) as db:
        db.preload(60)
    stream.delete()
    stream.create()
    stream.append_many([users.insert(User("2", "Bo")), users.insert(User("3", "Cy"))])
    with database_of(stream, STATE, checkpoint=path) as db:
        db.preload(60)
        assert names(db) == {"2": "Bo", "3": "Cy"}


def test_a_damaged_checkpoint_is_not_used(stream: Stream, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"headwater checkpoint 1\nxxxxnonsense")
    stream.append(users.insert(User("1", "Ann")))
    with database_of(stream, STATE, checkpoint=path) as db:
        db.preload(60)
        assert names(db) == {"1": "Ann"}
    assert "damaged" in caplog.text


def test_checkpoints_are_saved_as_it_goes(stream: Stream, tmp_path: Path) -> None:
    path = tmp_path / "state"
    with database_of(stream, STATE, checkpoint=path, checkpoint_every_s=0.01) as db:
        db.preload(60)
        keys = itertools.count(1)

        def is_saved() -> bool:
            stream.append(users.insert(User(str(next(keys)), "Ann")))
            return path.exists()

        wait_until(is_saved)


def test_a_snapshot_is_found_and_the_tail_read_after_it(client: Client, stream: Stream) -> None:
    stream.append_many([users.insert(User(str(n), f"user {n}")) for n in range(50)])
    stream.append_many([users.delete(str(n)) for n in range(40)])
    with database_of(stream, STATE) as db:
        db.preload(60)
        snapshot = db.publish_snapshot()
        assert snapshot.head().closed
        assert db.publish_snapshot().url == snapshot.url
    stream.append(users.insert(User("new", "new")))
    with database_of(stream, STATE) as db:
        db.preload(60)
        assert len(db.users) == 11
        assert db.counts.events == 1
    with database_of(stream, STATE, snapshots=False) as db:
        db.preload(60)
        assert len(db.users) == 11
        assert db.counts.events == 91


def test_a_snapshot_that_is_not_whole_or_not_ours_is_passed_over(client: Client, stream: Stream) -> None:
    stream.append(users.insert(User("1", "Ann")))
    tail = stream.head().tail_offset
    path = stream.url.partition("/v1/stream/")[2]
    broken = client.stream(f"{path}.snapshots/{tail}")
    broken.create(messages=[control_event("snapshot-start"), users.insert(User("9", "lie"))], closed=True)
    other = client.stream(f"{path}.snapshots/{'0' * 15}1_{'0' * 16}")
    events = [control_event("snapshot-start"), users.insert(User("8", "old")), control_event("snapshot-end")]
    other.create(messages=events, closed=True)
    with database_of(stream, STATE) as db:
        db.preload(60)
        assert names(db) == {"1": "Ann"}


@pytest.mark.parametrize("policy", ["raise", "skip", "log", "callback"])
def test_bad_events_by_policy(stream: Stream, policy: str) -> None:
    stream.append_many([users.insert(User("1", "Ann")), {"bad": "event"}, users.insert(User("2", "Bo"))])
    letters: list[BadEvent] = []
    chosen: Any = letters.append if policy == "callback" else policy
    with database_of(stream, STATE, on_bad_event=chosen) as db:
        if policy == "raise":
            with pytest.raises(InvalidEventError) as refused:
                db.preload(60)
            assert refused.value.skip == 1
            assert names(db) == {}
            with pytest.raises(InvalidEventError):
                db.await_txid("t", 1)
            return
        db.preload(60)
        assert names(db) == {"1": "Ann", "2": "Bo"}
        assert db.counts.bad == 1
    assert len(letters) == (policy == "callback")


def test_what_goes_wrong_is_raised_by_preload(client: Client) -> None:
    with database_of(client.stream(f"missing/{uuid.uuid4().hex}"), STATE) as db, pytest.raises(StreamNotFoundError):
        db.preload(60)
    db = database_of(client.stream("x"), STATE)
    db.close()
    with pytest.raises(ClientError, match="closed"):
        db.preload(1)


def test_wrong_settings_are_refused(stream: Stream) -> None:
    with pytest.raises(ValueError, match="reserved"):
        database_of(stream, define_state({"close": Collection("x", int)}))
    with pytest.raises(ValueError, match="on_bad_event"):
        database_of(stream, STATE, on_bad_event="explode")
    with pytest.raises(ValueError, match="txids_kept"):
        database_of(stream, STATE, txids_kept=0)
    with pytest.raises(AttributeError, match="nobody"):
        _ = database_of(stream, STATE).nobody


def test_changes_can_be_iterated_over(server: Server) -> None:
    async def main() -> list[tuple[str, str]]:
        async with AsyncClient(f"http://{server.host}:{server.port}") as client:
            stream = client.stream(f"changes/{uuid.uuid4().hex}")
            await stream.create()
            async with AsyncStreamDB(stream, STATE) as db:
                await db.preload(60)
                seen: list[tuple[str, str]] = []

                async def look() -> None:
                    async for change in db.changes("users"):
                        seen.append((change.operation, change.key))

                looking = asyncio.create_task(look())
                await asyncio.sleep(0)  # it looks from now on
                await stream.append_many([users.insert(User("1", "Ann")), STATE["counters"].insert(1, key="x")])
                await stream.append(users.delete("1"))
                await stream.close()
                await asyncio.wait_for(looking, 60)
                return seen

    assert asyncio.run(main()) == [("insert", "1"), ("delete", "1")]


@pytest.mark.parametrize("shell", SHELLS)
def test_following_goes_on_through_a_bad_network(server: Server, shell: str) -> None:
    """Every live connection is cut after 1,500 bytes, which is in the middle of its second or third event."""
    reports: list[Any] = []

    def decide(what: str, times: int) -> Fate:
        return Fate("cut", 1_500) if "live=" in what else Fate()

    with (
        hostile(server, decide) as proxy,
        client_of(shell, proxy.url, on_error=reports.append, retry=Retry(first_s=0.001, most_s=0.01)) as client,
    ):
        stream = client.stream(f"cut/{uuid.uuid4().hex}")
        stream.create()
        with database_of(stream, STATE) as db:
            db.preload(60)
            for number in range(10):
                stream.append(users.insert(User(str(number), "x" * 400)))
                wait_until(partial(db.users.__contains__, str(number)))
        assert proxy.fates["cut"] >= 5
    assert all(isinstance(report.error, NetworkError) for report in reports)


def test_changes_shows_what_is_optimistic_at_once_and_bounds_what_waits(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STATE_CHANGES_WAITING_MAX", 3)

    async def main() -> None:
        async with AsyncClient(f"http://{server.host}:{server.port}") as client:
            stream = client.stream(f"changes/{uuid.uuid4().hex}")
            await stream.create()
            async with AsyncStreamDB(stream, STATE) as db:
                await db.preload(60)
                seen = db.changes("users")

                async def change_and_fail() -> None:
                    async with db.transaction() as transaction:
                        transaction["users"].insert(User("1", "Ann"))
                        shown = await asyncio.wait_for(anext(seen), 60)
                        assert (shown.operation, shown.optimistic) == ("insert", True)
                        _ = 1 // 0

                with pytest.raises(ZeroDivisionError):
                    await change_and_fail()
                assert (await asyncio.wait_for(anext(seen), 60)).operation == "delete"
                await stream.append_many([users.insert(User(str(n), "x")) for n in range(9)])
                await wait_until_async(lambda: len(db.users) == 9)  # type: ignore[attr-defined]
                with pytest.raises(ClientError, match="waiting"):
                    await anext(seen)

    asyncio.run(main())


def test_a_checkpoint_that_cannot_be_saved_does_not_stop_the_state(
    stream: Stream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    db = database_of(stream, STATE, checkpoint=tmp_path / "file" / "state", checkpoint_every_s=0)
    db.preload(60)
    for number in range(3):
        stream.append(users.insert(User(str(number), "x")))
    wait_until(lambda: len(db.users) == 3)
    assert db.error is None
    assert "was not saved" in caplog.text
    with pytest.raises(OSError, match="file"):
        db.close()


def _refuses_transactions(db: StreamDB) -> bool:
    try:
        with db.transaction():
            return False
    except ClientError as error:
        assert "not followed" in str(error)  # noqa: PT017 - until then it is not refused
        return True


def test_a_transaction_where_nothing_can_come_back_is_refused(stream: Stream) -> None:
    with database_of(stream, STATE, live=False) as db:
        with pytest.raises(ClientError, match="preload"), db.transaction():
            pass
        db.preload(60)
        wait_until(lambda: _refuses_transactions(db))
        with pytest.raises(ClientError, match="not followed"):
            db.await_txid("t", 10)


def test_a_snapshot_has_every_type_and_the_values_as_written(client: Client, stream: Stream) -> None:
    class Bare(msgspec.Struct):
        id: str

    stream.append(users.insert(User("1", "Ann", "blue")))
    stream.append(STATE["counters"].insert(7, key="n"))
    with database_of(stream, define_state({"users": Collection("user", Bare)})) as db:
        db.preload(60)
        db.publish_snapshot()
    with database_of(stream, STATE) as db:
        db.preload(60)
        assert db.counts.events == 0
        assert db.users["1"] == User("1", "Ann", "blue")
        assert db.counters["n"] == 7


def test_no_event_stops_a_live_database(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    with database_of(stream, STATE) as db:
        db.preload(60)
        stream.append_body(b'{"type":"counter","key":"n","value":1e999,"headers":{"operation":"insert"}}')
        stream.append_body(b'{"type":"","key":"n","value":1,"headers":{"operation":"insert"}}')
        stream.append_body(
            b'{"type":"user","key":"2","value":1e999,"headers":{"operation":"delete","timestamp":1e999}}'
        )
        stream.append_body(b'{"type":"counter","key":"n","value":7,"old_value":1e999,"headers":{"operation":"update"}}')
        stream.append_body(b'{"type":7,"headers":{"operation":"insert","control":"pause"}}')
        stream.append(users.insert(User("1", "Ann")))
        wait_until(lambda: names(db) == {"1": "Ann"})
        assert dict(db.counters) == {"n": 7}
        assert (db.counts.bad, db.counts.controls, db.counts.ignored) == (2, 1, 1)
        assert db.error is None
    assert "bad events were left out" in caplog.text


def test_the_key_of_an_event_is_the_primary_key_of_its_row(stream: Stream, tmp_path: Path) -> None:
    headers = {"operation": "insert"}
    stream.append_many(
        [
            {"type": "user", "key": "1", "value": {"name": "Ann"}, "headers": headers},
            {"type": "user", "key": "2", "value": {"id": "another", "name": "Bo"}, "headers": headers},
            users.insert({"name": "Cy"}, key="3"),
        ]
    )
    expected = {"1": User("1", "Ann"), "2": User("2", "Bo"), "3": User("3", "Cy")}
    for _ in range(2):  # the second time from the checkpoint
        with database_of(stream, STATE, checkpoint=tmp_path / "state") as db:
            db.preload(60)
            assert dict(db.users) == expected
            assert db.counts.bad == 0
            with db.transaction(10) as transaction:
                transaction.users.upsert({"name": "Di"}, key="4")
                assert db.users["4"] == User("4", "Di")
            assert db.users["4"] == User("4", "Di")
            expected["4"] = User("4", "Di")


def test_changes_arrive_in_batches_with_the_headers_of_their_events(stream: Stream) -> None:
    def number_of(change: StateChange[Any]) -> int:
        assert change.headers is not None
        return int(change.headers.custom["n"])

    with database_of(stream, STATE) as db:
        db.preload(60)
        batches: list[list[Any]] = []
        seen: list[int] = []
        db.on_batch(lambda changes: batches.append([(change.collection, change.key) for change in changes]))
        end = db.on_batch(lambda changes: seen.extend(number_of(change) for change in changes))
        first = users.insert(User("1", "Ann"), headers={"n": 1, "from": "shop"})
        stream.append_many(
            [first, STATE["counters"].insert(1, key="n", headers={"n": 2}), users.delete("1", headers={"n": 3})]
        )
        wait_until(lambda: seen)
        end()
        assert batches == [[("users", "1"), ("counters", "n"), ("users", "1")]]
        assert seen == [1, 2, 3]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_snapshot_is_built_on_the_last_one(server: Server, shell: str) -> None:
    """Only what came after the last snapshot is read of the stream, and the result is that of reading everything."""
    queries: list[str] = []

    def decide(what: str, times: int) -> Fate:
        queries.append(what)
        return Fate()

    with hostile(server, decide) as proxy, client_of(shell, proxy.url) as client:
        path = f"incremental/{uuid.uuid4().hex}"
        stream = client.stream(path)
        stream.create()
        stream.append_many([users.insert(User(str(n), "old")) for n in range(20)])
        stream.append({"type": "unknown", "key": "1", "value": {"any": "thing"}, "headers": {"operation": "insert"}})
        with database_of(stream, STATE) as db:
            db.preload(60)
            first = db.publish_snapshot()
            stream.append_many(
                [users.delete("1"), users.update(User("2", "new")), users.insert(User("x", "new"), txid="t")]
            )
            db.await_txid("t", 10)
            queries.clear()
            second = db.publish_snapshot()
        assert first.url != second.url
        reads = [what for what in queries if "offset=-1" in what]
        assert all(".snapshots" in what for what in reads)
        state = [
            (event["type"], event.get("key"), event.get("value")) for event in second.read().all() if "type" in event
        ]
        assert len(state) == 21
        assert ("unknown", "1", {"any": "thing"}) in state
        assert ("user", "2", {"id": "2", "name": "new", "team": ""}) in state
        assert "1" not in [key for name, key, _ in state if name == "user"]
        stream.delete()  # snapshots of a stream that was there before are not built on
        stream.create()
        stream.append(users.insert(User("9", "again")))
        with database_of(stream, STATE) as db:
            db.preload(60)
            third = db.publish_snapshot()
            assert [event["key"] for event in third.read().all() if "key" in event] == ["9"]


def test_a_snapshot_that_never_ends_does_not_turn_checkpoints_off(stream: Stream, tmp_path: Path) -> None:
    stream.append_many([control_event("snapshot-start"), users.insert(User("1", "Ann"))])
    with database_of(stream, STATE, checkpoint=tmp_path / "state") as db:
        db.preload(60)
        assert db.save_checkpoint()


def test_rows_cannot_be_read_before_preload(stream: Stream) -> None:
    stream.append(users.insert(User("1", "Ann")))
    with database_of(stream, STATE) as db:
        table = db.users
        reads: list[Callable[[], Any]] = [
            lambda: table["1"], lambda: len(table), lambda: "1" in table, table.rows, table.query,
            lambda: table.by(id="1"),
        ]  # fmt: skip
        for read in reads:
            with pytest.raises(ClientError, match="call preload first"):
                read()
        db.preload()
        assert len(table) == 1
