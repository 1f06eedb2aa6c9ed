"""Cursors: numbers of time intervals, by which caches share responses between live readers. They never decrease."""

from __future__ import annotations

from headwater import limits


def interval_at(now_ms: int) -> int:
    return (now_ms // 1000 - limits.CURSOR_EPOCH_S) // limits.CURSOR_INTERVAL_S


def next_cursor(echoed: str | None, now_ms: int, entropy: float) -> int:
    """The cursor for a reader that sent `echoed`. `entropy` in [0, 1) is the source of the jitter."""
    current = interval_at(now_ms)
    if not echoed or not echoed.isascii() or not echoed.isdigit():
        return current
    if int(echoed) < current:
        return current
    jitter_s = 1 + int(entropy * limits.CURSOR_JITTER_MAX_S)
    return int(echoed) + max(1, -(-jitter_s // limits.CURSOR_INTERVAL_S))
