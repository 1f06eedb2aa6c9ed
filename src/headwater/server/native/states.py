"""The states of a connection: which events move it from one to another, and how long each may last.

Theory of operation
===================

A connection handles one request at a time, in the order of arrival. Its state is one of:

    state         meaning                                                    deadline       when it passes
    ------------  ---------------------------------------------------------  -------------  --------------
    ACCEPTED      nothing has been received yet                              header_s       close
    IDLE          no request is in progress, and none has begun to arrive    idle_s         close
    READING_HEAD  the head of the next request is incomplete                 header_s       408
    READING_BODY  the head is complete, the body is not                      body_stall_s   408
    RESPONDING    a handler has a request                                    none
    HALF_CLOSED   the same, and the client has closed its sending side       half_closed_s  abort
    STREAMING     the response is a feed and stays open                      none
    BLOCKED       the client does not read its responses, or is held back    none
    LINGERING     the last response was written; what arrives is discarded   linger_s       abort
    CLOSED        the transport is closed or aborted                         none

A deadline starts when its state is entered. In `READING_BODY` each piece of the body extends it by the time that the
piece takes at `body_bytes_per_s_min`, up to `body_stall_s` from now. So the rate is that of the last `body_stall_s`: a
body that began fast may not go on slowly.

Two facts are independent of the state and are kept beside it:

- The parser reads ahead while a request is being answered. The connection looks at the parser's progress when it is
  free to: in `ACCEPTED`, `IDLE`, `READING_HEAD` and `READING_BODY`, together `READING`.
- The transport may be full in other states than `BLOCKED`. Whenever it is, and in `IDLE` and `LINGERING` if anything
  is unread, the client has `write_stall_s` to take more, or the connection is aborted.

`Lifecycle._move` is the way from one state to another. `Connection` makes the two most frequent moves itself, with the
same result: `REQUEST` in `IDLE` and `ANSWERED` in `RESPONDING`. An event that the table does not list for a state is a
defect of the server, never of the client, and raises `ImpossibleTransitionError`.
"""

from __future__ import annotations

import enum

from headwater.limits import Limits
from headwater.transitions import ImpossibleTransitionError


class ConnectionState(enum.IntEnum):
    ACCEPTED = enum.auto()
    IDLE = enum.auto()
    READING_HEAD = enum.auto()
    READING_BODY = enum.auto()
    RESPONDING = enum.auto()
    HALF_CLOSED = enum.auto()
    STREAMING = enum.auto()
    BLOCKED = enum.auto()
    LINGERING = enum.auto()
    CLOSED = enum.auto()


class Event(enum.IntEnum):
    HEAD = enum.auto()  # a part of a head has arrived
    BODY = enum.auto()  # the head is complete, perhaps with a part of the body
    REQUEST = enum.auto()  # a complete request is given to its handler
    FEED = enum.auto()  # the response is a feed
    ANSWERED = enum.auto()  # the response is written, and the connection is kept
    LAST = enum.auto()  # the last response is written, or there is none to write
    EOF = enum.auto()  # the client has closed its sending side
    PAUSED = enum.auto()  # the transport is full
    RESUMED = enum.auto()  # the transport has room again
    LOST = enum.auto()  # the transport was closed by the client, by an error or by an abort


# Module constants, because in Python 3.11 `ConnectionState.IDLE` takes ten times as long as `IDLE`.
ACCEPTED = ConnectionState.ACCEPTED
IDLE = ConnectionState.IDLE
READING_HEAD = ConnectionState.READING_HEAD
READING_BODY = ConnectionState.READING_BODY
RESPONDING = ConnectionState.RESPONDING
HALF_CLOSED = ConnectionState.HALF_CLOSED
STREAMING = ConnectionState.STREAMING
BLOCKED = ConnectionState.BLOCKED
LINGERING = ConnectionState.LINGERING
CLOSED = ConnectionState.CLOSED

HEAD = Event.HEAD
BODY = Event.BODY
REQUEST = Event.REQUEST
FEED = Event.FEED
ANSWERED = Event.ANSWERED
LAST = Event.LAST
EOF = Event.EOF
PAUSED = Event.PAUSED
RESUMED = Event.RESUMED
LOST = Event.LOST

# No request is in progress, and the client reads its responses: the next request may start.
READING = frozenset({ACCEPTED, IDLE, READING_HEAD, READING_BODY})

