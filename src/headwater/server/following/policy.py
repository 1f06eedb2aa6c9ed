"""Which SURLs the server follows: those in the configuration, and those from Notify requests below an allowed prefix.

Nothing is followed by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from headwater.errors import InvalidPathError, TargetRefusedError
from headwater.limits import FOLLOWERS_MAX
from headwater.outbound import CheckedUrl, parse_target
from headwater.protocol.streams.paths import parse_path
from headwater.protocol.streams.reads import parse_query
from headwater.protocol.tables.paths import check_name

_OWN_PARAMETERS = ("since_id", "timeout", "idle")  # set by the follower


class FollowPolicy(msgspec.Struct, frozen=True):
    follows: Mapping[str, CheckedUrl] = {}  # by the name of the local table
    allowed: tuple[CheckedUrl, ...] = ()  # prefixes of SURLs from Notify requests
    development: bool = False  # loopback addresses are allowed, also with http

    def allows(self, surl: CheckedUrl) -> bool:
        return any(_is_below(surl, prefix) for prefix in self.allowed)


def parse_policy(
    follow: Iterable[str] | Mapping[str, str] = (), allow_follow: Iterable[str] = (), *, development: bool = False
) -> FollowPolicy:
    """Parse a policy from `NAME=SURL` settings or a mapping, and prefixes. ValueError if it is invalid."""
    pairs = follow.items() if isinstance(follow, Mapping) else [_split(setting) for setting in follow]
    follows: dict[str, CheckedUrl] = {}
    for name, url in pairs:
        table = _parse_name(name)
        if table in follows:
            raise ValueError(f"table {table!r} cannot follow two SURLs")
        follows[table] = parse_surl(url, development=development)
    if len(follows) > FOLLOWERS_MAX:
        raise ValueError(f"a server follows at most {FOLLOWERS_MAX} SURLs, got {len(follows)}")
    allowed = tuple(parse_surl(prefix, development=development) for prefix in allow_follow)
    return FollowPolicy(follows, allowed, development)


def parse_surl(url: str, *, development: bool) -> CheckedUrl:
    """A SURL that can be followed; ValueError otherwise."""
    try:
        target = parse_target(url, development=development)
    except TargetRefusedError as error:
        raise ValueError(str(error)) from None
    query = target.path.partition("?")[2]
    for name in _OWN_PARAMETERS:
        if name in parse_query(query):
            raise ValueError(f"a SURL to follow cannot have the parameter {name}: the follower sets it")
    return target


def _split(setting: str) -> tuple[str, str]:
    name, equals, url = setting.partition("=")
    if not equals:
        raise ValueError(f"expected NAME=SURL, got {setting!r}")
    return name, url


def _parse_name(name: str) -> str:
    try:
        return check_name(parse_path(name))
    except InvalidPathError as error:
        raise ValueError(str(error)) from None


def _is_below(surl: CheckedUrl, prefix: CheckedUrl) -> bool:
    """Compare whole segments: `/a` admits `/a`, `/a/b` and `/a?q`, not `/ab`."""
    if (surl.scheme, surl.host, surl.port) != (prefix.scheme, prefix.host, prefix.port):
        return False
    rest = surl.path.removeprefix(prefix.path)
    if rest == surl.path:
        return False
    return not rest or prefix.path.endswith("/") or rest[0] in "/?"
