"""Waits for new data without polling.

A trigger without new data waits here. Each stream has an open long-poll, which outlives the trigger. The first response
ends the wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from headwater import limits
from headwater.client import Client
from headwater.errors import HeadwaterError


class TailWatcher:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._changed = threading.Condition()
        self._watched: set[tuple[str, str]] = set()  # stream, and the end it is watched from
        self._past: set[tuple[str, str]] = set()  # the streams with new data

    def wait(self, ends: Mapping[str, str], timeout_s: float) -> bool:
        """Wait until any stream has new data, or the time is up. If there are many streams, they are polled in turn."""
        if not ends or len(ends) > limits.SPARK_WATCHED_MAX:
            time.sleep(min(timeout_s, limits.SPARK_POLL_S) if ends else timeout_s)
            return bool(ends)
        places = set(ends.items())
        with self._changed:
            self._past &= places
            for place in places - self._watched - self._past:
                self._watched.add(place)
                threading.Thread(target=self._watch, args=place, daemon=True).start()
            has_changed = self._changed.wait_for(lambda: bool(self._past & places), timeout_s)
            self._past -= places  # reported now; the others are watched again
            return has_changed

    def _watch(self, path: str, offset: str) -> None:
        """Watch one stream until it has new data or a request fails. The waiting trigger then checks the stream."""
        try:
            self._until_past(path, offset)
        except (HeadwaterError, RuntimeError):  # httpx raises the latter once the client is closed
            time.sleep(limits.SPARK_POLL_S)
        with self._changed:
            self._watched.discard((path, offset))
            self._past.add((path, offset))
            self._changed.notify_all()

    def _until_past(self, path: str, offset: str) -> None:
        with self._client.stream(path).read(type=bytes, offset=offset, live="long-poll") as reader:
            for batch in reader.batches():
                if batch.items or batch.closed:
                    return


class TableWatcher(TailWatcher):
    """The same for tables, whose ends are SeqNos."""

    def _until_past(self, path: str, offset: str) -> None:
        with self._client.table(path).follow(since_id=int(offset)) as reader:
            if not any(map(len, reader.batches())):
                time.sleep(limits.SPARK_POLL_S)  # the table is closed; wait before the next request
