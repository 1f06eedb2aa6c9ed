"""Limits on live readers: in total and per identity.

A place is claimed when the response is created and taken when it opens, because the client may disconnect in between.
"""

from __future__ import annotations

from headwater.errors import OverloadedError, TooManyRequestsError
from headwater.limits import LIVE_RETRY_AFTER_S, Limits
from headwater.server.admission import identity_of
from headwater.server.http import Request, Response
from headwater.server.watched_feeds import WatchedFeed


class Place:
    """A place for one live reader."""

    __slots__ = ("_key", "_places", "_taken")

    def __init__(self, places: LivePlaces, key: str) -> None:
        self._places = places
        self._key = key
        self._taken = False

    def take(self) -> None:
        if not self._taken:
            self._taken = True
            self._places.add(self._key, 1)

    def leave(self) -> None:
        if self._taken:
            self._taken = False
            self._places.add(self._key, -1)

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *_: object) -> None:
        self.leave()

    def hold(self, response: Response) -> Response:
        """Take the place for as long as the response stays open."""
        if response.feed is not None:
            response.feed = WatchedFeed(response.feed, opened=self.take, ended=self.leave)
        return response


class LivePlaces:
    def __init__(self) -> None:
        self._taken = 0
        self._of_identity: dict[str, int] = {}

    def __len__(self) -> int:
        return self._taken

    def claim(self, limits: Limits, request: Request) -> Place | None:
        """Claim a place for a live reader; None if there is no limit. Raises an error if no place is left."""
        most, each = limits.live_readers_max, limits.live_readers_per_identity_max
        if not most and not each:
            return None
        key = identity_of(request) if each else ""
        if each and self._of_identity.get(key, 0) >= each:
            raise TooManyRequestsError(
                f"this identity has {each} live readers, and no more may be open (live_readers_per_identity_max)",
                retry_after_s=LIVE_RETRY_AFTER_S,
            )
        if most and self._taken >= most:
            raise OverloadedError(
                f"{most} live readers are open, and no more may be (live_readers_max)", retry_after_s=LIVE_RETRY_AFTER_S
            )
        return Place(self, key)

    def add(self, key: str, change: int) -> None:
        self._taken += change
        left = self._of_identity.get(key, 0) + change
        if left:
            self._of_identity[key] = left
        else:
            self._of_identity.pop(key, None)
