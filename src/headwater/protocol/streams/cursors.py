"""Cursors: interval numbers that let caches collapse live readers and never go backwards."""

from __future__ import annotations

from headwater import limits


def interval_at(now_ms: int) -> int:
    return (now_ms // 1000 - limits.CURSOR_EPOCH_S) // limits.CURSOR_INTERVAL_S


def next_cursor(echoed: str | None, now_ms: int, entropy: float) -> int:
    """The cursor to give a reader that echoed one; `entropy` in [0, 1) places the jitter."""
    current = interval_at(now_ms)
    if not echoed or not echoed.isascii() or not echoed.isdigit():
        return current
    if int(echoed) < current:
        return current
    jitter_s = 1 + int(entropy * limits.CURSOR_JITTER_MAX_S)
    return int(echoed) + max(1, -(-jitter_s // limits.CURSOR_INTERVAL_S))
