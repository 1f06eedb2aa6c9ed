"""The retention of streams and tables that are created without one, by rules of the operator.

A rule is a glob and limits, as `logs/** seconds=604800 bytes=10000000000`. The first rule whose glob covers the path
applies, as a whole. A rule with `forever` keeps everything. A stream keeps the retention with which it was created.
Other rules after a restart only concern streams that are created from then on, because a mistake in a file must not
delete data.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from headwater.errors import InvalidHeaderError
from headwater.limits import RETENTION_RULES_MAX
from headwater.log.retention import KEEP_ALL, Retention
from headwater.protocol.streams.retention import parse_limit
from headwater.protocol.tables.paths import LOG_OWN_LAST, LOG_PREFIX, NOTIFY
from headwater.server.path_globs import PathGlob, parse_path_glob

FOREVER = "forever"
_FIELDS = {
    "seconds": "seconds",
    "bytes": "bytes",
    "messages": "messages",
    "compact": "compact",
    "compact_after": "compact_after_s",
}


class RetentionRule(NamedTuple):
    paths: PathGlob
    retention: Retention


class DefaultRetention:
    def __init__(self, rules: Iterable[RetentionRule] = ()) -> None:
        self._rules = tuple(rules)

    def of(self, path: str) -> Retention | None:
        """The retention of a new stream or table at a path in the log; None if no rule covers it. None covers those of
        the server itself."""
        is_internal = path.endswith(f"/{NOTIFY}") if path.startswith(LOG_PREFIX) else path <= LOG_OWN_LAST
        if is_internal:
            return None
        return next((rule.retention for rule in self._rules if rule.paths.covers(path)), None)


def parse_rules(texts: Iterable[str]) -> DefaultRetention:
    """Parse rules. ValueError names the one that is invalid."""
    rules = [parse_rule(text) for text in texts]
    if len(rules) > RETENTION_RULES_MAX:
        raise ValueError(f"there may be {RETENTION_RULES_MAX} rules, got {len(rules)}")
    return DefaultRetention(rules)


def parse_rule(text: str) -> RetentionRule:
    name, *limits = text.split() or [""]
    paths = parse_path_glob(name, "a retention")
    if limits == [FOREVER]:
        return RetentionRule(paths, KEEP_ALL)
    if not limits:
        raise ValueError(
            f"the retention of {name[:80]!r} has no limits; there are {', '.join(_FIELDS)}, as seconds=86400, "
            f"or {FOREVER}"
        )
    fields: dict[str, int | bool | None] = {}
    for limit in limits:
        key, _, value = limit.partition("=")
        if key not in _FIELDS or _FIELDS[key] in fields:
            raise ValueError(
                f"expected each of {', '.join(_FIELDS)} at most once, as seconds=86400, or {FOREVER} alone; "
                f"got {limit[:80]!r}"
            )
        fields[_FIELDS[key]] = _limit(key, value)
    retention = KEEP_ALL.changed(tuple(fields.items()))
    if retention.compact_after_s is not None and not retention.compact:
        raise ValueError("compact_after needs compact=true")
    return RetentionRule(paths, retention)


def _limit(key: str, value: str) -> int | bool:
    try:
        limit = parse_limit(_FIELDS[key], key, value)
    except InvalidHeaderError as error:
        raise ValueError(error.detail) from None
    if limit is None:
        raise ValueError(f"{key} needs a value, as {key}=1000")
    return limit
