"""The state machine of one subscription, in virtual time."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from headwater import limits
from headwater.engine import Engine
from headwater.errors import (
    AlreadyClaimedError,
    FencedError,
    InvalidAckError,
    NoPendingWorkError,
    TargetUnreachableError,
)
from headwater.limits import Limits
from headwater.log.commands import ForkRequest, WriteDocument, WriteDocuments
from headwater.log.events import DOCUMENT_EVENTS
from headwater.outbound import Answer
from headwater.protocol.streams.offsets import format_offset
from headwater.protocol.subscriptions.config import AckBody, ClaimBody
from headwater.server.subscriptions import links, subscriptions
from headwater.server.subscriptions.records import Wakes
from headwater.server.subscriptions.subscription import RunningSubscription
from headwater.server.subscriptions.subscriptions import Subscriptions
from headwater.store.contract import Commit, Done, RefusedError
from headwater.store.memory import MemoryStore
from tests import virtual_time
from tests.fault.lives import LoopClock
from tests.restores import LastingStore
from tests.unit.server.subscriptions.rig import DONE, FAILED, LEASE_MS, WAKE_STREAM, Rig

LEASE_S = LEASE_MS / 1000


def run(test: Coroutine[Any, Any, None]) -> None:
    virtual_time.run(test)


def test_a_retry_that_hangs_costs_nothing_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[None] = []
    advance = RunningSubscription._advance

    async def counted(self: RunningSubscription) -> None:
        steps.append(None)
        assert len(steps) < 100, "it spins"
        await advance(self)

    monkeypatch.setattr(RunningSubscription, "_advance", counted)

    async def test() -> None:
        async with Rig() as rig:

            async def answer(_: dict[str, Any]) -> Answer:
                if len(rig.receiver.bodies) == 1:
                    return FAILED
                await asyncio.sleep(LEASE_S)
                raise TargetUnreachableError("no answer")

            rig.receiver.answers = answer
            await rig.subscribe(webhook=True)
            await rig.create("e/1", b"1")
            await asyncio.sleep(LEASE_S + 3)
            assert len(rig.receiver.bodies) == 2
            assert rig.current().wakes.failures == 2

    run(test())


def test_retries_wait_longer_and_longer_and_the_schedule_survives_a_restart() -> None:
    async def test() -> None:
        async with Rig() as rig:
            times: list[float] = []

            async def answer(_: dict[str, Any]) -> Answer:
                times.append(asyncio.get_running_loop().time())
                return FAILED

            rig.receiver.answers = answer
            await rig.subscribe(webhook=True)
            await rig.create("e/1", b"1")
            await asyncio.sleep(4)  # three attempts
            await rig.restart(wait_s=1)
            await asyncio.sleep(3)
            waits = [round(after - before) for before, after in itertools.pairwise(times)]
            assert waits == [1, 2, 4]
            assert rig.current().status == "failed"
            assert {body["wake_id"] for body in rig.receiver.bodies} == {rig.current().wakes.wake.id}  # type: ignore[union-attr]

    run(test())


def test_a_callback_during_a_post_that_hangs_has_a_lease_of_its_own() -> None:
    async def test() -> None:
        async with Rig() as rig:

            async def answer(_: dict[str, Any]) -> Answer:
                await asyncio.sleep(60)
                return DONE

            rig.receiver.answers = answer
            await rig.subscribe(webhook=True)
            await rig.create("e/1", b"1")
            await asyncio.sleep(0.1)
            wake = rig.current().wakes.wake
            assert wake is not None
            assert await rig.ack(wake, rig.receiver.bodies[0]["callback_token"]) is False
            await asyncio.sleep(LEASE_S + 1)
            assert [body["generation"] for body in rig.receiver.bodies] == [1, 2]

    run(test())


def test_a_lease_ends_at_its_time_and_not_before() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.subscribe()
            await rig.create("e/1", b"1")
            wake, _, token = await rig.claim()
            await asyncio.sleep(LEASE_S - 0.1)
            with pytest.raises(AlreadyClaimedError):
                await rig.claim()
            await rig.ack(wake, token)  # a heartbeat
            await asyncio.sleep(LEASE_S - 0.1)
            await rig.ack(wake, token)
            await asyncio.sleep(LEASE_S)
            with pytest.raises(FencedError):
                await rig.ack(wake, token, done=True)
            later, _, _ = await rig.claim()
            assert later.generation == wake.generation + 1

    run(test())


@pytest.mark.parametrize("wait_s", [0.0, LEASE_S - 1, LEASE_S + 1])
def test_after_a_restart_a_token_is_valid_or_the_generation_is_higher(wait_s: float) -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.subscribe()
            await rig.create("e/1", b"1")
            wake, streams, token = await rig.claim()
            await rig.restart(wait_s)
            if wait_s < LEASE_S:
                with pytest.raises(AlreadyClaimedError):
                    await rig.claim()
                tail = await rig.append("e/1")
                assert await rig.ack(wake, token, {"e/1": tail}, done=True) is False
                assert await rig.cursors() == {"e/1": tail}
                assert streams[0].path == "e/1"
            else:
                later, _, _ = await rig.claim()
                assert later.generation == wake.generation + 1
                with pytest.raises(FencedError):
                    await rig.ack(wake, token, done=True)

    run(test())


def test_streams_take_turns_when_more_are_pending_than_a_wake_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that always have more do not keep others from being delivered."""
    monkeypatch.setattr(limits, "WAKE_STREAMS_MAX", 2)

    async def test() -> None:
        async with Rig() as rig:
            await rig.subscribe()
            tails = {}
            for name in ("e/1", "e/2", "e/3", "e/4", "e/5"):
                await rig.create(name)
                tails[name] = await rig.append(name)
            delivered: list[str] = []
            for _ in range(3):
                wake, streams, token = await rig.claim()
                delivered += [stream.path for stream in streams]
                acks = {stream.path: tails[stream.path] for stream in streams}
                for name in acks:
                    tails[name] = await rig.append(name)
                assert await rig.ack(wake, token, acks, done=True)
            assert set(delivered) == {"e/1", "e/2", "e/3", "e/4", "e/5"}

    run(test())


