"""Limits on live readers: in total, per identity, below a prefix of paths, and per token.

A place is claimed when the response is created and taken when it opens, because the client may disconnect in between.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.errors import OverloadedError, TooManyRequestsError
from headwater.limits import LIVE_RETRY_AFTER_S, Limits
from headwater.log.quotas import Prefixes, Quota, TokenQuotas
from headwater.server.admission import identity_of
from headwater.server.http import Request, Response
from headwater.server.quotas import check_readers
from headwater.server.watched_feeds import WatchedFeed


class LivePlace:
    """A place for one live reader."""

    __slots__ = ("_keys", "_places", "_taken")

    def __init__(self, places: LivePlaces, keys: Sequence[str]) -> None:
        self._places = places
        self._keys = keys
        self._taken = False

    def take(self) -> None:
        if not self._taken:
            self._taken = True
            self._places.add(self._keys, 1)

    def leave(self) -> None:
        if self._taken:
            self._taken = False
            self._places.add(self._keys, -1)

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
    """`prefixes` and `tokens` are those with quotas. Their readers are counted even if the quota does not
    limit them."""

    def __init__(self, prefixes: Prefixes | None = None, tokens: TokenQuotas | None = None) -> None:
        self._prefixes = prefixes or Prefixes(())
        self._tokens = tokens or TokenQuotas()
        self._taken = 0
        self._of: dict[str, int] = {}  # by identity, or by the key of a quota

    def __len__(self) -> int:
        return self._taken

    def of(self, quota: Quota) -> int:
        """The live readers of a prefix or token with a quota."""
        return self._of.get(quota.key, 0)

    def claim(self, limits: Limits, request: Request, path: str = "") -> LivePlace | None:
        """Claim a place for a live reader of a path in the log; None if there is no limit. Raises an error if
        there is no place left."""
        most, each = limits.live_readers_max, limits.live_readers_per_identity_max
        quotas = (*self._prefixes.of(path), *self._tokens.of(request.caller.owner))
        if not most and not each and not quotas:
            return None
        key = identity_of(request) if each else ""
        if each and self._of.get(key, 0) >= each:
            raise TooManyRequestsError(
                f"this identity has {each} live readers, and no more may be open (live_readers_per_identity_max)",
                retry_after_s=LIVE_RETRY_AFTER_S,
            )
        for quota in quotas:
            check_readers(quota, self.of(quota))
        if most and self._taken >= most:
            raise OverloadedError(
                f"{most} live readers are open, and no more may be (live_readers_max)", retry_after_s=LIVE_RETRY_AFTER_S
            )
        return LivePlace(self, (key, *(quota.key for quota in quotas)))

    def add(self, keys: Sequence[str], change: int) -> None:
        self._taken += change
        for key in keys:
            left = self._of.get(key, 0) + change
            if left:
                self._of[key] = left
            else:
                self._of.pop(key, None)
