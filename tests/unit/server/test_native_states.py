"""The table of a connection's states: complete, reachable, documented, and never left by a real connection."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.limits import Limits
from headwater.server.http import Response
from headwater.server.native import states
from headwater.server.native.states import (
    DEADLINES,
    TRANSITIONS,
    ConnectionClock,
    ConnectionState,
    Event,
    Lifecycle,
)
from headwater.transitions import ImpossibleTransitionError
from tests.unit.server.rig import Rig

LIMITS = {field.name for field in msgspec.structs.fields(Limits)}


def reachable(start: ConnectionState) -> set[ConnectionState]:
    reached, new = {start}, [start]
    while new:
        for state in TRANSITIONS[new.pop()].values():
            if state not in reached:
                reached.add(state)
                new.append(state)
    return reached


def test_every_state_can_be_reached_and_ends() -> None:
    assert set(TRANSITIONS) == set(ConnectionState)
    assert reachable(ConnectionState.ACCEPTED) == set(ConnectionState)
    for state, moves in TRANSITIONS.items():
        assert moves[Event.LOST] is ConnectionState.CLOSED, state
    assert reachable(ConnectionState.CLOSED) == {ConnectionState.CLOSED}


def test_the_moves_that_connections_make_themselves_are_those_of_the_table() -> None:
    clock = ConnectionClock(Limits())
    assert TRANSITIONS[ConnectionState.IDLE][Event.REQUEST] is ConnectionState.RESPONDING
    assert clock.timeouts_s[ConnectionState.RESPONDING] == states.NEVER_S
    assert TRANSITIONS[ConnectionState.RESPONDING][Event.ANSWERED] is ConnectionState.IDLE
    assert clock.timeouts_s[ConnectionState.IDLE] == clock.idle_s == Limits().idle_s


@pytest.mark.parametrize("state", ConnectionState)
@pytest.mark.parametrize("event", Event)
def test_every_event_in_every_state(state: ConnectionState, event: Event) -> None:
    limits = Limits()
    clock = ConnectionClock(limits)
    clock.now_s = 100.0
    machine = Lifecycle(clock)
    machine._state, machine._deadline_s = state, -1.0
    after = TRANSITIONS[state].get(event)
    if after is None:
        with pytest.raises(ImpossibleTransitionError, match=f"{event.name} cannot happen while {state.name}"):
            machine._move(event)
        assert machine._state is state
        return
    machine._move(event)
    assert machine._state is after
    if after is state:
        assert machine._deadline_s == -1.0  # the deadline runs on
    elif after in DEADLINES:
        assert machine._deadline_s == 100.0 + getattr(limits, DEADLINES[after])
    else:
        assert machine._deadline_s == float("inf")


def test_the_documented_deadlines_are_those_that_apply() -> None:
    documented = dict(re.findall(r"^    ([A-Z_]+) +\S.*?  (\w+_s|none)(?=\s)", states.__doc__ or "", re.MULTILINE))
    assert documented == {state.name: DEADLINES.get(state, "none") for state in ConnectionState}
    assert set(DEADLINES.values()) <= LIMITS


POST = b"POST /v1/stream/a HTTP/1.1\r\nhost: t\r\ncontent-length: 3\r\n\r\nabc"
PIECES = st.sampled_from(
    [
        POST,
        POST * 20,
        POST[:10],
        POST[10:50],
        POST[50:],
        b"GET / HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: t\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
        b"PUT / HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n",
        b"\r\n",
        b"garbage\r\n\r\n",
        b"PUT / HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 3_000 + b"0\r\n\r\n",
    ]
)
STEPS = st.one_of(
    PIECES,
    st.sampled_from(
        ["answer", "answer large", "close", "feed", "end feed", "read", "eof", "stop", "pause", "give up", "turns"]
    ),
    st.floats(0.1, 100),
)


@given(st.lists(STEPS, max_size=40))
def test_no_client_and_no_handler_leads_to_an_impossible_transition(steps: list[bytes | str | float]) -> None:
    rig = Rig()
    for step in steps:
        if isinstance(step, bytes):
            rig.send(step)
        elif isinstance(step, float):
            rig.pass_time(step)
        elif step == "answer":
            rig.respond(Response(200, (), (b"x",)))
        elif step == "answer large":
            rig.respond(Response(200, (), (b"x" * 1_000_000,)))
        elif step == "close":
            rig.respond(Response(400, (), (b"x",), close=True))
        elif step == "feed":
            rig.respond_with_feed()
        elif step == "end feed":
            rig.end_feed()
        elif step == "read":
            rig.transport.drain()
        elif step == "eof":
            rig.end_input()
        elif step == "pause":
            rig.close_idle()
        elif step == "give up":
            rig.give_up()
        elif step == "turns":
            rig.run_turns()
        else:
            rig.drain()
    rig.lose()
    assert rig.connection._state is ConnectionState.CLOSED
    assert rig.shared.requests.held_bytes == rig.shared.ahead.held_bytes == rig.shared.responses.held_bytes == 0