def test_streams_that_do_not_fit_in_memory_take_turns_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WAKE_STREAMS_MAX", 1)
    monkeypatch.setattr(limits, "SUBSCRIPTION_PENDING_MAX", 2)

    async def test() -> None:
        async with Rig() as rig:
            await rig.subscribe()
            names = {f"e/{number}" for number in range(6)}
            tails = {}
            for name in sorted(names):
                await rig.create(name)
                tails[name] = await rig.append(name)
            delivered: list[str] = []
            for _ in range(18):
                wake, streams, token = await rig.claim()
                name = streams[0].path
                delivered.append(name)
                acks = {name: tails[name]}
                tails[name] = await rig.append(name)
                assert await rig.ack(wake, token, acks, done=True)
            assert set(delivered) == names

    run(test())


def test_an_ack_of_what_a_fork_inherits_does_not_hold_for_the_next_fork() -> None:
    """A fork at a path that had another fork of the same source, from further on."""

    async def test() -> None:
        async with Rig() as rig:
            await rig.create("source")
            first = await rig.append("source")
            second = await rig.append("source")
            await rig.subscribe(None, "fork")
            await rig.create("fork", fork=ForkRequest("source", None, 0))
            await rig.append("fork")
            wake, streams, token = await rig.claim()
            assert streams[0].acked is not None
            await rig.ack(wake, token, {"fork": second}, done=True)  # where the fork begins
            await rig.delete("fork")
            info = await rig.engine.info("source")
            await rig.create("fork", fork=ForkRequest("source", info.offset(2), 0))
            await rig.append("fork")
            await rig.append("fork")
            assert (await rig.cursors())["fork"] == first

    run(test())


def test_wakes_that_the_limit_of_an_identity_delays_begin_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "time", SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time()))

    async def test() -> None:
        async with Rig(limits=Limits(wakes_per_s_per_identity=1)) as rig:
            await rig.subscribe(webhook=True, identity="token")
            await rig.create("e/1")
            for _ in range(5):
                tail = await rig.append("e/1")
                await asyncio.sleep(0.01)
            assert await rig.cursors() != {"e/1": tail}
            await asyncio.sleep(10)
            assert await rig.cursors() == {"e/1": tail}

    run(test())


