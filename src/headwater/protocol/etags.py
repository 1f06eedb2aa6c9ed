"""Entity tags of reads: `"{incarnation}:{start}:{end}"`, with `:c` where the reader also learns of closure."""

from __future__ import annotations


def etag(incarnation: int, start: int, end: int, *, closed: bool) -> str:
    return f'"{incarnation}:{start}:{end}{":c" if closed else ""}"'


def encoded(tag: str, encoding: str) -> str:
    """The tag of the same read under a content encoding: other bytes, so another strong tag."""
    return f'{tag[:-1]}:{encoding}"'


def matches(if_none_match: str, tag: str) -> bool:
    """Whether a validator names this read, in whatever encoding it was delivered."""
    if if_none_match.strip() == "*":
        return True
    bare = tag[:-1]
    for candidate in if_none_match.split(","):
        known = candidate.strip().removeprefix("W/")
        if known == tag or known in _encodings_of(bare):
            return True
    return False


def _encodings_of(bare: str) -> tuple[str, ...]:
    return tuple(f'{bare}:{encoding}"' for encoding in ("gzip", "deflate", "br", "zstd"))
