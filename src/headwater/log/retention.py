"""Retention: how much of a stream is kept, and what a state has to know to find what can be trimmed.

Age is known from the time of the first record that is there, and size from positions. Messages are counted while they
are appended, because records do not say how many they hold: a state has marks, which are record boundaries with the
number of messages before them. There are some hundred of them at most, so for large numbers of messages a little more
is kept than was asked for.
"""

from __future__ import annotations

import msgspec

from headwater.limits import RETENTION_MARKS


class Retention(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What is kept of a stream. None: without a limit. If there are several limits, each of them trims."""

    seconds: int | None = None  # records that are older are trimmed
    bytes: int | None = None  # the newest records that fit are kept, at least the last one
    messages: int | None = None  # at least these are kept
    compact: bool = False  # the front of a state stream or a table is replaced by its state
    compact_after_s: int | None = None  # only what is older

    def changed(self, changes: tuple[tuple[str, int | bool | None], ...]) -> Retention:
        """This retention with other values in some fields."""
        return msgspec.structs.replace(self, **dict(changes))


KEEP_ALL = Retention()


class CountMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record boundary, and how many of the counted messages are before it."""

    position: int
    before: int


class Counted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The messages of a stream that were counted."""

    total: int = 0
    marks: tuple[CountMark, ...] = ()  # oldest first

    def add(self, position: int, messages: int, kept: int) -> Counted:
        """Count the messages of a record that begins at a position. `kept` is how many messages are to be kept."""
        marks = self.marks
        if not marks or self.total - marks[-1].before >= max(1, kept // RETENTION_MARKS):
            marks = (*marks, CountMark(position, self.total))
        return Counted(self.total + messages, marks)

    def excess(self, kept: int) -> int:
        """The last position after which enough messages are; 0 if there is none."""
        marks = (mark.position for mark in reversed(self.marks) if self.total - mark.before >= kept)
        return next(marks, 0)

    def after(self, position: int) -> Counted:
        """Without the marks before a position."""
        if not self.marks or self.marks[0].position >= position:
            return self
        return Counted(self.total, tuple([mark for mark in self.marks if mark.position >= position]))
