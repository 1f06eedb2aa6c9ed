"""Limits on live readers: in total, per identity, below a prefix of paths, and per token. A connection that follows
several streams is as many live readers.

A place is claimed when the response is created and taken when it opens, because the client may disconnect in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from headwater.errors import OverloadedError, TooManyRequestsError
from headwater.limits import LIVE_RETRY_AFTER_S, Limits
from headwater.log.quotas import Prefixes, Quota, TokenQuotas
from headwater.server.admission import identity_of
from headwater.server.http import Request, Response
from headwater.server.quotas import check_readers
from headwater.server.watched_feeds import WatchedFeed


class LivePlace:
    """A place for a live reader, or for several that come and go together."""

    __slots__ = ("_keys", "_places", "_readers", "_taken")

    def __init__(self, places: LivePlaces, readers: int, keys: Mapping[str, int]) -> None:
        self._places = places
        self._readers = readers
        self._keys = keys
        self._taken = False

    def take(self) -> None:
        if not self._taken:
            self._taken = True
            self._places.add(self._readers, self._keys)

    def leave(self) -> None:
        if self._taken:
            self._taken = False
            self._places.add(-self._readers, {key: -count for key, count in self._keys.items()})

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

    def claim(self, limits: Limits, request: Request, *paths: str) -> LivePlace | None:
        """Claim a place for a live reader of each path in the log; None if there is no limit. Raises an error if
        there are not enough places left."""
        paths = paths or ("",)
        most, each, readers = limits.live_readers_max, limits.live_readers_per_identity_max, len(paths)
        of_token = self._tokens.of(request.caller.owner)
        quotas = [quota for path in paths for quota in (*self._prefixes.of(path), *of_token)]
        if not most and not each and not quotas:
            return None
        key = identity_of(request) if each else ""
        keys = Counter([quota.key for quota in quotas])
        if each and self._of.get(key, 0) + readers > each:
            raise TooManyRequestsError(
                f"this identity has {_taken(self._of.get(key, 0), each, readers)} (live_readers_per_identity_max)",
                retry_after_s=LIVE_RETRY_AFTER_S,
            )
        for quota in {quota.key: quota for quota in quotas}.values():
            check_readers(quota, self.of(quota), keys[quota.key])
        if most and self._taken + readers > most:
            raise OverloadedError(
                f"the server has {_taken(self._taken, most, readers)} (live_readers_max)",
                retry_after_s=LIVE_RETRY_AFTER_S,
            )
        keys[key] += readers
        return LivePlace(self, readers, keys)

    def add(self, readers: int, keys: Mapping[str, int]) -> None:
        self._taken += readers
        for key, change in keys.items():
            left = self._of.get(key, 0) + change
            if left:
                self._of[key] = left
            else:
                self._of.pop(key, None)


def _taken(taken: int, most: int, more: int) -> str:
    """Why there is no place for more readers."""
    need = "" if more == 1 else f", and this connection needs {more}"
    return f"{taken} live readers, and at most {most} may be open{need}"
