"""What is kept of a stream or table, on the command line: options, texts, and the commands of both."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer

from headwater.cli.moments import parse_moment, parse_span
from headwater.cli.output import print_json, print_table, say
from headwater.log.retention import KEEP_ALL, Retention

if TYPE_CHECKING:
    from headwater.client import Stream, Table
    from headwater.client.retaining import CompactionReport

_TIME, _SIZE = "TIME", "SIZE"
_OLDER = "Trim records that are older: seconds, or 90m, 36h, 7d; none for no limit."
_LARGER = "Keep the newest records that fit: bytes, or 500MB, 10GB, 64MiB; none for no limit."
_MORE = "Keep at least the last so many messages, or rows; none for no limit."
_COMPACT = "Let the server replace the front by the state there."
_YOUNGER = "Compact only what is older: seconds, or 90m, 36h, 7d; none for the default."

RetainSeconds: TypeAlias = Annotated[
    str | None, typer.Option("--retain-seconds", metavar=_TIME, help=_OLDER, show_default=False)
]
RetainBytes: TypeAlias = Annotated[
    str | None, typer.Option("--retain-bytes", metavar=_SIZE, help=_LARGER, show_default=False)
]
RetainMessages: TypeAlias = Annotated[
    str | None, typer.Option("--retain-messages", metavar="COUNT", help=_MORE, show_default=False)
]
Compact: TypeAlias = Annotated[bool, typer.Option("--compact", help=_COMPACT)]
CompactAfter: TypeAlias = Annotated[
    str | None, typer.Option("--compact-after", metavar=_TIME, help=_YOUNGER, show_default=False)
]

Seconds: TypeAlias = Annotated[str | None, typer.Option("--seconds", metavar=_TIME, help=_OLDER, show_default=False)]
Bytes: TypeAlias = Annotated[str | None, typer.Option("--bytes", metavar=_SIZE, help=_LARGER, show_default=False)]
Messages: TypeAlias = Annotated[str | None, typer.Option("--messages", metavar="COUNT", help=_MORE, show_default=False)]
CompactOrNot: TypeAlias = Annotated[
    bool | None, typer.Option("--compact/--no-compact", help=_COMPACT, show_default=False)
]
Forever: TypeAlias = Annotated[bool, typer.Option("--forever", help="Keep everything from now on.")]

_NUMBER = re.compile(r"[0-9]{1,16}")
_SIZED = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?(k|M|G|T)(i?)B?", re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_NONE = "none"


# Values


def parse_seconds(text: str) -> int:
    """Parse `604800` or `7d` to whole seconds. ValueError otherwise."""
    if _NUMBER.fullmatch(text):
        return int(text)
    try:
        seconds = parse_span(text)
    except ValueError:
        raise ValueError(f"expected seconds, or a span of time such as 90m, 36h or 7d, got {text[:80]!r}") from None
    if seconds != int(seconds):
        raise ValueError(f"expected whole seconds, got {text[:80]!r}")
    return int(seconds)


def parse_size(text: str) -> int:
    """Parse `10000000`, `10MB` or `64MiB` to bytes. ValueError otherwise."""
    if _NUMBER.fullmatch(text):
        return int(text)
    sized = _SIZED.fullmatch(text)
    if sized is None:
        raise ValueError(f"expected bytes, or a size such as 500MB, 10GB or 64MiB, got {text[:80]!r}")
    return int(float(sized[1]) * (1024 if sized[3] else 1000) ** _POWERS[sized[2].lower()])


def parse_count(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"expected a number of messages, got {text[:80]!r}")
    return int(text)


def span_text(seconds: int) -> str:
    """Seconds in the largest unit that has a whole number of them."""
    unit, length = next((unit, length) for unit, length in _UNITS if seconds % length == 0)
    return f"{seconds // length}{unit}"


def size_text(size_bytes: int) -> str:
    """Bytes in the largest unit that has a whole number of them, as `parse_size` takes it."""
    for unit in ("", "k", "M", "G"):
        if size_bytes % 1000 or not size_bytes:
            return f"{size_bytes}{unit}B"
        size_bytes //= 1000
    return f"{size_bytes}TB"


def retention_text(retention: Retention | None) -> str:
    """A retention on one line; empty if everything is kept."""
    if retention is None:
        return ""
    parts = []
    if retention.seconds is not None:
        parts.append(span_text(retention.seconds))
    if retention.bytes is not None:
        parts.append(size_text(retention.bytes))
    if retention.messages is not None:
        parts.append(f"{retention.messages} messages")
    if retention.compact:
        after_s = retention.compact_after_s
        parts.append("compacted" if after_s is None else f"compacted after {span_text(after_s)}")
    return ", ".join(parts)


# Options


class RetentionOptions(NamedTuple):
    """The options of a command as they were given; None if they were not."""

    seconds: str | None
    bytes: str | None
    messages: str | None
    compact: bool | None
    compact_after: str | None

    def changes(self, prefix: str = "--") -> dict[str, Any]:
        """The fields of a retention that the options name, for `Stream.retain`."""
        parsed: dict[str, Any] = {}
        for field, option, text, parse in (
            ("seconds", f"{prefix}seconds", self.seconds, parse_seconds),
            ("bytes", f"{prefix}bytes", self.bytes, parse_size),
            ("messages", f"{prefix}messages", self.messages, parse_count),
            ("compact_after_s", "--compact-after", self.compact_after, parse_seconds),
        ):
            if text is not None:
                parsed[field] = _parsed(option, text, parse)
        if self.compact is not None:
            parsed["compact"] = self.compact
        if self.compact is False:
            parsed.setdefault("compact_after_s", None)
        return parsed


def _parsed(option: str, text: str, parse: Callable[[str], int]) -> int | None:
    if text == _NONE:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def created_retention(options: RetentionOptions) -> Retention | None:
    """The retention of a new stream; None if no option names one, so that the server decides."""
    changes = options.changes("--retain-")
    return KEEP_ALL.changed(tuple(changes.items())) if changes else None


# headwater retain, headwater table retain


def retain(target: Stream | Table, options: RetentionOptions, *, forever: bool, as_json: bool) -> None:
    """Change what is kept of a stream or table, or show it if there are no options."""
    changes = changes_of(options, forever=forever)
    if not changes:
        _show(target, as_json=as_json)
        return
    retention = target.retain(**changes)
    if as_json:
        print_json({"url": target.url, "retention": retention})
    else:
        say(f"keeps {retention_text(retention) or 'everything'} of {target.url}")


def changes_of(options: RetentionOptions, *, forever: bool) -> dict[str, Any]:
    changes = options.changes()
    if forever and changes:
        raise typer.BadParameter("it keeps everything, so it excludes the other options", param_hint="--forever")
    fields = {"seconds": None, "bytes": None, "messages": None, "compact": False, "compact_after_s": None}
    return fields if forever else changes


def _show(target: Stream | Table, *, as_json: bool) -> None:
    from headwater.client import Stream

    if isinstance(target, Stream):
        stream = target.head()
        known: dict[str, Any] = {"path": stream.path, "first_offset": stream.first_offset}
        retention = stream.retention
    else:
        table = target.info()
        known = {"name": table.name, "first_seqno": table.first_seqno}
        retention = table.retention
    if as_json:
        print_json({**known, "retention": retention})
        return
    known |= {"keeps": retention_text(retention) or "everything"}
    print_table([{"name": name, "value": value} for name, value in known.items()], ["name", "value"])


# headwater trim, headwater table trim


def parse_before(text: str, is_place: Callable[[str], bool], places: str) -> str | datetime:
    """Where a trim ends: a place in the stream or table, or a time."""
    if is_place(text):
        return text
    try:
        return parse_moment(text, datetime.now(UTC))
    except ValueError as error:
        raise typer.BadParameter(f"expected {places}, now, or a time: {error}", param_hint="--before") from None


# headwater compact, headwater table compact


def show_compaction(url: str, report: CompactionReport, *, as_json: bool) -> None:
    if as_json:
        print_json({"url": url, "compaction": report})
    elif report.compacted:
        say(f"compacted {url}: {report.before_bytes} to {report.after_bytes} bytes")
    else:
        say(f"{url} was not compacted: {report.reason}")
