"""The headers that say what is kept of a stream or table: parsing them strictly, and writing them.

A header with an empty value sets no limit. A PUT with any of these headers says everything about the retention of the
new stream. A PATCH changes only what it names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from headwater.errors import InvalidHeaderError
from headwater.limits import COMPACT_AFTER_S_MAX, RETAIN_BYTES_MAX, RETAIN_MESSAGES_MAX, RETAIN_S_MAX
from headwater.log.retention import KEEP_ALL, Retention
from headwater.protocol.streams import headers

Changes: TypeAlias = tuple[tuple[str, int | bool | None], ...]  # fields of a `Retention` and their new values

_CANONICAL = re.compile(r"0|[1-9][0-9]{0,15}")


class _Field(NamedTuple):
    """A header: its name as users write it, the field of `Retention`, and how its value is parsed."""

    title: str
    field: str
    parse: Callable[[str, str], int | bool | None]


def _number(least: int, most: int, unit: str) -> Callable[[str, str], int | None]:
    def parse(title: str, value: str) -> int | None:
        if not value:
            return None
        if not _CANONICAL.fullmatch(value) or not least <= int(value) <= most:
            raise InvalidHeaderError(
                f"{title} must be a decimal number of {unit} from {least} to {most}, got {value[:80]!r}"
            )
        return int(value)

    return parse


def _flag(title: str, value: str) -> bool:
    if value.lower() not in ("", "true", "false"):
        raise InvalidHeaderError(f"{title} must be true or false, got {value[:80]!r}")
    return value.lower() == "true"


_FIELDS = {
    headers.RETAIN_SECONDS: _Field("Stream-Retain-Seconds", "seconds", _number(1, RETAIN_S_MAX, "seconds")),
    headers.RETAIN_BYTES: _Field("Stream-Retain-Bytes", "bytes", _number(1, RETAIN_BYTES_MAX, "bytes")),
    headers.RETAIN_MESSAGES: _Field("Stream-Retain-Messages", "messages", _number(1, RETAIN_MESSAGES_MAX, "messages")),
    headers.COMPACT: _Field("Stream-Compact", "compact", _flag),
    headers.COMPACT_AFTER: _Field(
        "Stream-Compact-After", "compact_after_s", _number(0, COMPACT_AFTER_S_MAX, "seconds")
    ),
}
_BY_FIELD = {to.field: to for to in _FIELDS.values()}
TITLES = ", ".join(field.title for field in _FIELDS.values())


def parse_changes(fields: Mapping[str, str]) -> Changes:
    """The changes that the headers of a request ask for; none if it has none of these headers."""
    return tuple(
        [(to.field, to.parse(to.title, fields[name].strip())) for name, to in _FIELDS.items() if name in fields]
    )


def header_of(field: str) -> str:
    """The header of a field of a `Retention`."""
    return next(name for name, to in _FIELDS.items() if to.field == field)


def parse_limit(field: str, title: str, value: str) -> int | bool | None:
    """The value of a field of a `Retention`, under another name than that of its header."""
    return _BY_FIELD[field].parse(title, value)


def parse_retention(fields: Mapping[str, str]) -> Retention | None:
    """The retention that the headers of a PUT ask for; None if it has none of these headers."""
    changes = parse_changes(fields)
    return KEEP_ALL.changed(changes) if changes else None


def check_patch(fields: Mapping[str, str]) -> Changes:
    """The changes that a PATCH asks for, at least one. Other headers of the protocol would have no effect."""
    ignored = [name for name in fields if name.startswith(("stream-", "stp-", "producer-")) and name not in _FIELDS]
    if ignored:
        raise InvalidHeaderError(f"a PATCH changes only {TITLES}, so {ignored[0]} would have no effect; remove it")
    changes = parse_changes(fields)
    if not changes:
        raise InvalidHeaderError(f"a PATCH needs at least one of {TITLES}; an empty value removes a limit")
    return changes


def retention_headers(retention: Retention | None) -> tuple[tuple[str, str], ...]:
    """The headers that describe a retention; none if everything is kept."""
    if retention is None:
        return ()
    values = ((name, getattr(retention, to.field)) for name, to in _FIELDS.items())
    return tuple([(name, _text(value)) for name, value in values if value is not None and value is not False])


def _text(value: int | bool) -> str:
    return "true" if value is True else str(value)
