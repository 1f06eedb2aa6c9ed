"""Waiting for new data without asking for it again and again.

A trigger that finds nothing new waits here: each stream has a long-poll open, which outlives the trigger, and whichever
is answered first ends the wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from headwater import limits
from headwater.client import Client
from headwater.errors import HeadwaterError


class Watcher:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._changed = threading.Condition()
        self._watched: set[tuple[str, str]] = set()  # stream, and the end it is watched from
        self._past: set[tuple[str, str]] = set()  # those that have gone on

    def wait(self, ends: Mapping[str, str], timeout_s: float) -> bool:
        """Until any stream goes past its end, or the time is up. Many streams are only looked at in turn."""
        if not ends or len(ends) > limits.SPARK_WATCHED_MAX:
            time.sleep(min(timeout_s, limits.SPARK_POLL_S) if ends else timeout_s)
            return bool(ends)
        places = set(ends.items())
        with self._changed:
            self._past &= places
            for place in places - self._watched - self._past:
                self._watched.add(place)
                threading.Thread(target=self._watch, args=place, daemon=True).start()
            found = self._changed.wait_for(lambda: bool(self._past & places), timeout_s)
            self._past -= places  # told now; whatever did not go on is watched anew
            return found

    def _watch(self, path: str, offset: str) -> None:
        """One stream, until it goes on or cannot be asked; then whoever waits finds out what there is."""
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


class TableWatcher(Watcher):
    """The same for tables, whose ends are SeqNos."""

    def _until_past(self, path: str, offset: str) -> None:
        with self._client.table(path).follow(since_id=int(offset)) as reader:
            if not any(map(len, reader.batches())):
                time.sleep(limits.SPARK_POLL_S)  # the table is closed, and must not be asked for again at once
