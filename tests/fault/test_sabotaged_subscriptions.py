"""The simulation notices when subscriptions do not keep what they guarantee."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from headwater.log.commands import WriteDocument, WriteDocuments
from headwater.protocol.subscriptions.config import AckBody
from headwater.server.subscriptions import links, records, subscription, subscriptions
from headwater.server.subscriptions.links import cursor_at
from headwater.server.subscriptions.records import WakeInFlight, Wakes, WakeStream, write_cursor
from headwater.server.subscriptions.subscription import RunningSubscription
from headwater.server.subscriptions.subscriptions import Subscriptions
from tests.fault.subscription_clients import PATHS
from tests.fault.test_sabotage import caught

pytestmark = pytest.mark.timeout(0)


def noticed() -> str:
    return caught(paths=PATHS, subscribed=True)


def test_acks_that_are_answered_before_they_are_durable_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def write(self: RunningSubscription, wakes: Wakes, documents: Iterable[WriteDocument] = ()) -> None:
        command = WriteDocuments((self._document(wakes), *documents))
        self._written(wakes)
        self._around.tasks.start(self._engine.execute(command))

    monkeypatch.setattr(RunningSubscription, "_write", write)
    assert noticed()


def test_a_worker_that_acks_after_its_lease_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    fence = RunningSubscription._fence

    def lenient(self: RunningSubscription, text: str, body: AckBody) -> WakeInFlight:
        wake = self.wakes.wake
        return wake if wake is not None and wake.id == body.wake_id else fence(self, text, body)

    monkeypatch.setattr(RunningSubscription, "_fence", lenient)
    monkeypatch.setattr(RunningSubscription, "_wait_for_due", lambda self: None)  # nothing ends the wake
    assert noticed()


def test_a_token_of_another_wake_that_is_accepted_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def fence(self: RunningSubscription, text: str, body: AckBody) -> WakeInFlight:
        self._check_exists()
        return self.wakes.wake or WakeInFlight(body.wake_id, body.generation)

    monkeypatch.setattr(RunningSubscription, "_fence", fence)
    assert noticed()


def test_a_generation_that_does_not_rise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def issued(self: Wakes, wake: WakeInFlight) -> Wakes:
        return msgspec.structs.replace(self, wake=wake, next_attempt_ms=0)

    monkeypatch.setattr(Wakes, "issued", issued)
    assert "generation" in noticed()


def test_webhooks_that_ack_what_they_did_not_carry_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cursors(self: RunningSubscription, streams: Iterable[WakeStream]) -> list[WriteDocument]:
        linked = [await self.links.find(stream.path) for stream in streams]
        return [
            write_cursor(self.record.life, link.path, cursor_at(link.stream, link.stream.tail))
            for link in linked
            if link.stream is not None
        ]

    monkeypatch.setattr(RunningSubscription, "_cursors_of", cursors)
    assert "nobody has acked" in noticed()


def forget_at_restart(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    real = records.decode_wakes
    monkeypatch.setattr(subscriptions, "decode_wakes", lambda data: change(real(data)))


def test_a_retry_that_does_not_survive_a_restart_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_at_restart(monkeypatch, lambda wakes: msgspec.structs.replace(wakes, next_attempt_ms=0))
    assert "before its time" in noticed()


def test_a_wake_that_does_not_survive_a_restart_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_at_restart(monkeypatch, lambda wakes: wakes.over())
    assert "in flight is lost" in noticed()


def test_a_wake_event_that_is_not_written_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def tell(self: RunningSubscription, wakes: Wakes, wake: WakeInFlight) -> None:
        await self._write(wakes)

    monkeypatch.setattr(RunningSubscription, "_tell", tell)
    assert "wake event" in noticed()


def test_news_that_are_missed_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunningSubscription, "note_append", lambda self, path, is_member: None)
    assert noticed()


def test_a_wake_stream_that_wakes_itself_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Subscriptions, "is_wake_stream", lambda self, path: False)
    assert "is a wake stream" in noticed()


def test_a_cursor_of_a_deleted_stream_that_holds_for_the_next_one_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "is_cursor_of", lambda stream, cursor: True)
    monkeypatch.setattr(subscription, "is_cursor_of", lambda stream, cursor: True)
    assert noticed()


def test_documents_that_are_left_over_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Subscriptions, life: str) -> None:
        """They stay."""

    monkeypatch.setattr(Subscriptions, "_clear", nothing)
    assert "left over" in noticed()


def test_streams_that_are_linked_at_their_beginning_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunningSubscription, "first_cursor", lambda self, stream: [])
    assert "a cursor" in noticed()


def test_a_lease_that_ends_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WakeInFlight, "is_held", lambda self, now_ms: self.lease_until_ms > now_ms + 500)
    assert noticed()