@pytest.mark.parametrize("how", ["claim", "tell"])
def test_what_is_appended_while_a_wake_without_pending_streams_ends_wakes(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.subscribe()
            await rig.create("e/1", b"1")
            await rig.create("e/2")
            await asyncio.sleep(1)
            assert rig.current().wakes.wake is not None
            await rig.delete("e/1")
            await asyncio.sleep(1)
            write = RunningSubscription._write

            async def appending(self: RunningSubscription, wakes: Wakes, documents: Any = ()) -> None:
                if wakes.wake is None:
                    await rig.append("e/2")
                await write(self, wakes, documents)

            monkeypatch.setattr(RunningSubscription, "_write", appending)
            if how == "claim":
                with pytest.raises(NoPendingWorkError):
                    await rig.claim()
            else:
                await asyncio.sleep(limits.WAKE_TOLD_AGAIN_S)
            await asyncio.sleep(1)
            assert rig.current().wakes.generation == 2

    run(test())


def test_a_wake_stream_that_is_in_use_no_more_is_linked_with_what_it_has() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.subscribe()
            other = await rig.subscribe("**", name="other", webhook=True)
            await rig.create("e/1", b"1")
            await asyncio.sleep(1)
            assert {stream["path"] for body in rig.receiver.bodies for stream in body["streams"]} == {"e/1"}
            await rig.service.delete("s")
            await asyncio.sleep(1)
            assert [stream["path"] for stream in rig.receiver.bodies[-1]["streams"]] == [WAKE_STREAM]
            assert not other.pending

    run(test())


def test_the_lag_is_known_after_a_restart_while_a_worker_holds_the_lease() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.subscribe()
            await rig.create("e/1", b"1")
            await rig.claim()
            await rig.restart()
            await asyncio.sleep(0.1)
            assert (list(rig.current().pending), await rig.current().lag_bytes()) == (["e/1"], 2)
            await rig.create("e/2", b"1")
            assert list(rig.current().pending) == ["e/1", "e/2"]

    run(test())


# What is stored


def test_nothing_is_left_of_a_subscription_that_was_deleted_before_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(self: Subscriptions, life: str) -> None:
        """The server is killed."""

    async def test() -> None:
        async with Rig() as rig:
            await rig.subscribe(None, "later", "never")
            with monkeypatch.context() as crashing:
                crashing.setattr(Subscriptions, "_clear", interrupted)
                await rig.service.delete("s")
                await rig.service.stop()
            assert len(await rig.keys()) == 3
            await rig.restart()
            await asyncio.sleep(1)
            assert await rig.keys() == ["keys"]

    run(test())


@pytest.mark.parametrize("is_made_again", [False, True])
def test_the_cursor_of_a_stream_that_was_deleted_before_a_crash_is_deleted(
    monkeypatch: pytest.MonkeyPatch, is_made_again: bool
) -> None:
    async def interrupted(self: RunningSubscription, path: str) -> None:
        """The server is killed."""

    async def test() -> None:
        async with Rig() as rig:
            await rig.create("e/1", b"1")
            await rig.create("e/2", b"1")
            await rig.subscribe()
            with monkeypatch.context() as crashing:
                crashing.setattr(RunningSubscription, "forget_cursor", interrupted)
                await rig.delete("e/1")
                await asyncio.sleep(1)
            assert await rig.keys() == ["cursor/*/e/1", "cursor/*/e/2", "keys", "record/s"]
            if is_made_again:
                await rig.create("e/1")
            await rig.restart()
            await asyncio.sleep(1)
            assert await rig.keys() == ["cursor/*/e/2", "keys", "record/s"]

    run(test())


class RefusingStore(MemoryStore):
    """The disk can be full for documents."""

    is_full = False

    def commit(self, batch: Sequence[Commit], done: Done) -> None:
        if self.is_full and any(isinstance(event, DOCUMENT_EVENTS) for commit in batch for event in commit.record):
            asyncio.get_running_loop().call_soon(done, RefusedError("no room"))
        else:
            super().commit(batch, done)


def test_what_cannot_be_deleted_on_a_full_disk_is_deleted_when_there_is_space() -> None:
    """The cursor of a deleted stream, and the documents of a deleted subscription."""
    store = RefusingStore()

    async def test() -> None:
        async with Rig(Engine(store, Limits(), clock=LoopClock())) as rig:
            for number in range(4):
                await rig.create(f"e/{number}", b"1")
            await rig.subscribe()
            await rig.subscribe(name="other")
            other = rig.service.find("other").record.life
            with pytest.MonkeyPatch.context() as patching:
                clear = rig.service._clear

                async def clear_on_a_full_disk(life: str) -> None:
                    store.is_full = True
                    await clear(life)

                patching.setattr(rig.service, "_clear", clear_on_a_full_disk)
                await rig.service.delete("other")
                await asyncio.sleep(0.1)
            await rig.delete("e/1")
            await asyncio.sleep(10)
            assert "cursor/*/e/1" in await rig.keys()
            assert f"cursor/{other}/e/0" in await rig.keys()
            store.is_full = False
            await asyncio.sleep(limits.WEBHOOK_RETRY_MAX_S)
            assert await rig.keys() == ["cursor/*/e/0", "cursor/*/e/2", "cursor/*/e/3", "keys", "record/s"]

    run(test())


def test_the_cursor_of_a_deleted_stream_goes_with_its_link_by_name() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create("e/1", b"1")
            subscription = await rig.subscribe("e/*", "e/1")
            await rig.delete("e/1")
            await asyncio.sleep(1)
            assert "cursor/*/e/1" in await rig.keys()
            await rig.service.unname(subscription, "e/1")
            assert await rig.keys() == ["keys", "record/s"]

    run(test())


def test_nothing_pending_is_no_wake() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create("e/1", b"1")
            await rig.subscribe()
            await asyncio.sleep(600)
            await rig.create("e/2")  # empty
            await asyncio.sleep(600)
            assert rig.current().wakes.generation == 0
            with pytest.raises(NoPendingWorkError):
                await rig.claim()

    run(test())


def test_wakes_from_before_a_restore_are_over_and_generations_are_not_used_again() -> None:
    """Otherwise a worker that was fenced in the lost time could ack, and two workers could have one generation."""
    store = LastingStore()

    def engine() -> Engine:
        return Engine(store, Limits(), clock=LoopClock())

    async def test() -> None:
        nonlocal store
        async with Rig(engine()) as rig:
            await rig.subscribe()
            await rig.create("e/1", b"1")
            kept, _, kept_token = await rig.claim()
        saved = copy.deepcopy(store)
        async with Rig(engine()) as rig:
            await rig.current().release(kept_token, AckBody(kept.id, kept.generation))
            lost, _, lost_token = await rig.claim()
        generations = [kept.generation, lost.generation]
        for number in (1, 2):
            store = copy.deepcopy(saved)
            store.timeline = store.next_id + number * 10**9
            async with Rig(engine()) as rig:
                for wake, token in ((kept, kept_token), (lost, lost_token)):
                    with pytest.raises(FencedError):
                        await rig.ack(wake, token)
                wake, _, token = await rig.claim()
                generations.append(wake.generation)
                await rig.subscribe("f/*", name="t")
                await rig.create("f/1", b"1")
                other = await rig.service.find("t").claim(ClaimBody("worker"))
            async with Rig(engine()) as rig:  # a restart is no restore
                await rig.ack(wake, token)
                t = rig.service.find("t")
                await t.ack(t.token(other[0]), AckBody(other[0].id, other[0].generation))
        assert generations == sorted(set(generations))

    run(test())


def test_what_was_trimmed_is_not_pending() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.subscribe()
            await rig.create("e/1", b"1")
            offsets = [await rig.append("e/1") for _ in range(3)]
            wake, _, token = await rig.claim()
            await rig.trim("e/1", offsets[1])
            assert await rig.current().lag_bytes() == 2
            await rig.ack(wake, token, {"e/1": offsets[0]})  # it was processed before it was trimmed
            with pytest.raises(InvalidAckError):
                await rig.ack(wake, token, {"e/1": offsets[1][:-1] + "7"})  # inside a record that is there
            await rig.trim("e/1", offsets[2])
            assert await rig.current().lag_bytes() == 0
            assert not await rig.ack(wake, token, done=True)  # no further wake
            with pytest.raises(NoPendingWorkError):
                await rig.claim()
            await rig.append("e/1")
            _, streams, _ = await rig.claim()
            assert [stream.path for stream in streams] == ["e/1"]

    run(test())


def test_streams_that_the_creator_may_read_again_are_delivered() -> None:
    async def test() -> None:
        async with Rig(checks_access=True) as rig:
            rig.allow("read:e/1")
            await rig.subscribe(webhook=True, identity="creator")
            await rig.create("e/1", b"1")
            await rig.create("e/2", b"1")
            await asyncio.sleep(1)
            assert [[stream["path"] for stream in body["streams"]] for body in rig.receiver.bodies] == [["e/1"]]
            rig.allow("read:e/**")
            await asyncio.sleep(1)
            assert [stream["path"] for stream in rig.receiver.bodies[-1]["streams"]] == ["e/2"]
            assert await rig.cursors() == await rig.cursors_at_tail()

    run(test())


def test_a_wake_is_not_sent_again_with_streams_that_the_creator_may_not_read_any_more() -> None:
    async def test() -> None:
        async with Rig(checks_access=True) as rig:

            async def answer(_: dict[str, Any]) -> Answer:
                return FAILED if len(rig.receiver.bodies) == 1 else DONE

            rig.receiver.answers = answer
            rig.allow("read:e/**")
            await rig.create("e/1")
            await rig.create("e/2")
            await rig.subscribe(webhook=True, identity="creator")
            await asyncio.gather(rig.append("e/1"), rig.append("e/2"))
            await asyncio.sleep(0.1)
            rig.allow("read:e/2")
            await asyncio.sleep(5)
            later = [stream["path"] for body in rig.receiver.bodies[1:] for stream in body["streams"]]
            assert later == ["e/2"]
            rig.allow()
            await rig.append("e/2")
            await asyncio.sleep(5)
            assert len(rig.receiver.bodies) == 2

    run(test())


def test_the_key_of_webhooks_is_replaced_when_it_is_old_without_a_new_subscription() -> None:
    async def test() -> None:
        async with Rig(limits=Limits(webhook_key_s=60)) as rig:
            await rig.subscribe(webhook=True)
            first = rig.service.keys.key_id
            await rig.create("e/1", b"1")
            await asyncio.sleep(30)
            assert rig.service.keys.key_id == first
            await asyncio.sleep(40)
            await rig.append("e/1")
            await asyncio.sleep(1)
            assert len(rig.receiver.bodies) == 2
            assert rig.service.keys.key_id != first

    run(test())


def test_the_cursors_of_a_subscription_that_cannot_be_read_are_kept() -> None:
    async def test() -> None:
        async with Rig() as rig:
            subscribed = await rig.subscribe()
            await rig.create("e/1", b"1")
            wake, streams, token = await rig.claim()
            await rig.ack(wake, token, {"e/1": format_offset(streams[0].tail)}, done=True)
            record = await rig.engine.document(subscribed.record.key)
            assert record is not None
            before = await rig.keys()
            await rig.engine.execute(WriteDocuments((WriteDocument(record.key, b"\xc1"),)))
            await rig.restart(wait_s=1)
            await asyncio.sleep(1)
            await rig.engine.execute(WriteDocuments((WriteDocument(record.key, record.data),)))
            await rig.restart(wait_s=1)
            assert await rig.keys() == before
            assert await rig.cursors() == await rig.cursors_at_tail()

    run(test())


def test_requests_for_one_id_are_carried_out_one_after_the_other() -> None:
    """Also the ones that wait when another one has ended: two creates at the same time would both begin."""

    async def test() -> None:
        async with Rig() as rig:
            await rig.subscribe()
            running: list[int] = []

            async def change(number: int) -> None:
                async with rig.service._changed("s"):
                    running.append(number)
                    assert len(running) == 1
                    await asyncio.sleep(1)
                    running.remove(number)

            changes = [asyncio.create_task(change(number)) for number in range(5)]
            for _ in range(50):
                await asyncio.sleep(0.1)
                async with rig.service._changed(f"other-{len(changes)}"):
                    assert len(rig.service._changing) <= 2
            await asyncio.gather(*changes)
            assert rig.service._changing == {}

    run(test())


def test_a_scan_lets_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store in memory answers without a turn of the event loop."""
    monkeypatch.setattr(links, "LIST_PAGE_MAX", 10)

    async def test() -> None:
        async with Rig() as rig:
            for number in range(30):
                await rig.create(f"e/{number}")
            linked = (await rig.subscribe()).links
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    await asyncio.sleep(0)
                    turns += 1

            counting = asyncio.create_task(count())
            await asyncio.sleep(0)
            before = turns
            assert len([link async for link in linked.after("")]) == 30
            counting.cancel()
            assert turns - before >= 3

    run(test())


def test_a_confirmation_at_another_address_looks_at_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with Rig() as rig:
            one = await rig.subscribe()
            await rig.create("e/1", b"1")
            await rig.claim()
            scans: list[None] = []
            after = one.links.after

            def counted(*arguments: Any) -> Any:
                scans.append(None)
                return after(*arguments)

            monkeypatch.setattr(one.links, "after", counted)
            wanted = msgspec.structs.replace(one.record, base="http://other.example")
            assert await rig.service.create(wanted) == (one, False)
            await asyncio.sleep(1)
            assert one.record.base == "http://other.example"
            assert scans == []

    run(test())
