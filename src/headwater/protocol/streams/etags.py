"""Entity tags of reads: `"{incarnation}:{start}:{end}"`, with `:c` where the reader also learns of closure."""

from __future__ import annotations

from headwater.protocol.encodings import ENCODINGS


def etag(incarnation: int, start: int, end: int, *, closed: bool) -> str:
    return f'"{incarnation}:{start}:{end}{":c" if closed else ""}"'


def encoded(tag: str, encoding: str) -> str:
    """The tag of the same read under a content encoding: other bytes, so another strong tag."""
    return f'{tag[:-1]}:{encoding}"'


def matched(if_none_match: str, tag: str) -> str | None:
    """The tag by which a validator names this read, in whatever encoding it was delivered; None if it does not."""
    if if_none_match.strip() == "*":
        return tag
    variants = {tag, *[encoded(tag, encoding) for encoding in ENCODINGS]}
    for candidate in if_none_match.split(","):
        known = candidate.strip().removeprefix("W/")
        if known in variants:
            return known
    return None
