"""Sends many requests over a bounded number of connections."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headwater import limits

T = TypeVar("T")
R = TypeVar("R")


def in_parallel(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return the results of all items in order. After a failure no further item is started, and the error is raised."""
    todo = list(items)
    if len(todo) < 2:
        return list(map(work, todo))
    pool = ThreadPoolExecutor(min(len(todo), limits.SPARK_REQUESTS_AT_ONCE), thread_name_prefix="headwater-requests")
    try:
        return list(pool.map(work, todo))
    finally:
        pool.shutdown(cancel_futures=True)
