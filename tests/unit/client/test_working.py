"""What a worker claims and when, and how long it relies on a lease, without a server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import limits
from headwater.client import Client
from headwater.client.working import Agenda, LeaseClock, WakeEvent, WorkerSettings, WorkReport, worker_name
from headwater.errors import FencedError


def agenda(chance: float = 1.0) -> Agenda:
    return Agenda(lambda: chance)


def wake(subscription: str, generation: int) -> WakeEvent:
    return WakeEvent(subscription, generation)


def test_a_wake_event_is_claimed_at_once() -> None:
    plan = agenda()
    assert plan.wait_s(0.0) is None
    plan.wake(wake("a", 1), 5.0)
    assert plan.wait_s(5.0) == 0.0
    assert plan.take(5.0) == "a"
    assert plan.take(5.0) is None


def test_subscriptions_are_claimed_in_the_order_of_their_events() -> None:
    plan = agenda()
    for number, name in enumerate("cab"):
        plan.wake(wake(name, 1), float(number))
    plan.wake(wake("c", 2), 3.0)  # is planned already
    assert [plan.take(3.0) for _ in range(4)] == ["c", "a", "b", None]


def test_events_of_generations_that_were_claimed_are_stale() -> None:
    plan = agenda()
    plan.claimed("a", 7)
    plan.wake(wake("a", 7), 0.0)
    assert plan.take(9.0) is None
    plan.wake(wake("a", 8), 0.0)
    assert plan.take(9.0) == "a"
    plan.taken("a", 9)
    plan.wake(wake("a", 9), 0.0)
    assert plan.take(9.0) is None


@pytest.mark.parametrize("generation", [1, 7])
def test_a_generation_that_does_not_rise_counts(generation: int) -> None:
    plan = agenda()
    plan.wake(wake("a", 7), 0.0)
    assert plan.take(0.0) == "a"
    plan.claimed("a", 7)
    plan.wake(wake("a", generation), 1.0)  # created again, or repeated by the server
    assert plan.take(1.0) == "a"


def test_after_a_lost_lease_every_event_counts() -> None:
    plan = agenda()
    plan.claimed("a", 1)  # without an event
    plan.lost("a")
    plan.wake(wake("a", 1), 0.0)  # of another subscription with the same id
    assert plan.take(0.0) == "a"


def test_what_is_left_is_claimed_after_the_others() -> None:
    plan = agenda()
    plan.wake(wake("a", 1), 0.0)
    plan.wake(wake("b", 1), 0.0)
    assert plan.take(0.0) == "a"
    plan.claimed("a", 1)
    plan.done("a", 1.0, again=True)
    assert [plan.take(1.0) for _ in range(3)] == ["b", "a", None]
    plan.done("a", 2.0, again=False)
    assert plan.take(99.0) is None


def test_a_failure_waits_even_if_events_come() -> None:
    plan = agenda()
    waits = []
    now_s = 0.0
    for generation in range(1, 5):
        waits.append(plan.failed("a", now_s))
        plan.wake(wake("a", generation), now_s)
        plan.add("a", now_s)
        assert plan.take(now_s + waits[-1] - 0.01) is None
        now_s += waits[-1]
        assert plan.take(now_s) == "a"
    assert waits == [1.0, 2.0, 4.0, 8.0]
    plan.done("a", now_s, again=False)
    assert plan.failed("a", now_s) == 1.0


def test_a_failure_does_not_delay_other_subscriptions() -> None:
    plan = agenda()
    plan.failed("a", 0.0)
    plan.wake(wake("b", 1), 0.0)
    assert plan.take(0.0) == "b"
    assert plan.wait_s(0.0) == limits.WORK_FAILED_FIRST_S


def test_the_wait_before_a_claim_grows_with_the_claims_that_are_lost() -> None:
    plan = agenda()
    for generation in range(1, 60):
        plan.taken("a", generation)
    plan.wake(wake("a", 100), 0.0)
    assert plan.take(0.2) is None
    assert plan.take(limits.WORK_JITTER_MAX_S) == "a"
    for generation in range(101, 160):
        plan.claimed("a", generation)
    plan.wake(wake("a", 200), 0.0)
    assert plan.take(0.001) == "a"
    lucky = agenda(chance=0.0)
    lucky.taken("a", 1)
    lucky.wake(wake("a", 2), 0.0)
    assert lucky.take(0.0) == "a"


def test_a_worker_remembers_a_limited_number_of_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORK_SUBSCRIPTIONS_MAX", 3)
    plan = agenda()
    for name in "abcd":
        plan.wake(wake(name, 1), 0.0)
    assert [plan.take(0.0) for _ in range(4)] == ["b", "c", "d", None]


STEPS = st.tuples(
    st.sampled_from(["wake", "add", "take", "claimed", "taken", "again", "done", "failed", "forget"]),
    st.sampled_from("abc"),
    st.integers(0, 5),
)


@given(st.lists(STEPS, max_size=60))
def test_an_event_is_never_lost(steps: list[tuple[str, str, int]]) -> None:
    """Whatever happens before: an event of a later generation is claimed in the end."""
    plan, now_s = agenda(), 0.0
    for action, name, number in steps:
        now_s += number
        match action:
            case "wake":
                plan.wake(wake(name, number), now_s)
            case "take":
                plan.take(now_s)
            case "claimed" | "taken":
                getattr(plan, action)(name, number)
            case "again" | "done":
                plan.done(name, now_s, again=action == "again")
            case "failed":
                assert plan.failed(name, now_s) > 0
            case "add":
                plan.add(name, now_s)
            case _:
                plan.forget(name)
    for name in "abc":
        plan.wake(wake(name, 6), now_s)
    claimed = []
    while (wait_s := plan.wait_s(now_s)) is not None:
        now_s += wait_s
        claimed.append(plan.take(now_s))
    assert sorted(filter(None, claimed)) == ["a", "b", "c"]


# Leases


def test_a_lease_ends_by_the_clock_of_the_worker() -> None:
    lease = LeaseClock(30.0, claimed_s=100.0)
    assert not lease.is_lost(129.9)
    assert lease.is_lost(130.0)
    lease.extend(120.0)
    lease.extend(110.0)  # of a request that was sent before, and answered after
    assert not lease.is_lost(149.9)
    assert lease.is_lost(150.0)


def test_heartbeats_are_sent_three_times_in_a_lease() -> None:
    lease = LeaseClock(30.0, claimed_s=100.0)
    assert lease.heartbeat_s() == 110.0
    lease.extend(110.0)
    assert lease.heartbeat_s() == 120.0
    lease.try_again(121.0)  # it failed
    assert lease.heartbeat_s() == 123.5


def test_a_fenced_lease_is_lost() -> None:
    lease = LeaseClock(30.0, claimed_s=100.0)
    lease.is_fenced = True
    assert lease.is_lost(100.0)


# Settings and reports


def test_names_of_workers_differ() -> None:
    assert worker_name() != worker_name()
    with pytest.raises(ValueError, match="needs a name"):
        WorkerSettings(name="", per="batch", message_type=Any)


def test_reports_say_what_happened() -> None:
    assert str(WorkReport("claimed", "s", "w", 1)) == "s: claimed"
    assert str(WorkReport("done", "s", "w", 1, 3)) == "s: done, 3 messages processed"
    failed = WorkReport("failed", "s", "w", 1, 3, ValueError("no"), 1.25)
    assert str(failed) == "s: failed, 3 messages processed: ValueError: no; again in 1.2 s"
    lost = WorkReport("lease lost", "s", "w", 1, 0, FencedError("over"))
    assert str(lost) == "s: lease lost, 0 messages processed: over"


def test_wake_events_are_messages_of_the_protocol() -> None:
    message = {"type": "wake", "subscription_id": "s", "stream": "e/1", "generation": 7, "ts": 1778324210000}
    assert msgspec.convert(message, WakeEvent) == WakeEvent("s", 7, "e/1", 1778324210000)
    for wrong in ({**message, "type": "x"}, {**message, "generation": "7"}, {}, 1, None):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, WakeEvent)


def test_a_coroutine_function_needs_the_asynchronous_client() -> None:
    async def process(batch: object) -> None: ...

    with Client() as client, pytest.raises(TypeError, match="needs AsyncClient"):
        client.subscription("s").worker(process)
