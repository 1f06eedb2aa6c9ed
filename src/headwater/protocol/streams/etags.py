"""Entity tags of reads: `"{version}:{start}:{end}"`, with `:c` if the response says that the stream is closed.

The version identifies the stream and its bytes up to the end: another stream at the same path has another one, and so
has data that was appended after a restore.
"""

from __future__ import annotations

from headwater.protocol.encodings import ENCODINGS


def etag(version: int, start: int, end: int, *, closed: bool) -> str:
    return f'"{version}:{start}:{end}{":c" if closed else ""}"'


def encoded(tag: str, encoding: str) -> str:
    """The tag of a read with a content encoding. Its bytes differ, so its strong tag must differ."""
    return f'{tag[:-1]}:{encoding}"'


def matched(if_none_match: str, tag: str) -> str | None:
    """The tag in `If-None-Match` that matches this read in any content encoding; None if no tag does."""
    if if_none_match.strip() == "*":
        return tag
    variants = {tag, *[encoded(tag, encoding) for encoding in ENCODINGS]}
    for candidate in if_none_match.split(","):
        known = candidate.strip().removeprefix("W/")
        if known in variants:
            return known
    return None