TRANSITIONS: dict[ConnectionState, dict[Event, ConnectionState]] = {
    ACCEPTED: {
        HEAD: READING_HEAD,
        BODY: READING_BODY,
        REQUEST: RESPONDING,
        LAST: LINGERING,
        LOST: CLOSED,
    },
    IDLE: {
        HEAD: READING_HEAD,
        BODY: READING_BODY,
        REQUEST: RESPONDING,
        LAST: LINGERING,
        PAUSED: BLOCKED,
        LOST: CLOSED,
    },
    READING_HEAD: {
        HEAD: READING_HEAD,
        BODY: READING_BODY,
        REQUEST: RESPONDING,
        LAST: LINGERING,
        PAUSED: BLOCKED,
        LOST: CLOSED,
    },
    READING_BODY: {
        BODY: READING_BODY,
        REQUEST: RESPONDING,
        LAST: LINGERING,
        PAUSED: BLOCKED,
        LOST: CLOSED,
    },
    RESPONDING: {
        FEED: STREAMING,
        ANSWERED: IDLE,
        LAST: LINGERING,
        EOF: HALF_CLOSED,
        PAUSED: RESPONDING,
        RESUMED: RESPONDING,
        LOST: CLOSED,
    },
    HALF_CLOSED: {
        FEED: STREAMING,
        ANSWERED: IDLE,
        LAST: LINGERING,
        EOF: HALF_CLOSED,
        PAUSED: HALF_CLOSED,
        RESUMED: HALF_CLOSED,
        LOST: CLOSED,
    },
    STREAMING: {
        ANSWERED: IDLE,
        LAST: LINGERING,
        PAUSED: STREAMING,
        RESUMED: STREAMING,
        LOST: CLOSED,
    },
    BLOCKED: {
        RESUMED: IDLE,
        LAST: LINGERING,
        LOST: CLOSED,
    },
    LINGERING: {
        PAUSED: LINGERING,
        RESUMED: LINGERING,
        LOST: CLOSED,
    },
    CLOSED: {
        PAUSED: CLOSED,
        RESUMED: CLOSED,
        LOST: CLOSED,
    },
}

NEVER_S = float("inf")  # the deadline of a state without a limit

# The limit on the time in a state. Other states have no limit.
DEADLINES: dict[ConnectionState, str] = {
    ACCEPTED: "header_s",
    IDLE: "idle_s",
    READING_HEAD: "header_s",
    READING_BODY: "body_stall_s",
    HALF_CLOSED: "half_closed_s",
    LINGERING: "linger_s",
}


class ConnectionClock:
    """The time of the last tick and the time limit of each state, shared by all connections of an edge."""

    __slots__ = ("body_bytes_per_s_min", "idle_s", "now_s", "timeouts_s")

    def __init__(self, limits: Limits) -> None:
        self.now_s = 0.0
        self.body_bytes_per_s_min = limits.body_bytes_per_s_min
        self.timeouts_s: dict[ConnectionState, float] = dict.fromkeys(ConnectionState, NEVER_S)
        for state, limit in DEADLINES.items():
            self.timeouts_s[state] = getattr(limits, limit)
        self.idle_s = self.timeouts_s[IDLE]


class Lifecycle:
    """The state of one connection and its deadline. It is a base class for speed: every request has two transitions."""

    __slots__ = ("_awaited_bytes", "_clock", "_deadline_s", "_state")

    def __init__(self, clock: ConnectionClock) -> None:
        self._clock = clock
        self._state = ACCEPTED
        self._awaited_bytes = 0  # of the body, when its deadline was last extended
        self._deadline_s = clock.now_s + clock.timeouts_s[ACCEPTED]

    def _move(self, event: Event) -> None:
        before = self._state
        try:
            state = TRANSITIONS[before][event]
        except KeyError:
            raise ImpossibleTransitionError(f"{event.name} cannot happen while {before.name}") from None
        if state is not before:
            self._state = state
            clock = self._clock
            self._deadline_s = clock.now_s + clock.timeouts_s[state]

    def _await_body(self, body_bytes: int) -> None:
        """Handle `BODY`, with the bytes that have arrived: each byte extends the deadline."""
        clock = self._clock
        if self._state is READING_BODY:
            gained_s = (body_bytes - self._awaited_bytes) / clock.body_bytes_per_s_min
            latest_s = clock.now_s + clock.timeouts_s[READING_BODY]
            self._deadline_s = min(latest_s, self._deadline_s + gained_s)
        self._awaited_bytes = body_bytes
        self._move(BODY)
